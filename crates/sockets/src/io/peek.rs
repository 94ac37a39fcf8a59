//! Looks (MSG_PEEK) that go on where the path changes, since they take nothing.

use fabric::sys;
use stream::transport::Reader;

use super::buffers::{Wanted, pieces, with_parts};
use super::companion::before_record;
use crate::conn::{Conn, Held, Rx, path};
use crate::kicks::{self, By};
use crate::layout::{self, BIG_AT, SMALL_AT, TCP_AT};
use crate::peering;

/// What a look has seen on one path (`wanted` is what it wants behind that), and what it sees on
/// those that come after that, all together.
#[cold]
pub(super) fn peek_on(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, mut wanted: Wanted) -> usize {
    let seen = wanted.skip;
    // A copy: what is only looked at stays, whatever becomes of the one who looks.
    let mut ring = rx.ring;
    let mut path = conn.rx.path();
    // So many of them lie before the ring's in the companion.
    let before = if path::is_ring(path) { 0 } else { seen };
    ring.skip(seen - before);
    let run = if before > 0 && conn.is_managed_now() {
        peering::run_at(conn, fd, before + kicks::owed(conn, rx) as usize)
    } else {
        peering::Run::default()
    };
    loop {
        match path {
            path::TCP if rx.tcp_left == Some(wanted.skip as u64) => path = path::SMALL,
            path::SMALL if conn.word(BIG_AT) == ring.position() + 1 => {
                ring.move_to(conn.big_ring(), layout::BIG);
                path = path::BIG;
            }
            _ => break,
        }
        // What was recalled comes by tcp, unless an END says that its writer had left before.
        if conn.is_recalled_at(ring.position()) && conn.word(TCP_AT) == 0 && run.end.is_none() {
            break;
        }
        let want = wanted.len();
        let end = || conn.until(path).min(run.end.unwrap_or(u64::MAX));
        let Ok(ready) = ring.ready(&conn.ends(), want, end) else { break };
        let count = ready.min(want);
        peek_out(conn, &ring, wanted, count);
        ring.skip(count);
        wanted.skip += count;
    }
    if wanted.len() > 0
        && let Some(gap) = gap(conn, fd, rx, path, ring.position(), before, &run)
    {
        wanted.skip += peek_behind(conn, fd, rx, wanted, gap);
    }
    wanted.skip
}

/// What lies in the companion before the bytes that come behind the ring.
struct Gap {
    /// So many come before the ring.
    before: usize,
    /// Kicks, and records.
    between: usize,
    records: bool,
}

/// Where a look goes on that has come to the end of the ring, or of what came `before` it and a
/// `run` of records. `None`: nothing comes behind it yet.
fn gap(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    path: u32,
    position: u64,
    before: usize,
    run: &peering::Run,
) -> Option<Gap> {
    let on_ring = path::is_ring(path);
    // Of what is not in memory the words say nothing.
    if !on_ring && run.len == 0 {
        return None;
    }
    if before == 0 && peering::end_due(conn) {
        kicks::poll(conn, fd, rx, By::Call);
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

/// What the companion has behind the ring, behind a gap, of which the first bytes are looked at
/// once more.
fn peek_behind(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, wanted: Wanted, gap: Gap) -> usize {
    let mut between = [0; 256];
    let Some(between) = between.get_mut(..gap.between) else { return 0 };
    let skip = gap.before + gap.between;
    let wants = skip + wanted.len();
    // Behind an END that has not been taken there may be another record.
    let most = if gap.records {
        Ok(peering::further(conn, fd, rx, skip, wants))
    } else {
        before_record(conn, fd, rx, wants)
    };
    let Ok(most) = most else { return 0 };
    let behind = (wanted.skip, most.saturating_sub(skip));
    let flags = wanted.flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    let receive = |message: &mut _| sys::recvmsg(fd, message, flags);
    let got = with_parts(wanted.iov, (0, gap.before), between, behind, receive);
    got.unwrap_or(0).saturating_sub(skip)
}

/// As `copy_out` in `recv.rs`, and leaves the bytes where they are.
pub(super) fn peek_out(conn: &Conn, ring: &Reader, wanted: Wanted, count: usize) {
    let ends = conn.ends();
    let mut ahead = 0;
    pieces(wanted.iov, wanted.skip, count, |to, len| {
        if wanted.flags & libc::MSG_TRUNC == 0 {
            // SAFETY: as in `io::recv`.
            unsafe { ring.peek(&ends, ahead, to, len) };
        }
        ahead += len;
    });
}
