//! A port: an open domain with its links, and the thread that serves them. The thread accepts links
//! and notices their ends. As long as no waiting thread helps ([`Link::help`]), it carries out the
//! messages of peers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::FromRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use fabric::{bell, sys};

use crate::error::Error;
use crate::link::{Link, Owner, Terms};
use crate::mutex::lock;
use crate::nic::{Asked, Event, Found, Key, Nic};
use crate::server::Server;
use crate::world::{Builder, Instant, JoinHandle, OwnedFd, os};

/// The answer to a request for a link: the bytes of our segment that the peer may write, and the
/// owner of the link. `None`: it is refused.
pub type Answer = Option<(usize, Arc<dyn Owner>)>;

/// Decides about a request by the words that came with it.
pub type Gate = Box<dyn Fn(&[u8]) -> Answer + Send>;

/// Other work that the port's thread does for the owner of the port, which has no thread of its
/// own.
pub trait PortWork: Send {
    /// Does the work that there is; returns how much that was. Only the port's thread calls it,
    /// again and again.
    fn run(&mut self) -> usize;
    /// Whether there is no work. From then on whoever adds work must ring the port's bell
    /// ([`Port::bell`]).
    fn may_sleep(&mut self) -> bool;
    /// Another descriptor, which is readable when there is work.
    fn descriptor(&self) -> Option<i32>;
    /// The device was removed: links are over, and there will be no more.
    fn gone(&mut self, _why: &str) {}
    /// After how long there is work although nobody rings.
    fn patience(&self) -> Option<Duration> {
        None
    }
}

/// No work.
struct NoWork;

impl PortWork for NoWork {
    fn run(&mut self) -> usize {
        0
    }
    fn may_sleep(&mut self) -> bool {
        true
    }
    fn descriptor(&self) -> Option<i32> {
        None
    }
}

/// How long the thread leaves a link alone that another thread helps: that one may forget to call
/// `leave`.
const HELPED: Duration = Duration::from_millis(10);

struct Shared {
    nic: Arc<Nic>,
    links: Mutex<BTreeMap<Key, Weak<Link>>>,
    /// Accepted links: they live until they are over.
    accepted: Mutex<Vec<Arc<Link>>>,
    server: Arc<Server>,
    ending: AtomicBool,
}

/// A port. Its links end with it.
pub struct Port {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Port {
    /// Opens a domain; `gate` decides about requests for links.
    pub fn open(found: &Found, gate: Gate) -> Result<Port, Error> {
        Port::open_with(found, gate, |_| NoWork)
    }

    /// As [`Port::open`]; its thread does `work` as well.
    pub fn open_with<E: PortWork + 'static>(
        found: &Found,
        gate: Gate,
        work: impl FnOnce(&Port) -> E,
    ) -> Result<Port, Error> {
        let nic = Nic::open(found)?;
        // By libc's function, as libfabric makes its own: Shunt's hooks hide these from the
        // program, and so this one.
        // SAFETY: it takes no pointer.
        let fd = unsafe { os::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Error::Memory(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EMFILE)));
        }
        // SAFETY: it was just made.
        let bell = unsafe { OwnedFd::from_raw_fd(fd) };
        let shared = Arc::new(Shared {
            nic,
            links: Mutex::default(),
            accepted: Mutex::default(),
            server: Arc::new(Server::new(bell)),
            ending: AtomicBool::new(false),
        });
        let descriptor = shared.nic.descriptor()?;
        let served = Arc::clone(&shared);
        let mut port = Port { shared, thread: None };
        let mut work = work(&port);
        // Signals are for the program's own threads.
        let blocked = sys::block_signals(u64::MAX);
        let thread =
            Builder::new().name("shunt-ofi".into()).spawn(move || served.serve(descriptor, &gate, &mut work));
        sys::block_signals(blocked);
        let thread = thread.map_err(|error| Error::Memory(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        port.thread = Some(thread);
        Ok(port)
    }

    /// The eventfd that wakes its thread.
    pub fn bell(&self) -> i32 {
        self.shared.server.bell()
    }

    /// Its address, in the provider's own form.
    pub fn address(&self) -> &[u8] {
        self.shared.nic.address()
    }

    /// The links that were accepted and are not over.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.caller().links()
    }

    /// Asks the port at `address` for a link, with at most [`crate::WORDS`] words for its gate. The
    /// link is ready when [`Owner::ready`] was called.
    pub fn connect(
        &self,
        address: &[u8],
        words: &[u8],
        len: usize,
        owner: Arc<dyn Owner>,
    ) -> Result<Arc<Link>, Error> {
        self.caller().connect(address, words, len, owner)
    }

    /// A handle for its thread's work.
    pub fn caller(&self) -> Caller {
        Caller(Arc::clone(&self.shared))
    }
}

