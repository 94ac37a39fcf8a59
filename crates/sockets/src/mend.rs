//! What a holder of a direction's lock had begun and did not end: it was killed in the middle, and another process has the connection
//! as well, or a signal handler jumped out of it. What takes more than one store, or a system call and a note of what that did, is marked
//! before it is begun ([`step`]); whoever has the lock next ends it. What went to the kernel, or came from it, the kernel knows, which
//! counts bytes.
//!
//! Everything here may have been done already, in part or whole, so it may be done twice.

use fabric::sync::{Ordering, compiler_fence};
use host::diag;

use crate::conn::{Conn, Rx, Tx, flag, path};
use crate::layout::{KICKS, SMALL_AT};
use crate::{demote, io, kicks};

/// What is being done, in [`Tx::step`] and [`Rx::step`].
pub mod step {
    /// The peer is woken: [`Tx::fired`](super::Tx::fired) was armed.
    pub const FIRING: u32 = 1;
    /// Kicks are sent that have been counted.
    pub const PAYING: u32 = 2;
    /// Recalled bytes are sent by tcp.
    pub const SENDING: u32 = 4;
    /// The big ring is moved to.
    pub const GROWING: u32 = 8;
    /// It is announced where tcp goes on.
    pub const LEAVING: u32 = 16;
    /// Bytes are read on tcp before the ring, or kicks are taken out of the companion.
    pub const READING: u32 = 32;
    /// Another process has taken the other end to tcp ([`crate::taken`]): what its owner would have told is to be noted.
    pub const TAKEN: u32 = 64;
}

/// Marks what is begun. Not a fence between processors: whoever finds the mark found the holder dead.
#[inline(always)]
pub(crate) fn begin(step: &mut u32, what: u32) {
    // What is to be done is there before it is said that it has begun.
    compiler_fence(Ordering::SeqCst);
    *step |= what;
    compiler_fence(Ordering::SeqCst);
}

/// It is done.
#[inline(always)]
pub(crate) fn end(step: &mut u32, what: u32) {
    compiler_fence(Ordering::SeqCst);
    *step &= !what;
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
    let (growing, leaving, sending) = (marked(step::GROWING), marked(step::LEAVING), marked(step::SENDING));
    let (firing, paying) = (marked(step::FIRING), marked(step::PAYING));
    if growing && conn.tx.path() == path::SMALL {
        io::grow(conn, tx);
    }
    if leaving {
        demote::announce(conn, tx);
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
        kicks::tell(conn, tx);
    }
    if firing {
        kicks::ring_again(conn, fd, tx);
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
    if rx.step & step::TAKEN != 0 {
        crate::taken::hear(conn, rx);
        if rx.step & step::READING == 0 {
            return;
        }
    }
    // If the kernel does not know any more, nothing comes by tcp any more that would be counted.
    if let Ok(received) = diag::received(fd) {
        count_read(conn, rx, received.read);
    }
    end(&mut rx.step, step::READING);
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
