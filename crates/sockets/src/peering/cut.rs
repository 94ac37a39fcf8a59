//! The end of a link between hosts under a connection that goes on: the ring is left, and the ends
//! tell each other by records how far bytes have come.

use fabric::sync::{Ordering, fence};

use super::kind::Peered;
use super::wire::Wire;
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::kicks;
use crate::layout::{self, RECALL_AT, SMALL_AT, TCP_AT, W, note};
use crate::path::claim::{self, Parted, Parting, Says};
use crate::path::writer::by_tcp;
use crate::peering;
use crate::reason::Reason;

/// The link is over: of the ring no more is read than what has come, which the peer is told, and
/// nothing is written to it. Under the lock of the writing direction.
pub(crate) fn cut(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    // Whoever has closed hears nothing, and all that he has put has come before he said so. The
    // kernel would answer a record with a reset.
    if conn.has(flag::CUT) || conn.state() != state::PROMOTED || conn.notes() & note::CLOSED != 0 {
        return;
    }
    // For the peer it may never have been promoted; else a record comes that says so.
    if !peering::has_agreed(conn) {
        return;
    }
    let Some(mut rx) = conn.rx.lock() else { return };
    if conn.state() != state::PROMOTED {
        // A reader has found that nothing is left to tell.
        return;
    }
    // Kicks, and an END that stands behind them.
    kicks::poll_for_records(conn, fd, &mut rx);
    conn.set(flag::CUT | flag::NEVER);
    // What the peer has been told of them the records say better.
    tx.kicks_sent -= core::mem::take(&mut tx.debt);
    if matches!(conn.tx.path(), path::TCP | path::LAST) && !tx.end_told {
        // It never switched, and does not any more. The peer cannot know that, as the announcement
        // of the ring may have been lost: an END says so.
        conn.tx.set_path(path::LAST);
        if conn.notes() & note::ENDING == 0 {
            end(conn, tx);
        }
    }
    if path::is_ring(conn.tx.path())
        && conn.notes() & note::ENDING == 0
        && tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread == 0)
    {
        // The peer has read all of it, and need not say so.
        end(conn, tx);
        by_tcp(conn);
    }
    // Whoever ends sends an END, behind all that is in the ring.
    if conn.rx.path() != path::LAST && conn.word(TCP_AT) == 0 && conn.notes() & note::ENDING == 0 {
        if conn.rx.path() == path::TCP && conn.word(SMALL_AT) == 0 {
            tx.stop_due = rx.ring.position() + 1;
            conn.records_due.store(1, Ordering::Relaxed);
            conn.rx.set_path(path::LAST);
        } else {
            let come = conn.word(W);
            // Whoever falls asleep from now on finds what has come.
            fence(Ordering::SeqCst);
            let sleeps = conn.sleepers.load(Ordering::SeqCst) > 0;
            let stop = claim::stop(come, rx.ring.position(), sleeps, conn.has(flag::RECALLED));
            tx.stop_due = stop + 1;
            conn.records_due.store(1, Ordering::Relaxed);
            conn.recalled_from.store(stop + 1, Ordering::Relaxed);
            conn.set(flag::RECALLED);
        }
    }
    drop(rx);
    conn.went_back(Reason::LinkOver);
    peering::send_records(conn, fd, tx);
    // Until now nobody was told of an end that the kernel had told of: the peer might have been
    // going to say why.
    peering::ask_again(conn);
}

/// All that was put is there: an END is to say so.
fn end(conn: &Conn, tx: &mut Held<'_, Tx>) {
    tx.resend = tx.ring.position();
    tx.end_due = tx.resend + 1;
    tx.end_told = true;
    conn.records_due.store(1, Ordering::Relaxed);
}

/// Whether the peer's END is on its way, or soon will be, though it has not said so: each end sends
/// one when the link is over, unless it has before, or knows that the other one ends.
pub(crate) fn owes_end(conn: &Conn) -> bool {
    peering::is_over(conn)
        && conn.notes() & (note::CLOSED | note::ENDING) == 0
        && !conn.peering().wire().is_some_and(Wire::has_told_end)
}

/// At close() and exit(): the link has ended after all that was put had come, and perhaps before
/// the peer was told of that.
pub(crate) fn say_end(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    if peering::is_over(conn)
        && peering::has_agreed(conn)
        && !conn.has(flag::CUT)
        && !tx.end_told
        && conn.notes() & (note::CLOSED | note::ENDING) == 0
        && conn.tx.path() != path::RESEND
    {
        end(conn, tx);
        peering::send_records(conn, fd, tx);
    }
}

/// What a call does first: notices that the link is over, and hears what the companion tells.
#[inline(always)]
pub(crate) fn attend(conn: &'static Conn, fd: i32) {
    if peering::facts(conn).uses_records {
        attend_records(conn, fd);
    }
}

fn attend_records(conn: &'static Conn, fd: i32) {
    let over = peering::is_over(conn);
    if !over && conn.tx.path() != path::RESEND {
        return;
    }
    if over
        && (!conn.has(flag::CUT) || conn.tx.path() != path::LAST)
        && let Some(mut tx) = conn.lock_tx(fd)
    {
        cut(conn, fd, &mut tx);
        peering::send_records(conn, fd, &mut tx);
    }
    // Also when the peer's STOP has been heard: its END is still to come.
    if let Some(mut rx) = conn.lock_rx(fd) {
        kicks::poll_for_records(conn, fd, &mut rx);
    }
}

/// Before bytes go by tcp: a link that is over is noticed, and records go first. False if the
/// companion takes no more now.
#[inline(always)]
pub(crate) fn before_tcp(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    if peering::is_over(conn) && conn.tx.path() == path::TCP && conn.state() == state::PROMOTED {
        cut(conn, fd, tx);
    }
    peering::send_records(conn, fd, tx)
}

/// Whether what the writer has left in the ring may be sent by tcp now, and from where: the peer
/// has echoed all of it, or has said how far it came. Announces it.
pub(crate) fn may_resend(conn: &Conn, tx: &mut Held<'_, Tx>) -> bool {
    if tx.end_told {
        return true;
    }
    let Some(wire) = conn.peering().wire() else { return true };
    let (fd, notes) = (conn.descriptor(), conn.notes());
    let seen = Parted {
        stopped: conn.has(flag::HEARD).then(|| conn.word(RECALL_AT)),
        oldest: tx.ring.position().saturating_sub(layout::UNDER_WAY as u64),
        from: tx.resend,
        read: tx.ring.unread(&conn.ends()).ok().map(|unread| tx.ring.position() - unread),
        written: tx.ring.position(),
        closed: notes & note::CLOSED != 0,
        ending: notes & note::ENDING != 0,
    };
    let says = || {
        let ended = kicks::ended(conn, fd);
        // What it has said of its end by the link may come later than the kernel's word.
        let over = wire.is_over();
        match conn.notes() & (note::CLOSED | note::SHUT_WR | note::ENDING) {
            0 if over => Says::ReadsOn,
            note::SHUT_WR if over || ended => Says::ReadsOn,
            _ if over && ended => Says::Gone,
            _ => Says::Perhaps,
        }
    };
    let sends = seen.sends(|| wire.has_settled(&mut tx.echo), says);
    match sends {
        Parting::NotKnown => return false,
        Parting::Behind(from) => (tx.resend, tx.end_due) = (from, from + 1),
        Parting::Nothing => tx.resend = seen.written,
        Parting::BreakOff => {
            conn.break_off(fd);
            tx.resend = seen.written;
        }
    }
    tx.end_told = true;
    true
}
