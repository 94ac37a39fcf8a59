//! One attempt at a plan in one process: the memory of its copies' streams, the neighbours that
//! read and write them, and a thread for each copy. When a process of the group is lost, all others
//! give their session up and begin another one. A worker gives a session up by dropping it: its
//! copies see `aborted`, in their own time.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabric::Mapped as _;
use fabric::sync::Ordering;

use crate::acceptor::{self, Acceptor, Guest, Handshake};
use crate::copy::{Context, Filter, Reporter, work};
use crate::error::Error;
use crate::flow::Policy;
use crate::input::{Input, Source};
use crate::layout::{CopyId, Plan};
use crate::link::{self, Link};
use crate::listener::{Frames, Listener};
use crate::memory::Segment;
use crate::messages::{Transport, WorkerAddress};
use crate::outlet::{Geometry, Outlet};
use crate::output::{Chooser, Output, Target};
use crate::ring;
use crate::running::{Flag, Running};
use crate::stats::{Figures, Got, Sent};
use crate::wake::{self, Wake};
use native::Path;

/// Makes filters, and functions that choose, from the specifications in a layout.
pub trait Factory: Send + Sync {
    /// Makes the filter for one copy.
    fn filter(&self, spec: &[u8], rank: usize, copies: usize) -> Result<Box<dyn Filter>, Error>;
    /// Makes the function of a stream with [`Policy::User`].
    fn chooser(&self, spec: &[u8]) -> Result<Box<dyn Chooser>, Error>;
}

/// The terms of an attempt, the same for all workers.
#[derive(Debug, Clone)]
pub struct Terms {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Which attempt.
    pub epoch: u64,
    /// Where each worker is reached.
    pub addresses: Vec<WorkerAddress>,
    /// How buffers go.
    pub transport: Transport,
    /// Whether spans are recorded.
    pub trace: bool,
    /// Which worker this process is.
    pub me: usize,
    /// The secret of the group.
    pub token: String,
}

/// A stream, copy of its producer and copy of its consumer.
type Key = (usize, usize, usize);

/// How a neighbour is reached.
enum Route {
    Memory { wakes: Arc<Segment>, outlets: HashMap<(usize, usize), Arc<Outlet>> },
    Link(Arc<Link>),
}

/// The attempt.
pub struct Session {
    terms: Terms,
    aborted: Arc<Flag>,
    wakes: Arc<Segment>,
    jobs: Vec<(CopyId, Sender<Arc<Running>>)>,
    threads: Vec<JoinHandle<()>>,
    running: Mutex<BTreeMap<u64, Arc<Running>>>,
    sent: BTreeMap<Key, Arc<Sent>>,
    got: BTreeMap<Key, Arc<Got>>,
    /// Neighbours without memory in common.
    remote: HashMap<usize, Arc<Link>>,
    outlets: HashMap<(usize, usize), Arc<Outlet>>,
}

/// The error when a session was made.
#[derive(Debug)]
pub struct Unfit {
    /// The copy that could not be made, if that was it.
    pub copy: Option<CopyId>,
    /// Why.
    pub error: Error,
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Unfit {
        Unfit { copy: None, error: error.into() }
    }
}

