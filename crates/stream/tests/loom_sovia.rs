//! Models of the stream over Virtual Interfaces: a sender and a receiver with one buffer of two
//! bytes, the real code on both sides. Every byte must arrive once and in order, none may be read
//! before it was published or overwritten before it was given back. Run by `make models`;
//! `crates/fabric/tests/loom_trip.rs` says how, and why there are mutations.
#![cfg(loom)]

use fabric::model::{Flaw, Flawed, RACE, Segment, check, must_fail};
use fabric::{Local, Remote};
use loom::thread;
use stream::sovia::{Exchange, Manner, Receiver, Sender, at};
use stream::transport::Ends;

const FRONT: usize = 0;
const BACK: usize = 8;
const AREA: usize = 16;

#[derive(Clone, Copy)]
struct Scenario {
    /// Bytes that pass.
    total: u64,
    /// Whether they may be joined.
    join: bool,
}

const SINGLE: Scenario = Scenario { total: 2, join: false };
const JOINED: Scenario = Scenario { total: 3, join: true };

#[test]
fn messages_arrive_once_and_in_order() {
    check(Some(3), || pass(SINGLE, whole));
    check(Some(2), || pass(Scenario { total: 3, ..SINGLE }, whole));
}

#[test]
fn joined_messages_can_be_read_while_they_are_open() {
    check(Some(3), || pass(Scenario { total: 2, ..JOINED }, whole));
    check(Some(2), || pass(JOINED, whole));
}

#[test]
fn messages_need_release() {
    must_fail(Some(3), AMISS, || pass(SINGLE, |s| Flawed(s.clone(), Flaw::PutRelaxed)));
    must_fail(Some(3), RACE, || pass(JOINED, |s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn messages_need_acquire() {
    must_fail(Some(3), AMISS, || pass(SINGLE, |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
    must_fail(Some(3), RACE, || pass(JOINED, |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

/// The reader does not see a message's entry, believes that the message is still open, and reads
/// its buffer. (Where messages are joined, bytes are just then being put there.)
const AMISS: &str = "left == right";

fn whole(segment: &Segment) -> Segment {
    segment.clone()
}

fn manner() -> Manner {
    Manner { window: 1, delayed: 0, piggyback: false, combine: true }
}

fn pass<S: Local + Remote + Send + 'static>(scenario: Scenario, open: fn(&Segment) -> S) {
    // Up to the entries there are words, behind them bytes.
    let words = (AREA + at::MESSAGES) / 8 + 3 * via::wire::SLOTS;
    let [inbox, outbox] = [0, 1].map(|_| Segment::new(words, at::END));
    // Both have posted their descriptors before the connection is there.
    let sender = Sender::new(&inbox, AREA, manner());
    let receiver = Receiver::new(&outbox, AREA, manner());
    let (mine, theirs) = (open(&inbox), open(&outbox));
    let reader = thread::spawn(move || read(scenario, receiver, mine, theirs));
    write(scenario, sender, open(&outbox), open(&inbox));
    reader.join().unwrap();
}

fn write<S: Local + Remote>(scenario: Scenario, mut sender: Sender, mine: S, theirs: S) {
    let exchange = Exchange::default();
    let ends = Ends { mine, theirs, exchange: &exchange, front: FRONT, back: BACK };
    for i in 0..scenario.total {
        sender.combine(scenario.join);
        while sender.room(&ends, 1).unwrap() == 0 {
            thread::yield_now();
        }
        // SAFETY: a byte.
        unsafe { sender.put(&ends, [i as u8 + 1].as_ptr(), 1) };
        sender.publish(&ends);
    }
}

fn read<S: Local + Remote>(scenario: Scenario, mut receiver: Receiver, mine: S, theirs: S) {
    let exchange = Exchange::default();
    let ends = Ends { mine, theirs, exchange: &exchange, front: FRONT, back: BACK };
    while receiver.position() < scenario.total {
        let ready = receiver.ready(&ends, 1, || u64::MAX).unwrap();
        if ready == 0 {
            thread::yield_now();
            continue;
        }
        let mut bytes = vec![0; ready];
        // SAFETY: so many are ready.
        unsafe { receiver.peek(&ends.mine, 0, bytes.as_mut_ptr(), ready) };
        let expected: Vec<u8> = (receiver.position()..).map(|i| i as u8 + 1).take(ready).collect();
        assert_eq!(bytes, expected);
        receiver.consume(&ends, ready);
    }
}
