//! io_uring. What a ring that is made by syscall() does with a descriptor cannot be seen, so a
//! process that makes one goes back to tcp with all connections. Rings of liburing, which makes its
//! system calls itself, are in `liburing.rs`.
//!
//! One kind of ring is refused instead, as kernels refuse all of them where an administrator or a
//! container's profile says so: a ring that an event loop makes beside each of its epoll sets, only
//! to change many members by one system call. Such loops use epoll_ctl() where they get none, and
//! lose little; their connections would lose far more.

use core::cell::Cell;
use core::ffi::c_void;
use fabric::sys;
use options::LogLevel;
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{errno, faults, log, process, relay};

thread_local! {
    /// Whether the last epoll set that this thread has made is still empty.
    static EMPTY_SET: Cell<bool> = const { Cell::new(false) };
}

/// This thread has made an epoll set.
pub fn set_made() {
    EMPTY_SET.set(true);
}

/// This thread has changed a set.
#[inline(always)]
pub fn set_changed() {
    EMPTY_SET.set(false);
}

/// io_uring_setup()'s parameters, those that the program gives.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Parameters {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workers_of: u32,
    reserved: [u32; 3],
}

/// Whether a ring that a program asks for by syscall() is of the kind that is for an epoll set
/// alone, and is to be refused: of just this size and without any other wish, right behind the
/// making of a set that has no members yet. Rings for anything else are made in other ways.
///
/// # Safety
/// As for io_uring_setup.
pub unsafe fn is_for_set(entries: u32, parameters: *const c_void) -> bool {
    if entries != SET_ENTRIES || !EMPTY_SET.get() || faults::low(parameters) || !process::active() {
        return false;
    }
    // SAFETY: the program vouches for parameters, which are larger.
    let asked = unsafe { parameters.cast::<Parameters>().read_unaligned() };
    // Such loops set it where the kernel has it; others hardly know it.
    let flags = if sys::kernel_version() >= (6, 6) { SETUP_NO_SQARRAY } else { 0 };
    let plain = Parameters {
        sq_entries: 0,
        cq_entries: 0,
        flags,
        thread_cpu: 0,
        thread_idle: 0,
        features: 0,
        workers_of: 0,
        reserved: [0; 3],
    };
    if asked == plain {
        log::note(LogLevel::Info, "a ring of io_uring for an epoll set is refused");
    }
    asked == plain
}

const SET_ENTRIES: u32 = 256;
const SETUP_NO_SQARRAY: u32 = 1 << 16;

/// A ring was made, unless the call failed: before anything can be asked of it.
pub fn made(failed: bool) {
    if !failed {
        step_aside(Reason::IoUring);
    }
}

/// Something is asked of a ring by the system call itself.
pub fn past_us() {
    if process::barred().is_none() {
        step_aside(Reason::IoUring);
    }
}

/// The process does something that cannot be followed, whichever connection it is about: all of
/// them go back to tcp, for good.
#[cold]
pub fn step_aside(reason: Reason) {
    process::bar(reason);
    give_back(reason);
}

/// Takes all connections back to tcp.
#[cold]
pub fn give_back(reason: Reason) {
    if !process::active() {
        return;
    }
    let errno = errno::get();
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            relay::hand_over(conn, fd, reason, false);
        }
    });
    errno::set(errno);
}