impl Session {
    /// Makes memory, links up with the neighbours, makes the filters, and starts their threads.
    /// `reporter` makes one for each copy; `broken` is called when a link breaks.
    pub fn start(
        terms: Terms,
        aborted: Arc<Flag>,
        acceptor: &Acceptor,
        factory: &dyn Factory,
        reporter: &dyn Fn(CopyId) -> Box<dyn Reporter>,
    ) -> Result<Session, Unfit> {
        let plan = Arc::clone(&terms.plan);
        let mine: Vec<CopyId> = plan.all().filter(|&copy| plan.worker_of(copy) == terms.me).collect();
        // Filters first: mistakes in them are the likeliest, and found soonest.
        let mut filters = Vec::new();
        for &copy in &mine {
            let spec = &plan.layout.filters[copy.filter].spec;
            let made = factory.filter(spec, copy.rank, plan.count(copy.filter));
            filters.push(made.map_err(|error| Unfit { copy: Some(copy), error })?);
        }
        let wakes = Arc::new(Segment::create(wake::STRIDE * plan.all().count())?);
        let mut builder = Builder {
            terms: &terms,
            plan: &plan,
            wakes: Arc::clone(&wakes),
            outlets: HashMap::new(),
            stands: HashMap::new(),
            routes: HashMap::new(),
        };
        builder.make_outlets(&mine)?;
        builder.meet(acceptor, &aborted)?;
        let mut session = Session {
            aborted,
            wakes,
            jobs: Vec::new(),
            threads: Vec::new(),
            running: Mutex::default(),
            sent: BTreeMap::new(),
            got: BTreeMap::new(),
            remote: builder.links(),
            outlets: builder.outlets.clone(),
            terms: terms.clone(),
        };
        let mut contexts = Vec::new();
        for &copy in &mine {
            contexts.push(builder.context(copy, &mut session, factory, reporter(copy))?);
        }
        let listeners: Arc<[Arc<Listener>]> = session
            .remote
            .iter()
            .map(|(&peer, link)| builder.listener(peer, link, &session.aborted))
            .collect();
        for ((&copy, filter), mut context) in mine.iter().zip(filters).zip(contexts) {
            context.helps(&listeners);
            session.spawn(copy, filter, context)?;
        }
        for listener in listeners.iter().map(Arc::clone) {
            thread::Builder::new().name("shunt-link".into()).spawn(move || listener.run())?;
        }
        Ok(session)
    }

    /// Begins a unit of work in all copies.
    pub fn append(&self, uow: u64, params: Vec<u8>) {
        let running = Arc::new(Running::new(uow, params, Arc::clone(&self.aborted)));
        let mut all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // Units that no copy works on any more have ended.
        all.retain(|_, running| Arc::strong_count(running) > 1);
        all.insert(uow, Arc::clone(&running));
        drop(all);
        for (_, jobs) in &self.jobs {
            // A thread that is gone has panicked outside of its filter: the caller will find its
            // worker dead.
            let _ = jobs.send(Arc::clone(&running));
        }
    }

    /// Cancels a unit of work.
    pub fn cancel(&self, uow: u64) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).get(&uow) {
            running.cancel();
        }
        self.wake_all();
    }

    /// The counts of the copies.
    pub fn figures(&self) -> Vec<Figures> {
        let plan = &self.terms.plan;
        let keys = self.sent.keys().chain(self.got.keys()).collect::<std::collections::BTreeSet<_>>();
        keys.into_iter()
            .map(|&(stream, producer, consumer)| {
                let def = &plan.layout.streams[stream];
                let (from, to) =
                    (CopyId { filter: def.from, rank: producer }, CopyId { filter: def.to, rank: consumer });
                let other =
                    [plan.worker_of(from), plan.worker_of(to)].into_iter().find(|&at| at != self.terms.me);
                let mut figures = Figures {
                    stream: def.name.clone(),
                    producer: plan.name_of(from),
                    consumer: plan.name_of(to),
                    way: other.map_or("thread", |other| self.way_to(other)).into(),
                    ..Figures::default()
                };
                if let Some(sent) = self.sent.get(&(stream, producer, consumer)) {
                    let outlet = &self.outlets[&(stream, producer)];
                    let at = outlet.geometry().queue(consumer) + ring::ACKNOWLEDGED;
                    // Read first: otherwise more could seem to be acknowledged than sent.
                    let acknowledged = outlet.words().atomic(at).load(Ordering::Acquire);
                    figures.add_sent(sent);
                    figures.unacknowledged = figures.sent.saturating_sub(acknowledged);
                }
                if let Some(got) = self.got.get(&(stream, producer, consumer)) {
                    figures.add_got(got);
                }
                figures
            })
            .collect()
    }

    /// Gives it up, and waits for its threads: not for ever, as a filter may be in the middle of
    /// something long.
    pub fn finish(mut self, patience: Duration) {
        let threads = std::mem::take(&mut self.threads);
        drop(self);
        let until = Instant::now() + patience;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn way_to(&self, worker: usize) -> &'static str {
        self.remote.get(&worker).map_or("memory", |link| link.way())
    }

    fn wake_all(&self) {
        for at in 0..self.terms.plan.all().count() {
            Wake::new(&self.wakes, at).fire();
        }
    }

    fn spawn(&mut self, copy: CopyId, mut filter: Box<dyn Filter>, mut context: Context) -> io::Result<()> {
        let (sender, jobs) = channel();
        let trace = self.terms.trace;
        let name = self.terms.plan.name_of(copy);
        // The kernel keeps 15 characters.
        let body = move || work(&mut *filter, &mut context, &jobs, trace);
        self.threads.push(thread::Builder::new().name(name).spawn(body)?);
        self.jobs.push((copy, sender));
        Ok(())
    }
}

