//! The gate before a peer's buffers. Large messages and RDMA are written straight into the peer's
//! memory (or read from it), as an adapter does by DMA. A process that takes a buffer back, because
//! its connection ends, or its registration, must know that no such transfer is under way, and that
//! none will begin: afterwards the memory is the program's.
//!
//! There are two words, each in the segment of the end that reads it. *Busy*: the transferring end
//! says that it transfers. *Shut*: the owner of the buffers says that they are closed. Each end
//! stores its own word, fences, and then reads the other's. So the transfer is not begun, or the
//! owner waits for its end (Dekker). The kernel reports the end of a peer that dies in the middle.

use fabric::sync::{Ordering, fence};
use fabric::{Local, Remote};

/// Says in the peer's segment that a transfer begins. Returns false if the peer has shut the gate.
/// `shut` and `busy` are the offsets of the words, in the own and in the peer's segment. [`leave`]
/// must follow if it is true.
#[inline]
pub fn enter<L: Local, R: Remote>(local: &L, shut: usize, remote: &R, busy: usize) -> bool {
    remote.put_word(busy, 1);
    fence(Ordering::SeqCst);
    if local.word(shut) == 0 {
        return true;
    }
    remote.put_word(busy, 0);
    false
}

/// Ends the transfer.
#[inline]
pub fn leave<R: Remote>(remote: &R, busy: usize) {
    remote.put_word(busy, 0);
}

/// Shuts the gate: no more transfers begin. One that has begun is over when [`is_busy`] is false.
pub fn shut<R: Remote>(remote: &R, shut: usize) {
    remote.put_word(shut, 1);
    fence(Ordering::SeqCst);
}

/// Whether a transfer of the peer is under way.
pub fn is_busy<L: Local>(local: &L, busy: usize) -> bool {
    local.word(busy) != 0
}
