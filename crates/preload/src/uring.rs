//! io_uring. What a ring does with a descriptor cannot be seen, so a process that makes one goes back to tcp with all connections. The
//! ring is made by syscall(), or by liburing, which makes its system calls itself: these are liburing's functions, not libc's.

use core::ffi::{c_int, c_uint, c_void};
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{demote, process, real};

use crate::next::hooks;

/// A ring was made, unless the call failed: before anything can be asked of it.
pub fn made(failed: bool) {
    if !failed {
        step_aside(Reason::IoUring);
    }
}

/// The process does something that cannot be followed, whichever connection it is about: all of them go back to tcp, for good.
pub fn step_aside(reason: Reason) {
    if !process::active() {
        return;
    }
    let errno = real::errno();
    process::bar(reason);
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            demote::hand_over(conn, fd, reason, false);
        }
    });
    real::set_errno(errno);
}

hooks! {
    fn io_uring_queue_init(next; entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        let result = next(entries, ring, flags);
        made(result < 0);
        result
    }
    fn io_uring_queue_init_params(next; entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        let result = next(entries, ring, parameters);
        made(result < 0);
        result
    }
    fn io_uring_queue_init_mem(next; entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: usize) -> c_int {
        let result = next(entries, ring, parameters, memory, len);
        made(result < 0);
        result
    }
    fn io_uring_setup(next; entries: c_uint, parameters: *mut c_void) -> c_int {
        let result = next(entries, parameters);
        made(result < 0);
        result
    }
    // Rings that came from elsewhere, or were made by code that carries its own io_uring_setup.
    fn io_uring_queue_mmap(next; fd: c_int, parameters: *mut c_void, ring: *mut c_void) -> c_int {
        let result = next(fd, parameters, ring);
        made(result < 0);
        result
    }
}
