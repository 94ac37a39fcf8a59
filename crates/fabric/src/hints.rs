//! Fired tripwires as hints: a bitmap of slots with a summary word over it, in the owner's segment. Setting a bit is
//! idempotent and a spurious bit is harmless, so a hostile peer gains nothing (rule F2). An *event queue* of the owner is one
//! such bitmap per link, and a sleep word that its owner arms before it sleeps.
//!
//! Layout from `base`, which begins a line of memory: summary, sleep word, then [`WORDS`] words of 64 slots each, which lie in the
//! summary's line: to set a hint moves one line, not two.

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

/// Sets the hint of `slot`. Returns the owner's sleep word if it was asleep: the caller must then wake it (a mode and a number
/// as in [`trip`]); 0 if nobody sleeps.
pub fn set<R: Remote>(remote: &R, base: usize, slot: usize) -> u64 {
    let word = slot / 64;
    remote.or_word(base + BITS + word * 8, 1 << (slot % 64));
    // Also if the word had bits already: whoever set them may not have come to the summary yet, and if it died before, the
    // hints of this word would be lost for good.
    remote.or_word(base + SUMMARY, 1 << word);
    remote.stimulate(base + SLEEP, trip::RX)
}

/// Takes all hints and calls `each` with the slots; before that `soon`, with up to 64 of them at a time.
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

/// Arms the queue's sleep word; the caller must look at [`any`] again, after [`fence_before_sleep`], before it sleeps. False if it was
/// not armed: it never was, or somebody has disarmed it, and rings or has rung.
pub fn arm_sleep<L: Local>(local: &L, base: usize, mode: u64, id: u8) -> bool {
    local.swap_word(base + SLEEP, trip::armed(trip::RX, mode, id)) != 0
}

/// Whether the queue's sleep word is armed.
pub fn sleeps<L: Local>(local: &L, base: usize) -> bool {
    local.word(base + SLEEP) != 0
}

/// The fence between arming (any number of queues) and looking again.
pub fn fence_before_sleep() {
    fence(Ordering::SeqCst);
}

/// Disarms the queue's sleep word.
pub fn disarm_sleep<L: Local>(local: &L, base: usize) {
    local.set_word(base + SLEEP, 0);
}
