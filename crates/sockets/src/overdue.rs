//! The sleeper's check, in tests only (SHUNT_CHECK_SLEEPERS): before a thread sleeps, all that it
//! waits for has been looked at after its tripwire was armed, so none is ever owed anything.
//! Whoever has slept for a while in poll(), select() or epoll_wait(), or in a read by a bell,
//! looks whether something that it waits for is there; if so, and nobody wakes it within two more,
//! a wake-up is lost: it says so on standard error and ends the program. A writer looks each
//! millisecond in any case: with the check it must have been woken if there is room. Readers that
//! are kicked sleep in the kernel's recv(), which has no end: they do not look.

use core::fmt::Write;

use fabric::sys;
use fabric::text::Text;

use crate::process;

/// How long to sleep before a look.
const AFTER_NS: u64 = 1_370_000_000;
/// How long one who has begun to wake it may take: it may have no processor.
const GRACE_NS: u64 = 2_000_000_000;
/// The status with which the program ends: EX_SOFTWARE.
const STATUS: i32 = 70;

/// How long to sleep at a time, of what is left, and whether a look is due after that.
pub(crate) fn limit(left: Option<u64>) -> (Option<u64>, bool) {
    match left {
        _ if !process::options().check_sleepers => (left, false),
        Some(left) if left <= AFTER_NS => (Some(left), false),
        _ => (Some(AFTER_NS), true),
    }
}

/// Whether looks are made at all.
pub(crate) fn looks() -> bool {
    process::options().check_sleepers
}

/// After that sleep: `owed` says of which descriptor something is there, `woken` waits for so many
/// nanoseconds whether somebody wakes us.
#[cold]
pub(crate) fn check(call: &str, mut owed: impl FnMut() -> Option<i32>, mut woken: impl FnMut(u64) -> bool) {
    if owed().is_none() || woken(GRACE_NS) {
        return;
    }
    let Some(fd) = owed() else { return };
    let mut text = Text::<128>::new();
    let (pid, tid) = (process::pid(), sys::gettid());
    let _ = writeln!(text, "shunt[{pid}]: thread {tid} sleeps in {call}(), but descriptor {fd} is ready");
    let _ = sys::write(libc::STDERR_FILENO, text.bytes());
    sys::exit(STATUS)
}
