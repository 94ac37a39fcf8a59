//! Models of the byte ring: a writer and a reader, the real code on both sides, through every
//! interleaving that loom finds. Every byte must arrive once and in order, none may be read before
//! it was published or overwritten before it was given back, and no side may sleep when nobody will
//! wake it. Run by `make models`; `crates/fabric/tests/loom_trip.rs` says how, and why there are
//! mutations.
#![cfg(loom)]

use fabric::model::{ASLEEP, Bell, Flaw, Flawed, RACE, Segment, check, must_fail, sleep};

use fabric::{Local, Remote, trip};
use loom::thread;
use std::sync::{Arc, OnceLock};
use stream::ring::{Consumer, Producer};

#[test]
fn bytes_arrive_once_in_order_and_wrap_around() {
    check(None, || pass(Scenario { total: 3, writes: 1, first: 1, ..POLL }, whole));
    check(Some(3), || pass(Scenario { total: 5, writes: 2, first: 2, ..POLL }, whole));
    check(Some(3), || pass(Scenario { total: 7, writes: 3, first: 4, ..POLL }, whole));
}

#[test]
fn a_ring_needs_release() {
    must_fail(Some(3), RACE, || pass(POLL, |s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn a_ring_needs_acquire() {
    must_fail(Some(3), RACE, || pass(POLL, |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

#[test]
fn both_sides_sleep_and_no_wake_up_is_lost() {
    check(Some(3), || pass(Scenario { total: 2, writes: 1, first: 1, ..SLEEP }, whole));
    check(Some(2), || pass(Scenario { total: 4, writes: 2, first: 2, ..SLEEP }, whole));
}

#[test]
fn sleeping_needs_the_wakers_fence() {
    must_fail(Some(3), ASLEEP, || pass(SLEEP, |s| Flawed(s.clone(), Flaw::StimulateWithoutFence)));
}

#[test]
fn sleeping_needs_the_sleepers_fence() {
    must_fail(Some(3), ASLEEP, || pass(Scenario { wait: Wait::SleepWithoutFence, ..SLEEP }, whole));
}

#[test]
fn sleeping_needs_a_second_look() {
    must_fail(Some(3), ASLEEP, || pass(Scenario { wait: Wait::SleepWithoutLook, ..SLEEP }, whole));
}

#[test]
fn a_stimulus_goes_after_the_data() {
    must_fail(Some(3), ASLEEP, || pass(Scenario { wait: Wait::WakeBeforeData, ..SLEEP }, whole));
}

#[test]
fn a_stream_changes_over_to_another_ring() {
    check(Some(3), || pass(Scenario { total: 2, move_at: Some(1), ..POLL }, whole));
    check(Some(2), || pass(Scenario { total: 4, writes: 2, first: 2, move_at: Some(2), ..POLL }, whole));
    check(Some(2), || pass(Scenario { total: 2, move_at: Some(1), ..SLEEP }, whole));
}

#[test]
fn a_change_over_is_announced_before_bytes_in_the_new_ring() {
    must_fail(Some(3), "left == right", || pass(Scenario { announce_late: true, ..MOVE }, whole));
}

#[test]
fn an_announcement_is_looked_at_after_the_position() {
    must_fail(Some(3), "left == right", || pass(Scenario { look_early: true, ..MOVE }, whole));
}

/// As `sockets::idle` does: pages that are given back read as zeroes.
#[test]
fn a_ring_is_given_back_when_its_reader_has_taken_all() {
    check(Some(3), || pass(Scenario { total: 3, ..GIVE_BACK }, whole));
    check(Some(3), || pass(Scenario { total: 4, writes: 2, first: 2, ..GIVE_BACK }, whole));
    check(Some(2), || pass(Scenario { give_back: Give::WhenEmpty, ..SLEEP }, whole));
}

#[test]
fn a_ring_is_not_given_back_before() {
    must_fail(Some(3), RACE, || pass(Scenario { give_back: Give::Always, ..POLL }, whole));
}

// --- what is run ---

#[derive(Clone, Copy)]
struct Scenario {
    /// Bytes that pass.
    total: u64,
    /// Bytes that a write has at most.
    writes: usize,
    /// Capacity of the first ring; the second one's is 2.
    first: usize,
    /// After how many bytes the writer changes to the second ring.
    move_at: Option<u64>,
    wait: Wait,
    /// Whether the writer gives the ring's memory back after each write.
    give_back: Give,
    /// Mutation: the writer announces the change after it published bytes in the new ring.
    announce_late: bool,
    /// Mutation: the reader reads the announcement before the write position.
    look_early: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Give {
    Never,
    WhenEmpty,
    /// Mutation.
    Always,
}

#[derive(Clone, Copy, PartialEq)]
enum Wait {
    Poll,
    Sleep,
    SleepWithoutFence,
    SleepWithoutLook,
    WakeBeforeData,
}

const POLL: Scenario = Scenario {
    total: 3,
    writes: 1,
    first: 1,
    move_at: None,
    wait: Wait::Poll,
    give_back: Give::Never,
    announce_late: false,
    look_early: false,
};
const SLEEP: Scenario = Scenario { total: 2, wait: Wait::Sleep, ..POLL };
const GIVE_BACK: Scenario = Scenario { give_back: Give::WhenEmpty, ..POLL };
const MOVE: Scenario = Scenario { total: 2, first: 2, move_at: Some(1), ..POLL };

/// The reader's segment: write position, tripwire, announcement (position + 1; 0 is none), then the
/// two rings.
const FRONT: usize = 0;
const ANNOUNCED: usize = 16;
const FIRST: usize = 24;
const SECOND: usize = 28;
/// The writer's segment: read position, tripwire.
const BACK: usize = 0;
/// In both.
const TRIP: usize = 8;

fn whole(segment: &Segment) -> Segment {
    segment.clone()
}

fn pass<S: Local + Remote + Send + 'static>(scenario: Scenario, open: fn(&Segment) -> S) {
    let (inbox, outbox) = (Segment::new(3, 6), Segment::new(2, 0));
    let shared = Arc::new(OnceLock::new());
    let reader = {
        let (local, remote, shared) = (open(&inbox), open(&outbox), shared.clone());
        thread::spawn(move || {
            let (_, writer) = bells(&shared);
            read(scenario, &local, &remote, &writer);
        })
    };
    let writer = {
        let (remote, local, shared) = (open(&inbox), open(&outbox), shared.clone());
        thread::spawn(move || {
            let (reader, _) = bells(&shared);
            write(scenario, &local, &remote, &reader);
        })
    };
    let pair = (Bell::of(&reader), Bell::of(&writer));
    let _ = shared.set(pair.clone());
    pair.0.ring();
    pair.1.ring();
    reader.join().unwrap();
    writer.join().unwrap();
}

/// The bells of reader and writer, as soon as both exist.
fn bells(shared: &OnceLock<(Bell, Bell)>) -> (Bell, Bell) {
    loop {
        match shared.get() {
            Some(bells) => return bells.clone(),
            None => sleep(),
        }
    }
}

fn write<L: Local, R: Remote>(scenario: Scenario, local: &L, remote: &R, reader: &Bell) {
    let mut producer = Producer::new(FIRST, scenario.first);
    let mut moved = false;
    while producer.position() < scenario.total {
        let at = producer.position();
        let mut announce = false;
        if scenario.move_at.is_some_and(|boundary| boundary <= at) && !moved {
            moved = true;
            announce = true;
            producer.move_to(SECOND, 2);
        }
        if announce && !scenario.announce_late {
            remote.put_word(ANNOUNCED, at + 1);
        }
        let left = scenario.move_at.filter(|_| !moved).unwrap_or(scenario.total) - at;
        let want = scenario.writes.min(left as usize);
        wait(scenario.wait, local, trip::TX, || producer.room(local, BACK, want).unwrap() > 0);
        let len = want.min(producer.room(local, BACK, want).unwrap());
        let bytes: Vec<u8> = (at..at + len as u64).map(|i| i as u8 + 1).collect();
        if scenario.wait == Wait::WakeBeforeData && remote.stimulate(TRIP, trip::RX) != 0 {
            reader.ring();
        }
        // SAFETY: `bytes` has `len` bytes.
        unsafe { producer.put(remote, bytes.as_ptr(), len) };
        producer.publish(remote, FRONT);
        if announce && scenario.announce_late {
            remote.put_word(ANNOUNCED, at + 1);
        }
        if !matches!(scenario.wait, Wait::Poll | Wait::WakeBeforeData)
            && remote.stimulate(TRIP, trip::RX) != 0
        {
            reader.ring();
        }
        let empty = || producer.unread(local, BACK) == Ok(0);
        if scenario.give_back == Give::Always || scenario.give_back == Give::WhenEmpty && empty() {
            let zeroes = vec![0; scenario.first];
            // SAFETY: `zeroes` has so many bytes.
            unsafe { remote.put(FIRST, zeroes.as_ptr(), zeroes.len()) };
        }
    }
}

fn read<L: Local, R: Remote>(scenario: Scenario, local: &L, remote: &R, writer: &Bell) {
    let mut consumer = Consumer::new(FIRST, scenario.first);
    let mut moved = false;
    while consumer.position() < scenario.total {
        let announced = || local.word(ANNOUNCED).wrapping_sub(1); // u64::MAX: none
        let mut ready = || {
            if moved {
                return consumer.ready(local, FRONT, 1, || u64::MAX).unwrap();
            }
            let early = announced();
            let ready = consumer
                .ready(local, FRONT, 1, || if scenario.look_early { early } else { announced() })
                .unwrap();
            if ready == 0 && announced() == consumer.position() {
                moved = true;
                consumer.move_to(SECOND, 2);
                return consumer.ready(local, FRONT, 1, || u64::MAX).unwrap();
            }
            ready
        };
        wait(scenario.wait, local, trip::RX, || ready() > 0);
        let len = ready();
        let mut bytes = vec![0; len];
        // SAFETY: `bytes` has `len` bytes.
        unsafe { consumer.peek(local, 0, bytes.as_mut_ptr(), len) };
        let expected: Vec<u8> = (consumer.position()..).map(|i| i as u8 + 1).take(len).collect();
        assert_eq!(bytes, expected);
        consumer.consume(remote, BACK, len);
        if scenario.wait != Wait::Poll && remote.stimulate(TRIP, trip::TX) != 0 {
            writer.ring();
        }
    }
}

/// Waits as a call without time to spin does: check, arm, check again, sleep.
fn wait<L: Local>(wait: Wait, local: &L, interest: u64, mut there: impl FnMut() -> bool) {
    while !there() {
        match wait {
            Wait::Poll => {
                thread::yield_now();
                continue;
            }
            Wait::SleepWithoutFence => local.set_word(TRIP, trip::armed(interest, trip::BELL, 0)),
            _ => {
                trip::arm(local, TRIP, |_| trip::armed(interest, trip::BELL, 0));
            }
        }
        if wait == Wait::SleepWithoutLook || !there() {
            sleep();
        }
    }
}
