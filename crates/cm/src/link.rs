//! The links: the events of one ([`End`]), the way to the peer ([`PeerWire`], a wire of `via`'s),
//! and where links are asked for ([`Listener`]), one for each address of this host by which others
//! have reached it.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use cluster::wire::Ticket;
use fabric::shm::Map;
use fabric::{Remote as _, bell, sys};
use ofi::isolation::{self, Before};
use ofi::mutex::lock;
use ofi::port::Caller;
use ofi::{Link, Owner, Port, PortWork};
use via::agent::Message;
use via::remote::{Watch, Wire};
use via::segment::FAR_BYTES as BYTES;

use crate::handshake::ticket_of;
use crate::notes::note;
use crate::settings::Settings;

/// How long a peer may take nothing while a thread waits to send to it.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long bytes may be under way after the connection of the handshake has ended, and how long
/// the peer may take to confirm the last message.
const LAST: Duration = Duration::from_secs(1);
/// The most messages that wait to be read; more are dropped.
const MOST_SAID: usize = 64;

/// The calls of one end to the other. All that was put before its hello is there; something for the
/// library's thread; the last message was read; a question; the answer; a request for RDMA; its
/// result.
const TOLD: u64 = 1;
const SAY: u64 = 2;
const HEARD: u64 = 3;
const ASK: u64 = 4;
const ANSWER: u64 = 5;
const REQUEST: u64 = 6;
const REPLY: u64 = 7;

/// The state of a link.
#[derive(Default)]
pub struct State {
    /// It is established.
    pub ready: bool,
    /// All that the peer has put before its hello is there.
    pub told: bool,
    /// Why it is over, if it is.
    pub over: Option<String>,
    said: VecDeque<u32>,
    /// The peer's last message.
    last: Option<u32>,
    /// The peer has read our last message.
    heard: bool,
    /// The request for RDMA that the peer waits for.
    requested: Option<u64>,
}

/// An end of a link, which its events are reported to, by any thread and under any lock: it notes
/// them, and wakes the threads that wait for them.
pub struct End {
    number: u64,
    watch: OnceLock<Watch>,
    state: Mutex<State>,
    changed: Condvar,
    answered: AtomicU64,
    /// The last request of ours that was carried out, and in the lowest bits its result.
    replied: AtomicU64,
}

impl End {
    /// The end of a link that is still to be made.
    pub fn new() -> Arc<End> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Arc::new(End {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            watch: OnceLock::new(),
            state: Mutex::default(),
            changed: Condvar::new(),
            answered: AtomicU64::new(0),
            replied: AtomicU64::new(0),
        })
    }

    /// Wakes this one from now on.
    pub fn watch(&self, watch: Watch) {
        let _ = self.watch.set(watch);
    }

    /// Waits until `done` says that the state is as wanted, or the link is over. False if that
    /// takes too long.
    pub fn wait(&self, time: Duration, done: impl Fn(&State) -> bool) -> bool {
        let end = Instant::now() + time;
        let mut state = lock(&self.state);
        while !done(&state) && state.over.is_none() {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return false };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        done(&state)
    }

    /// Why it is over, if it is.
    pub fn why_over(&self) -> Option<String> {
        lock(&self.state).over.clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    fn kick(&self) {
        if let Some(watch) = self.watch.get() {
            watch.kick();
        }
    }

    fn end(&self, why: &str) {
        self.change(|state| {
            state.over.get_or_insert_with(|| why.into());
        });
        self.kick();
    }

    /// A message has come.
    fn hear(&self, link: &Link, value: u64) {
        // A message that is not understood ends the link.
        let message = u32::try_from(value).unwrap_or(Message::Break as u32);
        let last = message == Message::Disconnect as u32 || message == Message::Break as u32;
        self.change(|state| {
            if last {
                state.last.get_or_insert(message);
            } else if state.said.len() < MOST_SAID {
                state.said.push_back(message);
            }
        });
        if last {
            link.call(HEARD, 0);
        }
        self.kick();
    }
}

impl Owner for End {
    fn number(&self) -> u64 {
        self.number
    }
    fn ready(&self, _link: &Link) {
        self.change(|state| state.ready = true);
    }
    fn fired(&self, link: &Link, offset: usize, held: u64) {
        if let Some(watch) = self.watch.get() {
            watch.fired(&link.mine(), offset, held);
        }
    }
    fn called(&self, link: &Link, what: u64, value: u64) {
        match what {
            TOLD => self.change(|state| state.told = true),
            SAY => self.hear(link, value),
            HEARD => self.change(|state| state.heard = true),
            ASK => link.call(ANSWER, value),
            ANSWER => {
                self.answered.fetch_max(value, Ordering::AcqRel);
                self.kick();
            }
            REQUEST => {
                self.change(|state| state.requested = Some(value));
                self.kick();
            }
            REPLY => {
                self.replied.store(value, Ordering::Release);
                self.kick();
            }
            _ => {}
        }
    }
    fn over(&self, _link: &Link, why: &str) {
        self.end(why);
    }
    fn most(&self) -> usize {
        BYTES
    }
    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }
    fn failed(&self, error: &ofi::Error) {
        self.end(&error.to_string());
    }
}

