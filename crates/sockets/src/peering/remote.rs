//! A peer on another host: what is put comes later, or never, and what must not come before it
//! stands in the companion as records.

use fabric::sync::Ordering;
use fabric::{Local, sys};

use super::kind::{Facts, Peered};
use super::records;
pub(super) use super::records::{further, hear, run_at, seek_stop, send as send_records};
use super::wire::{Wire, call};
use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::layout::{FD, TCP_AT, note};

pub(super) const FACTS: Facts = Facts {
    shares_memory: false,
    reaches_process: false,
    shares_names: false,
    shows_end: false,
    kept_by_children: false,
    uses_records: true,
};

pub(super) fn is_whole(wire: &Wire, _: &impl Peered, _: i32) -> bool {
    !wire.is_over()
}

pub(super) fn is_over(wire: &Wire, _: &Conn) -> bool {
    wire.is_over()
}

pub(super) fn end_link(wire: &Wire, _: &Conn) {
    wire.end();
}

pub(super) fn call_to_tcp(wire: &Wire, conn: &Conn) {
    wire.call(call::RECALL, conn.slot.load(Ordering::Relaxed).into());
}

pub(super) fn offered(_: &Wire, conn: &Conn) {
    conn.mine().set_word(conn.at(FD), 1);
    conn.agreement.store(NOT_ASKED, Ordering::Relaxed);
}

/// An echo that never comes.
const NOT_ASKED: u64 = u64::MAX;

pub(super) fn promised(wire: &Wire, conn: &Conn) {
    if conn.agreement.load(Ordering::Relaxed) == NOT_ASKED {
        conn.agreement.store(wire.ask(), Ordering::Release);
    }
}

pub(super) fn may_put(wire: &Wire, conn: &Conn) -> bool {
    has_agreed(wire, conn) && wire.has_echoed(conn.agreement.load(Ordering::Acquire))
}

pub(super) fn taken(wire: &Wire, conn: &Conn) {
    // Whoever offered says that it knows of that, and goes to the ring when that is known here.
    conn.agreement.store(0, Ordering::Relaxed);
    wire.call(call::TAKEN, conn.slot.load(Ordering::Relaxed).into());
}

/// Each end tells its descriptor as soon as it knows that both agree.
pub(super) fn has_agreed(_: &Wire, conn: &Conn) -> bool {
    conn.word(FD) != 0
}

pub(super) fn is_silent(wire: &Wire, _: &Conn) -> bool {
    wire.is_silent()
}

pub(super) fn fell_silent(wire: &Wire, _: &Conn) {
    wire.fell_silent();
}

pub(super) fn settle(wire: &Wire, _: &Conn) {
    wire.settle();
}

pub(super) fn has_settled(wire: &Wire, _: &Conn, echo: &mut u64) -> bool {
    wire.has_settled(echo) || wire.is_over()
}

/// One that was counted may never come, but a record in its place.
pub(super) fn kicks_ahead(_: &Wire, _: &Conn, fd: i32, rx: &mut Held<'_, Rx>, count: usize) -> usize {
    let mut bytes = [0; 256];
    let most = count.min(bytes.len());
    match sys::recv_some(fd, &mut bytes[..most], libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(got) => bytes[..got].iter().take_while(|&&byte| byte == 0).count(),
        Err(errno) => {
            rx.keep_error(errno);
            0
        }
    }
}

/// No STOP comes from a peer that has heard our END, and nothing but bytes behind its own.
pub(super) fn may_come(wire: &Wire, conn: &Conn) -> bool {
    !((conn.word(TCP_AT) != 0 || conn.rx.path() == path::LAST) && may_finish(wire, conn))
}

pub(super) fn may_finish(_: &Wire, conn: &Conn) -> bool {
    // When the link is over each end sends an END, also if it never went by the ring.
    let ends =
        conn.has(flag::CUT) && conn.word(TCP_AT) == 0 && conn.notes() & (note::ENDING | note::CLOSED) == 0;
    // Who has the kernel's end alone cannot tell it from one that comes too early.
    !ends
        && !conn.has(flag::STOP_AHEAD)
        && (conn.has(flag::HEARD) || conn.notes() & note::END_HEARD != 0)
        && conn.records_due.load(Ordering::Acquire) == 0
        && conn.again.load(Ordering::Relaxed) == 0
        && !records::follow(conn, conn.descriptor())
}

/// The peer leaves the ring, or ends, as it has told or been asked to, and its END has not been
/// found yet: it is in the companion, or soon will be.
pub(super) fn end_due(_: &Wire, conn: &Conn) -> bool {
    conn.word(TCP_AT) == 0 && (conn.has(flag::RECALLED) || conn.notes() & (note::DEMOTE | note::ENDING) != 0)
}

pub(super) fn died_untold(wire: &Wire, conn: &Conn) -> Option<bool> {
    // It did not know that this end knows that both have agreed: it has put nothing ([`may_put`]).
    if conn.state() != state::PROMOTED || conn.word(FD) == 0 {
        return Some(false);
    }
    // An end of our own making is none of the peer's.
    let told = conn.notes() & (note::CLOSED | note::SHUT_WR | note::ENDING) != 0
        || conn.word(TCP_AT) != 0
        || conn.has(flag::SHUT_RD);
    // Where the link has ended before the ring was announced, an END is still to come.
    let by_tcp = conn.rx.path() == path::LAST && !conn.has(flag::CUT);
    if told || by_tcp { Some(false) } else { wire.is_over().then_some(true) }
}

pub(super) fn closed_unread(_: &Wire, conn: &Conn) -> bool {
    if conn.notes() & note::CLOSED == 0 || conn.has(flag::RESET_TOLD) {
        return false;
    }
    let Some(tx) = conn.tx.try_lock() else { return false };
    let unread = path::is_ring(conn.tx.path()) && tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0);
    if unread {
        conn.set(flag::RESET_TOLD);
    }
    unread
}
