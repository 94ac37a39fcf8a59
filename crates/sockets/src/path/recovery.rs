//! What a holder of a direction's lock had begun and did not end: it was killed in the middle, and another process has the connection
//! as well, or a signal handler jumped out of it. What takes more than one store, or a system call and a note of what that did, is marked
//! before it is begun ([`crate::path::steps`]); whoever has the lock next ends it. What went to the kernel, or came from it, the kernel knows, which
//! counts bytes.
//!
//! Everything here may have been done already, in part or whole, so it may be done twice.

use fabric::Local;

use crate::conn::{Conn, Held, Rx, Tx, flag, path, state};
use crate::layout::{KICKS, SMALL_AT, TCP_AT};
use crate::path::{steps, writer};
use crate::reason::Reason;
use crate::report;
use crate::wake::fire;
use host::diag;

impl Conn {
    /// Locks the reading direction, and ends what its last holder did not; `None` if this thread has it already, or the connection has
    /// been closed meanwhile.
    #[inline(always)]
    pub fn lock_rx(&self, fd: i32) -> Option<Held<'_, Rx>> {
        let mut rx = self.rx.lock().filter(|_| self.state() != state::FREE)?;
        mend_reading(self, fd, &mut rx);
        Some(rx)
    }

    /// Locks the writing direction, likewise.
    #[inline(always)]
    pub fn lock_tx(&self, fd: i32) -> Option<Held<'_, Tx>> {
        let mut tx = self.tx.lock().filter(|_| self.state() != state::FREE)?;
        mend(self, fd, &mut tx);
        Some(tx)
    }
}

/// Ends what is marked. For whoever has just locked the direction.
#[inline(always)]
pub(crate) fn mend(conn: &Conn, fd: i32, tx: &mut Tx) {
    if tx.step != 0 {
        mend_slowly(conn, fd, tx);
    }
}

#[cold]
fn mend_slowly(conn: &Conn, fd: i32, tx: &mut Tx) {
    if !conn.is_managed_now() {
        return;
    }
    let marked = |what| tx.step & what != 0;
    let (growing, leaving, sending) =
        (marked(steps::GROWING), marked(steps::LEAVING), marked(steps::SENDING));
    let (firing, paying) = (marked(steps::FIRING), marked(steps::PAYING));
    if growing && conn.tx.path() == path::SMALL {
        writer::grow(conn, tx);
    }
    if leaving {
        writer::announce(conn, tx);
    }
    let written = diag::written(fd, conn.has(flag::CLIENT));
    if sending
        && tx.sent_from != 0
        && let Ok(written) = written
    {
        let sent = written.wrapping_sub(tx.sent_from - 1);
        tx.resend = tx.resend_from.saturating_add(sent).min(tx.ring.position());
    }
    if firing || paying {
        // Since the ring, nothing has gone by tcp but kicks.
        tx.debt = match written {
            Ok(written) if tx.tcp_written != 0 => {
                tx.kicks_sent.saturating_sub(written.wrapping_sub(tx.tcp_written - 1))
            }
            _ => 0,
        };
        fire::tell(conn, tx);
    }
    if firing {
        fire::ring_again(conn, fd, tx);
    }
    tx.step = 0;
}

/// As [`mend`], for the reading direction: what its last holder has read it cannot give back, but how much that was, the kernel knows.
#[inline(always)]
pub(crate) fn mend_reading(conn: &Conn, fd: i32, rx: &mut Rx) {
    if rx.step != 0 {
        mend_reading_slowly(conn, fd, rx);
    }
}

#[cold]
fn mend_reading_slowly(conn: &Conn, fd: i32, rx: &mut Rx) {
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

/// So much has been read on tcp: up to the ring's beginning the program's bytes, then kicks.
fn count_read(conn: &Conn, rx: &mut Rx, read: u64) {
    let boundary = conn.word(SMALL_AT).checked_sub(1);
    match boundary {
        Some(boundary) if conn.rx.path() != path::TCP || read > boundary => {
            let taken = read.wrapping_sub(boundary);
            rx.kicks_drained = taken.clamp(rx.kicks_drained, conn.word(KICKS).max(rx.kicks_drained));
        }
        _ => {
            rx.tcp_read = read;
            rx.tcp_left = boundary.map(|boundary| boundary - read);
        }
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
