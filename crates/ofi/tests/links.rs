//! Links over libfabric's tcp provider: two ports of this process on loopback, as on two hosts.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fabric::{Local as _, Mapped as _, Remote as _, trip};
use ofi::{Errands, Link, Owner, Port};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Ready,
    Fired(usize, u64),
    Called(u64, u64),
    Over(String),
    Failed,
}

/// Tells a channel of everything; keeps the link that was accepted.
struct Teller(Mutex<Sender<Told>>);

impl Owner for Teller {
    fn ready(&self, _link: &Link) {
        self.tell(Told::Ready);
    }
    fn fired(&self, _link: &Link, offset: usize, held: u64) {
        self.tell(Told::Fired(offset, held));
    }
    fn called(&self, _link: &Link, what: u64, value: u64) {
        self.tell(Told::Called(what, value));
    }
    fn over(&self, _link: &Link, why: &str) {
        self.tell(Told::Over(why.into()));
    }
    fn failed(&self, _error: &ofi::Error) {
        self.tell(Told::Failed);
    }
}

impl Teller {
    fn new() -> (Arc<Teller>, Receiver<Told>) {
        let (sender, receiver) = channel();
        (Arc::new(Teller(Mutex::new(sender))), receiver)
    }

    fn tell(&self, told: Told) {
        let _ = self.0.lock().expect("nobody panics with it").send(told);
    }
}

fn next(told: &Receiver<Told>) -> Told {
    told.recv_timeout(PATIENCE).expect("it comes")
}

/// A port on loopback whose gate takes those who know the word; links of so many bytes.
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

/// Two ends of a link, which stands.
struct Pair {
    near: Arc<Link>,
    near_told: Receiver<Told>,
    far: Arc<Link>,
    far_told: Receiver<Told>,
    ports: (Port, Port),
}

/// An owner that also hands the accepted link out.
fn pair(len: usize) -> Pair {
    let ((near_owner, near_told), (far_owner, far_told)) = (Teller::new(), Teller::new());
    let ports = (port(len, &near_owner), port(len, &far_owner));
    let near = ports.0.connect(ports.1.address(), b"friend", len, near_owner).expect("it is asked");
    assert_eq!(next(&near_told), Told::Ready);
    assert_eq!(next(&far_told), Told::Ready);
    let far = ports.1.links().pop().expect("one was accepted");
    Pair { near, near_told, far, far_told, ports }
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
    let (shadow, mine) = (pair.near.shadow().expect("it stands"), pair.far.mine());
    for round in 1..100u64 {
        // A few bytes, which go with a message, and many.
        let len = if round % 2 == 0 { 40 } else { 4000 };
        let bytes = vec![round as u8; len];
        // SAFETY: a vector of so many.
        unsafe { shadow.copy_in(4096, bytes.as_ptr(), len) };
        pair.near.put_shadowed(4096, len);
        pair.near.call(7, round);
        assert_eq!(next(&pair.far_told), Told::Called(7, round));
        let mut got = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { mine.copy_out(4096, got.as_mut_ptr(), len) };
        assert_eq!(got, bytes);
    }
}

/// Counts what it is given to do, and tells how much that was.
struct Counting {
    work: Arc<AtomicU64>,
    done: Sender<u64>,
}

