//! One end of a connection is the library's, driven by its calls ([`end`]). The other is a script,
//! which puts each word and byte of the protocol itself and looks what the library puts ([`peer`]).
//! Both are in this process, over a real connection of the kernel's and real shared memory. Nothing
//! sleeps for a time: what the kernel still has to do is waited for, and a call of the library's
//! that sleeps has a thread of its own. A test has one pair at a time, and tests take turns.

mod end;
mod peer;

mod ending;
mod growing;
mod kicks;
mod leaving;
mod malformed;
mod offering;
mod readiness;
mod reading;
mod recalling;
mod sleeping;
mod writing;

use std::time::{Duration, Instant};

use end::End;
use peer::Peer;

/// A connection whose ends have agreed, and which is on tcp both ways.
fn pair() -> (End, Peer) {
    let (ours, mut peer) = posted();
    peer.offer(&ours);
    ours.tick();
    assert!(peer.accepted() && ours.is_managed());
    (ours, peer)
}

/// As [`pair`], on rings both ways: the script has sent nothing yet, the library "hello".
fn on_rings() -> (End, Peer) {
    let (ours, mut peer) = pair();
    assert_eq!(ours.send(b"hello"), Ok(5));
    assert_eq!(peer.read(), b"hello");
    peer.announce();
    assert_eq!(ours.recv(10), Err(libc::EAGAIN));
    assert_eq!(ours.paths(), (end::SMALL, end::SMALL));
    (ours, peer)
}

/// A connection whose ends have a link, and which is not offered yet.
fn posted() -> (End, Peer) {
    let (ours, tcp) = End::posted();
    let peer = Peer::meet(&ours, tcp);
    (ours, peer)
}

/// As [`pair`], where the library has sent so many bytes of 9 by tcp that no more find room.
fn full() -> (End, Peer, usize) {
    let (ours, mut peer) = posted();
    let mut full = 0;
    while let Ok(count) = ours.send(&[9; 100_000]) {
        full += count;
    }
    peer.offer(&ours);
    ours.tick();
    assert!(peer.accepted());
    (ours, peer, full)
}

/// Waits for what the kernel or another thread is about to do.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::yield_now();
    }
}