/// A port, for its thread's work: this does not keep it open.
#[derive(Clone)]
pub struct Caller(Arc<Shared>);

impl Caller {
    /// See [`Port::address`].
    pub fn address(&self) -> &[u8] {
        self.0.nic.address()
    }

    /// See [`Port::bell`].
    pub fn bell(&self) -> i32 {
        self.0.server.bell()
    }

    /// See [`Port::links`].
    pub fn links(&self) -> Vec<Arc<Link>> {
        lock(&self.0.accepted).clone()
    }

    /// See [`Port::connect`].
    pub fn connect(
        &self,
        address: &[u8],
        words: &[u8],
        len: usize,
        owner: Arc<dyn Owner>,
    ) -> Result<Arc<Link>, Error> {
        let terms = Terms { len, owner, server: Arc::clone(&self.0.server) };
        let mut links = self.0.links();
        let link = Arc::new(Link::connect(&self.0.nic, address, words, terms)?);
        links.insert(link.key(), Arc::downgrade(&link));
        drop(links);
        self.0.server.ring();
        Ok(link)
    }
}

impl Drop for Port {
    /// Ends its links.
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Release);
        self.shared.server.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.living().iter().for_each(|link| link.close());
    }
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, BTreeMap<Key, Weak<Link>>> {
        lock(&self.links)
    }

    fn link(&self, key: Key) -> Option<Arc<Link>> {
        self.links().get(&key)?.upgrade()
    }

    /// Drops the links that are over; returns the others.
    fn living(&self) -> Vec<Arc<Link>> {
        let mut living = Vec::new();
        self.links().retain(|_, link| match link.upgrade() {
            Some(link) if link.why_over().is_none() => {
                living.push(link);
                true
            }
            _ => false,
        });
        lock(&self.accepted).retain(|link| link.why_over().is_none());
        living
    }

    fn serve(&self, descriptor: i32, gate: &Gate, work: &mut dyn PortWork) {
        self.server.is_this_thread();
        let bell = self.server.bell();
        let mut looked = Instant::now();
        while !self.ending.load(Ordering::Acquire) {
            let mut done = work.run();
            while let Some(event) = self.nic.event() {
                self.happened(event, gate, work);
                done += 1;
            }
            let (helped, mut living): (Vec<_>, Vec<_>) =
                self.living().into_iter().partition(|link| link.look_after());
            done += living.iter().map(|link| link.progress()).sum::<usize>();
            if looked.elapsed() >= HELPED {
                looked = Instant::now();
                done += helped.iter().map(|link| link.progress()).sum::<usize>();
            }
            if done > 0 || !self.nic.may_sleep(living.iter().map(|link| link.queue())) || !work.may_sleep() {
                continue;
            }
            living.retain(|link| !link.is_helped());
            let helped_again = (!helped.is_empty()).then_some(HELPED);
            let limit = [work.patience(), helped_again].into_iter().flatten().min();
            let limit = limit.map_or(-1, |limit| limit.as_millis().max(1) as i32);
            let watched = [bell, descriptor].into_iter();
            let mut watched: Vec<libc::pollfd> = watched
                .chain(work.descriptor())
                .chain(living.iter().map(|link| link.descriptor()))
                .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
                .collect();
            // SAFETY: an array of so many.
            let got = unsafe { os::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, limit) };
            let error = io::Error::last_os_error();
            if got < 0 && error.raw_os_error() != Some(libc::EINTR) {
                // Nobody would serve them any more.
                return living.iter().chain(&helped).for_each(|link| link.end(format!("poll: {error}")));
            }
            bell::silence(bell);
        }
    }

    fn happened(&self, event: Event, gate: &Gate, work: &mut dyn PortWork) {
        match event {
            Event::Asked(asked, words) => self.asked(asked, gate(&words)),
            Event::Connected(key) => {
                if let Some(link) = self.link(key) {
                    link.connected();
                }
            }
            Event::Over(key, why) => {
                if let Some(link) = self.link(key) {
                    // Messages from before the end are carried out first.
                    while link.progress() > 0 {}
                    link.end(why);
                }
            }
            Event::Gone(why) => {
                self.living().iter().for_each(|link| link.end(why.clone()));
                work.gone(&why);
            }
        }
    }

    fn asked(&self, asked: Asked, answer: Answer) {
        let Some((len, owner)) = answer else { return };
        let terms = Terms { len, owner: Arc::clone(&owner), server: Arc::clone(&self.server) };
        match Link::accept(&self.nic, asked, terms) {
            Ok(link) => {
                let link = Arc::new(link);
                self.links().insert(link.key(), Arc::downgrade(&link));
                lock(&self.accepted).push(link);
            }
            Err(error) => owner.failed(&error),
        }
    }
}
