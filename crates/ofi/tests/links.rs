//! Links over libfabric's tcp provider: two ports of this process on loopback, as on two hosts.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::{Local as _, Mapped as _, Remote as _, trip};
use ofi::{Link, Owner, Port, PortWork};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, PartialEq, Eq)]
enum LinkEvent {
    Ready,
    Fired(usize, u64),
    Called(u64, u64),
    Over(String),
    Failed,
}

/// Sends all events to a channel; keeps the accepted link.
struct Teller(Mutex<Sender<LinkEvent>>);

impl Owner for Teller {
    fn ready(&self, _link: &Link) {
        self.tell(LinkEvent::Ready);
    }
    fn fired(&self, _link: &Link, offset: usize, held: u64) {
        self.tell(LinkEvent::Fired(offset, held));
    }
    fn called(&self, _link: &Link, what: u64, value: u64) {
        self.tell(LinkEvent::Called(what, value));
    }
    fn over(&self, _link: &Link, why: &str) {
        self.tell(LinkEvent::Over(why.into()));
    }
    fn failed(&self, _error: &ofi::Error) {
        self.tell(LinkEvent::Failed);
    }
}

impl Teller {
    fn new() -> (Arc<Teller>, Receiver<LinkEvent>) {
        let (sender, receiver) = channel();
        (Arc::new(Teller(Mutex::new(sender))), receiver)
    }

    fn tell(&self, event: LinkEvent) {
        let _ = self.0.lock().expect("nobody panics with it").send(event);
    }
}

fn next(events: &Receiver<LinkEvent>) -> LinkEvent {
    events.recv_timeout(PATIENCE).expect("it comes")
}

/// A port on loopback whose gate admits requests with the right word; its links have segments of
/// `len` bytes.
fn port(len: usize, owner: &Arc<Teller>) -> Port {
    let found = ofi::find(Some("tcp"), Some(Ipv4Addr::LOCALHOST.into())).expect("libfabric is there");
    let found = found.first().expect("there is a loopback");
    assert_eq!((found.provider.as_str(), found.domain.as_str()), ("tcp", "lo"));
    let owner = Arc::clone(owner);
    let gate = move |words: &[u8]| {
        let owner: Arc<dyn Owner> = owner.clone();
        (words == b"friend").then_some((len, owner))
    };
    Port::open(found, Box::new(gate)).expect("it opens")
}

/// Two ends of an established link.
struct Pair {
    local: Arc<Link>,
    local_events: Receiver<LinkEvent>,
    remote: Arc<Link>,
    remote_events: Receiver<LinkEvent>,
    ports: (Port, Port),
}

/// An owner that also hands the accepted link out.
fn pair(len: usize) -> Pair {
    let ((local_owner, local_events), (remote_owner, remote_events)) = (Teller::new(), Teller::new());
    let ports = (port(len, &local_owner), port(len, &remote_owner));
    let local = ports.0.connect(ports.1.address(), b"friend", len, local_owner).expect("it is asked");
    assert_eq!(next(&local_events), LinkEvent::Ready);
    assert_eq!(next(&remote_events), LinkEvent::Ready);
    let remote = ports.1.links().pop().expect("one was accepted");
    Pair { local, local_events, remote, remote_events, ports }
}

fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !ready() {
        assert!(Instant::now() < end, "{what} does not come");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_put_before_a_call_is_there() {
    const LEN: usize = 1 << 16;
    let pair = pair(LEN);
    let (shadow, mine) = (pair.local.shadow().expect("it stands"), pair.remote.mine());
    for round in 1..100u64 {
        // A few bytes, which go with a message, and many.
        let len = if round % 2 == 0 { 40 } else { 4000 };
        let bytes = vec![round as u8; len];
        // SAFETY: a vector of so many.
        unsafe { shadow.copy_in(4096, bytes.as_ptr(), len) };
        pair.local.put_shadowed(4096, len);
        pair.local.call(7, round);
        assert_eq!(next(&pair.remote_events), LinkEvent::Called(7, round));
        let mut got = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { mine.copy_out(4096, got.as_mut_ptr(), len) };
        assert_eq!(got, bytes);
    }
}

/// Counts its work, and returns how much it was.
struct Counting {
    work: Arc<AtomicU64>,
    done: Sender<u64>,
}

impl PortWork for Counting {
    fn run(&mut self) -> usize {
        let work = self.work.swap(0, Ordering::AcqRel);
        if work > 0 {
            let _ = self.done.send(work);
        }
        work as usize
    }
    fn may_sleep(&mut self) -> bool {
        self.work.load(Ordering::Acquire) == 0
    }
    fn descriptor(&self) -> Option<i32> {
        None
    }
}

#[test]
fn work_is_done_when_the_bell_is_rung() {
    let found = ofi::find(Some("tcp"), Some(Ipv4Addr::LOCALHOST.into())).expect("libfabric is there");
    let (work, (done, did)) = (Arc::new(AtomicU64::new(0)), channel());
    let counting = Counting { work: Arc::clone(&work), done };
    let gate = Box::new(|_: &[u8]| None);
    let port = Port::open_with(&found[0], gate, |_| counting).expect("it opens");
    for round in 1..1000 {
        work.store(round, Ordering::Release);
        fabric::bell::ring(port.bell());
        assert_eq!(did.recv_timeout(PATIENCE), Ok(round));
    }
}

/// Numbers that look random.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    *state >> 33
}

#[test]
fn what_is_put_is_there_when_the_word_behind_it_is() {
    const LEN: usize = 1 << 20;
    let pair = pair(LEN + 16);
    assert_eq!(pair.local.room(), Some(LEN + 16));
    let mut state = 7;
    let writer = {
        let local = Arc::clone(&pair.local);
        std::thread::spawn(move || {
            let mine = local.mine();
            for round in 1..=300u64 {
                let (at, len) = place(&mut state, LEN);
                let bytes: Vec<u8> = (0..len).map(|index| (index as u64 * 31 + round) as u8).collect();
                // SAFETY: a vector of so many.
                unsafe { local.put(at, bytes.as_ptr(), len) };
                local.put_word(LEN, round);
                // A place is written again only when it was read.
                until("the answer", || mine.word(0) == round);
            }
        })
    };
    let (remote, mine, mut state) = (&pair.remote, pair.remote.mine(), 7);
    for round in 1..=300u64 {
        until("the word", || mine.word(LEN) == round);
        let (at, len) = place(&mut state, LEN);
        let mut bytes = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { mine.get(at, bytes.as_mut_ptr(), len) };
        let right = bytes.iter().enumerate().all(|(index, &byte)| byte == (index as u64 * 31 + round) as u8);
        assert!(right, "round {round}: {len} bytes at {at}");
        remote.put_word(0, round);
    }
    writer.join().expect("it does not panic");
}

/// Somewhere, of any size, often a small one.
fn place(state: &mut u64, room: usize) -> (usize, usize) {
    let most = 1 << (random(state) % 21);
    let len = 1 + random(state) as usize % most.min(room);
    (random(state) as usize % (room - len + 1), len)
}

#[test]
fn who_is_asleep_is_woken_and_nobody_else() {
    let pair = pair(4096);
    pair.local.stimulate(128, trip::RX);
    pair.local.put_word(0, 1);
    until("the word", || pair.remote.mine().word(0) == 1);
    let word = trip::armed(trip::RX, trip::BELL, 3);
    trip::arm(&pair.remote.mine(), 128, |_| word);
    pair.local.stimulate(128, trip::TX);
    pair.local.stimulate(128, trip::RX);
    pair.local.stimulate(128, trip::RX);
    pair.local.put_word(0, 2);
    until("the word", || pair.remote.mine().word(0) == 2);
    assert_eq!(next(&pair.remote_events), LinkEvent::Fired(128, word));
    assert!(pair.remote_events.try_recv().is_err(), "it was armed once, for one thing");
    pair.local.or_word(256, 0b101);
    pair.local.or_word(256, 0b10);
    until("the bits", || pair.remote.mine().word(256) == 0b111);
}

