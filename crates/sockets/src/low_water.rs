//! SO_RCVLOWAT where bytes stay in the ring although the connection goes back to tcp
//! ([`handover`](crate::handover), `keep_rest`), before, beside or behind bytes by tcp. The
//! program's mark counts these too, which the kernel does not know of; so as long as there are
//! some, the kernel's mark is lower by so many, and the program is told its own.
//!
//! A blocking read may give less than the mark then, as it may at the end of the stream.

use fabric::sync::Ordering;
use fabric::sys;

use crate::conn::{Conn, Rx, path};
use crate::layout::{SMALL_AT, W};

/// The program sets its mark. True if it is kept here, and the kernel's set.
pub fn set(conn: &'static Conn, fd: i32, mark: i32) -> bool {
    if !conn.is_managed() {
        conn.low_water.store(0, Ordering::Release);
        return false;
    }
    let Some(rx) = conn.lock_rx(fd) else { return false };
    // As the kernel reads it.
    let mark = if mark < 0 { i32::MAX } else { mark.max(1) };
    conn.low_water.store(mark as u32, Ordering::Release);
    adjust(conn, fd, &rx);
    true
}

/// What the program has set, if it is kept here.
pub fn get(conn: &Conn) -> Option<i32> {
    Some(conn.low_water.load(Ordering::Acquire) as i32).filter(|&mark| mark != 0)
}

/// Some of the ring's bytes may have been read.
pub(crate) fn adjust(conn: &Conn, fd: i32, rx: &Rx) {
    let Some(mark) = get(conn) else { return };
    let left = left(conn, rx);
    let kernels = i64::from(mark).saturating_sub(left as i64).max(1) as i32;
    let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, kernels);
    if left == 0 && conn.rx.path() == path::LAST {
        conn.low_water.store(0, Ordering::Release);
    }
}

/// Whether the ring's bytes alone are not enough; the kernel says whether they are with its own.
pub(crate) fn is_above(conn: &Conn, rx: &Rx) -> bool {
    get(conn).is_some_and(|mark| left(conn, rx) < mark as u64)
}

/// Bytes that are, or will be, read from the ring: bytes by tcp may come before them.
fn left(conn: &Conn, rx: &Rx) -> u64 {
    match conn.rx.path() {
        path::TCP if conn.word(SMALL_AT) == 0 => 0,
        path::TCP | path::SMALL | path::BIG => conn.word(W).wrapping_sub(rx.ring.position()),
        _ => 0,
    }
}
