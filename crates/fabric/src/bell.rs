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

/// Silences a bell after a wake-up, and says how often it was rung. Whoever else has the bell can make it a blocking one, and may have
/// silenced it.
pub fn silence(fd: i32) -> u64 {
    let mut count = [0; 8];
    if sys::read_now(fd, &mut count) == Err(Errno::EOPNOTSUPP) {
        let _ = sys::read(fd, &mut count);
    }
    u64::from_ne_bytes(count)
}

/// Whether a descriptor that came from a peer may be a bell: a pipe, a socket or a file could block whoever rings it, or kill it.
pub fn is_bell(fd: i32) -> bool {
    sys::is_anonymous(fd)
}
