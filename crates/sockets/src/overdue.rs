//! The sleeper's check, in tests only (SHUNT_CHECK_SLEEPERS): before a thread sleeps, all that it
//! waits for has been looked at after its tripwire was armed, so none is ever owed anything.
//! Whoever has slept for a while in poll(), select() or epoll_wait(), or in a read by a bell,
//! looks whether something that it waits for is there; if so, and nobody wakes it within two more,
//! a wake-up is lost: it says so on standard error and ends the program. A writer looks each
//! millisecond in any case: with the check it must have been woken if there is room. Readers that
//! are kicked sleep in the kernel's recv(), which has no end: they do not look.

use core::fmt::Write;

use fabric::sync::Ordering;
use fabric::text::Text;
use fabric::{Local, hints, sys};

use crate::conn::Conn;
use crate::layout::{self, FIRED, TRIP, W};
use crate::{process, table};

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
pub(crate) fn check(call: &str, owed: impl FnMut() -> Option<i32>, woken: impl FnMut(u64) -> bool) {
    check_and_explain(call, owed, woken, |_, _| {});
}

/// The same; `more` says what else is known of that descriptor.
#[cold]
pub(crate) fn check_and_explain(
    call: &str,
    mut owed: impl FnMut() -> Option<i32>,
    mut woken: impl FnMut(u64) -> bool,
    more: impl FnOnce(i32, &mut Text<768>),
) {
    if owed().is_none() || woken(GRACE_NS) {
        return;
    }
    let Some(fd) = owed() else { return };
    let mut text = Text::<768>::new();
    let (pid, tid) = (process::pid(), sys::gettid());
    let _ = writeln!(text, "shunt[{pid}]: thread {tid} sleeps in {call}(), but descriptor {fd} is ready");
    if let Some(conn) = table::conn(fd) {
        explain(conn, &mut text);
    }
    more(fd, &mut text);
    let _ = sys::write(libc::STDERR_FILENO, text.bytes());
    sys::exit(STATUS)
}

/// What its tripwire and its event queue are in.
fn explain(conn: &Conn, text: &mut impl Write) {
    let (state, rx, tx) = (conn.state(), conn.rx.path(), conn.tx.path());
    let _ = writeln!(
        text,
        "  state {state}, read by {rx}, written by {tx}, flags {:#x}",
        conn.flags.load(Ordering::Relaxed)
    );
    let [waiters, sets, queue] =
        [&conn.waiters, &conn.epolls, &conn.queue].map(|count| count.load(Ordering::Relaxed));
    let (tripwire, written, fired) = (conn.word(TRIP), conn.word(W), conn.word(FIRED));
    let _ = writeln!(
        text,
        "  {waiters} waiters, {sets} sets; tripwire {tripwire:#x}, {fired} times fired, written to {written}"
    );
    let [answer, announced, notes, kicked] =
        [layout::STATE, layout::SMALL_AT, layout::NOTES, layout::KICKS].map(|at| conn.word(at));
    let (arms, there) =
        (conn.arms.load(Ordering::Relaxed), sys::ioctl_int(conn.descriptor(), libc::FIONREAD).unwrap_or(-1));
    let _ = writeln!(
        text,
        "  slot {}, answer {answer:#x}, announced {announced}, notes {notes:#x}; {arms} times armed, {kicked} kicks, {there} bytes there",
        conn.slot()
    );
    if let Some(queue) = queue.checked_sub(1) {
        let base = layout::HINTS + queue as usize * hints::BYTES;
        let (hinted, sleeps) = (hints::any(&conn.mine(), base), conn.mine().word(base + hints::SLEEP));
        let _ = writeln!(text, "  event queue {queue}: hints {hinted}, sleep word {sleeps:#x}");
    }
}