impl Errands for Counting {
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
fn errands_are_run_when_the_bell_is_rung() {
    let found = ofi::find(Some("tcp"), Some(Ipv4Addr::LOCALHOST.into())).expect("libfabric is there");
    let (work, (done, did)) = (Arc::new(AtomicU64::new(0)), channel());
    let errands = Counting { work: Arc::clone(&work), done };
    let gate = Box::new(|_: &[u8]| None);
    let port = Port::open_with(&found[0], gate, |_| errands).expect("it opens");
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
    assert_eq!(pair.near.room(), Some(LEN + 16));
    let mut state = 7;
    let writer = {
        let near = Arc::clone(&pair.near);
        std::thread::spawn(move || {
            let mine = near.mine();
            for round in 1..=300u64 {
                let (at, len) = place(&mut state, LEN);
                let bytes: Vec<u8> = (0..len).map(|index| (index as u64 * 31 + round) as u8).collect();
                // SAFETY: a vector of so many.
                unsafe { near.put(at, bytes.as_ptr(), len) };
                near.put_word(LEN, round);
                // The same place is put to again only when it has been read.
                until("the answer", || mine.word(0) == round);
            }
        })
    };
    let (far, mine, mut state) = (&pair.far, pair.far.mine(), 7);
    for round in 1..=300u64 {
        until("the word", || mine.word(LEN) == round);
        let (at, len) = place(&mut state, LEN);
        let mut bytes = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { mine.get(at, bytes.as_mut_ptr(), len) };
        let right = bytes.iter().enumerate().all(|(index, &byte)| byte == (index as u64 * 31 + round) as u8);
        assert!(right, "round {round}: {len} bytes at {at}");
        far.put_word(0, round);
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
    pair.near.stimulate(128, trip::RX);
    pair.near.put_word(0, 1);
    until("the word", || pair.far.mine().word(0) == 1);
    let word = trip::armed(trip::RX, trip::BELL, 3);
    trip::arm(&pair.far.mine(), 128, |_| word);
    pair.near.stimulate(128, trip::TX);
    pair.near.stimulate(128, trip::RX);
    pair.near.stimulate(128, trip::RX);
    pair.near.put_word(0, 2);
    until("the word", || pair.far.mine().word(0) == 2);
    assert_eq!(next(&pair.far_told), Told::Fired(128, word));
    assert!(pair.far_told.try_recv().is_err(), "it was armed once, for one thing");
    pair.near.or_word(256, 0b101);
    pair.near.or_word(256, 0b10);
    until("the bits", || pair.far.mine().word(256) == 0b111);
}

#[test]
fn what_is_told_while_the_link_is_held_comes_in_its_order() {
    const LEN: usize = 1 << 16;
    let pair = pair(LEN);
    let (far, word) = (pair.far.mine(), trip::armed(trip::RX, trip::BELL, 3));
    for round in 1..200u64 {
        trip::arm(&far, 128, |_| word);
        let held = pair.near.hold();
        // Many more words than one message holds, and bytes that do not go by messages.
        for at in 0..20 {
            pair.near.put_word(1024 + at * 8, round);
        }
        let len = if round % 2 == 0 { 40 } else { 4000 };
        // SAFETY: a vector of so many.
        unsafe { pair.near.put(4096, vec![round as u8; len].as_ptr(), len) };
        pair.near.put_word_soon(64, round);
        pair.near.put_word(0, round);
        pair.near.stimulate(128, trip::RX);
        pair.near.call(7, round);
        drop(held);
        assert_eq!(next(&pair.far_told), Told::Fired(128, word));
        assert_eq!((far.word(0), far.word(64), far.word(1024 + 19 * 8)), (round, round, round));
        let mut got = vec![0; len];
        // SAFETY: a vector of so many.
        unsafe { far.copy_out(4096, got.as_mut_ptr(), len) };
        assert_eq!(got, vec![round as u8; len]);
        assert_eq!(next(&pair.far_told), Told::Called(7, round));
    }
    let held = (pair.near.hold(), pair.near.hold());
    pair.near.put_word(0, 1000);
    drop(held.0);
    pair.near.help();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(far.word(0), 199, "somebody holds it still");
    drop(held.1);
    until("the word", || far.word(0) == 1000);
}

#[test]
fn a_word_that_nobody_waits_for_comes_soon_all_the_same() {
    let pair = pair(4096);
    let (near, far) = (&pair.near, pair.far.mine());
    near.put_word_soon(0, 1);
    until("the word of an end where nobody helps", || far.word(0) == 1);
    near.help();
    near.put_word_soon(0, 2);
    near.help();
    until("the word of an end that waits in its turn", || far.word(0) == 2);
    near.put_word_soon(0, 3);
    near.leave();
    until("the word of an end that goes to sleep", || far.word(0) == 3);
    near.help();
    near.put_word_soon(0, 4);
    until("the word of an end that helps no more and has not said so", || far.word(0) == 4);
    near.help();
    near.put_word_soon(0, 5);
    near.put_word(8, 5);
    until("the word behind it", || far.word(8) == 5);
    assert_eq!(far.word(0), 5, "it was told before");
    // Whoever leaves while others tell: nothing is forgotten.
    let other = Arc::clone(near);
    let leaving = Arc::new(AtomicU64::new(0));
    let flag = Arc::clone(&leaving);
    let helper = std::thread::spawn(move || {
        while flag.load(Ordering::Relaxed) == 0 {
            other.help();
            other.leave();
        }
    });
    for round in 6..3000 {
        near.put_word_soon(0, round);
        if round % 7 == 0 {
            until("the word", || far.word(0) == round);
        }
    }
    leaving.store(1, Ordering::Relaxed);
    helper.join().expect("it does not panic");
}

#[test]
fn who_does_not_know_the_word_is_refused() {
    let (owner, told) = Teller::new();
    let ports = (port(4096, &owner), port(4096, &owner));
    let link = ports.0.connect(ports.1.address(), b"foe", 4096, owner).expect("it is asked");
    assert!(matches!(next(&told), Told::Over(_)));
    assert!(link.why_over().is_some() && link.room().is_none());
    assert!(ports.1.links().is_empty());
}

#[test]
fn who_cannot_be_given_a_segment_is_refused() {
    let ((near_owner, near_told), (far_owner, far_told)) = (Teller::new(), Teller::new());
    let ports = (port(4096, &near_owner), port(usize::MAX / 2, &far_owner));
    let link = ports.0.connect(ports.1.address(), b"friend", 4096, near_owner).expect("it is asked");
    assert_eq!(next(&far_told), Told::Failed);
    assert!(matches!(next(&near_told), Told::Over(_)));
    assert!(link.room().is_none() && ports.1.links().is_empty());
}

#[test]
fn who_is_not_there_is_not_linked() {
    let (owner, told) = Teller::new();
    let ports = (port(4096, &owner), port(4096, &owner));
    let address = ports.1.address().to_vec();
    drop(ports.1);
    let asked = ports.0.connect(&address, b"friend", 4096, owner);
    if let Ok(link) = asked {
        assert!(matches!(next(&told), Told::Over(_)));
        assert!(link.why_over().is_some());
    }
}

#[test]
fn an_end_is_noticed_and_nothing_is_put_any_more() {
    let pair = pair(4096);
    pair.near.put_word(0, 9);
    pair.near.close();
    assert!(matches!(next(&pair.near_told), Told::Over(_)));
    assert!(matches!(next(&pair.far_told), Told::Over(_)));
    assert_eq!(pair.far.mine().word(0), 9, "what was told before the end has come");
    pair.far.put_word(0, 1);
    // SAFETY: an array of so many.
    unsafe { pair.far.put(0, [1u8; 4096].as_ptr(), 4096) };
    drop(pair.ports);
    assert_eq!(pair.near.mine().word(0), 0);
}

#[test]
fn a_port_that_goes_ends_its_links() {
    let pair = pair(4096);
    let (near, far) = pair.ports;
    drop(far);
    assert!(matches!(next(&pair.far_told), Told::Over(_)));
    assert!(matches!(next(&pair.near_told), Told::Over(_)));
    drop(near);
    // Nobody is there any more to be told.
    pair.near.help();
    pair.near.leave();
}

#[test]
fn what_cannot_be_ends_the_link() {
    for offset in [4, 4089, 4096, usize::MAX - 7] {
        let pair = pair(4096);
        pair.near.put_word(offset, 1);
        assert_eq!(next(&pair.far_told), Told::Over("the peer has said what cannot be".into()), "{offset}");
    }
}

/// The ring of a stream, as one host has it, between two.
#[test]
fn a_stream_goes_by_it() {
    const RING: usize = 64 << 10;
    const ALL: u64 = 64 << 20;
    let (w, r, ring) = (0, 64, 4096);
    let pair = pair(ring + RING);
    let near = Arc::clone(&pair.near);
    let byte = |at: u64| (at ^ at >> 9 ^ at >> 17) as u8;
    let writer = std::thread::spawn(move || {
        let mut producer = stream::ring::Producer::new(ring, RING);
        let (mine, mut at, mut state) = (near.mine(), 0, 3);
        while at < ALL {
            let room = producer.room(&mine, r, 1).expect("nobody lies");
            if room == 0 {
                near.help();
                continue;
            }
            let len = (1 + random(&mut state) as usize % 20000).min(room).min((ALL - at) as usize);
            let bytes: Vec<u8> = (at..at + len as u64).map(byte).collect();
            // SAFETY: a vector of so many.
            unsafe { producer.put(&*near, bytes.as_ptr(), len) };
            producer.publish(&*near, w);
            at += len as u64;
        }
    });
    let mut consumer = stream::ring::Consumer::new(ring, RING);
    let (far, mine, mut at) = (&pair.far, pair.far.mine(), 0);
    let mut bytes = vec![0; RING];
    while at < ALL {
        let ready = consumer.ready(&mine, w, 1, || u64::MAX).expect("nobody lies");
        if ready == 0 {
            far.help();
            continue;
        }
        // SAFETY: a vector of so many.
        unsafe { consumer.peek(&mine, 0, bytes.as_mut_ptr(), ready) };
        for &got in &bytes[..ready] {
            assert_eq!(got, byte(at), "at {at}");
            at += 1;
        }
        consumer.consume(&**far, r, ready);
    }
    writer.join().expect("it does not panic");
    assert!(pair.near_told.try_recv().is_err() && pair.far_told.try_recv().is_err());
    let _ = mine.atomic(0);
}
