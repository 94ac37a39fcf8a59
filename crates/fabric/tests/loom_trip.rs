//! Models of tripwire, hints, message queue and lock: loom runs the real code through every
//! interleaving and every value that the memory model lets a load return. Run by `make models`:
//!
//!     RUSTFLAGS="--cfg loom" cargo test --release -p fabric -p stream --test 'loom_*'
//!
//! Each protocol has *mutations*: the same scenario without one of its fences, orderings or steps.
//! It must fail. A model that cannot fail shows nothing.
#![cfg(loom)]

use fabric::lock::Lock;
use fabric::model::{ASLEEP, Bell, Flaw, Flawed, Segment, check, must_fail, sleep};
use fabric::{Local, Remote, hints, trip};
use loom::thread;

// --- tripwire: one owner that waits for a word, two writers ---

const DATA: usize = 0;
const TRIP: usize = 8;

#[test]
fn a_tripwire_wakes_its_owner_and_costs_one_wake_up_an_arming() {
    let whole = |s: &Segment| s.clone();
    check(None, move || trip_scenario(whole, arm));
}

#[test]
fn a_tripwire_needs_the_writers_fence() {
    must_fail(None, ASLEEP, || trip_scenario(|s| Flawed(s.clone(), Flaw::StimulateWithoutFence), arm));
}

#[test]
fn a_tripwire_needs_the_owners_fence() {
    must_fail(None, ASLEEP, || trip_scenario(|s| s.clone(), |s| s.set_word(TRIP, WORD)));
}

#[test]
fn a_tripwire_must_be_cleared_in_one_step() {
    must_fail(None, "kicks", || trip_scenario(|s| Flawed(s.clone(), Flaw::FireInTwoSteps), arm));
}

const WORD: u64 = trip::armed(trip::RX, trip::KICK, 7);

fn arm(segment: &Segment) {
    trip::arm(segment, TRIP, |_| WORD);
}

fn trip_scenario<R: Remote + Send + 'static>(open: fn(&Segment) -> R, arm: fn(&Segment)) {
    let segment = Segment::new(2, 0);
    let mine = segment.clone();
    let owner = thread::spawn(move || {
        let mut armed = 0;
        while mine.word(DATA) != 3 {
            arm(&mine);
            armed += 1;
            if mine.word(DATA) == 3 {
                break;
            }
            sleep();
        }
        armed
    });
    let writers = [1, 2].map(|bit| {
        let (remote, bell) = (open(&segment), Bell::of(&owner));
        thread::spawn(move || {
            remote.or_word(DATA, bit);
            let held = remote.stimulate(TRIP, trip::RX);
            if held != 0 {
                assert_eq!(held, WORD);
                bell.ring();
            }
            u64::from(held != 0)
        })
    });
    let armed = owner.join().unwrap();
    let kicks: u64 = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    assert!(kicks <= armed, "{kicks} kicks for {armed} armings");
}

// --- a writer that publishes under a lock, releases it, and only then checks whether anybody is
// armed ---

#[test]
fn to_release_a_lock_is_the_writers_fence() {
    check(None, || release_scenario(Lock::unlock));
}

#[test]
fn nothing_less_than_the_release_will_do() {
    must_fail(None, ASLEEP, || release_scenario(|_| ()));
}

fn release_scenario(release: fn(&Lock)) {
    let segment = Segment::new(2, 0);
    let mine = segment.clone();
    let owner = thread::spawn(move || {
        while mine.word(DATA) != 1 {
            arm(&mine);
            if mine.word(DATA) == 1 {
                break;
            }
            sleep();
        }
    });
    let bell = Bell::of(&owner);
    let writer = thread::spawn(move || {
        let lock = Lock::new();
        assert!(lock.lock(1));
        segment.put_word(DATA, 1);
        release(&lock);
        if segment.armed(TRIP, trip::RX) && segment.stimulate(TRIP, trip::RX) != 0 {
            bell.ring();
        }
    });
    owner.join().unwrap();
    writer.join().unwrap();
}

// --- hints: two setters, one taker that sleeps ---

#[test]
fn no_hint_and_no_wake_up_is_lost() {
    check(Some(3), || hints_scenario([3, 5], |s| s.clone(), hints::fence_before_sleep, set));
    check(Some(3), || hints_scenario([3, 70], |s| s.clone(), hints::fence_before_sleep, set));
}

