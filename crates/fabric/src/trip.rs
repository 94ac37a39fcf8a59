//! Tripwires: a word that its owner arms before it sleeps, and that a writer stimulates after its
//! data (SCILAN's interrupt flag, section 3.2; CLAN's tripwire, section 2.3). Only a stimulus that
//! finds the word armed wakes the owner, and it disarms the word. So any number of writes costs one
//! wake-up.
//!
//! The owner calls [`arm`], checks again what it waits for, and sleeps. The writer puts its data
//! and calls [`Remote::stimulate`](crate::Remote::stimulate). Both contain a sequentially
//! consistent fence between their store and their load, so at least one of the two sees the other.

use crate::mem::Local;
use crate::sync::{Ordering, fence};

/// Armed for data to read.
pub const RX: u64 = 1;
/// Armed for room to write.
pub const TX: u64 = 2;
/// The two bits that say how to wake the owner.
pub const MODE: u64 = 0b1100;
/// Wake by one byte on the companion connection.
pub const KICK: u64 = 0b0100;
/// Wake by the bell whose number is in [`id`].
pub const BELL: u64 = 0b1000;
/// Wake by a hint in the event queue whose number is in [`id`].
pub const QUEUE: u64 = 0b1100;

/// Composes a tripwire word: interest ([`RX`], [`TX`]), mode, and the number of the bell or queue.
pub const fn armed(interest: u64, mode: u64, id: u8) -> u64 {
    interest | mode | (id as u64) << 8
}

/// The number of the bell or queue in a word.
pub const fn id(word: u64) -> u8 {
    (word >> 8) as u8
}

/// Arms the tripwire at `offset` of the own segment. `compose` makes the new word from the one that
/// is there, which other waiters may have armed; that one is returned. The caller must check again
/// what it waits for before it sleeps.
pub fn arm<L: Local>(local: &L, offset: usize, compose: impl Fn(u64) -> u64) -> u64 {
    let mut was = local.word(offset);
    while let Err(other) = local.replace_word(offset, was, compose(was)) {
        was = other;
    }
    fence(Ordering::SeqCst);
    was
}

/// Disarms the tripwire and returns the word that was there. 0 means that a writer has fired it: a
/// wake-up is on its way, or was.
pub fn disarm<L: Local>(local: &L, offset: usize) -> u64 {
    local.swap_word(offset, 0)
}
