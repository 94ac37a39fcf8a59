//! What the program's signal handlers ask of calls that they interrupt. The kernel restarts a call after a handler with SA_RESTART;
//! where we wait with poll, which it never restarts, we do so ourselves. The library counts handlers as they are installed.

use fabric::sync::{AtomicU64, Ordering};

/// Signals with a handler that has SA_RESTART, and with one that has not.
static RESTART: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

/// A handler for `signal` was installed (`None`: removed), with these flags.
pub fn installed(signal: i32, flags: Option<i32>) {
    if !(1..=64).contains(&signal) {
        return;
    }
    let bit = 1u64 << (signal - 1);
    RESTART.fetch_and(!bit, Ordering::Relaxed);
    INTERRUPT.fetch_and(!bit, Ordering::Relaxed);
    match flags {
        Some(flags) if flags & libc::SA_RESTART != 0 => RESTART.fetch_or(bit, Ordering::Relaxed),
        Some(_) => INTERRUPT.fetch_or(bit, Ordering::Relaxed),
        None => 0,
    };
}

/// After EINTR: whether to go on waiting. With handlers of both kinds the call is ended: programs that have any handler without
/// SA_RESTART must cope with EINTR.
pub fn restarts() -> bool {
    INTERRUPT.load(Ordering::Relaxed) == 0
}
