//! Ctrl-C: remembered by a handler, asked for between the steps of a run, so that everything started is also stopped.

use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn remember(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on Ctrl-C no longer ends the process by itself.
pub fn catch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, and has the signature that signal() asks for.
        unsafe { libc::signal(signal, remember as extern "C" fn(libc::c_int) as libc::sighandler_t) };
    }
}

pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}
