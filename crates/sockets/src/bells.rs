//! The bells of this process, by which peers wake its calls and its event queues: eventfds, and sockets for peers of other users.

use fabric::bell::{self, Loud};
use fabric::sync::{AtomicU32, AtomicU64, Ordering};

use crate::descriptors::{hide, intact, made, unhide};
use crate::layout::{BELLS, CALL_BELL, QUEUES};
use crate::process::{is_guest, options};

static BELL: [AtomicU32; BELLS] = [const { AtomicU32::new(0) }; BELLS];

/// Those that other users ring, for event queues; what they are called.
static LOUD: [AtomicU32; QUEUES] = [const { AtomicU32::new(0) }; QUEUES];

static LOUD_NAME: AtomicU64 = AtomicU64::new(0);

static LOUD_WORD: AtomicU64 = AtomicU64::new(0);

static CALL_BELL_TAKEN: AtomicU32 = AtomicU32::new(0);

fn forget_loud(close: bool) {
    LOUD_NAME.store(0, Ordering::Relaxed);
    for bell in &LOUD {
        let bell = bell.swap(0, Ordering::Relaxed);
        if bell != 0 && close {
            unhide(bell as i32 - 1);
        }
    }
}

/// Whether peers of new links get our bells. A guest whose bells were closed has none from then on, and is woken by kicks: those who know the
/// old ones would not ring new ones.
pub fn has_bells() -> bool {
    let intact = |bell: u32| bell == 0 || intact(bell as i32 - 1);
    options().bells && BELL.iter().all(|bell| intact(bell.load(Ordering::Acquire)))
}

/// The bell with this number, made when first asked for; `None` without descriptors or with `bells` off.
pub fn bell_fd(index: usize) -> Option<i32> {
    if !options().bells {
        return None;
    }
    let known = BELL[index].load(Ordering::Acquire);
    if known != 0 {
        return Some(known as i32 - 1).filter(|&bell| intact(bell));
    }
    let fd = hide(made(bell::create).ok()?);
    match BELL[index].compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fd),
        Err(other) => {
            unhide(fd);
            Some(other as i32 - 1)
        }
    }
}

/// How other users ring; made when first asked for, under the lock on states.
pub fn loud() -> Option<Loud> {
    if !options().bells || is_guest() {
        return None;
    }
    if LOUD_NAME.load(Ordering::Acquire) == 0 {
        let loud = Loud::new()?;
        LOUD_WORD.store(loud.word, Ordering::Relaxed);
        LOUD_NAME.store(loud.name, Ordering::Release);
    }
    Some(Loud { name: LOUD_NAME.load(Ordering::Acquire), word: LOUD_WORD.load(Ordering::Relaxed) })
}

/// The bell of an event queue that other users ring, made when first asked for; `None` if there are no such users, or no descriptors.
pub fn loud_fd(queue: usize) -> Option<i32> {
    let name = LOUD_NAME.load(Ordering::Acquire);
    if name == 0 {
        return None;
    }
    let known = LOUD[queue].load(Ordering::Acquire);
    if known != 0 {
        return Some(known as i32 - 1);
    }
    let loud = Loud { name, word: LOUD_WORD.load(Ordering::Relaxed) };
    let fd = hide(made(|| loud.create(queue as u8)).ok()?);
    match LOUD[queue].compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fd),
        Err(other) => {
            unhide(fd);
            Some(other as i32 - 1)
        }
    }
}

/// Claims the bell of single calls, for one sleeper.
pub fn claim_bell() -> Option<i32> {
    let fd = bell_fd(CALL_BELL)?;
    CALL_BELL_TAKEN.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
    Some(fd)
}

/// Gives it back.
pub fn release_bell() {
    CALL_BELL_TAKEN.store(0, Ordering::Release);
}

/// In the child of fork().
pub(crate) fn forked() {
    for bell in &BELL {
        // The parent sleeps on these.
        let bell = bell.swap(0, Ordering::Relaxed);
        if bell != 0 && is_guest() {
            unhide(bell as i32 - 1);
        }
    }
    forget_loud(true);
    CALL_BELL_TAKEN.store(0, Ordering::Relaxed);
}

/// Its bells are no more; who calls closes their descriptors.
pub(crate) fn renounce() {
    BELL.iter().for_each(|bell| bell.store(0, Ordering::Relaxed));
    forget_loud(false);
}
