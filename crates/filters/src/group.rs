//! A filter group: the caller's side. One thread, which all messages and wishes come to, knows where everything stands; so there is one order of
//! events, and nothing to lock.
//!
//! When a process of the group is lost, the units of work that were under way fail (or are run again, if they may be), the process is started
//! again, and everybody begins a new attempt at the plan; units that were waiting go on then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::copy::{Span, State};
use crate::door::PATIENCE;
use crate::error::Failure;
use crate::launch::{Launcher, Local, Process};
use crate::layout::{CALLER, CopyId, Layout, Placement, Plan};
use crate::messages::{self, Door, FromWorker, Hello, ToWorker, Transport, VERSION};
use crate::session::Factory;
use crate::stats::Figures;
use crate::unit::{Part, Shared, Unit};
use crate::worker::{self, Control, Ticket};

/// How a group is made.
pub struct Options {
    /// What runs where.
    pub placement: Placement,
    /// What starts processes.
    pub launcher: Box<dyn Launcher>,
    /// What starts processes beside the caller's, for filters with [`crate::Place::processes`] that are placed there.
    pub beside: Local,
    /// How buffers go between processes.
    pub transport: Transport,
    /// How many units of work may be under way at once; 1 to [`WINDOW_MOST`].
    pub window: usize,
    /// Whether spans are recorded, for [`Group::spans`].
    pub trace: bool,
}

/// See [`Options::window`]: ends of units of work need room in the queues.
pub const WINDOW_MOST: usize = 16;

/// How a unit of work is run.
#[derive(Debug, Clone, Copy, Default)]
pub struct UnitOptions {
    /// How long it may take from being appended; it fails then.
    pub timeout: Option<Duration>,
    /// How often it is run again after a process was lost. If not 0, its partial results are handed out at its end only, as those of an attempt that
    /// was lost must not be.
    pub reruns: usize,
}

/// What a copy was doing, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// The copy, as people name it.
    pub copy: String,
    /// Its host.
    pub host: String,
    /// Its place among all copies.
    pub index: usize,
    /// The unit of work.
    pub uow: u64,
    /// What and when.
    pub span: Span,
}

/// What is to be seen of a group from outside.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// What the copies do.
    pub copies: Vec<CopyStatus>,
    /// What has gone by which stream.
    pub figures: Vec<Figures>,
    /// Units of work that are done, have failed, are under way, wait.
    pub units: [usize; 4],
    /// How often processes were lost.
    pub losses: u64,
}

/// What one copy does.
#[derive(Debug, Clone)]
pub struct CopyStatus {
    /// The copy, as people name it.
    pub name: String,
    /// Its host, by the launcher's name.
    pub host: String,
    /// The machine's own name.
    pub machine: String,
    /// Its process.
    pub pid: u32,
    /// What it does; `None` if that is not known.
    pub state: Option<State>,
    /// In which unit of work.
    pub uow: u64,
    /// How many it has ended.
    pub ended: u64,
}

/// A filter group that runs.
pub struct Group {
    events: Sender<Event>,
    thread: Option<JoinHandle<()>>,
    plan: Arc<Plan>,
    next: std::sync::Mutex<u64>,
}

/// What comes to the thread.
pub(crate) enum Event {
    Came(usize, Control, Hello),
    Said(usize, u64, FromWorker),
    Gone(usize, u64),
    Append { uow: u64, params: Vec<u8>, options: UnitOptions, shared: Arc<Shared> },
    Cancel(u64, Failure),
    Status(Sender<Status>),
    Spans(Sender<Vec<Traced>>),
    Close,
}

