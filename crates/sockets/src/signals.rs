//! What the program's signal handlers ask of calls that they interrupt, and what is left of calls that they jump out of. The kernel restarts a call after a handler with SA_RESTART;
//! where we wait with poll, which it never restarts, we do so ourselves. The library counts handlers as they are installed.

use fabric::sync::{AtomicU64, Ordering};

use crate::{epoll, thread};

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

/// The thread is about to jump (longjmp) to where its stack is at `target`: perhaps out of a signal handler, and out of a call of ours
/// that this had interrupted. What such calls have locked is given back.
pub fn jumps(target: usize) {
    if (RESTART.load(Ordering::Relaxed) | INTERRUPT.load(Ordering::Relaxed)) != 0 {
        thread::abandoned(target, |lock| {
            if !epoll::abandoned(lock) {
                lock.unlock();
            }
        });
    }
}

/// After EINTR: whether to go on waiting. With handlers of both kinds the call is ended: programs that have any handler without
/// SA_RESTART must cope with EINTR.
pub fn restarts() -> bool {
    INTERRUPT.load(Ordering::Relaxed) == 0
}
