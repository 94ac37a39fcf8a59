//! The end of a link between hosts under a connection that goes on: the ring is left, and the ends tell each other by records how far they came.

use super::records::{seek_stop, send};
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::kicks::{self, By};
use crate::layout::{RECALL_AT, SMALL_AT, TCP_AT, note};
use crate::reason::Reason;
use crate::{log, report};

/// The link is over: nothing is read from the ring any more, which the peer is told, and nothing is written to it. Under the lock of the writing direction.
pub(crate) fn cut(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    // Whoever has closed hears nothing, and all that he has put has come before he said so. The kernel would answer a record with a reset.
    if conn.has(flag::CUT) || conn.state() != state::PROMOTED || conn.notes() & note::CLOSED != 0 {
        return;
    }
    let Some(mut rx) = conn.rx.lock() else { return };
    // Kicks, and an END that stands behind them.
    if matches!(conn.rx.path(), path::SMALL | path::BIG) {
        kicks::look(conn, fd, &mut rx, By::Call);
    }
    conn.set(flag::CUT | flag::NEVER | flag::DEMOTING);
    // What the peer has been told of them the records say better.
    tx.kicks_sent -= core::mem::take(&mut tx.debt);
    if conn.tx.path() == path::TCP {
        // It never switched, and does not any more.
        conn.tx.set_path(path::LAST);
    }
    // Whoever ends sends an END, behind all that is in the ring.
    if conn.rx.path() != path::LAST && conn.word(TCP_AT) == 0 && conn.notes() & note::ENDING == 0 {
        tx.stop_due = rx.ring.position() + 1;
        if conn.rx.path() == path::TCP && conn.word(SMALL_AT) == 0 {
            conn.rx.set_path(path::LAST);
        } else {
            conn.set(flag::RECALLED);
        }
    }
    drop(rx);
    conn.set_reason(Reason::LinkOver);
    report::count_reason(Reason::LinkOver);
    report::add(report::at::DEMOTED, 1);
    log::on_tcp(conn, Reason::LinkOver);
    send(conn, fd, tx);
}

/// What a call does first on a connection between hosts: notices that the link is over, and hears what the companion tells.
pub(crate) fn attend(conn: &'static Conn, fd: i32) {
    let over = conn.wire().is_some_and(|wire| wire.is_over());
    if !over && conn.tx.path() != path::RESEND {
        return;
    }
    if over
        && (!conn.has(flag::CUT) || conn.tx.path() != path::LAST)
        && let Some(mut tx) = conn.lock_tx(fd)
    {
        cut(conn, fd, &mut tx);
        send(conn, fd, &mut tx);
    }
    // Also when the peer's STOP has been heard: its END is still to come.
    if let Some(mut rx) = conn.lock_rx(fd) {
        if matches!(conn.rx.path(), path::SMALL | path::BIG) {
            kicks::look(conn, fd, &mut rx, By::Call);
        }
        seek_stop(conn, fd);
    }
}

/// Whether what the writer has left in the ring may be sent by tcp now, and from where: the peer has echoed all of it, or has said how far it came. Announces it.
pub(crate) fn may_resend(conn: &Conn, tx: &mut Held<'_, Tx>) -> bool {
    if tx.end_told {
        return true;
    }
    let Some(wire) = conn.wire() else { return true };
    let stopped = conn.has(flag::HEARD).then(|| conn.word(RECALL_AT));
    match stopped {
        Some(from) if from <= tx.ring.position() => {
            tx.resend = from;
            tx.end_due = from + 1;
        }
        Some(_) => {
            conn.break_off(conn.descriptor());
            return true;
        }
        // Whoever has closed hears nothing: the kernel would answer an END with a reset.
        None if conn.notes() & note::CLOSED != 0 => tx.resend = tx.ring.position(),
        // Nor is an END sent to whoever ends, and most likely does not read it: it sends a STOP if it still reads.
        None if conn.notes() & note::ENDING == 0 && wire.has_settled(&mut tx.echo) => {
            tx.end_due = tx.resend + 1;
        }
        // Whoever has gone says nothing any more.
        None if kicks::ended(conn, conn.descriptor()) => {
            if conn.notes() & (note::CLOSED | note::SHUT_WR) == note::SHUT_WR {
                // It still reads, but cannot say how far it has come: what it has not read is lost, and it has to know.
                conn.break_off(conn.descriptor());
            }
            tx.resend = tx.ring.position();
        }
        None => return false,
    }
    tx.end_told = true;
    true
}
