//! Looks (MSG_PEEK) that go on where the path changes, since they take nothing.

use fabric::sys::{self};
use stream::transport::Reader;

use super::buffers::{pieces, total, with_parts};
use super::companion::before_record;
use crate::conn::{Conn, Held, Rx, flag, path};
use crate::kicks;
use crate::kicks::By;
use crate::layout::{self, BIG_AT, SMALL_AT, TCP_AT};
use crate::peering::records;

/// What a look has `seen` on one path, and what it sees on those that come after that, all together.
#[cold]
pub(super) fn look_on(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    iov: &[libc::iovec],
    mut seen: usize,
    flags: i32,
) -> usize {
    // A copy: what is only looked at stays, whatever becomes of the one who looks.
    let mut ring = rx.ring;
    let mut path = conn.rx.path();
    // So many of them lie before the ring's in the companion.
    let before = if path::is_ring(path) { 0 } else { seen };
    ring.skip(seen - before);
    let run = if conn.is_far() && before > 0 && conn.is_managed_now() {
        records::run_at(conn, fd, before + kicks::owed(conn, rx) as usize)
    } else {
        records::Run::default()
    };
    loop {
        match path {
            path::TCP if rx.tcp_left == Some(seen as u64) => path = path::SMALL,
            path::SMALL if conn.word(BIG_AT) == ring.position() + 1 => {
                ring.move_to(conn.big_ring(), layout::BIG);
                path = path::BIG;
            }
            _ => break,
        }
        // What was recalled comes by tcp, unless an END says that its writer had left before.
        if conn.has(flag::RECALLED) && conn.word(TCP_AT) == 0 && run.end.is_none() {
            break;
        }
        let want = total(iov) - seen;
        let end = || conn.until(path).min(run.end.unwrap_or(u64::MAX));
        let Ok(ready) = ring.ready(&conn.ends(), want, end) else { break };
        let count = ready.min(want);
        look_out(conn, &ring, iov, seen, count, flags);
        ring.skip(count);
        seen += count;
    }
    if seen < total(iov)
        && let Some(gap) = gap(conn, fd, rx, path, ring.position(), before, &run)
    {
        seen += look_behind(conn, fd, rx, iov, seen, gap, flags);
    }
    seen
}

/// What lies in the companion before the bytes that come behind the ring.
pub(super) struct Gap {
    /// So many come before the ring.
    before: usize,
    /// Kicks, and records.
    between: usize,
    records: bool,
}

/// Where a look goes on that has come to the end of the ring, or of what came `before` it and a `run` of records. `None`: nothing comes behind it yet.
pub(super) fn gap(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    path: u32,
    position: u64,
    before: usize,
    run: &records::Run,
) -> Option<Gap> {
    let on_ring = path::is_ring(path);
    // Of what is not in memory the words say nothing.
    if !on_ring && run.len == 0 {
        return None;
    }
    if before == 0 && records::end_due(conn) {
        kicks::look(conn, fd, rx, By::Call);
    }
    let left = conn.word(TCP_AT);
    if before == 0 && left == position + 1 {
        kicks::take(conn, fd, rx, u64::MAX, By::Call);
    }
    let (goes_on, between) = match left {
        0 if on_ring => (run.end == Some(position), run.len),
        // No ring was ever used, or what came behind it is read already.
        _ if !on_ring => (conn.rx.path() == path::LAST || conn.word(SMALL_AT) == 0, run.len),
        at => (at == position + 1, run.len),
    };
    let between = between + kicks::owed(conn, rx) as usize;
    goes_on.then_some(Gap { before, between, records: run.len > 0 })
}

/// What the companion has behind the ring, behind a gap, of which the first bytes are looked at once more.
pub(super) fn look_behind(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    iov: &[libc::iovec],
    seen: usize,
    gap: Gap,
    flags: i32,
) -> usize {
    let mut between = [0; 256];
    let Some(between) = between.get_mut(..gap.between) else { return 0 };
    let skip = gap.before + gap.between;
    let wants = skip + total(iov) - seen;
    // Behind an END that has not been taken there may be another record.
    let most = if gap.records {
        Ok(records::further(conn, fd, rx, skip, wants))
    } else {
        before_record(conn, fd, rx, wants)
    };
    let Ok(most) = most else { return 0 };
    let behind = (seen, most.saturating_sub(skip));
    let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let got = with_parts(iov, (0, gap.before), between, behind, |message| sys::recvmsg(fd, message, flags));
    got.unwrap_or(0).saturating_sub(skip)
}

/// As `copy_out` in `recv.rs`, and leaves the bytes where they are.
pub(super) fn look_out(
    conn: &Conn,
    ring: &Reader,
    iov: &[libc::iovec],
    skip: usize,
    count: usize,
    flags: i32,
) {
    let ends = conn.ends();
    let mut ahead = 0;
    pieces(iov, skip, count, |to, len| {
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: as in `io::recv`.
            unsafe { ring.peek(&ends, ahead, to, len) };
        }
        ahead += len;
    });
}
