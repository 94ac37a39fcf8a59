//! Threads that may be cancelled at any instruction (PTHREAD_CANCEL_ASYNCHRONOUS). One of ours
//! would leave its locks behind, and there are no landing pads for most. So before a thread becomes
//! such a one, all connections go back to tcp, where a call sleeps in libc's own function. Deferred
//! cancellation, which is usual, comes only where a thread sleeps or asks for it.

use core::ffi::c_int;
use sockets::process;
use sockets::reason::Reason;

use crate::next::hooks;
use crate::uring;

/// Of pthread.h.
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

hooks! {
    fn pthread_setcanceltype(next; kind: c_int, old: *mut c_int) -> c_int {
        if kind == PTHREAD_CANCEL_ASYNCHRONOUS && process::barred() != Some(Reason::Cancelled) && process::active() {
            process::bar(Reason::Cancelled);
            uring::give_back(Reason::Cancelled);
        }
        next(kind, old)
    }
}
