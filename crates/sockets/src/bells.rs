//! The bells of this process, by which peers wake its calls and its event queues: eventfds, and
//! sockets for peers of other users.

use fabric::bell::{self, Loud};
use fabric::sync::{AtomicU64, Ordering};

use crate::descriptors::{Kept, intact};
use crate::layout::BELLS;
use crate::process::{is_guest, options};

static BELL: [Kept; BELLS] = [const { Kept::new() }; BELLS];

/// Those that other users ring; what they are called.
static LOUD: [Kept; BELLS] = [const { Kept::new() }; BELLS];

static LOUD_NAME: AtomicU64 = AtomicU64::new(0);

static LOUD_WORD: AtomicU64 = AtomicU64::new(0);

/// Whether peers of new links get our bells. A guest whose bells were closed has none from then on,
/// and is woken by kicks: those who know the old ones would not ring new ones.
pub fn has_bells() -> bool {
    options().bells && BELL.iter().all(|bell| bell.get().is_none_or(intact))
}

/// The bell with this number, made when first asked for; `None` without descriptors or with `bells`
/// off.
pub fn bell_fd(index: usize) -> Option<i32> {
    if !options().bells {
        return None;
    }
    BELL[index].get_or_make(bell::create).ok().filter(|&bell| intact(bell))
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

/// The bell with this number that other users ring, made when first asked for; `None` if there are
/// no such users, or no descriptors.
pub fn loud_fd(index: usize) -> Option<i32> {
    let name = LOUD_NAME.load(Ordering::Acquire);
    if name == 0 {
        return None;
    }
    let loud = Loud { name, word: LOUD_WORD.load(Ordering::Relaxed) };
    LOUD[index].get_or_make(|| loud.create(index as u8)).ok()
}

/// The same, if it is made already: who arms for it has done so.
pub(crate) fn known_loud_fd(index: usize) -> Option<i32> {
    LOUD[index].get()
}

/// In the child of fork().
pub(crate) fn forked() {
    for bell in &BELL {
        // The parent sleeps on these.
        if is_guest() { bell.close() } else { bell.forget() }
    }
    LOUD_NAME.store(0, Ordering::Relaxed);
    LOUD.iter().for_each(Kept::close);
}

/// Its bells are no more; who calls closes their descriptors.
pub(crate) fn renounce() {
    LOUD_NAME.store(0, Ordering::Relaxed);
    BELL.iter().chain(&LOUD).for_each(Kept::forget);
}
