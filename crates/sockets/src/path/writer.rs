//! The writing direction and where it changes its path: to a ring, to a larger one, back to tcp.
//! Under its lock.

use fabric::sync::{Ordering, fence};

use crate::conn::{Conn, Tx, flag, path, state};
use crate::layout::{self, BIG_AT, SMALL_AT, TCP_AT};
use crate::path::offer::{self, Stage};
use crate::path::steps;
use crate::path::writing::{self, Writes};
use crate::reason::Reason;
use crate::{epoll, idle, link, peering};
use host::diag;

/// The path that is written, for those who decide by it.
#[inline(always)]
pub(crate) fn writes(conn: &Conn) -> Writes {
    match conn.tx.path() {
        path::TCP => Writes::Tcp,
        path::RESEND => Writes::Resend,
        path::LAST => Writes::Last,
        _ => Writes::Ring,
    }
}

/// Where the connection stands, for those who decide by it.
pub(crate) fn stage(conn: &Conn) -> Stage {
    match conn.state() {
        state::NEW => Stage::New,
        state::POSTED => Stage::Posted,
        state::OFFERED => Stage::Offered,
        state::PROMOTED => Stage::Promoted,
        _ => Stage::Plain,
    }
}

/// Changes the writing direction over from tcp to the ring, if both ends have agreed.
pub(crate) fn switch(conn: &Conn, fd: i32, tx: &mut Tx) -> bool {
    let accepted = || conn.word(layout::STATE) & layout::ACCEPTED != 0;
    let barred = conn.has(flag::NEVER | flag::SHUT_WR) || !peering::may_put(conn);
    if !offer::may_switch(stage(conn), accepted, barred) {
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
            conn.goes_by_tcp(Reason::Counting);
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
    if !peering::facts(conn).uses_records {
        conn.put(TCP_AT, tx.tcp_at);
    }
    // Kicks that are owed, and between hosts the record that announces it.
    let owes = tx.debt > 0 || peering::facts(conn).uses_records;
    match writing::behind(tx.resend, tx.ring.position(), owes) {
        Writes::Last => by_tcp(conn),
        _ => conn.tx.set_path(path::RESEND),
    }
    conn.set(flag::NEVER);
}

/// What is written goes by tcp from here on. Sets that wait for room are to ask the kernel now,
/// which has no edge for them where there has always been some.
pub(crate) fn by_tcp(conn: &Conn) {
    conn.tx.set_path(path::LAST);
    // Whoever finds no room says so, and then looks which path it is.
    fence(Ordering::SeqCst);
    if conn.has(flag::TX_FULL) && conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
}