impl Group {
    /// Starts one: returns when all copies are ready, or with what is in the way.
    pub fn start(layout: &Layout, options: Options, factory: Arc<dyn Factory>) -> Result<Group, Failure> {
        let Options { placement, mut launcher, beside, transport, window, trace } = options;
        let closed = |what: String| Failure::Closed(what);
        let hosts =
            launcher.hosts().map_err(|error| closed(format!("the launcher has no hosts: {error}")))?;
        let plan = Arc::new(
            Plan::new(layout, &placement, &hosts).map_err(|wrong| Failure::Mistake(wrong.to_string()))?,
        );
        let address =
            launcher.address().map_err(|error| closed(format!("no address to be reached at: {error}")))?;
        let (events, inbox) = channel();
        let token = format!("{:016x}{:016x}", fabric::sys::random(), fabric::sys::random());
        let listener = Listener::open(address, &token, &events)
            .map_err(|error| closed(format!("{address}: {error}")))?;
        let (ready, started) = channel();
        let state = Caller {
            plan: Arc::clone(&plan),
            launcher,
            beside,
            listener,
            transport,
            window: window.clamp(1, WINDOW_MOST),
            trace,
            token,
            address,
            factory,
            events: events.clone(),
            workers: plan.workers.iter().map(|_| Worker::default()).collect(),
            here: None,
            epoch: 0,
            phase: Phase::Gathering,
            ready: BTreeSet::new(),
            deadline: None,
            units: BTreeMap::new(),
            counted: [0; 2],
            losses: 0,
            failed_starts: 0,
            ended: vec![0; plan.all().count()],
            spans: Vec::new(),
            old: Vec::new(),
            asked: Vec::new(),
            asked_number: 0,
            started: Some(ready),
            over: None,
        };
        let thread = thread::Builder::new()
            .name("shunt-group".into())
            .spawn(move || state.run(&inbox))
            .map_err(|error| closed(error.to_string()))?;
        let group = Group { events, thread: Some(thread), plan, next: std::sync::Mutex::new(1) };
        match started.recv() {
            Ok(Ok(())) => Ok(group),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(closed("the group's thread has ended".into())),
        }
    }

    /// Appends a unit of work, which begins when there is room for it; those before it need not have ended.
    pub fn append(&self, params: impl Into<Vec<u8>>, options: UnitOptions) -> Unit {
        let shared = Arc::new(Shared::default());
        let mut next = self.next.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let uow = *next;
        *next += 1;
        let append = Event::Append { uow, params: params.into(), options, shared: Arc::clone(&shared) };
        if self.events.send(append).is_err() {
            shared.end(Err(Failure::Closed("the group is closed".into())));
        }
        Unit::new(uow, shared, self.events.clone())
    }

    /// What runs where.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// What is to be seen now. Asks all workers, at most for a second.
    pub fn status(&self) -> Status {
        self.ask(Event::Status)
    }

    /// What the copies were doing, since the last time this was asked.
    pub fn spans(&self) -> Vec<Traced> {
        self.ask(Event::Spans)
    }

    fn ask<T: Default>(&self, what: impl FnOnce(Sender<T>) -> Event) -> T {
        let (answer, answered) = channel();
        if self.events.send(what(answer)).is_err() {
            return T::default();
        }
        answered.recv().unwrap_or_default()
    }

    /// Ends it: units of work that have not ended fail.
    pub fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.events.send(Event::Close); // it may have ended by itself
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Group").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// Where workers say hello.
struct Listener {
    address: String,
    stop: std::net::SocketAddr,
    closed: Arc<crate::running::Flag>,
}

impl Listener {
    fn open(address: IpAddr, token: &str, events: &Sender<Event>) -> io::Result<Listener> {
        let listener = TcpListener::bind((address, 0))?;
        let at = listener.local_addr()?;
        let closed = Arc::new(crate::running::Flag::default());
        let (token, events, stop) = (token.to_string(), events.clone(), Arc::clone(&closed));
        thread::Builder::new().name("shunt-hello".into()).spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.is_set() {
                    return;
                }
                let (token, events) = (token.clone(), events.clone());
                let _ = thread::Builder::new().name("shunt-hello".into()).spawn(move || {
                    let _ = stream.set_nodelay(true);
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    let mut control = Control::Tcp(stream);
                    // Whoever does not know the secret is not answered.
                    if let Ok(hello) = messages::receive_most::<Hello>(&mut control, 4096)
                        && hello.token == token
                    {
                        if let Control::Tcp(stream) = &control {
                            let _ = stream.set_read_timeout(None);
                        }
                        let _ = events.send(Event::Came(hello.worker, control, hello));
                    }
                });
            }
        })?;
        Ok(Listener { address: at.to_string(), stop: at, closed })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.set();
        let _ = TcpStream::connect_timeout(&self.stop, Duration::from_secs(1)); // so that it looks
    }
}

