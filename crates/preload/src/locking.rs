//! A program that locks itself into memory: everything but what is ours.

use core::ffi::c_int;
use fabric::sys::locking;
use sockets::process;

use crate::next::{answer, hooks};

hooks! {
    fn mlockall(next; flags: c_int) -> c_int {
        if !process::active() || process::borrowed() {
            return next(flags);
        }
        answer(locking::lock_all(flags).map(|()| 0)) as c_int
    }
    fn munlockall(next;) -> c_int {
        locking::unlocking();
        next()
    }
}