impl Drop for Session {
    /// Copies end when they have nothing to do; those in the middle of something see that it is
    /// over.
    fn drop(&mut self) {
        self.aborted.set();
        self.jobs.clear();
        self.wake_all();
        for link in self.remote.values() {
            link.close();
        }
    }
}

/// The parts of a session while it is made.
struct Builder<'a> {
    terms: &'a Terms,
    plan: &'a Plan,
    wakes: Arc<Segment>,
    /// Outlets of the producer copies of this process, by stream and rank.
    outlets: HashMap<(usize, usize), Arc<Outlet>>,
    /// Outlets that stand for those of neighbours without memory in common.
    stands: HashMap<(usize, usize), Arc<Outlet>>,
    routes: HashMap<usize, Route>,
}

impl Builder<'_> {
    fn geometry(&self, stream: usize) -> Geometry {
        let def = &self.plan.layout.streams[stream];
        Geometry::new(def, self.plan.count(def.to))
    }

    /// The place of a copy among all, and of the word on which it sleeps.
    fn index(&self, copy: CopyId) -> usize {
        self.plan.copies[..copy.filter].iter().map(Vec::len).sum::<usize>() + copy.rank
    }

    fn make_outlets(&mut self, mine: &[CopyId]) -> io::Result<()> {
        for &copy in mine {
            for stream in self.plan.layout.outputs(copy.filter) {
                self.outlets.insert((stream, copy.rank), Outlet::create(self.geometry(stream))?);
            }
        }
        Ok(())
    }

    /// The outlets of one worker that have readers in another, in an order that both know.
    fn shared(&self, owner: usize, reader: usize) -> Vec<(usize, usize)> {
        let mut shared = Vec::new();
        for (stream, def) in self.plan.layout.streams.iter().enumerate() {
            if !self.plan.copies[def.to].contains(&reader) {
                continue;
            }
            let producers = self.plan.copies[def.from].iter().enumerate();
            shared.extend(producers.filter(|&(_, &worker)| worker == owner).map(|(rank, _)| (stream, rank)));
        }
        shared
    }

    /// Links up with all neighbours: connects to those with higher numbers, then waits for the
    /// others.
    fn meet(&mut self, acceptor: &Acceptor, aborted: &Flag) -> io::Result<()> {
        let me = self.terms.me;
        let peers: Vec<usize> = (0..self.plan.workers.len())
            .filter(|&peer| {
                peer != me && !(self.shared(me, peer).is_empty() && self.shared(peer, me).is_empty())
            })
            .collect();
        let handshake =
            |from, to| Handshake { token: self.terms.token.clone(), epoch: self.terms.epoch, from, to };
        let mut guests = Vec::new();
        for &peer in peers.iter().filter(|&&peer| peer > me) {
            guests.push((peer, self.call(peer, acceptor, &handshake(me, peer))?));
        }
        for &peer in peers.iter().filter(|&&peer| peer < me) {
            guests.push((peer, acceptor.await_guest(&handshake(peer, me), || aborted.is_set())?));
        }
        // All workers in the order of the pairs' numbers: otherwise three that are connected to
        // each other would wait in a circle.
        guests.sort_by_key(|&(peer, _)| peer);
        for (peer, guest) in guests {
            let route = match guest {
                Guest::Kin(stream) => self.exchange(peer, stream)?,
                Guest::Remote(wire) => {
                    // The worker that connected asks.
                    let offset =
                        if peer > me { link::ask_clock(&*wire)? } else { link::answer_clock(&*wire)? };
                    Route::Link(Arc::new(Link::new(wire, offset)))
                }
            };
            self.routes.insert(peer, route);
        }
        Ok(())
    }

    /// Connects: with shared memory if that is possible, else by TCP.
    fn call(&self, peer: usize, own: &Acceptor, handshake: &Handshake) -> io::Result<Guest> {
        let address = &self.terms.addresses[peer];
        if self.terms.transport == Transport::Auto && address.kin == own.address().kin {
            // In a sandbox it may be out of reach all the same.
            if let Ok(stream) = acceptor::connect_as_kin(address, handshake) {
                return Ok(Guest::Kin(stream));
            }
        }
        let path = if self.terms.transport == Transport::Tcp { Path::Tcp } else { Path::Auto };
        Ok(Guest::Remote(acceptor::connect_remotely(address, handshake, path)?))
    }

    /// Both pass on their words and the outlets that the other reads.
    fn exchange(&self, peer: usize, mut stream: std::os::unix::net::UnixStream) -> io::Result<Route> {
        let me = self.terms.me;
        let mut files: Vec<&OwnedFd> = self.wakes.file().into_iter().collect();
        for key in self.shared(me, peer) {
            let (words, pool) = self.outlets[&key].files().expect("this process made it");
            files.extend([words, pool]);
        }
        acceptor::send_files(&stream, &files)?;
        let theirs = self.shared(peer, me);
        let got = acceptor::receive_files(&stream, 1 + theirs.len() * 2)?;
        let wakes = Arc::new(Segment::open(&got[0], wake::STRIDE * self.plan.all().count())?);
        let mut outlets = HashMap::new();
        for (key, files) in theirs.into_iter().zip(got[1..].chunks(2)) {
            outlets.insert(key, Outlet::open(self.geometry(key.0), &files[0], &files[1])?);
        }
        acceptor::agree(&mut stream)?;
        Ok(Route::Memory { wakes, outlets })
    }

    fn links(&self) -> HashMap<usize, Arc<Link>> {
        let links = self.routes.iter().filter_map(|(&peer, route)| match route {
            Route::Link(link) => Some((peer, Arc::clone(link))),
            Route::Memory { .. } => None,
        });
        links.collect()
    }

    /// The word that a copy sleeps on, if this process can write it.
    fn wake_of(&self, copy: CopyId) -> Option<Wake> {
        let worker = self.plan.worker_of(copy);
        if worker == self.terms.me {
            return Some(Wake::new(&self.wakes, self.index(copy)));
        }
        match &self.routes[&worker] {
            Route::Memory { wakes, .. } => Some(Wake::new(wakes, self.index(copy))),
            Route::Link(_) => None,
        }
    }

    fn link_to(&self, copy: CopyId) -> Arc<Link> {
        match &self.routes[&self.plan.worker_of(copy)] {
            Route::Link(link) => Arc::clone(link),
            Route::Memory { .. } => unreachable!("who shares memory has no link"),
        }
    }

    fn context(
        &mut self,
        copy: CopyId,
        session: &mut Session,
        factory: &dyn Factory,
        reporter: Box<dyn Reporter>,
    ) -> Result<Context, Unfit> {
        let layout = &self.plan.layout;
        let mut inputs = Vec::new();
        for (place, stream) in layout.inputs(copy.filter).enumerate() {
            let def = &layout.streams[stream];
            let mut channels = Vec::new();
            for rank in 0..self.plan.count(def.from) {
                let counts = Arc::new(Got::default());
                session.got.insert((stream, rank, copy.rank), Arc::clone(&counts));
                let (outlet, source) = self.source(stream, CopyId { filter: def.from, rank })?;
                channels.push((outlet, source, counts));
            }
            inputs.push(Input::new(stream, place, copy.rank, def, channels));
        }
        let mut outputs = Vec::new();
        for stream in layout.outputs(copy.filter) {
            let def = &layout.streams[stream];
            let (mut targets, mut counts) = (Vec::new(), Vec::new());
            for rank in 0..self.plan.count(def.to) {
                let to = CopyId { filter: def.to, rank };
                targets.push(match self.wake_of(to) {
                    Some(wake) => Target::Memory(wake),
                    None => Target::Link(self.link_to(to)),
                });
                let sent = Arc::new(Sent::default());
                session.sent.insert((stream, copy.rank, rank), Arc::clone(&sent));
                counts.push(sent);
            }
            let chooser = match def.policy {
                Policy::User => {
                    Some(factory.chooser(&def.chooser).map_err(|error| Unfit { copy: Some(copy), error })?)
                }
                _ => None,
            };
            let outlet = Arc::clone(&self.outlets[&(stream, copy.rank)]);
            outputs.push(Output::new(stream, def, copy.rank, outlet, targets, chooser, counts));
        }
        let wake = Wake::new(&self.wakes, self.index(copy));
        let host = self.plan.host_of(self.terms.me).to_string();
        let (name, copies) = (self.plan.name_of(copy), self.plan.count(copy.filter));
        Ok(Context::new(copy, name, host, copies, inputs, outputs, wake, reporter))
    }

    /// The source of a producer copy's buffers for a consumer copy of this process.
    fn source(&mut self, stream: usize, from: CopyId) -> io::Result<(Arc<Outlet>, Source)> {
        let key = (stream, from.rank);
        if let Some(wake) = self.wake_of(from) {
            let outlet = match self.routes.get(&self.plan.worker_of(from)) {
                Some(Route::Memory { outlets, .. }) => &outlets[&key],
                _ => &self.outlets[&key],
            };
            return Ok((Arc::clone(outlet), Source::Memory(wake)));
        }
        let link = self.link_to(from);
        if let Some(stand) = self.stands.get(&key) {
            return Ok((Arc::clone(stand), Source::Link(link)));
        }
        let stand = Outlet::create(self.geometry(stream))?;
        self.stands.insert(key, Arc::clone(&stand));
        Ok((stand, Source::Link(link)))
    }

    /// Delivers the frames of a neighbour's link.
    fn listener(&self, peer: usize, link: &Arc<Link>, aborted: &Arc<Flag>) -> Arc<Listener> {
        let mut frames = Frames::new(link, Arc::clone(aborted));
        for (&(stream, rank), outlet) in &self.stands {
            let def = &self.plan.layout.streams[stream];
            if self.plan.worker_of(CopyId { filter: def.from, rank }) != peer {
                continue;
            }
            let wakes = (0..self.plan.count(def.to)).map(|rank| {
                let to = CopyId { filter: def.to, rank };
                (self.plan.worker_of(to) == self.terms.me).then(|| Wake::new(&self.wakes, self.index(to)))
            });
            frames.arrive(stream, rank, outlet, wakes.collect());
        }
        for (&(stream, rank), outlet) in &self.outlets {
            let def = &self.plan.layout.streams[stream];
            let theirs = self.plan.copies[def.to].iter().map(|&worker| worker == peer).collect();
            let wake = Wake::new(&self.wakes, self.index(CopyId { filter: def.from, rank }));
            frames.depart(stream, rank, outlet, theirs, wake);
        }
        Arc::new(Listener::new(link, frames))
    }
}