/// The way to a peer.
pub struct PeerWire {
    link: Arc<Link>,
    end: Arc<End>,
    shadow: Map,
    listener: Arc<Listener>,
    asked: AtomicU64,
}

impl PeerWire {
    /// For a link that is ready. None if the peer's segment does not have the size that all have.
    pub fn new(link: Arc<Link>, end: Arc<End>, listener: Arc<Listener>) -> Option<PeerWire> {
        let Some(shadow) = link.shadow().filter(|shadow| shadow.len() == BYTES) else {
            link.close();
            return None;
        };
        Some(PeerWire { link, end, shadow, listener, asked: AtomicU64::new(0) })
    }

    /// Tells the peer, which waits for a hello, that all that was put before is there.
    pub fn tell(&self) {
        self.link.call(TOLD, 0);
    }
}

impl Wire for PeerWire {
    fn mine(&self) -> Map {
        self.link.mine()
    }
    fn shadow(&self) -> Map {
        self.shadow
    }
    fn bytes(&self, offset: usize, len: usize) {
        self.link.put_shadowed(offset, len);
    }
    fn word(&self, offset: usize, value: u64) {
        self.link.put_word(offset, value);
    }
    fn stimulate(&self, offset: usize, interest: u64) {
        self.link.stimulate(offset, interest);
    }
    fn hold(&self) {
        self.link.take_hold();
    }
    fn let_go(&self) {
        self.link.let_go();
    }
    fn poll(&self) {
        self.link.progress();
    }
    fn ask(&self) -> u64 {
        let question = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.link.call(ASK, question);
        question
    }
    fn answered(&self) -> u64 {
        self.end.answered.load(Ordering::Acquire)
    }
    fn request(&self) -> u64 {
        let request = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.link.call(REQUEST, request);
        request
    }
    fn replied(&self, request: u64) -> Option<u64> {
        let replied = self.end.replied.load(Ordering::Acquire);
        (replied >> 2 == request).then_some(replied & 3)
    }
    fn requested(&self) -> Option<u64> {
        lock(&self.end.state).requested.take()
    }
    fn reply(&self, request: u64, what: u64) {
        self.link.call(REPLY, request << 2 | what);
    }
    fn say(&self, message: u32) {
        self.link.call(SAY, message.into());
    }
    fn heard(&self) -> Option<u32> {
        let mut state = lock(&self.end.state);
        let over = state.over.is_some().then_some(Message::Break as u32);
        state.said.pop_front().or(state.last).or(over)
    }
    fn late(&self) {
        lock(&self.listener.late).push((Instant::now() + LAST, Arc::downgrade(&self.link)));
        bell::ring(self.listener.caller.bell());
    }
    fn close(&self, last: Option<u32>) {
        if let Some(last) = last {
            self.link.call(SAY, last.into());
            self.end.wait(LAST, |state| state.heard);
        }
        self.link.close();
    }
}

