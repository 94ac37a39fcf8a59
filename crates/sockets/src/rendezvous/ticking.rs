//! Housekeeping of a connection on tcp, on the way into calls on it: it is counted, posted when it
//! is worth it, and looked after.

use fabric::sync::Ordering;
use fabric::sys;
use stream::spin::{nanos_of, ticks};

use super::agreement::States;
use super::meeting;
use super::posting::{check, post};
use crate::conn::{Conn, flag, state};
use crate::peering::desk;
use crate::reason::Reason;
use crate::signals::HandlersRun;
use crate::{gain, process, seen, worth};

/// What housekeeping has come to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tick {
    /// The call, should it be a write, is to be late ([`nap`]).
    pub late: bool,
    /// A handler without SA_RESTART has run, which ends the call if it should wait.
    pub interrupted: bool,
    /// Any handler has.
    pub handled: bool,
}

/// Housekeeping, on the way into a call on a connection that is still on tcp.
#[inline]
pub fn tick(conn: &'static Conn, fd: i32) -> Tick {
    match conn.state() {
        state::NEW if worthwhile(conn, fd) => {
            let seen = process::barred().is_some() || seen::waits(conn, fd);
            if !seen && !tell_unseen(conn, fd) {
                return Tick::default();
            }
            locked(conn, state::NEW, || {
                post(conn, fd, seen);
                false
            })
        }
        state::POSTED => {
            let due = match conn.meeting.proof.load(Ordering::Relaxed) {
                0 => &conn.due,
                _ => {
                    meeting::note(conn, fd);
                    &conn.meeting.due
                }
            };
            if ticks() < due.load(Ordering::Relaxed) && !arming_it(conn) {
                return Tick::default();
            }
            let tick = locked(conn, state::POSTED, || check(conn));
            desk::start_if_wanted();
            tick
        }
        _ => Tick::default(),
    }
}

/// Under the lock on states, which keeps handlers out, if it is in this one; the work says whether
/// the call is to be late.
fn locked(conn: &Conn, state: u32, work: impl FnOnce() -> bool) -> Tick {
    let before = HandlersRun::by_now();
    let states = States::lock();
    let late = states.is_some() && conn.state() == state && work();
    drop(states);
    let (interrupted, handled) = before.since();
    Tick { late, interrupted, handled }
}

/// Counts a call on a connection in state NEW: whether it has been used enough, and not too seldom,
/// to gain by memory.
fn worthwhile(conn: &Conn, fd: i32) -> bool {
    let (after, rate) = (worth::calls(conn), process::options().calls_per_second());
    let calls = conn.ops.fetch_add(1, Ordering::Relaxed);
    if calls == 0 {
        // Not in use before it is posted: when the count began.
        conn.due.store(ticks(), Ordering::Relaxed);
        if conn.gone_back.load(Ordering::Relaxed) != 0 {
            gain::trial_begins(conn, fd);
        }
    }
    if calls < after {
        if !worth::carries_much(conn, fd, calls) {
            return false;
        }
        conn.ops.store(after, Ordering::Relaxed);
    }
    if conn.gone_back.load(Ordering::Relaxed) != 0
        && !gain::trial_ends(conn, fd, conn.due.load(Ordering::Relaxed))
    {
        return false;
    }
    if rate == 0 || process::busy() {
        return true;
    }
    let most = after.max(RATE_CALLS);
    if calls < most {
        return false;
    }
    let time = nanos_of(ticks().saturating_sub(conn.due.load(Ordering::Relaxed)));
    if u128::from(time) * u128::from(rate) <= u128::from(most) * 1_000_000_000 {
        return true;
    }
    if !conn.is_because(Reason::Rare) {
        conn.count_reason(Reason::Rare);
    }
    conn.ops.store(0, Ordering::Relaxed);
    false
}

/// The program has not been seen to wait for it, which is looked at again with its next call, or,
/// as its sets have to be asked, after some. True: the other end is to be told of it now (see
/// [`nap`]).
fn tell_unseen(conn: &Conn, fd: i32) -> bool {
    let first = !conn.is_because(Reason::Unseen);
    if first {
        conn.count_reason(Reason::Unseen);
    }
    if conn.epolls.load(Ordering::Relaxed) != 0 {
        conn.ops.store(0, Ordering::Relaxed);
        return false;
    }
    first && seen::reads_blocking(conn, fd)
}

/// A write on tcp to a program that has not been seen to wait comes about 100 us late. One that
/// reads what is there each time waits for nothing as long as its peer runs first whenever it is
/// written to, as on a busy processor. Bytes that are late once are waited for: by a call that we
/// see, or by one that we do not.
#[cold]
pub fn nap(conn: &Conn) {
    conn.clear(flag::NAP);
    let due = conn.due.load(Ordering::Acquire);
    if conn.state() == state::POSTED && conn.meeting.proof.load(Ordering::Relaxed) == 0 {
        let next = ticks() + conn.pause.load(Ordering::Relaxed);
        let _ = conn.due.compare_exchange(due, next, Ordering::AcqRel, Ordering::Relaxed);
    }
    let nobody = 0;
    let _ = sys::futex_wait(&nobody, 0, NAP_NS);
}

const NAP_NS: i64 = 50_000;

/// So many calls make a rate: in fewer, one request and its answer may look like many.
const RATE_CALLS: u32 = 16;

/// Whether this is the moment that a one-shot member waited for (see [`crate::epoll::untimely`]).
fn arming_it(conn: &Conn) -> bool {
    conn.arming.load(Ordering::Relaxed) != 0 && conn.is_because(Reason::Busy)
}
