//! Ctrl-C: a handler notes it, and the run checks between its steps, so that everything that was
//! started is also stopped.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on Ctrl-C no longer ends the process by itself.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the structure is plain data, for which zeroes are valid; the handler only stores
        // to an atomic, and has the signature that an action without SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}