#[derive(Default)]
struct Worker {
    process: Option<Box<dyn Process>>,
    control: Option<Control>,
    hello: Option<Hello>,
    /// How many processes it has had: what one that is gone has said does not count.
    incarnation: u64,
    /// What it said last of its figures.
    figures: Vec<Figures>,
    states: Vec<(CopyId, State, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Not all workers have said hello.
    Gathering,
    /// Not all have said that they are ready.
    Linking,
    /// Units of work run.
    Running,
}

struct UnitState {
    params: Vec<u8>,
    options: UnitOptions,
    shared: Arc<Shared>,
    deadline: Option<Instant>,
    /// Copies that have not ended their part; `None` if it has not begun.
    open: Option<BTreeSet<CopyId>>,
    cancelled: bool,
    /// A failure that may turn out to be the loss of a process, and until when that is waited for.
    suspected: Option<(Failure, Instant)>,
    /// How often it may still be run again.
    reruns: usize,
}

/// How long a broken connection is taken for what comes before the news of a loss.
const SUSPICION: Duration = Duration::from_millis(400);
/// How often processes that have not said hello are looked after.
const STILLBORN: Duration = Duration::from_millis(50);
/// How many starts in a row may fail.
const STARTS: u32 = 3;
/// How long workers may take to say hello, and to link up.
const START_PATIENCE: Duration = Duration::from_secs(60);

struct Asked {
    answer: Sender<Status>,
    missing: BTreeSet<usize>,
    until: Instant,
}

struct Caller {
    plan: Arc<Plan>,
    launcher: Box<dyn Launcher>,
    beside: Local,
    listener: Listener,
    transport: Transport,
    window: usize,
    trace: bool,
    token: String,
    address: IpAddr,
    factory: Arc<dyn Factory>,
    events: Sender<Event>,
    workers: Vec<Worker>,
    /// The caller's own worker.
    here: Option<JoinHandle<()>>,
    epoch: u64,
    phase: Phase,
    ready: BTreeSet<usize>,
    /// When the phase must have ended.
    deadline: Option<Instant>,
    units: BTreeMap<u64, UnitState>,
    /// Units that are done, that have failed.
    counted: [usize; 2],
    losses: u64,
    failed_starts: u32,
    ended: Vec<u64>,
    spans: Vec<Traced>,
    /// Figures of processes that are gone, and of attempts that are over.
    old: Vec<Figures>,
    asked: Vec<Asked>,
    asked_number: u64,
    started: Option<Sender<Result<(), Failure>>>,
    /// Why there is no going on.
    over: Option<Failure>,
}

impl Caller {
    fn run(mut self, inbox: &Receiver<Event>) {
        self.gather();
        loop {
            if self.over.is_some() {
                break;
            }
            let event = match self.next_time() {
                Some(at) => inbox.recv_timeout(at.saturating_duration_since(Instant::now())),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look_at_times();
            self.dispatch();
        }
        let why = self.over.take().unwrap_or_else(|| Failure::Closed("the group was closed".into()));
        if let Some(started) = self.started.take() {
            let _ = started.send(Err(why.clone()));
        }
        for unit in self.units.values() {
            unit.shared.end(Err(why.clone()));
        }
        // Whoever has said hello is to hear of the end, also where nobody was told of the hello: the caller's own worker is waited for.
        for event in inbox.try_iter() {
            match event {
                Event::Came(worker, control, _) => {
                    if let Some(place) = self.workers.get_mut(worker) {
                        place.control.get_or_insert(control);
                    }
                }
                Event::Append { shared, .. } => shared.end(Err(why.clone())),
                _ => {}
            }
        }
        for worker in &mut self.workers {
            if let Some(control) = &mut worker.control {
                let _ = messages::send(control, &ToWorker::Finish);
            }
        }
        if let Some(here) = self.here.take() {
            let _ = here.join(); // it has said all that it had to say
        }
        let until = Instant::now() + Duration::from_secs(2);
        for worker in &mut self.workers {
            let Some(process) = &mut worker.process else { continue };
            while process.ended().is_none() && Instant::now() < until {
                thread::sleep(Duration::from_millis(5));
            }
            process.kill();
        }
        // What came meanwhile.
        for event in inbox.try_iter() {
            if let Event::Append { shared, .. } = event {
                shared.end(Err(why.clone()));
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Came(worker, control, hello) => self.came(worker, control, hello),
            Event::Said(worker, incarnation, message) => {
                if self.workers[worker].incarnation == incarnation {
                    self.said(worker, message);
                }
            }
            Event::Gone(worker, incarnation) => {
                if self.workers[worker].incarnation == incarnation {
                    let how = self.how_it_ended(worker);
                    self.lost(worker, &how);
                }
            }
            Event::Append { uow, params, options, shared } => {
                let copies = self.plan.all().count();
                shared.progress(0, copies);
                let deadline = options.timeout.map(|timeout| Instant::now() + timeout);
                let unit = UnitState {
                    params,
                    options,
                    shared,
                    deadline,
                    open: None,
                    cancelled: false,
                    suspected: None,
                    reruns: options.reruns,
                };
                self.units.insert(uow, unit);
            }
            Event::Cancel(uow, why) => self.fail(uow, why),
            Event::Status(answer) => self.ask(answer),
            Event::Spans(answer) => {
                let _ = answer.send(std::mem::take(&mut self.spans)); // whoever asked may be gone
            }
            Event::Close => {}
        }
    }

    /// Starts the processes that are not there.
    fn gather(&mut self) {
        self.phase = Phase::Gathering;
        self.deadline = Some(Instant::now() + START_PATIENCE);
        for worker in 0..self.workers.len() {
            if self.workers[worker].hello.is_some() || self.workers[worker].process.is_some() {
                continue;
            }
            self.workers[worker].incarnation += 1;
            if worker == 0 {
                self.start_here();
                continue;
            }
            let ticket = Ticket { address: self.listener.address.clone(), worker, token: self.token.clone() };
            let host = self.plan.workers[worker].host.clone();
            let launched = if host == CALLER {
                self.beside.launch(&host, &ticket)
            } else {
                self.launcher.launch(&host, &ticket)
            };
            match launched {
                Ok(process) => self.workers[worker].process = Some(process),
                Err(error) => {
                    self.over = Some(Failure::Closed(format!(
                        "no process could be started on host '{host}': {error}"
                    )));
                    return;
                }
            }
        }
        self.plan_if_all_are_there();
    }

    /// The caller's own worker is a thread.
    fn start_here(&mut self) {
        if !worker::has_copies(&self.plan, 0) {
            return;
        }
        let address = (self.plan.workers.len() > 1).then_some(self.address);
        let token = self.token.clone();
        let factory = Arc::clone(&self.factory);
        let events = self.events.clone();
        let started = UnixStream::pair().and_then(|(ours, theirs)| {
            self.here = Some(thread::Builder::new().name("shunt-worker".into()).spawn(move || {
                // How it ends is seen at the other end.
                let _ = worker::serve_by(Control::Here(theirs), address, 0, &token, factory);
            })?);
            let mut control = Control::Here(ours);
            let hello = messages::receive::<Hello>(&mut control)?;
            let _ = events.send(Event::Came(0, control, hello));
            Ok(())
        });
        if let Err(error) = started {
            self.over = Some(Failure::Closed(format!("the caller's process cannot be a worker: {error}")));
        }
    }

    fn came(&mut self, worker: usize, control: Control, hello: Hello) {
        if worker >= self.workers.len() || self.workers[worker].hello.is_some() {
            return;
        }
        if hello.version != VERSION {
            let host = self.plan.host_of(worker);
            self.over = Some(Failure::Closed(format!("host '{host}' has another version of Shunt")));
            return;
        }
        let incarnation = self.workers[worker].incarnation;
        let (mut reading, events) = match control.again() {
            Ok(reading) => (reading, self.events.clone()),
            Err(_) => return,
        };
        let spawned = thread::Builder::new().name("shunt-control".into()).spawn(move || {
            while let Ok(message) = messages::receive(&mut reading) {
                if events.send(Event::Said(worker, incarnation, message)).is_err() {
                    return;
                }
            }
            let _ = events.send(Event::Gone(worker, incarnation)); // the group may be gone, too
        });
        if spawned.is_err() {
            return;
        }
        let place = &mut self.workers[worker];
        place.hello = Some(hello);
        place.control = Some(control);
        self.plan_if_all_are_there();
    }

    fn plan_if_all_are_there(&mut self) {
        let there =
            |(at, worker): (usize, &Worker)| worker.hello.is_some() || !worker::has_copies(&self.plan, at);
        if self.phase != Phase::Gathering || !self.workers.iter().enumerate().all(there) {
            return;
        }
        self.epoch += 1;
        self.phase = Phase::Linking;
        self.deadline = Some(Instant::now() + START_PATIENCE);
        self.ready.clear();
        self.keep_figures();
        let nowhere = Door { tcp: String::new(), unix: String::new(), kin: String::new() };
        let door =
            |worker: &Worker| worker.hello.as_ref().map_or(nowhere.clone(), |hello| hello.door.clone());
        let doors = self.workers.iter().map(door).collect();
        let message = ToWorker::Plan {
            plan: (*self.plan).clone(),
            epoch: self.epoch,
            doors,
            transport: self.transport,
            trace: self.trace,
        };
        self.say_to_all(&message);
    }

    fn say_to_all(&mut self, message: &ToWorker) {
        for worker in &mut self.workers {
            if let Some(control) = &mut worker.control {
                // One that is gone is noticed by the thread that reads.
                let _ = messages::send(control, message);
            }
        }
    }

    fn said(&mut self, worker: usize, message: FromWorker) {
        // Rule F2: a copy that there is not is nobody's.
        if message.copy().is_some_and(|copy| {
            self.plan.copies.get(copy.filter).is_none_or(|ranks| copy.rank >= ranks.len())
        }) {
            return;
        }
        match message {
            FromWorker::Ready { epoch } if epoch == self.epoch && self.phase == Phase::Linking => {
                self.ready.insert(worker);
                let all = (0..self.workers.len()).filter(|&at| worker::has_copies(&self.plan, at));
                if all.collect::<BTreeSet<_>>() == self.ready {
                    self.phase = Phase::Running;
                    self.deadline = None;
                    self.failed_starts = 0;
                    if let Some(started) = self.started.take() {
                        let _ = started.send(Ok(()));
                    }
                }
            }
            FromWorker::Unfit { epoch, copy, what, traceback, broken } if epoch == self.epoch => {
                let host = self.plan.host_of(worker).to_string();
                if broken {
                    // Another attempt, unless that was tried often enough; a process that is lost is noticed on its own.
                    self.try_again(&format!("host '{host}' cannot reach its neighbours: {what}"));
                    return;
                }
                let copy = copy.map_or_else(|| "?".into(), |copy| self.plan.name_of(copy));
                self.over = Some(Failure::Filter { copy, host, what, traceback });
            }
            FromWorker::Part { uow, copy, data } => {
                if let Some(unit) = self.units.get(&uow) {
                    let part = Part { copy: self.plan.name_of(copy), data };
                    unit.shared.part(part, unit.options.reruns > 0);
                }
            }
            FromWorker::Failed { epoch, uow, copy, what, traceback, broken } if epoch == self.epoch => {
                let (copy, host) = (self.plan.name_of(copy), self.plan.host_of(worker).to_string());
                let failure = Failure::Filter { copy, host, what, traceback };
                match self.units.get_mut(&uow) {
                    Some(unit) if broken => {
                        unit.suspected.get_or_insert((failure, Instant::now() + SUSPICION));
                    }
                    Some(_) => self.fail(uow, failure),
                    None => {}
                }
            }
            FromWorker::Done { epoch, uow, copy, unread: _, spans } if epoch == self.epoch => {
                self.done(uow, copy, spans);
            }
            FromWorker::Report { number, states, figures } => {
                self.workers[worker].states = states;
                self.workers[worker].figures = figures;
                if number == self.asked_number {
                    for asked in &mut self.asked {
                        asked.missing.remove(&worker);
                    }
                    self.answer();
                }
            }
            // Of an attempt that is over.
            FromWorker::Ready { .. }
            | FromWorker::Unfit { .. }
            | FromWorker::Failed { .. }
            | FromWorker::Done { .. } => {}
        }
    }

    fn done(&mut self, uow: u64, copy: CopyId, spans: Vec<Span>) {
        let index = self.plan.all().position(|known| known == copy).unwrap_or(0);
        let (name, host) =
            (self.plan.name_of(copy), self.plan.host_of(self.plan.worker_of(copy)).to_string());
        for span in spans {
            self.spans.push(Traced { copy: name.clone(), host: host.clone(), index, uow, span });
        }
        self.ended[index] += 1;
        let Some(unit) = self.units.get_mut(&uow) else { return };
        let Some(open) = &mut unit.open else { return };
        open.remove(&copy);
        let left = open.len();
        let all = self.ended.len();
        unit.shared.progress(all - left, all);
        // A suspicion is cleared up by its time: until then it is not known how this ended.
        if left == 0 && unit.suspected.is_none() {
            self.retire(uow);
        }
    }

    /// All copies have ended a unit of work.
    fn retire(&mut self, uow: u64) {
        if let Some(unit) = self.units.remove(&uow)
            && !unit.cancelled
        {
            self.counted[0] += 1;
            unit.shared.end(Ok(()));
        }
    }

    /// Ends a unit of work with a failure, and tells all to leave it.
    fn fail(&mut self, uow: u64, why: Failure) {
        let Some(unit) = self.units.get_mut(&uow) else { return };
        if unit.cancelled {
            return;
        }
        unit.cancelled = true;
        unit.suspected = None;
        self.counted[1] += 1;
        unit.shared.end(Err(why));
        match &unit.open {
            None => {
                self.units.remove(&uow);
            }
            Some(open) if open.is_empty() => self.retire(uow),
            Some(_) => self.say_to_all(&ToWorker::Cancel { uow }),
        }
    }

    fn how_it_ended(&mut self, worker: usize) -> String {
        let Some(process) = &mut self.workers[worker].process else { return "its connection ended".into() };
        // The kernel closes its sockets a little before it is a zombie.
        let until = Instant::now() + Duration::from_millis(200);
        loop {
            match process.ended() {
                Some(how) => return how,
                None if Instant::now() > until => return "its connection ended".into(),
                None => thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// A process is gone.
    fn lost(&mut self, worker: usize, how: &str) {
        let place = &mut self.workers[worker];
        if let Some(control) = place.control.take() {
            control.close();
        }
        if let Some(mut process) = place.process.take() {
            process.kill();
        }
        place.hello = None;
        place.states.clear();
        let figures = std::mem::take(&mut place.figures);
        self.old.extend(figures);
        self.losses += 1;
        let copies = self.plan.all().filter(|&copy| self.plan.worker_of(copy) == worker);
        let failure = Failure::Lost {
            copies: copies.map(|copy| self.plan.name_of(copy)).collect(),
            host: self.plan.host_of(worker).to_string(),
            how: how.to_string(),
        };
        self.fail_all_under_way(&failure);
        if worker == 0 {
            self.over = Some(failure);
            return;
        }
        if self.phase != Phase::Running {
            self.failed_starts += 1;
            if self.failed_starts >= STARTS {
                self.over = Some(Failure::Closed(format!("the group does not start: {failure}")));
                return;
            }
        }
        self.gather();
    }

    /// Linking up has failed.
    fn try_again(&mut self, why: &str) {
        self.failed_starts += 1;
        if self.failed_starts >= STARTS {
            self.over = Some(Failure::Closed(format!("the group does not start: {why}")));
            return;
        }
        self.phase = Phase::Gathering;
        self.plan_if_all_are_there();
    }

    fn fail_all_under_way(&mut self, failure: &Failure) {
        let under_way: Vec<u64> =
            self.units.iter().filter(|(_, unit)| unit.open.is_some()).map(|(&uow, _)| uow).collect();
        for uow in under_way {
            let Some(unit) = self.units.get_mut(&uow) else { continue };
            if !unit.cancelled && unit.reruns > 0 {
                unit.reruns -= 1;
                unit.open = None;
                unit.suspected = None;
                unit.shared.again();
                continue;
            }
            // Nobody will tell of its end: the attempt is over.
            unit.open = Some(BTreeSet::new());
            if unit.cancelled {
                self.units.remove(&uow);
            } else {
                self.fail(uow, failure.clone());
            }
        }
    }

    /// Begins units of work that there is room for.
    fn dispatch(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        let under_way = self.units.values().filter(|unit| unit.open.is_some()).count();
        let waiting = self.units.iter().filter(|(_, unit)| unit.open.is_none()).map(|(&uow, _)| uow);
        let next: Vec<u64> = waiting.take(self.window.saturating_sub(under_way)).collect();
        for uow in next {
            let copies = self.plan.all().collect();
            let Some(unit) = self.units.get_mut(&uow) else { continue };
            unit.open = Some(copies);
            let params = unit.params.clone();
            self.say_to_all(&ToWorker::Append { uow, params });
        }
    }

    /// When something is due.
    fn next_time(&self) -> Option<Instant> {
        let units = self.units.values().flat_map(|unit| {
            let deadline = if unit.cancelled { None } else { unit.deadline };
            [deadline, unit.suspected.as_ref().map(|(_, until)| *until)]
        });
        let asked = self.asked.iter().map(|asked| Some(asked.until));
        let look = (self.phase == Phase::Gathering).then(|| Instant::now() + STILLBORN);
        units.chain([look]).chain(asked).chain([self.deadline]).flatten().min()
    }

    /// Processes that have ended before they said hello have no connection that could tell.
    fn look_for_stillborn(&mut self) {
        for worker in 0..self.workers.len() {
            let place = &mut self.workers[worker];
            if place.hello.is_none()
                && let Some(how) = place.process.as_mut().and_then(|process| process.ended())
            {
                self.lost(worker, &how);
                return;
            }
        }
    }

    fn look_at_times(&mut self) {
        if self.phase == Phase::Gathering {
            self.look_for_stillborn();
        }
        let now = Instant::now();
        let late = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let due: Vec<(u64, Failure)> = self
            .units
            .iter()
            .filter_map(|(&uow, unit)| match &unit.suspected {
                Some((failure, until)) if *until <= now => Some((uow, failure.clone())),
                _ if late(unit.deadline) && !unit.cancelled => Some((uow, Failure::TimedOut)),
                _ => None,
            })
            .collect();
        for (uow, failure) in due {
            self.fail(uow, failure);
        }
        if self.asked.iter().any(|asked| asked.until <= now) {
            self.asked.iter_mut().filter(|asked| asked.until <= now).for_each(|asked| asked.missing.clear());
            self.answer();
        }
        if late(self.deadline) {
            self.deadline = None;
            let missing: Vec<&str> = (0..self.workers.len())
                .filter(|&at| worker::has_copies(&self.plan, at))
                .filter(|&at| match self.phase {
                    Phase::Gathering => self.workers[at].hello.is_none(),
                    _ => !self.ready.contains(&at),
                })
                .map(|at| self.plan.host_of(at))
                .collect();
            let what = format!("the group does not start: nothing is heard from {}", missing.join(", "));
            self.over = Some(Failure::Closed(what));
        }
    }

    fn ask(&mut self, answer: Sender<Status>) {
        self.asked_number += 1;
        self.say_to_all(&ToWorker::Report { number: self.asked_number });
        let all = (0..self.workers.len()).filter(|&at| self.workers[at].control.is_some()).collect();
        // Whoever asked before is answered by what comes now, too.
        for asked in &mut self.asked {
            asked.missing = BTreeSet::clone(&all);
        }
        self.asked.push(Asked { answer, missing: all, until: Instant::now() + Duration::from_secs(1) });
        self.answer();
    }

    /// Answers those for whom nothing is missing.
    fn answer(&mut self) {
        let (ready, waiting) = std::mem::take(&mut self.asked)
            .into_iter()
            .partition::<Vec<_>, _>(|asked| asked.missing.is_empty());
        self.asked = waiting;
        for asked in ready {
            let _ = asked.answer.send(self.status()); // whoever asked may be gone
        }
    }

    fn status(&self) -> Status {
        let under_way = self.units.values().filter(|unit| unit.open.is_some() && !unit.cancelled).count();
        let waiting = self.units.values().filter(|unit| unit.open.is_none()).count();
        let copies = self.plan.all().enumerate().map(|(index, copy)| {
            let at = self.plan.worker_of(copy);
            let worker = &self.workers[at];
            let state = worker.states.iter().find(|(known, ..)| *known == copy);
            CopyStatus {
                name: self.plan.name_of(copy),
                host: self.plan.host_of(at).to_string(),
                machine: worker.hello.as_ref().map_or(String::new(), |hello| hello.machine.clone()),
                pid: worker.hello.as_ref().map_or(0, |hello| hello.pid),
                state: state.map(|&(_, state, _)| state),
                uow: state.map_or(0, |&(_, _, uow)| uow),
                ended: self.ended[index],
            }
        });
        let mut figures = self.old.clone();
        for worker in &self.workers {
            join(&mut figures, &worker.figures);
        }
        let streams = &self.plan.layout.streams;
        let place = |figures: &Figures| streams.iter().position(|stream| stream.name == figures.stream);
        figures.sort_by_cached_key(|it| (place(it), it.producer.clone(), it.consumer.clone()));
        Status {
            copies: copies.collect(),
            figures,
            units: [self.counted[0], self.counted[1], under_way, waiting],
            losses: self.losses,
        }
    }

    /// What was counted in the attempt that ends now stays counted.
    fn keep_figures(&mut self) {
        let mut old = std::mem::take(&mut self.old);
        for worker in &mut self.workers {
            join(&mut old, &std::mem::take(&mut worker.figures));
        }
        for figures in &mut old {
            figures.unacknowledged = 0;
        }
        self.old = old;
    }
}

/// Adds figures to those of the same stream and copies.
fn join(all: &mut Vec<Figures>, more: &[Figures]) {
    let key =
        |figures: &Figures| (figures.stream.clone(), figures.producer.clone(), figures.consumer.clone());
    for figures in more {
        match all.iter_mut().find(|known| key(known) == key(figures)) {
            Some(known) => known.join(figures),
            None => all.push(figures.clone()),
        }
    }
}
