//! Questions to the kernel about one socket.

use fabric::sys;

pub const SO_COOKIE: i32 = 57;

/// Whether a descriptor is a socket of TCP.
pub fn is_tcp(fd: i32) -> bool {
    sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}
