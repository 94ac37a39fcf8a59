//! Models of the queue of frames. `loom_trip.rs` says how they are run and why each has mutations.
#![cfg(loom)]

use fabric::frames::{ALIGN, Consumer, DATA, Next, Producer};
use fabric::model::{ASLEEP, Flaw, Flawed, RACE, Segment, check, must_fail, sleep};
use fabric::{Local, Remote, trip};
use loom::thread;

// In the receiver's segment the write index is at 0, the tripwire at 8, records from 64 on; the
// read index is in the sender's segment at 0.

const SIZE: usize = 4 * ALIGN;
const TRIP: usize = 8;

#[test]
fn frames_arrive_whole_and_in_order() {
    check(Some(3), || scenario(&[&[7], &[8, 9]], |s| s.clone()));
}

#[test]
fn a_full_queue_waits_for_its_reader_and_a_record_does_not_wrap() {
    // Three lines, then two: those have no room in one piece but at the beginning.
    check(Some(2), || scenario(&[&[1], &[2; ALIGN], &[3; ALIGN], &[4]], |s| s.clone()));
}

#[test]
fn frames_need_the_senders_release() {
    must_fail(Some(3), RACE, || scenario(&[&[7], &[8, 9]], |s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn frames_need_the_acquires() {
    must_fail(Some(3), RACE, || scenario(&[&[7], &[8, 9]], |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

#[test]
fn a_receiver_that_sleeps_is_woken() {
    check(Some(3), || asleep(|s| s.clone(), arm));
}

#[test]
fn waking_needs_the_senders_fence() {
    must_fail(Some(3), ASLEEP, || asleep(|s| Flawed(s.clone(), Flaw::StimulateWithoutFence), arm));
}

#[test]
fn waking_needs_the_receivers_fence() {
    must_fail(Some(3), ASLEEP, || asleep(|s| s.clone(), |s| s.set_word(TRIP, WORD)));
}

fn scenario<S: Local + Remote + Send + 'static>(frames: &'static [&'static [u8]], open: fn(&Segment) -> S) {
    let inbox = Segment::new(8, SIZE);
    let sender = Segment::new(1, 0);
    let (remote, local) = (open(&inbox), open(&sender));
    let thread = thread::spawn(move || {
        let mut producer = Producer::new(SIZE);
        for frame in frames {
            while !producer.put(&remote, 0, &local, 0, &[frame]) {
                thread::yield_now();
            }
            assert!(producer.publish(&remote, 0));
        }
    });
    let (local, remote) = (open(&inbox), open(&sender));
    let mut consumer = Consumer::new(SIZE);
    for frame in frames {
        let (offset, len) = loop {
            match consumer.next(&local, 0) {
                Next::Frame { offset, len } => break (offset, len),
                Next::Empty => thread::yield_now(),
                Next::Broken => panic!("broken"),
            }
        };
        assert_eq!(len, frame.len());
        let mut got = vec![0; len];
        // SAFETY: the target has that length.
        unsafe { local.get(offset, got.as_mut_ptr(), len) };
        assert_eq!(got, *frame);
        consumer.done(&remote, 0, len);
    }
    thread.join().unwrap();
    assert!(!consumer.ready(&local, 0));
}

const WORD: u64 = trip::armed(trip::RX, trip::BELL, 0);

fn arm(segment: &Segment) {
    trip::arm(segment, TRIP, |_| WORD);
}

/// Two frames are put and published one by one. The receiver arms its tripwire, checks again, and
/// sleeps.
fn asleep<R: Local + Remote + Send + 'static>(open: fn(&Segment) -> R, arm: fn(&Segment)) {
    let inbox = Segment::new(DATA / 8, SIZE);
    let sender = Segment::new(1, 0);
    let (mine, back) = (inbox.clone(), sender.clone());
    let receiver = thread::spawn(move || {
        let mut consumer = Consumer::new(SIZE);
        let mut got = 0;
        while got < 2 {
            match consumer.next(&mine, 0) {
                Next::Frame { len, .. } => {
                    got += 1;
                    consumer.done(&back, 0, len);
                    continue;
                }
                Next::Empty => {}
                Next::Broken => panic!("broken"),
            }
            arm(&mine);
            if !consumer.ready(&mine, 0) {
                sleep();
            }
        }
    });
    let bell = fabric::model::Bell::of(&receiver);
    let (remote, local) = (open(&inbox), open(&sender));
    let writer = thread::spawn(move || {
        let mut producer = Producer::new(SIZE);
        for _ in 0..2 {
            while !producer.put(&remote, 0, &local, 0, &[&[1]]) {
                thread::yield_now();
            }
            producer.publish(&remote, 0);
            if remote.stimulate(TRIP, trip::RX) != 0 {
                bell.ring();
            }
        }
    });
    writer.join().unwrap();
    receiver.join().unwrap();
}
