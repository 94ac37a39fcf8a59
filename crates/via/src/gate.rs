//! The gate before a peer's buffers. Large messages and RDMA are written straight into the peer's memory (or read from it), as an adapter
//! does by DMA; whoever takes a buffer back, because its connection ends, or its registration, must know that no such transfer is
//! under way, or will begin: afterwards the memory is the program's.
//!
//! Two words, each in the segment of the one who looks at it: *busy*, where who transfers says so, and *shut*, where the owner of the
//! buffers says that it is over. Both say their part first, fence, and look at the other's then: so the transfer is not begun, or the owner
//! waits for its end (Dekker). A peer that dies in the middle has its end told by the kernel.

use fabric::sync::{Ordering, fence};
use fabric::{Local, Remote};

/// Says in the peer's segment that a transfer begins, unless the peer has shut the gate: false then. `shut` and `busy` are where the words
/// lie, in the own and in the peer's segment. [`leave`] must follow if it is true.
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

/// The transfer is over.
#[inline]
pub fn leave<R: Remote>(remote: &R, busy: usize) {
    remote.put_word(busy, 0);
}

/// Shuts the gate: no transfer begins any more. One that has begun is over when [`is_busy`] says so.
pub fn shut<R: Remote>(remote: &R, shut: usize) {
    remote.put_word(shut, 1);
    fence(Ordering::SeqCst);
}

/// Whether a transfer of the peer is under way.
pub fn is_busy<L: Local>(local: &L, busy: usize) -> bool {
    local.word(busy) != 0
}
