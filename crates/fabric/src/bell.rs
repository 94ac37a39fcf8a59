//! Bells: how a process sleeps until a tripwire fires. On one host a bell is an eventfd, non-blocking, passed to the peer when
//! a link is made; the owner has it in its poll or epoll set. Ringing is idempotent; a stray ring is a spurious wake-up.

use crate::sys::{self, Errno};

/// Makes a bell.
pub fn create() -> Result<i32, Errno> {
    sys::eventfd()
}

/// Rings a bell, by its descriptor.
pub fn ring(fd: i32) {
    let one = 1u64.to_ne_bytes();
    // A full counter (EAGAIN) means that it rings already; any other error means that its owner is gone.
    let _ = sys::write(fd, &one);
}

/// Silences a bell after a wake-up.
pub fn silence(fd: i32) {
    let mut count = [0; 8];
    let _ = sys::read(fd, &mut count);
}
