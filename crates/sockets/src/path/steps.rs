//! Marks of operations in progress, in [`Tx::step`](crate::conn::Tx::step) and
//! [`Rx::step`](crate::conn::Rx::step): an operation that takes more than one store, or a system
//! call and a note of its result, is marked before it begins, so that [`crate::path::recovery`] can
//! complete it if its thread dies or jumps away.

use fabric::sync::{Ordering, compiler_fence};

/// The peer is woken: [`Tx::fired`](crate::conn::Tx::fired) was armed.
pub const FIRING: u32 = 1;
/// Kicks are sent that have been counted.
pub const PAYING: u32 = 2;
/// Recalled bytes are sent by tcp.
pub const SENDING: u32 = 4;
/// The big ring is moved to.
pub const GROWING: u32 = 8;
/// It is announced where tcp goes on.
pub const LEAVING: u32 = 16;
/// Bytes are read on tcp before the ring, or kicks are taken out of the companion.
pub const READING: u32 = 32;
/// Another process has taken the other end to tcp ([`crate::taken`]): what its owner would have
/// told is to be noted.
pub const TAKEN: u32 = 64;

/// Marks what is begun. Not a fence between processors: whoever finds the mark found the holder
/// dead.
#[inline(always)]
pub(crate) fn begin(step: &mut u32, what: u32) {
    // What is to be done is there before it is said that it has begun.
    compiler_fence(Ordering::SeqCst);
    *step |= what;
    compiler_fence(Ordering::SeqCst);
}

/// It is done.
#[inline(always)]
pub(crate) fn end(step: &mut u32, what: u32) {
    compiler_fence(Ordering::SeqCst);
    *step &= !what;
}
