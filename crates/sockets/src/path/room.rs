//! Room for a write: in the ring, or in the window of messages, which may be full of little.

use stream::spin::{ticks, ticks_of};

use stream::ring::Broken;

use crate::conn::{Conn, Held, Tx, flag, path};
use crate::layout::{self};
use crate::small_buffers;

/// Larger writes are not joined with others (SOVIA, section 3.2.3).
pub(crate) const SMALL_WRITE: usize = 2048;

/// Room for `want` bytes, or less if there is less.
#[inline(always)]
pub(crate) fn room_for(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, want: usize) -> Result<usize, Broken> {
    if conn.is_via() { room_by_messages(conn, fd, tx, want) } else { tx.ring.room(&conn.ends(), want) }
}

/// As [`room_for`], where it is a window of messages: small ones may be joined, and the small
/// buffers that a program has set bound their bytes.
#[inline(never)]
pub(crate) fn room_by_messages(
    conn: &Conn,
    fd: i32,
    tx: &mut Held<'_, Tx>,
    want: usize,
) -> Result<usize, Broken> {
    tx.ring.combine(!conn.has(flag::NODELAY) && want < SMALL_WRITE);
    let mut room = tx.ring.room(&conn.ends(), want)?;
    if room == 0 && look_for_credits(conn) {
        room = tx.ring.room(&conn.ends(), want)?;
    }
    if small_buffers::both(conn, fd) {
        let unread = tx.ring.unread(&conn.ends())?;
        room = room.min((layout::SMALL as u64).saturating_sub(unread) as usize);
    }
    Ok(room)
}

/// Acknowledgements may be in data that came and that nobody has read yet. False if there is none,
/// or a reader looks itself.
pub(crate) fn look_for_credits(conn: &Conn) -> bool {
    let Some(mut rx) = conn.rx.try_lock() else { return false };
    let path = conn.rx.path();
    path::is_ring(path) && rx.ring.ready(&conn.ends(), usize::MAX / 2, || conn.until(path)).is_ok()
}

/// Whether the window is full of so few bytes that tcp would take more: two programs that both
/// write before they read would wait for each other. Then the ring takes them.
pub(crate) fn stuck(conn: &Conn, tx: &Held<'_, Tx>) -> bool {
    conn.is_via()
        && conn.tx.path() == path::SMALL
        && tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread < layout::SMALL as u64)
}

/// As [`stuck`], for one that does not wait in a call: the peer is given a while to read on and
/// acknowledge, as it mostly does at once, and only one that does not is taken for stuck. Whoever
/// polls, or waits on a set, looks again in time. A window that is full of a few small messages is
/// left at once: with tcp nobody gets EAGAIN for so little, and there are programs that cannot cope
/// (curl's HTTP/2 does not wait for room then, but spins).
pub(crate) fn stuck_for_long(conn: &Conn, tx: &mut Held<'_, Tx>) -> bool {
    if !stuck(conn, tx) {
        tx.stuck_at = 0;
        return false;
    }
    if tx.ring.is_full_of_little() {
        return true;
    }
    let (now, read) = (ticks(), conn.word(layout::R));
    if tx.stuck_at != read + 1 {
        (tx.stuck_at, tx.stuck_since) = (read + 1, now);
        return false;
    }
    now.wrapping_sub(tx.stuck_since) >= ticks_of(stall_ns(conn))
}

/// How long a blocked writer waits for a reader that does not read before it goes on by tcp, whose
/// buffers are larger: two programs that write to each other first and read later must not stop
/// where tcp would not.
pub(crate) const STALL_NS: u64 = 20_000_000;

/// The same for a window of messages, which may be full after few bytes: so that a reader which has
/// had no processor for a moment is not taken for one that does not read.
pub(crate) const WINDOW_STALL_NS: u64 = 200_000_000;

/// Which of them holds for a connection.
pub(crate) fn stall_ns(conn: &Conn) -> u64 {
    if conn.is_via() && conn.tx.path() == path::SMALL { WINDOW_STALL_NS } else { STALL_NS }
}
