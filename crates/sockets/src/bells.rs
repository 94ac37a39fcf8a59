//! The bells of this process, by which peers wake its calls and its event queues: eventfds, and
//! sockets for peers of other users.

use fabric::bell::{self, Loud};
use fabric::sync::{AtomicU64, Ordering};

use crate::descriptors::{Kept, intact};
use crate::folder::{self, Name, Spot};
use crate::layout::BELLS;
use crate::process::{is_guest, options};

static BELL: [Kept; BELLS] = [const { Kept::new() }; BELLS];

/// Those that other users ring; what they are called.
static LOUD: [Kept; BELLS] = [const { Kept::new() }; BELLS];

static LOUD_NAME: AtomicU64 = AtomicU64::new(0);

static LOUD_WORD: AtomicU64 = AtomicU64::new(0);

/// Of those in the folder, which peers in other network namespaces ring; 0: there are none.
static FAR_WORD: AtomicU64 = AtomicU64::new(0);

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

/// By which word peers in other network namespaces ring; made when first asked for, under the lock
/// on states.
pub(crate) fn far_word() -> Option<u64> {
    if !options().bells || is_guest() {
        return None;
    }
    if FAR_WORD.load(Ordering::Acquire) == 0 {
        FAR_WORD.store(bell::far_word()?, Ordering::Release);
    }
    Some(FAR_WORD.load(Ordering::Acquire))
}

/// The bell with this number that these ring; made by who is going to hear it, and by nobody else.
pub(crate) fn make_far(index: usize) -> Option<i32> {
    let word = FAR_WORD.load(Ordering::Acquire);
    if word == 0 {
        return None;
    }
    folder::own(Spot::Bell(index as u8), Some(word)).map(|(bell, _)| bell)
}

/// The same, if it is made: with the file by which it is rung.
pub(crate) fn far(index: usize) -> Option<(i32, Name)> {
    if FAR_WORD.load(Ordering::Acquire) == 0 { None } else { folder::known(Spot::Bell(index as u8)) }
}

/// Nobody can hear it.
pub(crate) fn give_up_far(index: usize) {
    folder::give_up(Spot::Bell(index as u8));
}

/// All bells with this number that are no eventfds.
pub(crate) fn of_others(index: usize) -> impl Iterator<Item = i32> {
    loud_fd(index).into_iter().chain(far(index).map(|(bell, _)| bell))
}

/// The same, if it is made already: who arms for it has done so.
pub(crate) fn known_loud_fd(index: usize) -> Option<i32> {
    LOUD[index].get()
}

pub(crate) fn known_far_fd(index: usize) -> Option<i32> {
    far(index).map(|(bell, _)| bell)
}

/// In the child of fork().
pub(crate) fn forked() {
    for bell in &BELL {
        // The parent sleeps on these.
        if is_guest() { bell.close() } else { bell.forget() }
    }
    LOUD_NAME.store(0, Ordering::Relaxed);
    FAR_WORD.store(0, Ordering::Relaxed);
    LOUD.iter().for_each(Kept::close);
}

/// Its bells are no more; who calls closes their descriptors.
pub(crate) fn renounce() {
    LOUD_NAME.store(0, Ordering::Relaxed);
    FAR_WORD.store(0, Ordering::Relaxed);
    BELL.iter().chain(&LOUD).for_each(Kept::forget);
}
