//! Tripwires that have fired, as hints: a bitmap of slots with a summary word over it, in the
//! owner's segment. Setting a bit twice does no more than once, and a bit too many is harmless, so
//! a hostile peer gains nothing (rule F2). An *event queue* of the owner is one such bitmap for
//! each link, and a sleep word that its owner arms before it sleeps.
//!
//! Layout from `base`, which begins a line of memory: summary, sleep word, then [`WORDS`] words of
//! 64 slots each. All lie in the summary's line: setting a hint moves one line, not two.

use crate::mem::{Local, Remote};
use crate::sync::{Ordering, fence};
use crate::trip;

/// Words of the bitmap; each stands for 64 slots.
pub const WORDS: usize = 6;
/// Slots that a bitmap covers.
pub const SLOTS: usize = WORDS * 64;
/// Bytes of one queue's hints.
pub const BYTES: usize = 256;

const SUMMARY: usize = 0;
/// Where the sleep word is.
pub const SLEEP: usize = 8;
/// Where the words begin.
pub const BITS: usize = 16;

/// Sets the hint of `slot`. Returns the owner's sleep word if the owner was asleep; the caller must
/// then wake it (mode and number as in [`trip`]). Returns 0 if nobody sleeps.
pub fn set<R: Remote>(remote: &R, base: usize, slot: usize) -> u64 {
    put(remote, base, slot);
    remote.stimulate(base + SLEEP, trip::RX)
}

/// As [`set`], for one who may be unable to wake who sleeps: `can_wake` is asked if somebody does.
/// Who cannot gets `None`, and leaves the word armed for those who can.
#[inline(always)]
pub fn set_if<R: Remote>(
    remote: &R,
    base: usize,
    slot: usize,
    can_wake: impl FnOnce() -> bool,
) -> Option<u64> {
    put(remote, base, slot);
    // Between the hint and the look, as in [`Remote::stimulate`].
    fence(Ordering::SeqCst);
    if !remote.armed(base + SLEEP, trip::RX) {
        return Some(0);
    }
    can_wake().then(|| remote.stimulate(base + SLEEP, trip::RX))
}

fn put<R: Remote>(remote: &R, base: usize, slot: usize) {
    let word = slot / 64;
    remote.or_word(base + BITS + word * 8, 1 << (slot % 64));
    // Also if the word had bits already. The process that set them may not have reached the summary
    // yet, and if it died before it did, the hints of this word would be lost for good.
    remote.or_word(base + SUMMARY, 1 << word);
}

/// Takes all hints and calls `each` with every slot. Before that it calls `soon`, with up to 64 of
/// them at a time.
pub fn take<L: Local>(local: &L, base: usize, mut soon: impl FnMut(usize), mut each: impl FnMut(usize)) {
    if local.word(base + SUMMARY) == 0 {
        return;
    }
    let mut summary = local.swap_word(base + SUMMARY, 0) & ((1 << WORDS) - 1);
    while summary != 0 {
        let word = summary.trailing_zeros() as usize;
        summary &= summary - 1;
        let bits = local.swap_word(base + BITS + word * 8, 0);
        slots(word, bits, &mut soon);
        slots(word, bits, &mut each);
    }
}

#[inline(always)]
fn slots(word: usize, mut bits: u64, each: &mut impl FnMut(usize)) {
    while bits != 0 {
        each(word * 64 + bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

/// Whether a hint may be waiting.
pub fn any<L: Local>(local: &L, base: usize) -> bool {
    local.word(base + SUMMARY) != 0
}

/// Arms the queue's sleep word. Before it sleeps, the caller must call [`fence_before_sleep`] and
/// ask [`any`] again. Returns false if the word was not armed before: it never was, or somebody has
/// disarmed it, and rings or has rung.
pub fn arm_sleep<L: Local>(local: &L, base: usize, mode: u64, id: u8) -> bool {
    local.swap_word(base + SLEEP, trip::armed(trip::RX, mode, id)) != 0
}

/// Whether the queue's sleep word is armed.
pub fn sleeps<L: Local>(local: &L, base: usize) -> bool {
    local.word(base + SLEEP) != 0
}

/// The fence between arming (any number of queues) and asking again.
pub fn fence_before_sleep() {
    fence(Ordering::SeqCst);
}

/// Disarms the queue's sleep word.
pub fn disarm_sleep<L: Local>(local: &L, base: usize) {
    local.set_word(base + SLEEP, 0);
}
