//! Back to tcp: because the program does something that a ring cannot follow, because the peer asks, or because it has gone.
//!
//! Order matters. The one that demotes first tells the peer (DEMOTE), then wakes it if it is armed, and only then announces where
//! tcp begins: after that no kick may go out, as it would stand among the bytes of tcp. A peer that arms later finds the note.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Local, trip};

use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::layout::{self, NOTES, RECALL_AT, TCP_AT, W, note};
use crate::reason::Reason;
use crate::{io, rendezvous, report, wait};

/// Takes the connection back to tcp for good. Bytes in the ring are read from there first; nothing is waited for.
pub fn now(conn: &'static Conn, fd: i32, reason: Reason) {
    leave(conn, fd, reason, false);
}

/// Takes the connection back so that a process that knows nothing of rings can go on with it: unread bytes of the ring are
/// recalled, to be sent again by tcp, and kicks are taken out of the companion. Waits for the peer, but not for ever.
pub fn hand_over(conn: &'static Conn, fd: i32, reason: Reason) {
    leave(conn, fd, reason, true);
    if conn.state() != state::PROMOTED {
        return;
    }
    let start = sys::now();
    loop {
        let Some(mut rx) = conn.lock_rx() else { return };
        io::progress(conn, fd, &mut rx);
        if !matches!(conn.rx.path(), path::SMALL | path::BIG) || !conn.has(flag::RECALLED) {
            drop(rx);
            finish(conn);
            return;
        }
        io::drain(conn, fd, &mut rx, usize::MAX);
        let empty = conn.word(W) == rx.ring.position();
        // Nothing unread, and no kick on the way: whatever the writer does later, it will find the recall and send it by tcp.
        if empty && wait::quiet(conn) && conn.word(layout::KICKS) == rx.kicks_drained {
            conn.rx.set_path(path::LAST);
            drop(rx);
            finish(conn);
            return;
        }
        drop(rx);
        let limit = if empty { HAND_OVER_EMPTY_NS } else { HAND_OVER_NS };
        if sys::now() - start > limit || conn.notes() & note::CLOSED != 0 {
            report::count_reason(Reason::PeerGone);
            return;
        }
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(500_000));
    }
}

const HAND_OVER_NS: u64 = 2_000_000_000;
const HAND_OVER_EMPTY_NS: u64 = 200_000_000;

fn leave(conn: &'static Conn, fd: i32, reason: Reason, recall: bool) {
    if conn.state() == state::OFFERED && !rendezvous::withdraw(conn) {
        rendezvous::settle_answer(conn);
    }
    if conn.state() != state::PROMOTED {
        rendezvous::give_up(conn, reason);
        return;
    }
    let Some(mut tx) = conn.lock_tx() else { return };
    if conn.tx.path() == path::TCP && !io::switch(conn, fd) {
        return;
    }
    if !conn.has(flag::DEMOTING) {
        report::count_reason(reason);
        report::add(report::at::DEMOTED, 1);
        conn.set_reason(reason);
    }
    if recall && let Some(rx) = conn.lock_rx() {
        conn.set(flag::RECALLED);
        conn.put(RECALL_AT, rx.ring.position());
        wait::disarm_for_all(conn);
        conn.tell(note::DEMOTE | note::RECALL);
    } else {
        conn.tell(note::DEMOTE);
    }
    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
        io::wake(conn, fd, &mut tx, trip::RX | trip::TX);
        conn.put(TCP_AT, tx.ring.position() + 1);
        conn.tx.set_path(path::LAST);
    }
    conn.set(flag::NEVER | flag::DEMOTING);
}

/// Does what the peer has asked for, if it has: from calls that only read or wait.
pub fn attend(conn: &'static Conn, fd: i32) {
    if conn.state() != state::PROMOTED {
        return;
    }
    match conn.tx.path() {
        path::TCP | path::SMALL | path::BIG if conn.word(NOTES) & (note::DEMOTE | note::RECALL) == 0 => {}
        path::LAST => {
            finish(conn);
        }
        path::RESEND => {
            if let Some(mut tx) = conn.lock_tx() {
                resend(conn, fd, &mut tx);
            }
        }
        _ => {
            if let Some(mut tx) = conn.lock_tx() {
                if conn.tx.path() == path::TCP && !io::switch(conn, fd) {
                    return;
                }
                if matches!(conn.tx.path(), path::SMALL | path::BIG) {
                    asked(conn, fd, &mut tx);
                }
            }
        }
    }
}

/// The peer asks for tcp, or has gone: leaves the ring. Under the tx lock, with the path on a ring.
pub(crate) fn asked(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    let notes = conn.notes();
    if !conn.has(flag::DEMOTING) {
        let reason = if notes & note::DEMOTE != 0 { Reason::PeerAsked } else { Reason::PeerGone };
        conn.set_reason(reason);
        report::count_reason(reason);
        report::add(report::at::DEMOTED, 1);
    }
    if notes & note::RECALL != 0 {
        let from = conn.word(RECALL_AT);
        if from > tx.ring.position() || tx.ring.position() - from > (layout::SMALL + layout::BIG) as u64 {
            conn.break_off(fd);
        } else {
            tx.resend = from;
            conn.put(TCP_AT, from + 1);
            conn.tx.set_path(path::RESEND);
            conn.set(flag::NEVER | flag::DEMOTING);
            resend(conn, fd, tx);
            return;
        }
    }
    if notes & note::CLOSED == 0 {
        conn.tell(note::DEMOTE);
        io::wake(conn, fd, tx, trip::RX | trip::TX);
    }
    conn.put(TCP_AT, tx.ring.position() + 1);
    conn.tx.set_path(path::LAST);
    conn.set(flag::NEVER | flag::DEMOTING);
}

/// Sends recalled bytes by tcp, as many as it takes now; true when all are sent.
pub(crate) fn resend(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    let slot = conn.slot.load(Ordering::Relaxed) as usize;
    let mut bytes = [0u8; 4096];
    if !io::pay(fd, tx) {
        return false;
    }
    while tx.resend < tx.ring.position() {
        let grown = tx.ring.capacity() == layout::BIG as u64;
        let in_big = grown && tx.resend >= tx.big_from;
        let (data, capacity) =
            if in_big { (layout::big(slot), layout::BIG) } else { (layout::small(slot), layout::SMALL) };
        let end = if grown && !in_big { tx.big_from } else { tx.ring.position() };
        let at = (tx.resend % capacity as u64) as usize;
        let len = ((end - tx.resend) as usize).min(capacity - at).min(bytes.len());
        // SAFETY: the target is `bytes`, len is at most its length.
        unsafe { conn.theirs().get(data + at, bytes.as_mut_ptr(), len) };
        match sys::send(fd, bytes.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => tx.resend += sent as u64,
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end; the next call is told.
            Err(_) => break,
        }
    }
    conn.tx.set_path(path::LAST);
    true
}

/// When both directions are back on tcp: calls are the kernel's again. True if they are.
pub(crate) fn finish(conn: &'static Conn) -> bool {
    if conn.tx.path() != path::LAST || conn.rx.path() != path::LAST {
        return false;
    }
    if conn.state.compare_exchange(state::PROMOTED, state::PLAIN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    {
        conn.unmanage();
    }
    true
}
