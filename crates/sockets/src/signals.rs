//! What the program's signal handlers ask of calls that they interrupt, and what is left of calls
//! that they jump out of. The kernel restarts a call after a handler with SA_RESTART; where we wait
//! with poll, which it never restarts, we do so ourselves. The library counts handlers as they are
//! installed.

use fabric::sync::{AtomicBool, AtomicU64, Ordering};
use fabric::sys;

use crate::process;

/// Signals with a handler that has SA_RESTART, and with one that has not.
static RESTART: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

/// Whether there has ever been one.
static EVER: AtomicBool = AtomicBool::new(false);

/// All signals are blocked until it is dropped.
pub struct Blocked(u64);

impl Blocked {
    pub fn all() -> Blocked {
        Blocked(sys::block_signals(u64::MAX))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        sys::block_signals(self.0);
    }
}

/// Keeps the program's handlers out until dropped: what the kernel has done and what we note of it
/// go together, also for those who jump out of a handler. Only if the program has handlers: it
/// takes two calls.
pub fn undisturbed() -> Option<Blocked> {
    EVER.load(Ordering::Relaxed).then(Blocked::all)
}

/// Whether the program has ever had a handler.
pub(crate) fn have_been_handled() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// A handler for `signal` was installed (`None`: removed), with these flags.
pub fn installed(signal: i32, flags: Option<i32>) {
    if !(1..=64).contains(&signal) {
        return;
    }
    let bit = 1u64 << (signal - 1);
    RESTART.fetch_and(!bit, Ordering::Relaxed);
    INTERRUPT.fetch_and(!bit, Ordering::Relaxed);
    if flags.is_some() {
        EVER.store(true, Ordering::Relaxed);
    }
    match flags {
        Some(flags) if flags & libc::SA_RESTART != 0 => RESTART.fetch_or(bit, Ordering::Relaxed),
        Some(_) => INTERRUPT.fetch_or(bit, Ordering::Relaxed),
        None => 0,
    };
}

/// Whether this thread may be in a signal handler: signals that have one are blocked.
pub fn may_be_in_handler() -> bool {
    let handled = RESTART.load(Ordering::Relaxed) | INTERRUPT.load(Ordering::Relaxed);
    handled != 0 && sys::blocked_signals() & handled != 0
        || process::is_guest() && sys::blocked_signals() != 0
}

/// Whether all handlers are of one kind, so that [`restarts`] is what the kernel would do. Not in a
/// guest, who does not hear of them.
pub(crate) fn are_alike() -> bool {
    !process::is_guest() && (RESTART.load(Ordering::Relaxed) == 0 || restarts())
}

/// After EINTR: whether to go on waiting. With handlers of both kinds the call is ended: programs
/// that have any handler without SA_RESTART must cope with EINTR. A guest does not hear of
/// handlers, and those who call it cope with EINTR.
pub fn restarts() -> bool {
    INTERRUPT.load(Ordering::Relaxed) == 0 && !process::is_guest()
}
