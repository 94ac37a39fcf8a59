//! The writing direction and where it changes its path: to a ring, to a larger one, back to tcp. Under its lock.

use fabric::sync::{Ordering, fence};

use crate::conn::{Conn, Tx, flag, path, state};
use crate::layout::{self, BIG_AT, SMALL_AT, TCP_AT};
use crate::path::steps;
use crate::reason::Reason;
use crate::{epoll, idle, link, log, report};
use host::diag;

/// Changes the writing direction over from tcp to the ring, if both ends have agreed.
pub(crate) fn switch(conn: &Conn, fd: i32, tx: &mut Tx) -> bool {
    // The peer may be in the ring, and have to be woken, before we have taken note of its answer.
    let agreed = match conn.state() {
        state::PROMOTED => true,
        state::OFFERED => conn.word(layout::STATE) & layout::ACCEPTED != 0,
        _ => false,
    };
    if !agreed || conn.has(flag::NEVER | flag::DEMOTING | flag::SHUT_WR) {
        return false;
    }
    match diag::written(fd, conn.has(flag::CLIENT)) {
        Ok(written) => {
            tx.tcp_written = written + 1;
            conn.put(SMALL_AT, written + 1);
            conn.tx.set_path(path::SMALL);
            idle::came();
            true
        }
        Err(_) => {
            conn.set(flag::NEVER);
            conn.set_reason(Reason::Counting);
            report::count_reason(Reason::Counting);
            log::on_tcp(conn, Reason::Counting);
            false
        }
    }
}

/// Moves to a big ring from here on, if there is one left.
pub(crate) fn grow(conn: &Conn, tx: &mut Tx) -> bool {
    if tx.big == 0 {
        let link = link::link(conn.link.load(Ordering::Relaxed));
        let Some(number) = link.take_big(conn.slot.load(Ordering::Relaxed) as usize) else {
            // Not asked for again with each write.
            tx.full = 0;
            return false;
        };
        tx.big = number;
    }
    steps::begin(&mut tx.step, steps::GROWING);
    conn.put(layout::BIG_RING, tx.big);
    conn.put(BIG_AT, tx.ring.position() + 1);
    tx.big_from = tx.ring.position();
    tx.ring.move_to(layout::big(tx.big), layout::BIG);
    conn.tx.set_path(path::BIG);
    steps::end(&mut tx.step, steps::GROWING);
    true
}

/// Tells the reader where tcp goes on, and goes there.
pub(crate) fn announce(conn: &Conn, tx: &mut Tx) {
    tx.resend = tx.tcp_at - 1;
    tx.sent_from = 0;
    if !conn.is_far() {
        conn.put(TCP_AT, tx.tcp_at);
    }
    if tx.leaving == path::LAST {
        by_tcp(conn);
    } else {
        conn.tx.set_path(tx.leaving);
    }
    conn.set(flag::NEVER | flag::DEMOTING);
}

/// What is written goes by tcp from here on. Sets that wait for room are to ask the kernel now, which has no edge for them where there has always been some.
pub(crate) fn by_tcp(conn: &Conn) {
    conn.tx.set_path(path::LAST);
    // Whoever finds no room says so, and then looks which path it is.
    fence(Ordering::SeqCst);
    if conn.has(flag::TX_FULL) && conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
}