#[test]
fn what_is_told_while_the_link_is_held_comes_in_its_order() {
    const LEN: usize = 1 << 16;
    let pair = pair(LEN);
    let (remote, word) = (pair.remote.mine(), trip::armed(trip::RX, trip::BELL, 3));
    for round in 1..200u64 {
        trip::arm(&remote, 128, |_| word);
        let held = pair.local.hold();
        // Many more words than one message holds, and bytes that do not go by messages.
        for at in 0..20 {
            pair.local.put_word(1024 + at * 8, round);
        }
        let len = if round % 2 == 0 { 40 } else { 4000 };
        // SAFETY: a vector of so many.
        unsafe { pair.local.put(4096, vec![round as u8; len].as_ptr(), len) };
        pair.local.put_word_soon(64, round);
        pair.local.put_word(0, round);
        pair.local.stimulate(128, trip::RX);
        pair.local.call(7, round);
        drop(held);
        assert_eq!(next(&pair.remote_events), LinkEvent::Fired(128, word));
        assert_eq!((remote.word(0), remote.word(64), remote.word(1024 + 19 * 8)), (round, round, round));
        let mut got = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { remote.copy_out(4096, got.as_mut_ptr(), len) };
        assert_eq!(got, vec![round as u8; len]);
        assert_eq!(next(&pair.remote_events), LinkEvent::Called(7, round));
    }
    let held = (pair.local.hold(), pair.local.hold());
    pair.local.put_word(0, 1000);
    drop(held.0);
    pair.local.help();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(remote.word(0), 199, "somebody holds it still");
    drop(held.1);
    until("the word", || remote.word(0) == 1000);
}

#[test]
fn a_word_that_nobody_waits_for_comes_soon_all_the_same() {
    let pair = pair(4096);
    let (local, remote) = (&pair.local, pair.remote.mine());
    local.put_word_soon(0, 1);
    until("the word of an end where nobody helps", || remote.word(0) == 1);
    local.help();
    local.put_word_soon(0, 2);
    local.help();
    until("the word of an end that waits in its turn", || remote.word(0) == 2);
    local.put_word_soon(0, 3);
    local.leave();
    until("the word of an end that goes to sleep", || remote.word(0) == 3);
    local.help();
    local.put_word_soon(0, 4);
    until("the word of an end that helps no more and has not said so", || remote.word(0) == 4);
    local.help();
    local.put_word_soon(0, 5);
    local.put_word(8, 5);
    until("the word behind it", || remote.word(8) == 5);
    assert_eq!(remote.word(0), 5, "it was told before");
    // A thread leaves while others put words: nothing is forgotten.
    let other = Arc::clone(local);
    let leaving = Arc::new(AtomicU64::new(0));
    let flag = Arc::clone(&leaving);
    let helper = std::thread::spawn(move || {
        while flag.load(Ordering::Relaxed) == 0 {
            other.help();
            other.leave();
        }
    });
    for round in 6..3000 {
        local.put_word_soon(0, round);
        if round % 7 == 0 {
            until("the word", || remote.word(0) == round);
        }
    }
    leaving.store(1, Ordering::Relaxed);
    helper.join().expect("it does not panic");
}

#[test]
fn who_does_not_know_the_word_is_refused() {
    let (owner, events) = Teller::new();
    let ports = (port(4096, &owner), port(4096, &owner));
    let link = ports.0.connect(ports.1.address(), b"foe", 4096, owner).expect("it is asked");
    assert!(matches!(next(&events), LinkEvent::Over(_)));
    assert!(link.why_over().is_some() && link.room().is_none());
    assert!(ports.1.links().is_empty());
}

#[test]
fn who_cannot_be_given_a_segment_is_refused() {
    let ((local_owner, local_events), (remote_owner, remote_events)) = (Teller::new(), Teller::new());
    let ports = (port(4096, &local_owner), port(usize::MAX / 2, &remote_owner));
    let link = ports.0.connect(ports.1.address(), b"friend", 4096, local_owner).expect("it is asked");
    assert_eq!(next(&remote_events), LinkEvent::Failed);
    assert!(matches!(next(&local_events), LinkEvent::Over(_)));
    assert!(link.room().is_none() && ports.1.links().is_empty());
}