/// One of the two cannot ring, and the taker would sleep on if that one disarmed it. It waits for
/// the other's hint alone.
#[test]
fn who_cannot_ring_takes_no_wake_up_from_who_can() {
    check(Some(3), || unheard_setter(|remote| hints::set_if(remote, 0, 3, || false).is_some()));
    must_fail(Some(3), ASLEEP, || unheard_setter(|remote| set(remote, 3) != 0));
}

fn unheard_setter(set_unheard: fn(&Segment) -> bool) {
    let segment = Segment::new(10, 0);
    let taker = spawn_taker(&segment, [5, 5], hints::fence_before_sleep);
    let (unheard, bell) = (segment.clone(), Bell::of(&taker));
    let unheard = thread::spawn(move || {
        set_unheard(&unheard);
    });
    let setter = thread::spawn(move || {
        if hints::set_if(&segment, 0, 5, || true) != Some(0) {
            bell.ring();
        }
    });
    for thread in [taker, unheard, setter] {
        thread.join().unwrap();
    }
}

#[test]
fn hints_need_the_setters_fence() {
    let open = |s: &Segment| Flawed(s.clone(), Flaw::StimulateWithoutFence);
    must_fail(Some(3), ASLEEP, move || hints_scenario([3, 5], open, hints::fence_before_sleep, set));
}

#[test]
fn hints_need_the_fence_before_sleep() {
    must_fail(Some(3), ASLEEP, || hints_scenario([3, 5], |s| s.clone(), || (), set));
}

#[test]
fn hints_need_the_bit_before_the_summary() {
    must_fail(Some(3), ASLEEP, || {
        hints_scenario([3, 70], |s| s.clone(), hints::fence_before_sleep, summary_first)
    });
}

#[test]
fn a_setter_that_dies_takes_no_other_hint_with_it() {
    check(Some(3), || dying_setter(set));
}

#[test]
fn skipping_the_summary_of_a_word_with_hints_would_lose_them() {
    must_fail(Some(3), ASLEEP, || dying_setter(summary_once));
}

/// One sets slot 3's bit and dies at once; another sets slot 5 and lives: 5 must arrive.
fn dying_setter(set: fn(&Segment, usize) -> u64) {
    let segment = Segment::new(10, 0);
    let taker = spawn_taker(&segment, [5, 5], hints::fence_before_sleep);
    let remote = segment.clone();
    let dying = thread::spawn(move || {
        remote.or_word(64, 1 << 3);
    });
    let bell = Bell::of(&taker);
    let setter = thread::spawn(move || {
        if set(&segment, 5) != 0 {
            bell.ring();
        }
    });
    for thread in [taker, dying, setter] {
        thread.join().unwrap();
    }
}

/// A thread that sleeps until it has got all of `slots`.
fn spawn_taker(segment: &Segment, slots: [usize; 2], before_sleep: fn()) -> thread::JoinHandle<()> {
    let mine = segment.clone();
    thread::spawn(move || {
        let mut taken = Vec::new();
        loop {
            hints::take(&mine, 0, |_| {}, |slot| taken.push(slot));
            if slots.iter().all(|slot| taken.contains(slot)) {
                return;
            }
            hints::arm_sleep(&mine, 0, trip::BELL, 0);
            before_sleep();
            if !hints::any(&mine, 0) {
                sleep();
            }
        }
    })
}

fn set<R: Remote>(remote: &R, slot: usize) -> u64 {
    hints::set(remote, 0, slot)
}

fn summary_once<R: Remote>(remote: &R, slot: usize) -> u64 {
    if remote.or_word(64 + slot / 64 * 8, 1 << (slot % 64)) == 0 {
        remote.or_word(0, 1 << (slot / 64));
    }
    remote.stimulate(8, trip::RX)
}

fn summary_first<R: Remote>(remote: &R, slot: usize) -> u64 {
    remote.or_word(0, 1 << (slot / 64));
    remote.or_word(64 + slot / 64 * 8, 1 << (slot % 64));
    remote.stimulate(8, trip::RX)
}

fn hints_scenario<R: Remote + Send + 'static>(
    slots: [usize; 2],
    open: fn(&Segment) -> R,
    before_sleep: fn(),
    set: fn(&R, usize) -> u64,
) {
    let segment = Segment::new(10, 0);
    let taker = spawn_taker(&segment, slots, before_sleep);
    let setters = slots.map(|slot| {
        let (remote, bell) = (open(&segment), Bell::of(&taker));
        thread::spawn(move || {
            if set(&remote, slot) != 0 {
                bell.ring();
            }
        })
    });
    for thread in setters {
        thread.join().unwrap();
    }
    taker.join().unwrap();
}
