//! stdio on a socket: libc's streams read and write past our hooks, so a descriptor that becomes a stream goes back to tcp first.

use core::ffi::{c_char, c_int};
use libc::FILE;
use sockets::reason::Reason;
use sockets::{demote, table};

use crate::next::hooks;

/// A descriptor becomes a stream.
fn becomes_stream(fd: c_int) {
    if let Some(conn) = table::conn(fd) {
        demote::hand_over(conn, fd, Reason::Stdio, false);
    }
}

hooks! {
    fn fdopen(next; fd: c_int, mode: *const c_char) -> *mut FILE {
        becomes_stream(fd);
        next(fd, mode)
    }
    fn _IO_fdopen(next; fd: c_int, mode: *const c_char) -> *mut FILE {
        becomes_stream(fd);
        next(fd, mode)
    }
}