#[test]
fn who_is_not_there_is_not_linked() {
    let (owner, events) = Teller::new();
    let ports = (port(4096, &owner), port(4096, &owner));
    let address = ports.1.address().to_vec();
    drop(ports.1);
    let asked = ports.0.connect(&address, b"friend", 4096, owner);
    if let Ok(link) = asked {
        assert!(matches!(next(&events), LinkEvent::Over(_)));
        assert!(link.why_over().is_some());
    }
}

#[test]
fn an_end_is_noticed_and_nothing_is_put_any_more() {
    let pair = pair(4096);
    pair.local.put_word(0, 9);
    pair.local.close();
    assert!(matches!(next(&pair.local_events), LinkEvent::Over(_)));
    assert!(matches!(next(&pair.remote_events), LinkEvent::Over(_)));
    assert_eq!(pair.remote.mine().word(0), 9, "what was told before the end has come");
    pair.remote.put_word(0, 1);
    // SAFETY: an array of so many.
    unsafe { pair.remote.put(0, [1u8; 4096].as_ptr(), 4096) };
    drop(pair.ports);
    assert_eq!(pair.local.mine().word(0), 0);
}

#[test]
fn a_port_that_goes_ends_its_links() {
    let pair = pair(4096);
    let (local, remote) = pair.ports;
    drop(remote);
    assert!(matches!(next(&pair.remote_events), LinkEvent::Over(_)));
    assert!(matches!(next(&pair.local_events), LinkEvent::Over(_)));
    drop(local);
    // The owner is gone.
    pair.local.help();
    pair.local.leave();
}

#[test]
fn what_cannot_be_ends_the_link() {
    for offset in [4, 4089, 4096, usize::MAX - 7] {
        let pair = pair(4096);
        pair.local.put_word(offset, 1);
        assert_eq!(
            next(&pair.remote_events),
            LinkEvent::Over("the peer has sent a malformed message".into()),
            "{offset}"
        );
    }
}

/// The ring of a stream, as on one host, between two hosts.
#[test]
fn a_stream_goes_by_it() {
    const RING: usize = 64 << 10;
    const ALL: u64 = 64 << 20;
    let (w, r, ring) = (0, 64, 4096);
    let pair = pair(ring + RING);
    let local = Arc::clone(&pair.local);
    let byte = |at: u64| (at ^ at >> 9 ^ at >> 17) as u8;
    let writer = std::thread::spawn(move || {
        let mut producer = stream::ring::Producer::new(ring, RING);
        let (mine, mut at, mut state) = (local.mine(), 0, 3);
        while at < ALL {
            let room = producer.room(&mine, r, 1).expect("nobody lies");
            if room == 0 {
                local.help();
                continue;
            }
            let len = (1 + random(&mut state) as usize % 20000).min(room).min((ALL - at) as usize);
            let bytes: Vec<u8> = (at..at + len as u64).map(byte).collect();
            // SAFETY: a vector of so many.
            unsafe { producer.put(&*local, bytes.as_ptr(), len) };
            producer.publish(&*local, w);
            at += len as u64;
        }
    });
    let mut consumer = stream::ring::Consumer::new(ring, RING);
    let (remote, mine, mut at) = (&pair.remote, pair.remote.mine(), 0);
    let mut bytes = vec![0; RING];
    while at < ALL {
        let ready = consumer.ready(&mine, w, 1, || u64::MAX).expect("nobody lies");
        if ready == 0 {
            remote.help();
            continue;
        }
        // SAFETY: a vector of so many.
        unsafe { consumer.peek(&mine, 0, bytes.as_mut_ptr(), ready) };
        for &got in &bytes[..ready] {
            assert_eq!(got, byte(at), "at {at}");
            at += 1;
        }
        consumer.consume(&**remote, r, ready);
    }
    writer.join().expect("it does not panic");
    assert!(pair.local_events.try_recv().is_err() && pair.remote_events.try_recv().is_err());
    let _ = mine.atomic(0);
}
