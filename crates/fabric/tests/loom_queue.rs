//! Models of the message queue and of the lock. `loom_trip.rs` says how they are run and why each
//! has mutations.
#![cfg(loom)]
#![allow(clippy::arc_with_non_send_sync)] // loom runs its threads on one

use fabric::lock::Lock;
use fabric::model::{Flaw, Flawed, RACE, Segment, check, must_fail};
use fabric::queue::{Consumer, MESSAGE, Producer, SLOTS};
use fabric::sync::{AtomicBool, AtomicU32, DEAD, Ordering};
use fabric::{Local, Remote};
use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;

// --- message queue: write index at 0, messages from 64 on; the read index in the sender's segment
// at 0 ---

#[test]
fn messages_arrive_whole_and_in_order() {
    check(None, || queue_scenario(0, |s| s.clone()));
}

#[test]
fn a_full_queue_waits_for_its_reader() {
    check(Some(3), || queue_scenario(SLOTS - 1, |s| s.clone()));
}

#[test]
fn messages_need_the_senders_release() {
    must_fail(Some(3), RACE, || queue_scenario(0, |s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn messages_need_the_acquires() {
    must_fail(Some(3), RACE, || queue_scenario(SLOTS - 1, |s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

/// Two messages pass, after `before` earlier ones; in as few cells as the queue's layout allows.
fn queue_scenario<S: Local + Remote + Send + 'static>(before: u64, open: fn(&Segment) -> S) {
    let inbox = Segment::new(8, MESSAGE * SLOTS as usize);
    let sender = Segment::new(1, 0);
    let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
    for i in 0..before {
        assert!(producer.push(&inbox, 0, &sender, 0, &[i as u8; MESSAGE]));
    }
    let (remote, local) = (open(&inbox), open(&sender));
    let thread = thread::spawn(move || {
        for i in before..before + 2 {
            while !producer.push(&remote, 0, &local, 0, &[i as u8; MESSAGE]) {
                thread::yield_now();
            }
        }
    });
    let (local, remote) = (open(&inbox), open(&sender));
    for i in 0..before + 2 {
        let message = loop {
            match consumer.pop(&local, 0, &remote, 0) {
                Some(message) => break message,
                None => thread::yield_now(),
            }
        };
        assert_eq!(message, [i as u8; MESSAGE]);
    }
    assert!(!consumer.ready(&local, 0));
    thread.join().unwrap();
}

// --- lock: the futex is replaced by a yield, so what is checked is exclusion, hand-over and
// take-over ---

#[test]
fn a_lock_excludes() {
    check(Some(3), || lock_scenario([2]));
    check(Some(1), || lock_scenario([2, 3]));
}

fn lock_scenario<const N: usize>(tids: [u32; N]) {
    let shared = Arc::new((Lock::new(), UnsafeCell::new(0)));
    let others = tids.map(|tid| {
        let shared = shared.clone();
        thread::spawn(move || add_one(&shared, tid))
    });
    add_one(&shared, 1);
    for other in others {
        other.join().unwrap();
    }
    // SAFETY: the others have ended.
    assert_eq!(shared.1.with(|count| unsafe { *count }), 1 + N);
    assert_eq!(shared.0.owner(), 0);
}

fn add_one(shared: &(Lock, UnsafeCell<usize>), tid: u32) {
    assert!(shared.0.lock(tid));
    assert!(!shared.0.lock(tid), "a holder is told that it holds");
    // SAFETY: under the lock; loom checks that it excludes.
    shared.1.with_mut(|count| unsafe { *count += 1 });
    shared.0.unlock();
}

#[test]
fn a_dead_owners_lock_passes_to_exactly_one() {
    check(Some(3), || {
        let shared = Arc::new((Lock::new(), UnsafeCell::new(0)));
        let dead = {
            let shared = shared.clone();
            thread::spawn(move || {
                let _ = shared.0.try_lock(DEAD);
            })
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || add_one(&shared, 2))
        };
        add_one(&shared, 1);
        other.join().unwrap();
        dead.join().unwrap();
        // SAFETY: the others have ended.
        assert_eq!(shared.1.with(|count| unsafe { *count }), 2);
    });
}

#[test]
fn a_lock_needs_one_step_to_take_it() {
    must_fail(Some(3), RACE, || {
        let shared = Arc::new((AtomicU32::new(0), UnsafeCell::new(0)));
        let take = |shared: &(AtomicU32, UnsafeCell<usize>)| {
            while shared.0.load(Ordering::Acquire) != 0 {
                thread::yield_now();
            }
            shared.0.store(1, Ordering::Relaxed);
            // SAFETY: wrong on purpose; loom finds it.
            shared.1.with_mut(|count| unsafe { *count += 1 });
            shared.0.store(0, Ordering::Release);
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || take(&shared))
        };
        take(&shared);
        other.join().unwrap();
    });
}

#[test]
fn a_lock_needs_its_release() {
    must_fail(Some(3), RACE, || {
        let shared = Arc::new((AtomicBool::new(false), UnsafeCell::new(0)));
        let take = |shared: &(AtomicBool, UnsafeCell<usize>)| {
            while shared.0.swap(true, Ordering::Acquire) {
                thread::yield_now();
            }
            // SAFETY: wrong on purpose; loom finds it.
            shared.1.with_mut(|count| unsafe { *count += 1 });
            shared.0.store(false, Ordering::Relaxed);
        };
        let other = {
            let shared = shared.clone();
            thread::spawn(move || take(&shared))
        };
        take(&shared);
        other.join().unwrap();
    });
}
