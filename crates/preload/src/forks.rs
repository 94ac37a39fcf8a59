//! Children with a copy of our memory that are made past fork(), and therefore past its
//! pthread_atfork handlers: _Fork(), clone() without CLONE_VM, and both by syscall(). fork() itself
//! runs the handlers (see `start`), and ends in none of these symbols.

use core::ffi::{c_int, c_long, c_void};
use fabric::credentials;
use sockets::{errno, fork, process};

use crate::next::hooks;
use crate::rights;

/// Makes a child as fork() would, by `make`, which returns 0 in it; with these flags of clone().
pub fn around(flags: usize, make: impl FnOnce() -> c_long) -> c_long {
    if process::ended() {
        return make();
    }
    if flags & libc::CLONE_NEWPID as usize != 0 {
        fork::part();
    }
    fork::prepare();
    let pid = make();
    let errno = errno::get();
    if pid == 0 {
        fork::child()
    } else {
        fork::parent()
    }
    errno::set(errno);
    pid
}

/// Whether clone() with these flags makes a process with a copy of our memory.
pub fn copies(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

/// After unshare() or setns() with these flags: children may be in another PID namespace from now
/// on. A process does not enter one itself. For setns() no flags leave it to the descriptor.
pub fn entered(result: c_long, flags: c_int) {
    if rights::new_users(flags) {
        credentials::forget();
    }
    if result == 0 && flags & libc::CLONE_NEWPID != 0 && !process::ended() && !process::borrowed() {
        fork::children_part();
    }
}

/// What setns() may mean if it has no flags, as far as it concerns us.
pub const ANY: c_int = libc::CLONE_NEWPID | libc::CLONE_NEWUSER;

type Body = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// What the child of clone() is to run.
struct Start {
    body: Body,
    arg: *mut c_void,
    flags: c_int,
}

/// Runs in the child, on a stack of its own.
unsafe extern "C-unwind" fn begin(start: *mut c_void) -> c_int {
    if !process::ended() {
        fork::child();
    }
    // SAFETY: the parent's `Start`, of which the child has a copy at the same address.
    unsafe {
        let start = &*start.cast::<Start>();
        rights::born(start.flags);
        (start.body)(start.arg)
    }
}

hooks! {
    fn unshare(next; flags: c_int) -> c_int {
        if rights::new_users(flags) {
            rights::changing();
        }
        let result = next(flags);
        entered(result.into(), flags);
        result
    }
    fn setns(next; fd: c_int, flags: c_int) -> c_int {
        if flags == 0 || rights::new_users(flags) {
            rights::changing();
        }
        let result = next(fd, flags);
        entered(result.into(), if flags == 0 { ANY } else { flags });
        result
    }
    fn _Fork(next;) -> c_int {
        around(0, || next().into()) as c_int
    }
    fn clone(next; body: Option<Body>, stack: *mut c_void, flags: c_int, arg: *mut c_void, parent: usize, tls: usize, child: usize) -> c_int {
        let Some(run) = body.filter(|_| copies(flags as usize) && !stack.is_null()) else {
            return next(body, stack, flags, arg, parent, tls, child);
        };
        let mut start = Start { body: run, arg, flags };
        around(flags as usize, || next(Some(begin), stack, flags, (&raw mut start).cast(), parent, tls, child).into()) as c_int
    }
    fn __clone(next; body: Option<Body>, stack: *mut c_void, flags: c_int, arg: *mut c_void, parent: usize, tls: usize, child: usize) -> c_int {
        clone(body, stack, flags, arg, parent, tls, child)
    }
}