impl Drop for PeerWire {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// Links whose connection of the handshake has ended, and when they will be closed.
type Late = Mutex<Vec<(Instant, Weak<Link>)>>;

/// Closes those in time, on the port's thread.
struct Ending(Arc<Late>);

impl PortWork for Ending {
    fn run(&mut self) -> usize {
        let now = Instant::now();
        let ended: Vec<_> = lock(&self.0).extract_if(.., |(time, _)| *time <= now).collect();
        for link in ended.iter().filter_map(|(_, link)| link.upgrade()) {
            link.close();
        }
        ended.len()
    }
    fn may_sleep(&mut self) -> bool {
        true
    }
    fn descriptor(&self) -> Option<i32> {
        None
    }
    fn patience(&self) -> Option<Duration> {
        let first = lock(&self.0).iter().map(|(time, _)| *time).min();
        first.map(|time| time.saturating_duration_since(Instant::now()))
    }
}

/// Where links are asked for.
pub struct Listener {
    /// Open until the process ends.
    port: Mutex<Option<Port>>,
    /// The address by which others ask for a link here.
    pub caller: Caller,
    /// libfabric's provider.
    pub provider: String,
    /// The tickets with which links may be asked for.
    invited: Arc<Mutex<HashMap<Ticket, Arc<End>>>>,
    late: Arc<Late>,
}

static LISTENERS: Mutex<Option<HashMap<IpAddr, Arc<Listener>>>> = Mutex::new(None);
/// The process that has the listeners: children of fork() have a copy, and no threads.
static OWNER: AtomicU32 = AtomicU32::new(0);

impl Listener {
    /// The listener at an address of this host, which is opened if it is not open. The error names
    /// what is missing.
    pub fn at(own: IpAddr, settings: &Settings) -> Result<Arc<Listener>, String> {
        let own = own.to_canonical();
        if ![0, sys::getpid()].contains(&OWNER.load(Ordering::Acquire)) {
            return Err("the process is a child of one that has connections to other hosts".into());
        }
        let mut listeners = lock(&LISTENERS);
        let listeners = listeners.get_or_insert_with(HashMap::new);
        if let Some(listener) = listeners.get(&own) {
            return Ok(Arc::clone(listener));
        }
        let listener = Listener::open(own, settings)?;
        listeners.insert(own, Arc::clone(&listener));
        Ok(listener)
    }

    fn open(own: IpAddr, settings: &Settings) -> Result<Arc<Listener>, String> {
        let before = Before::now();
        let found = ofi::find(settings.provider, Some(own)).map_err(|error| error.to_string());
        before.keep_destructors();
        let listener = found.and_then(|found| Listener::open_one(own, settings, &found));
        before.keep_destructors();
        before.restore();
        listener
    }

    fn open_one(own: IpAddr, settings: &Settings, found: &[ofi::Found]) -> Result<Arc<Listener>, String> {
        let fits = |found: &&ofi::Found| settings.provider.is_some() || found.provider != ofi::TEST_PROVIDER;
        let found = found.iter().find(fits).ok_or_else(|| {
            let wanted = settings.provider.unwrap_or("fast");
            format!("libfabric finds no {wanted} network at {own} (option fabric, SHUNT_FABRIC)")
        })?;
        let invited = Arc::new(Mutex::new(HashMap::<Ticket, Arc<End>>::new()));
        let guests = Arc::clone(&invited);
        let gate = move |words: &[u8]| {
            let end: Arc<dyn Owner> = lock(&guests).remove(&ticket_of(words)?)?;
            Some((BYTES, end))
        };
        let late = Arc::new(Late::default());
        let ending = Ending(Arc::clone(&late));
        let port = Port::open_with(found, Box::new(gate), |_| ending)
            .map_err(|error| format!("{}: {error}", found.provider))?;
        if OWNER.swap(sys::getpid(), Ordering::AcqRel) == 0 {
            // Exit handlers run before the libraries' destructors, and libfabric's would remove
            // what the threads still use.
            // SAFETY: functions of these signatures, in a library that is never unloaded: it has
            // threads.
            let told = unsafe { libc::atexit(at_exit) | libc::pthread_atfork(None, None, Some(forked)) };
            if told != 0 {
                OWNER.store(0, Ordering::Release);
                return Err("there is no memory for exit handlers".into());
            }
        }
        let (caller, provider) = (port.caller(), found.provider.clone());
        Ok(Arc::new(Listener { port: Mutex::new(Some(port)), caller, provider, invited, late }))
    }

    /// A request for a link with this ticket is accepted, and gives `end` its link.
    pub fn invite(&self, ticket: Ticket, end: &Arc<End>) {
        lock(&self.invited).insert(ticket, Arc::clone(end));
    }

    /// It is not accepted any more.
    pub fn disinvite(&self, ticket: &Ticket) {
        lock(&self.invited).remove(ticket);
    }

    /// The link that was asked for, and that belongs to `end`.
    pub fn accepted(&self, end: &End) -> Option<Arc<Link>> {
        self.caller.links().into_iter().find(|link| link.number() == end.number)
    }
}

/// In a child of fork().
extern "C" fn forked() {
    isolation::forked();
}

/// Ends the ports' threads when the process ends.
extern "C" fn at_exit() {
    if OWNER.load(Ordering::Acquire) != sys::getpid() {
        return;
    }
    let listeners = lock(&LISTENERS).take();
    for listener in listeners.into_iter().flat_map(HashMap::into_values) {
        let port = lock(&listener.port).take();
        drop(port);
    }
}

/// Reports why a link is not made.
pub fn no_link(peer: [u8; 16], why: &str) {
    let ip = std::net::Ipv6Addr::from(peer);
    note(&format!("{}: no link: {why}", ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)));
}
