//! Tripwires: a word that its owner arms before it sleeps, and that a writer stimulates after its
//! data (SCILAN's interrupt flag, section 3.2; CLAN's tripwire, section 2.3). Only a stimulus that
//! finds the word armed wakes the owner, and it disarms the word. So any number of writes costs one
//! wake-up.
//!
//! The owner calls [`arm`], checks again what it waits for, and sleeps. The writer puts its data
//! and calls [`Remote::stimulate`](crate::Remote::stimulate). Both contain a sequentially
//! consistent fence between their store and their load, so at least one of the two sees the other.

use crate::mem::{Local, Mapped};
use crate::sync::{Ordering, fence};
use crate::sys::{self, Errno};

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
/// Somebody sleeps on the word itself, by futex(2): is to be woken by [`wake`], beside what the
/// mode says, if there is one.
pub const WORD: u64 = 0b1_0000;
/// [`WORD`], and the turn of who armed it: so that a word that was fired and has been armed anew is
/// not taken for the one before.
pub const ASLEEP: u64 = WORD | 0xffff << 16;

/// Composes what arms a word to sleep on it.
pub const fn asleep(turn: u64) -> u64 {
    WORD | (turn & 0xffff) << 16
}

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

/// Sleeps on the tripwire at `offset` as long as it is armed as in `armed`, at most `nanos`. In
/// memory that both ends map. ETIMEDOUT, EINTR as from futex(2); EAGAIN if it was not.
pub fn wait<M: Mapped>(local: &M, offset: usize, armed: u64, nanos: u64) -> Result<(), Errno> {
    sys::futex_wait(low(local, offset), armed as u32, nanos.min(i64::MAX as u64) as i64)
}

/// Wakes up to `most` who sleep on the tripwire at `offset`: after it was fired, or for them to
/// look again.
pub fn wake<M: Mapped>(remote: &M, offset: usize, most: u32) {
    sys::futex_wake(low(remote, offset), most);
}

/// The address of a tripwire for those who sleep on it.
pub fn place<M: Mapped>(local: &M, offset: usize) -> usize {
    low(local, offset) as usize
}

/// The half of the word that has all that matters: a futex has 32 bits.
fn low<M: Mapped>(map: &M, offset: usize) -> *const u32 {
    let word = core::ptr::from_ref(map.atomic(offset)).cast::<u32>();
    if cfg!(target_endian = "big") { word.wrapping_add(1) } else { word }
}

/// Disarms the tripwire and returns the word that was there. 0 means that a writer has fired it: a
/// wake-up is on its way, or was.
pub fn disarm<L: Local>(local: &L, offset: usize) -> u64 {
    local.swap_word(offset, 0)
}
