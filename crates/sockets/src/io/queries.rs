//! What a connection has unread and unsent: FIONREAD, SIOCOUTQ, SIOCATMARK.

use fabric::sys;

use crate::conn::{Conn, flag, path};
use crate::kicks;
use crate::layout::{self, TCP_AT, W};
use crate::path::reader::progress;
use crate::peering;

/// FIONREAD: bytes that a read would find. `None`: the kernel's answer.
pub fn unread(conn: &'static Conn, fd: i32) -> Option<i32> {
    if !conn.is_managed() {
        return None;
    }
    let mut rx = conn.lock_rx(fd)?;
    // Records are no bytes of the program's, and one of them says where these go on.
    kicks::hear_all(conn, fd, &mut rx);
    peering::seek_stop(conn, fd);
    progress(conn, fd, &mut rx);
    let waiting = || sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64;
    let stop = if conn.has(flag::STOP_AHEAD) { peering::BYTES as u64 } else { 0 };
    // Before the ring, and of how many that are there.
    let (before, waits) = match (conn.rx.path(), rx.tcp_left) {
        (path::SMALL | path::BIG, _) => (0, if conn.word(TCP_AT) == 0 { 0 } else { waiting() }),
        (path::TCP, Some(left)) => (left, waiting()),
        _ if stop > 0 => return Some(waiting().saturating_sub(stop) as i32),
        _ => return None,
    };
    if waits < before {
        return Some(waits as i32);
    }
    let position = rx.ring.position();
    let kicks = kicks::owed(conn, &rx);
    // Where the ring ends, and how many come by tcp again behind it, and behind the kicks. What was
    // recalled lies in the ring still, but comes by tcp.
    let (end, again) = match conn.word(TCP_AT) {
        0 if before > 0 && waits > before => {
            let run = peering::run_at(conn, fd, (before + kicks) as usize);
            let stop = if run.stop { 0 } else { stop };
            let again = waits.saturating_sub(before + kicks + run.len as u64 + stop);
            run.end.map_or((conn.word(W), 0), |end| (end, again))
        }
        0 => (conn.word(W), 0),
        at => (at - 1, waits.saturating_sub(before + kicks + stop)),
    };
    // While the connection grows, both rings can be full.
    let in_ring = end.saturating_sub(position).min(layout::UNDER_WAY as u64);
    let count = before + in_ring + again;
    Some(count as i32)
}

/// SIOCOUTQ: bytes that have not reached the other end. What is in the ring has, what went by tcp
/// before it perhaps not; kicks, which the kernel counts as well, are not the program's. `None`:
/// the kernel's answer.
pub fn unsent(conn: &'static Conn, fd: i32) -> Option<i32> {
    if !conn.is_managed() || !path::is_ring(conn.tx.path()) {
        return None;
    }
    let tx = conn.lock_tx(fd)?;
    let kicks = tx.kicks_sent.saturating_sub(tx.debt);
    let queued = sys::ioctl_int(fd, libc::TIOCOUTQ).ok()? as u64;
    Some(queued.saturating_sub(kicks) as i32)
}

/// SIOCATMARK: never while bytes of the ring come before those of tcp. `None`: the kernel's answer.
pub fn before_mark(conn: &'static Conn, fd: i32) -> bool {
    unread(conn, fd).is_some_and(|count| count > 0)
}
