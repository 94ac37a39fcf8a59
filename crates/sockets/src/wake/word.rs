//! Sleeping on a tripwire itself, by futex(2). A reader, or a poll() of one connection, sleeps so
//! at first: one system call to sleep, one to wake. What the kernel tells of the companion (the end
//! of a process that was killed, above all) does not wake it, so it does not sleep long, and not
//! when something like that may be near.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Local, trip};

use super::arm::{SLEEPERS, arm_word};
use crate::conn::{Conn, flag, path, state};
use crate::layout::{TCP_AT, TRIP, note};
use crate::signals::MOMENT_NS;
use crate::{idle, overdue, peering};

/// How long, at most: then in poll(), which the kernel ends when the connection does.
pub(crate) const SHORT_NS: u64 = MOMENT_NS;

/// What may change a connection without a word in memory from the peer.
const ELSEWHERE: u32 = flag::SHARED
    | flag::PEER_FIN
    | flag::PEER_HUP
    | flag::SHUT_RD
    | flag::RECALLED
    | flag::DISARMED
    | flag::REST
    | flag::UNSENT
    | flag::BROKEN
    | flag::CUT
    | flag::LEFT;
const PEER_ENDS: u64 =
    note::CLOSED | note::SHUT_WR | note::DEMOTE | note::RECALL | note::GONE | note::ENDING | note::AGAIN;

/// Whether all that a reader of this connection can be waiting for comes with a stimulus, as far as
/// is known.
pub(crate) fn tells_all(conn: &Conn) -> bool {
    peering::facts(conn).shares_memory
        && conn.state() == state::PROMOTED
        && path::is_ring(conn.rx.path())
        && conn.tx.path() != path::RESEND
        && !conn.is_via()
        && !conn.has(ELSEWHERE)
        && conn.word(TCP_AT) == 0
        && conn.notes() & PEER_ENDS == 0
}

/// Sleeps on the word, for a while, in `call`; not at all if the caller, which is counted as a
/// waiter, finds then that what it has looked at is not `unchanged`. ETIMEDOUT, EINTR: as futex(2).
pub(crate) fn sleep(conn: &Conn, fd: i32, call: &str, unchanged: impl Fn() -> bool) -> Result<(), Errno> {
    let turn = conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
    let armed = arm_word(conn, turn);
    if !unchanged() || conn.has(ELSEWHERE) {
        // Left armed, which costs one wake-up for nothing.
        return Ok(());
    }
    idle::look_if_due();
    let (mine, at) = (conn.mine(), conn.at(TRIP));
    let slept = trip::wait(&mine, at, armed, SHORT_NS);
    if slept == Err(Errno::ETIMEDOUT) && overdue::looks() {
        // Of a peer that was killed before it woke us the kernel tells; it is seen next.
        let lives = || sys::ready_for(fd, libc::POLLRDHUP) == 0;
        let owed = || (!unchanged() && mine.word(at) == armed && lives()).then_some(fd);
        // It may be killed while we wait for it, too, which wakes nobody here.
        let woken = |nanos: u64| {
            (0..nanos / SHORT_NS)
                .any(|_| trip::wait(&mine, at, armed, SHORT_NS) != Err(Errno::ETIMEDOUT) || !lives())
        };
        overdue::check(call, owed, woken);
    }
    if slept == Err(Errno::EAGAIN) { Ok(()) } else { slept }
}

/// Those who sleep on the word are to look again: something happened on this side.
pub(crate) fn look_again(conn: &Conn) {
    if conn.waiters.load(Ordering::Acquire) != 0 && conn.slot_taken() {
        trip::wake(&conn.mine(), conn.at(TRIP), SLEEPERS);
    }
}
