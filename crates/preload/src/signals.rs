//! Handlers that the program installs: which of them restart calls. Those that a library installs
//! which a thread of ours has opened (PSM, for one, takes SIGTERM) are not installed: they are the
//! program's to decide.

use core::ffi::c_int;
use libc::{sigaction as action, sighandler_t};
use sockets::{signals, thread};

use crate::next::hooks;

fn is_handler(handler: sighandler_t) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN && handler != libc::SIG_ERR
}

/// A handler was installed, or removed.
pub fn installed(signal: c_int, handler: sighandler_t, flags: c_int) {
    signals::installed(signal, is_handler(handler).then_some(flags));
}

/// A handler that does not restart calls was installed, unless the call failed.
fn note_interrupting(signal: c_int, handler: sighandler_t, result: sighandler_t) {
    if result != libc::SIG_ERR {
        signals::installed(signal, is_handler(handler).then_some(0));
    }
}

hooks! {
    fn sigaction(next; signal: c_int, new: *const action, old: *mut action) -> c_int {
        let wanted = new.as_ref().map(|new| (new.sa_sigaction, new.sa_flags));
        if wanted.is_some() && thread::is_ours() {
            return next(signal, core::ptr::null(), old);
        }
        let result = next(signal, new, old);
        if result == 0 && let Some((handler, flags)) = wanted {
            installed(signal, handler, flags);
        }
        result
    }
    fn signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        if thread::is_ours() {
            return libc::SIG_DFL;
        }
        let result = next(signal, handler);
        if result != libc::SIG_ERR {
            signals::installed(signal, is_handler(handler).then_some(libc::SA_RESTART));
        }
        result
    }
    fn sysv_signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        if thread::is_ours() {
            return libc::SIG_DFL;
        }
        let result = next(signal, handler);
        note_interrupting(signal, handler, result);
        result
    }
    fn __sysv_signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        if thread::is_ours() {
            return libc::SIG_DFL;
        }
        let result = next(signal, handler);
        note_interrupting(signal, handler, result);
        result
    }
    fn sigset(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        if thread::is_ours() {
            return libc::SIG_DFL;
        }
        let result = next(signal, handler);
        note_interrupting(signal, handler, result);
        result
    }
    fn siginterrupt(next; signal: c_int, flag: c_int) -> c_int {
        let result = next(signal, flag);
        if result == 0 {
            signals::installed(signal, Some(if flag == 0 { libc::SA_RESTART } else { 0 }));
        }
        result
    }
}
