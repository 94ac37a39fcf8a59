//! Linux's asynchronous input and output (io_submit): the kernel reads, writes and polls by itself,
//! so the connections that are named in what is submitted go back to tcp first. It comes by
//! syscall(), or by libaio, which makes the system call itself: the hook is for its function.

use core::ffi::{c_int, c_long, c_void};
use sockets::reason::Reason;
use sockets::{epoll, errno, faults, process, relay, table};

use crate::next::hooks;

/// The kernel's `struct iocb`, as far as we look at it.
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    flags: u32,
    what: u16,
    priority: i16,
    fd: c_int,
}

/// Before the kernel gets `count` requests.
///
/// # Safety
/// As for io_submit.
pub unsafe fn submitting(count: c_long, requests: *const *const c_void) {
    if faults::low(requests) || !process::active() {
        return;
    }
    let errno = errno::get();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the program vouches for `count` pointers to requests.
        let request = unsafe { (*requests.add(index)).cast::<Request>() };
        if faults::low(request) {
            break;
        }
        // SAFETY: as above.
        let fd = unsafe { (&raw const (*request).fd).read_unaligned() };
        if let Some(conn) = table::conn(fd) {
            relay::hand_over(conn, fd, Reason::Aio, false);
        } else if epoll::watch(fd) {
            // IOCB_CMD_POLL of a set.
            epoll::settle();
        }
    }
    errno::set(errno);
}

hooks! {
    // libaio's.
    fn io_submit(next; context: *mut c_void, count: c_long, requests: *const *const c_void) -> c_int {
        submitting(count, requests);
        next(context, count, requests)
    }
}
