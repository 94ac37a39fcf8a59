//! Models of the queue of entries, with a reader that tells a waiting writer only now and then.
//! `crates/fabric/tests/loom_trip.rs` says how they are run and why each has mutations.
#![cfg(loom)]

use fabric::model::{ASLEEP, Bell, Flaw, Flawed, RACE, Segment, check, must_fail, sleep};
use fabric::{Local, Remote, trip};
use filters::ring::{Entry, Kind, Place, Reader, Writer};
use loom::thread;

/// Entries that fit.
const CAPACITY: usize = 2;
/// The reader's counts, then a number for each entry; behind them the words on which the reader and
/// the writer sleep.
const WORDS: usize = 2 + CAPACITY;
const READER: usize = 0;
const WRITER: usize = 8;
const WORD: u64 = trip::armed(trip::RX, trip::BELL, 0);

#[test]
fn entries_arrive_whole_and_in_order() {
    check(Some(3), || scenario(3, |s| s.clone()));
}

#[test]
fn entries_need_the_writers_release() {
    must_fail(Some(3), RACE, || scenario(3, |s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn entries_need_the_acquires() {
    must_fail(Some(3), RACE, || scenario(3, |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

/// Both sleep when there is nothing to do. Four entries go through a queue of two; the writer is
/// told after every second one, and after the last.
#[test]
fn nobody_sleeps_for_ever() {
    check(Some(2), || asleep(|s| s.clone(), false));
}

#[test]
fn waking_needs_the_fence() {
    must_fail(Some(2), ASLEEP, || asleep(|s| Flawed(s.clone(), Flaw::StimulateWithoutFence), false));
}

#[test]
fn waking_needs_to_be_told_of_the_last() {
    must_fail(Some(2), ASLEEP, || asleep(|s| s.clone(), true));
}

fn entry(number: u64) -> Entry {
    Entry {
        kind: Kind::Data,
        uow: 1,
        place: if number % 2 == 1 { Place::Slot(number as u32) } else { Place::Inline([number, !number]) },
        len: 5,
        note: if number % 2 == 1 { 3 } else { 0 },
        more: number == 1,
        key: number,
        sent: number + 10,
    }
}

fn scenario<S: Local + Remote + Send + 'static>(count: u64, open: fn(&Segment) -> S) {
    let segment = Segment::new(WORDS, CAPACITY * 56);
    let memory = open(&segment);
    let writing = thread::spawn(move || {
        let mut writer = Writer::new(0, CAPACITY);
        for number in 0..count {
            while !writer.has_room(&memory) {
                thread::yield_now();
            }
            writer.put(&memory, &entry(number));
        }
    });
    let memory = open(&segment);
    let mut reader = Reader::new(0, CAPACITY, 1);
    for number in 0..count {
        let found = loop {
            match reader.peek(&memory) {
                Some(found) => break found,
                None => thread::yield_now(),
            }
        };
        assert_eq!(found, entry(number));
        assert!(reader.take(&memory, true));
    }
    writing.join().expect("it ends");
    assert!(!reader.is_ready(&memory));
}

fn asleep<S: Local + Remote + Send + 'static>(open: fn(&Segment) -> S, forget: bool) {
    const COUNT: u64 = 4;
    let segment = Segment::new(WORDS, CAPACITY * 56);
    let words = Segment::new(2, 0);
    let (mine, sleepers) = (open(&segment), open(&words));
    let (writing, waiting) = (open(&segment), open(&words));
    // Each needs the other's bell.
    let (to_reader, bell_of_writer) = loom::sync::mpsc::channel::<Bell>();
    let reading = thread::spawn(move || {
        let bell = bell_of_writer.recv().expect("it is sent");
        let mut reader = Reader::new(0, CAPACITY, 2);
        let mut got = 0;
        while got < COUNT {
            if reader.peek(&mine).is_some() {
                got += 1;
                // The failure if the writer is told after every second entry only, whether or not
                // the queue is empty.
                let soon = reader.take(&mine, true) && (!forget || got % 2 == 0 && got < COUNT);
                if soon && sleepers.stimulate(WRITER, trip::RX) != 0 {
                    bell.ring();
                }
                continue;
            }
            trip::arm(&sleepers, READER, |_| WORD);
            if !reader.is_ready(&mine) {
                sleep();
            }
        }
    });
    let bell = Bell::of(&reading);
    let writer = thread::spawn(move || {
        let mut writer = Writer::new(0, CAPACITY);
        for number in 0..COUNT {
            while !writer.has_room(&writing) {
                trip::arm(&waiting, WRITER, |_| WORD);
                if !writer.has_room(&writing) {
                    sleep();
                }
            }
            writer.put(&writing, &entry(number));
            if waiting.stimulate(READER, trip::RX) != 0 {
                bell.ring();
            }
        }
        // The model's threads end only when all was read: a thread that is not woken sleeps here
        // for ever.
        while writer.acknowledged(&writing) < COUNT {
            trip::arm(&waiting, WRITER, |_| WORD);
            if writer.acknowledged(&writing) < COUNT {
                sleep();
            }
        }
    });
    to_reader.send(Bell::of(&writer)).expect("it is there");
    writer.join().expect("it ends");
    reading.join().expect("it ends");
}
