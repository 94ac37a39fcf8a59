//! What a holder of a direction's lock had begun and did not end: it was killed in the middle, and
//! another process has the connection as well, or a signal handler jumped out of it. What takes
//! more than one store, or a system call and a note of what that did, is marked before it is begun
//! ([`crate::path::steps`]); whoever has the lock next ends it. What went to the kernel, or came
//! from it, the kernel knows, which counts bytes.
//!
//! Everything here may have been done already, in part or whole, so it may be done twice.

use fabric::Local;

use crate::conn::{Conn, Held, Rx, Tx, flag, path, state};
use crate::layout::{KICKS, SMALL_AT, TCP_AT};
use crate::path::unfinished::{Marks, Note, Reader, Writer};
use crate::path::{steps, writer};
use crate::reason::Reason;
use crate::report;
use crate::wake::fire;
use host::diag;

impl Conn {
    /// Locks the reading direction, and ends what its last holder did not; `None` if this thread
    /// has it already, or the connection has been closed meanwhile.
    #[inline(always)]
    pub fn lock_rx(&self, fd: i32) -> Option<Held<'_, Rx>> {
        let mut rx = self.rx.lock().filter(|_| self.state() != state::FREE)?;
        recover_reading(self, fd, &mut rx);
        Some(rx)
    }

    /// Locks the writing direction, likewise.
    #[inline(always)]
    pub fn lock_tx(&self, fd: i32) -> Option<Held<'_, Tx>> {
        let mut tx = self.tx.lock().filter(|_| self.state() != state::FREE)?;
        recover(self, fd, &mut tx);
        Some(tx)
    }
}

/// Ends what is marked. For whoever has just locked the direction.
#[inline(always)]
pub(crate) fn recover(conn: &Conn, fd: i32, tx: &mut Tx) {
    if tx.step != 0 {
        recover_slowly(conn, fd, tx);
    }
}

#[cold]
fn recover_slowly(conn: &Conn, fd: i32, tx: &mut Tx) {
    if !conn.is_managed_now() {
        return;
    }
    let marked = |what| tx.step & what != 0;
    let seen = Writer {
        marks: Marks {
            growing: marked(steps::GROWING),
            leaving: marked(steps::LEAVING),
            sending: marked(steps::SENDING),
            firing: marked(steps::FIRING),
            paying: marked(steps::PAYING),
        },
        in_small: conn.tx.path() == path::SMALL,
        gone: diag::written(fd, conn.has(flag::CLIENT)).ok(),
        gone_before_ring: tx.tcp_written.checked_sub(1),
        gone_before_resend: tx.sent_from.checked_sub(1),
        resend_from: tx.resend_from,
        written: tx.ring.position(),
        kicks: tx.kicks_sent,
        woken: tx.fires == tx.fires_with,
    };
    let redo = seen.redo();
    if redo.grow {
        writer::grow(conn, tx);
    }
    if redo.announce {
        writer::announce(conn, tx);
    }
    tx.resend = redo.resend.unwrap_or(tx.resend);
    if let Some(debt) = redo.debt {
        tx.debt = debt;
        fire::tell(conn, tx);
    }
    if redo.wake {
        fire::ring_again(conn, fd, tx);
    }
    if redo.carried_out {
        fire::carried_out(conn, tx);
    }
    tx.step = 0;
}

/// As [`recover`], for the reading direction: what its last holder has read it cannot give back,
/// but how much that was, the kernel knows.
#[inline(always)]
pub(crate) fn recover_reading(conn: &Conn, fd: i32, rx: &mut Rx) {
    if rx.step != 0 {
        recover_reading_slowly(conn, fd, rx);
    }
}

#[cold]
fn recover_reading_slowly(conn: &Conn, fd: i32, rx: &mut Rx) {
    if !conn.is_managed_now() {
        return;
    }
    if rx.step & steps::TAKEN != 0 {
        hear_taken(conn, rx);
        if rx.step & steps::READING == 0 {
            return;
        }
    }
    // If the kernel does not know any more, nothing comes by tcp any more that would be counted.
    if let Ok(received) = diag::received(fd) {
        count_read(conn, rx, received.read);
    }
    steps::end(&mut rx.step, steps::READING);
}

/// So much has been read on tcp.
fn count_read(conn: &Conn, rx: &mut Rx, read: u64) {
    let seen = Reader {
        read,
        boundary: conn.word(SMALL_AT).checked_sub(1),
        by_tcp: conn.rx.path() == path::TCP,
        taken: rx.kicks_drained,
        counted: conn.word(KICKS),
    };
    match seen.note() {
        Some(Note::Kicks(taken)) => rx.kicks_drained = taken,
        Some(Note::Bytes { read, left }) => (rx.tcp_read, rx.tcp_left) = (read, left),
        None => {}
    }
}

/// At the peer, which has found the mark: notes what the owner would have told.
#[cold]
fn hear_taken(conn: &Conn, rx: &mut Rx) {
    let (tcp_at, kicks) = rx.taken;
    let mine = conn.mine();
    mine.set_word(conn.at(KICKS), kicks);
    mine.set_word(conn.at(TCP_AT), tcp_at);
    report::count_reason(Reason::PeerAsked);
    rx.step &= !steps::TAKEN;
}
