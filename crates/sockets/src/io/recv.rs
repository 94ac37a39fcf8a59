//! The direction that is read: by tcp before the ring, from the rings, by tcp after them.

use stream::transport::Reader;

use fabric::sync::{Ordering, spin_hint};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, trip};
use stream::spin::{ticks, ticks_of};

use super::buffers::{PIECE, kernel_recv, pieces, total, with_parts};
use crate::conn::{Conn, Held, InKernel, Rx, flag, path, state};
use crate::kicks::By;
use crate::layout::{self, BIG_AT, SMALL_AT, TCP_AT, TRIP, W, note};
use crate::low_water;
use crate::outcome::{Tried, Way};
use crate::path::reader::{died_unread, end_of_ring, learn_boundary, move_to_big, progress, recalled};
use crate::path::steps;
use crate::peering::records;
use crate::reason::Reason;
use crate::{close, demote, epoll, faults, kicks, process, real, rendezvous, seen, signals, wait};

const SIOCATMARK: u64 = 0x8905;
/// Between two looks at the kernel for the connection's life, in ns.
const LOOK_NS: u64 = 100_000;

/// Receives into `iov`, as recvmsg() with `flags` does.
pub fn recv(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Way {
    let mut orphan = false;
    let way = receive(conn, fd, iov, flags, &mut orphan);
    if !orphan {
        return way;
    }
    let way = match way {
        Way::Kernel => Way::Done(kernel_recv(conn.descriptor(), iov, 0, usize::MAX, flags)),
        done => done,
    };
    close::orphan_left(conn);
    way
}

#[inline(always)]
fn receive(conn: &'static Conn, mut fd: i32, iov: &[libc::iovec], flags: i32, orphan: &mut bool) -> Way {
    if !conn.is_managed() {
        seen::reads(conn, fd, flags);
        rendezvous::tick(conn, fd);
        if !conn.is_managed() {
            return Way::Kernel;
        }
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Way::Done(kernel_recv(fd, iov, 0, usize::MAX, flags));
    }
    let want = total(iov);
    if want == 0 {
        return Way::Done(Ok(0));
    }
    if faults::suspect(iov)
        && let Some(way) = faults::recv(conn, fd, iov, flags, recv)
    {
        return way;
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let all = flags & libc::MSG_WAITALL != 0 && !peek;
    let (mut done, mut ended, mut deadline) = (0, false, None);
    loop {
        if conn.state() == state::OFFERED {
            rendezvous::serve_offered();
            rendezvous::answered(conn);
        }
        let Some(mut rx) = conn.lock_rx(fd) else { return Way::Done(Err(Errno::EINTR)) };
        let given = conn.is_far().then(|| rx.ring.given());
        let tried = match take(conn, fd, &mut rx, iov, done, flags) {
            Tried::Bytes(seen) if peek && seen < want => {
                Tried::Bytes(look_on(conn, fd, &mut rx, iov, seen, flags))
            }
            tried => tried,
        };
        let gives = conn.is_far().then(|| rx.ring.given()) != given;
        let turns =
            matches!(tried, Tried::Bytes(count) if !peek && done + count < want) && at_turn(conn, &rx);
        let rest_is_read = conn.has(flag::REST) && rest_is_read(conn, fd, &rx);
        // To release the lock is the fence between what was given back and whether a writer waits for it.
        drop(rx);
        if rest_is_read {
            epoll::drop_stand_ins(conn);
        }
        let freed = matches!(tried, Tried::Bytes(_)) && !peek;
        // Whether the writer waits is not known between hosts: it is told what was given back, and looks itself.
        if freed && gives && conn.is_far() {
            kicks::fire(conn, fd, trip::TX);
        } else if freed
            && !conn.is_far()
            && path::is_ring(conn.rx.path())
            && conn.theirs().armed(conn.at(TRIP), trip::TX)
        {
            if let Some(mut rx) = conn.lock_rx(fd)
                && path::is_ring(conn.rx.path())
            {
                rx.ring.give_back(&conn.ends());
            }
            kicks::fire(conn, fd, trip::TX);
        }
        let tried = match tried {
            // Who sends urgent data is on tcp, and stays there. The place must not be left unread: at close() the peer would be told so.
            Tried::Mark => {
                demote::now(conn, fd, Reason::Urgent);
                if conn.is_managed() { Tried::Not } else { Tried::Kernel }
            }
            tried => tried,
        };
        let or_done = |result| Way::Done(if done > 0 { Ok(done) } else { result });
        match tried {
            // With MSG_WAITALL a look waits for all as well.
            Tried::Bytes(count)
                if peek
                    && count < want
                    && flags & (libc::MSG_WAITALL | libc::MSG_DONTWAIT) == libc::MSG_WAITALL
                    && !(conn.has(flag::NONBLOCK) || ended) =>
            {
                // Asked before the next look, which sees what came before the end.
                ended = kicks::ended(conn, fd) || conn.has(flag::BROKEN);
                if !ended {
                    demote::attend(conn, fd);
                    let until = *deadline.get_or_insert_with(|| wait::deadline(fd, libc::SO_RCVTIMEO));
                    let waited = wait::more(conn, fd, count, until, orphan);
                    if *orphan {
                        fd = conn.descriptor();
                    }
                    if waited.is_err() {
                        return Way::Done(Ok(count));
                    }
                }
            }
            Tried::Bytes(count) => {
                done += count;
                // A read that gives less than was asked for says that there is no more, which who polls for edges, or knows of the
                // end, goes by. So it goes on where the path changes.
                if done == want || !all && !turns {
                    return Way::Done(Ok(done));
                }
            }
            Tried::End => return Way::Done(Ok(done)),
            Tried::Error(errno) => {
                // The bytes first, and the error, unless the fault is this call's, by the next call.
                if done > 0
                    && errno != Errno::EFAULT
                    && let Some(mut rx) = conn.lock_rx(fd)
                {
                    rx.error = errno.into_raw();
                }
                return or_done(Err(errno));
            }
            Tried::Kernel if done == 0 => return Way::Kernel,
            // A read stops at the mark of urgent data, and goes on behind it when called again.
            Tried::Kernel if at_mark(fd) => return Way::Done(Ok(done)),
            // The rest by the kernel, unless calls have become ours again.
            Tried::Kernel if conn.enter_kernel() => {
                let _in_kernel = InKernel(conn);
                let waits = all && flags & libc::MSG_DONTWAIT == 0;
                return Way::Done(Ok(done + rest_by_kernel(fd, iov, done, flags, waits)));
            }
            Tried::Kernel => {
                conn.is_managed();
            }
            Tried::Not if done > 0 && !all => return Way::Done(Ok(done)),
            Tried::Not if flags & libc::MSG_DONTWAIT != 0 || conn.has(flag::NONBLOCK) => {
                demote::attend(conn, fd);
                return or_done(Err(Errno::EAGAIN));
            }
            Tried::Not | Tried::Mark => {
                demote::attend(conn, fd);
                let waited = wait::readable(conn, fd, orphan);
                if *orphan {
                    fd = conn.descriptor();
                }
                if process::ended() {
                    // Another thread has locked the process in meanwhile: the call goes on as libc's.
                    return match done {
                        0 => Way::Kernel,
                        done => Way::Done(Ok(done + rest_by_kernel(fd, iov, done, flags, all))),
                    };
                }
                if let Err(errno) = waited {
                    return or_done(Err(errno));
                }
            }
        }
    }
}

/// Some of what stays in the ring may have been read: whether that was all of it.
#[cold]
fn rest_is_read(conn: &Conn, fd: i32, rx: &Rx) -> bool {
    low_water::adjust(conn, fd, rx);
    conn.word(TCP_AT) == rx.ring.position() + 1
}

/// What the kernel has for the buffers from `skip` on; if it `waits`, until they are full. It sleeps in libc's recv, where a thread can be cancelled.
fn rest_by_kernel(fd: i32, iov: &[libc::iovec], skip: usize, flags: i32, waits: bool) -> usize {
    let mut got = 0;
    loop {
        match kernel_recv(fd, iov, skip + got, usize::MAX, flags | libc::MSG_DONTWAIT) {
            Ok(0) => return got,
            Ok(count) => got += count,
            Err(Errno::EAGAIN) if waits => {
                let mut byte = 0;
                // SAFETY: the buffer is valid for the one byte asked for.
                if unsafe { real::recv()(fd, &raw mut byte, 1, libc::MSG_PEEK) } <= 0 {
                    return got;
                }
            }
            Err(_) => return got,
        }
        if !waits || skip + got == total(iov) {
            return got;
        }
    }
}

/// Where the next bytes lie, at most `most`, if they have come through memory.
pub fn lend(conn: &'static Conn, fd: i32, most: usize) -> Option<(*const u8, usize)> {
    if !conn.is_managed() {
        return None;
    }
    let mut rx = conn.lock_rx(fd)?;
    progress(conn, fd, &mut rx);
    let ring = conn.rx.path();
    if !path::is_ring(ring) {
        return None;
    }
    let ready = rx.ring.ready(&conn.ends(), most, || conn.until(ring)).ok()?.min(most);
    if ready == 0 {
        return None;
    }
    let (offset, len) = rx.ring.piece();
    Some((conn.mine().base().wrapping_add(offset).cast_const(), len.min(ready)))
}

/// Keeps an error that the kernel has told, for the call that reads next.
pub fn keep_error(conn: &Conn, fd: i32, errno: i32) {
    if let Some(mut rx) = conn.lock_rx(fd) {
        rx.error = errno;
    }
}

/// Whether a read has come to the place where the path changes, or to where it was looked for records.
#[inline(always)]
fn at_turn(conn: &Conn, rx: &Held<'_, Rx>) -> bool {
    let next = rx.ring.position() + 1;
    match conn.rx.path() {
        // Also if none may come any more, by now.
        path::TCP | path::LAST if conn.is_far() => true,
        path::TCP => rx.tcp_left == Some(0),
        path::SMALL => conn.word(BIG_AT) == next || conn.word(TCP_AT) == next || records::end_due(conn),
        path::BIG => conn.word(TCP_AT) == next || records::end_due(conn),
        _ => false,
    }
}

/// One attempt to read, under the lock.
fn take(
    conn: &'static Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    iov: &[libc::iovec],
    skip: usize,
    flags: i32,
) -> Tried {
    loop {
        match conn.rx.path() {
            path::TCP => match take_early(conn, fd, rx, iov, skip, flags) {
                Some(tried) => return tried,
                None => continue,
            },
            path::SMALL | path::BIG if conn.has(flag::RECALLED) => {
                match recalled(conn, fd, rx) {
                    // The connection is at an end, and calls are still ours.
                    Some(Tried::Kernel) => return from_kernel(conn, fd, rx, iov, skip, flags),
                    Some(tried) => return tried,
                    None => {}
                }
            }
            ring @ (path::SMALL | path::BIG) => {
                let want = total(iov) - skip;
                gather(conn, rx);
                let ready = rx.ring.ready(&conn.ends(), want, || conn.until(ring));
                let Ok(ready) = ready else {
                    conn.break_off(fd);
                    return Tried::Error(Errno::ECONNRESET);
                };
                if ready > 0 && !conn.has(flag::BROKEN) {
                    let count = ready.min(want);
                    copy_out(conn, rx, iov, skip, count, flags);
                    return Tried::Bytes(count);
                }
                let blocks = flags & libc::MSG_DONTWAIT == 0 && !conn.has(flag::NONBLOCK);
                match empty(conn, fd, rx, ring, blocks) {
                    Some(Tried::Kernel) => return from_kernel(conn, fd, rx, iov, skip, flags),
                    Some(tried) => return tried,
                    None => continue,
                }
            }
            _ => return from_kernel(conn, fd, rx, iov, skip, flags),
        }
    }
}

/// What a look has `seen` on one path, and what it sees on those that come after that, all together.
#[cold]
fn look_on(
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
struct Gap {
    /// So many come before the ring.
    before: usize,
    /// Kicks, and records.
    between: usize,
    records: bool,
}

/// Where a look goes on that has come to the end of the ring, or of what came `before` it and a `run` of records. `None`: nothing comes behind it yet.
fn gap(
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
fn look_behind(
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

/// Reads on tcp before the ring; `None` once the ring's turn has come.
fn take_early(
    conn: &'static Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    iov: &[libc::iovec],
    skip: usize,
    flags: i32,
) -> Option<Tried> {
    if rx.error != 0 && (!conn.is_managed_now() || conn.word(SMALL_AT) == 0) {
        // Told to a waiter, and to nobody else; what the kernel had ready was read before it slept.
        return Some(kept_error(conn, rx));
    }
    if !conn.is_managed_now() {
        return Some(Tried::Kernel);
    }
    if conn.has(flag::BROKEN) {
        return Some(Tried::Error(Errno::ECONNRESET));
    }
    if let Err(errno) = learn_boundary(conn, fd, rx) {
        return Some(Tried::Error(errno));
    }
    if rx.tcp_left == Some(0) {
        conn.rx.set_path(path::SMALL);
        return None;
    }
    let peek = flags & libc::MSG_PEEK != 0;
    let most = match rx.tcp_left {
        Some(left) => left as usize,
        None => {
            // Bytes that were there before we found nothing announced come before the boundary; later ones may be kicks, or
            // what follows a demotion. So: look how many there are, look at the announcement, then take so many.
            let mut waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as usize;
            let marked = waiting == 0 && at_mark(fd);
            if marked {
                // FIONREAD counts up to the mark of urgent data, and a read goes on behind it.
                waiting = kernel_recv(fd, iov, skip, usize::MAX, flags | libc::MSG_PEEK | libc::MSG_DONTWAIT)
                    .unwrap_or(0);
            }
            if conn.word(SMALL_AT) != 0 {
                return None;
            }
            if waiting > 0 {
                waiting
            } else if conn.has(flag::PEER_FIN | flag::PEER_HUP) || at_end(fd) {
                // The end, or an error: nothing that could be mistaken. What was announced before it comes first.
                if conn.word(SMALL_AT) != 0 {
                    return None;
                }
                usize::MAX
            } else {
                return Some(if marked { Tried::Mark } else { Tried::Not });
            }
        }
    };
    let look = if peek { (total(iov) - skip).min(most) } else { 0 };
    // Records come behind the boundary only.
    let free = if rx.tcp_left.is_some() { Ok(most) } else { before_record(conn, fd, rx, look) };
    let most = match free {
        Ok(free) => most.min(free),
        Err(tried) => return Some(tried),
    };
    if conn.rx.path() != path::TCP {
        return None;
    }
    let _undisturbed = signals::undisturbed();
    steps::begin(&mut rx.step, steps::READING);
    let got = kernel_recv(fd, iov, skip, most, flags | libc::MSG_DONTWAIT);
    if !peek {
        let count = got.unwrap_or(0) as u64;
        rx.tcp_read += count;
        if let Some(left) = &mut rx.tcp_left {
            *left -= count;
        }
    }
    steps::end(&mut rx.step, steps::READING);
    match got {
        // Our bytes may go by the ring already, though the peer has not changed over.
        Ok(0) if !conn.is_far() && died_unread(conn) == Some(true) => Some(Tried::Error(Errno::ECONNRESET)),
        Ok(0) => Some(Tried::End),
        Ok(count) => Some(Tried::Bytes(count)),
        Err(Errno::EAGAIN) => Some(Tried::Not),
        Err(Errno::ECONNRESET) if died_unread(conn) == Some(false) => Some(Tried::End),
        Err(errno) => Some(Tried::Error(errno)),
    }
}

/// Takes the error that was kept for this call. A peer that was killed with nothing unread has ended, as with tcp.
fn kept_error(conn: &Conn, rx: &mut Held<'_, Rx>) -> Tried {
    match Errno::new(core::mem::take(&mut rx.error)) {
        Errno::ECONNRESET if died_unread(conn) == Some(false) => Tried::End,
        errno => Tried::Error(errno),
    }
}

/// Whether the kernel has the end of a connection, or an error, to tell.
fn at_end(fd: i32) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0
}

/// Whether the next byte to be read is urgent data, which a read leaves out.
fn at_mark(fd: i32) -> bool {
    sys::ioctl_int(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Lets a stream of small messages gather a little. A reader that takes each one as it comes makes the line with the write position go
/// to and fro for each, which costs the writer more than the message; a few at a time cost one.
#[inline(always)]
fn gather(conn: &Conn, rx: &mut Held<'_, Rx>) {
    if rx.streak >= STREAK && rx.ring.known() == 0 {
        let written = conn.counters.ring_out.load(Ordering::Relaxed);
        if written != rx.answered {
            (rx.streak, rx.answered) = (0, written);
            return;
        }
        let until = ticks() + process::gather_ticks();
        while ticks() < until {
            spin_hint();
        }
    }
}

fn copy_out(conn: &Conn, rx: &mut Held<'_, Rx>, iov: &[libc::iovec], skip: usize, count: usize, flags: i32) {
    rx.streak = if count < SMALL_READ { rx.streak.saturating_add(1) } else { 0 };
    if flags & libc::MSG_PEEK != 0 {
        return look_out(conn, &rx.ring, iov, skip, count, flags);
    }
    let ends = conn.ends();
    let discard = flags & libc::MSG_TRUNC != 0;
    pieces(iov, skip, count, |to, len| {
        let mut at = 0;
        while at < len {
            let piece = (len - at).min(PIECE);
            if !discard {
                // SAFETY: the program vouches for its buffers (what `faults` does not catch ends it); `ready` vouched for count bytes of ring.
                unsafe { rx.ring.peek(&ends, 0, to.add(at), piece) };
            }
            rx.ring.consume(&ends, piece);
            at += piece;
        }
    });
    conn.counters.ring_in.store(rx.ring.position(), Ordering::Relaxed);
}

/// As [`copy_out`], and leaves the bytes where they are.
fn look_out(conn: &Conn, ring: &Reader, iov: &[libc::iovec], skip: usize, count: usize, flags: i32) {
    let ends = conn.ends();
    let mut ahead = 0;
    pieces(iov, skip, count, |to, len| {
        if flags & libc::MSG_TRUNC == 0 {
            // SAFETY: as in `copy_out`.
            unsafe { ring.peek(&ends, ahead, to, len) };
        }
        ahead += len;
    });
}

/// The ring is empty: is it the end of the ring, of the connection, or is there just nothing? `None`: look again.
fn empty(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, ring: u32, blocks: bool) -> Option<Tried> {
    let (mine, position) = (conn.mine(), rx.ring.position());
    if ring == path::SMALL && conn.word(BIG_AT) == position + 1 {
        move_to_big(conn, rx);
        return None;
    }
    let tcp_at = conn.word(TCP_AT);
    if tcp_at == position + 1 {
        return end_of_ring(conn, fd, rx);
    }
    if conn.has(flag::BROKEN) {
        return Some(Tried::Error(Errno::ECONNRESET));
    }
    if rx.error != 0 {
        return Some(Tried::Kernel);
    }
    let now = ticks();
    let told = conn.has(flag::PEER_FIN | flag::PEER_HUP)
        || conn.notes() & (note::CLOSED | note::SHUT_WR) != 0
        || records::end_due(conn);
    // One that will sleep in the kernel is told there. But not beside others, or such as were killed or jumped out of their sleep: there
    // a kick that nobody has taken would wake it again and again.
    // Nor between hosts, where it sleeps by a bell.
    let told_asleep = blocks && conn.waiters.load(Ordering::Acquire) == 0 && !conn.is_far();
    if !told && (told_asleep || now.wrapping_sub(rx.looked) < ticks_of(LOOK_NS)) {
        return Some(Tried::Not);
    }
    rx.looked = now;
    match kicks::look(conn, fd, rx, By::Call) {
        kicks::Look::Nothing => Some(Tried::Not),
        // The end, or bytes of someone whom we do not follow. What the peer put in the ring before comes first.
        kicks::Look::End | kicks::Look::Data => {
            // Only what the next turn acts on: a peer that announces what it never sends must not keep us here (rule F2).
            let more = (mine.word(conn.at(W)) != position && conn.until(ring) > position)
                || conn.word(TCP_AT) == position + 1
                || (ring == path::SMALL && conn.word(BIG_AT) == position + 1);
            if more { None } else { Some(Tried::Kernel) }
        }
    }
}

/// Reads from the companion, after the ring.
fn from_kernel(
    conn: &'static Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    iov: &[libc::iovec],
    skip: usize,
    flags: i32,
) -> Tried {
    // Before calls are the kernel's again: it has told this, and would not again.
    if rx.error != 0 {
        return kept_error(conn, rx);
    }
    if conn.rx.path() == path::LAST && demote::finish(conn) {
        return Tried::Kernel;
    }
    if skip > 0 && at_mark(fd) {
        return Tried::End;
    }
    let look = if flags & libc::MSG_PEEK != 0 { total(iov) - skip } else { 0 };
    let most = match before_record(conn, fd, rx, look) {
        Ok(_) if rx.error != 0 => return kept_error(conn, rx),
        Ok(most) => most,
        Err(tried) => return tried,
    };
    match kernel_recv(fd, iov, skip, most, flags | libc::MSG_DONTWAIT) {
        // Between hosts it may have put more than has come.
        Ok(0) if records::died_untold(conn) == Some(true) && !conn.has(flag::RESET_TOLD) => {
            conn.set(flag::RESET_TOLD);
            Tried::Error(Errno::ECONNRESET)
        }
        Ok(0) if records::closed_unread(conn) => Tried::Error(Errno::ECONNRESET),
        Ok(0) if records::died_untold(conn).is_none() => {
            sys::yield_now();
            Tried::Not
        }
        // A peer that was killed has told nothing. With tcp the kernel would have reset the connection if, and only if, bytes of
        // ours were unread; here it looks at kicks instead.
        Ok(0) if died_unread(conn) == Some(true) => Tried::Error(Errno::ECONNRESET),
        Err(Errno::ECONNRESET) if died_unread(conn) == Some(false) => Tried::End,
        Ok(0) => Tried::End,
        Ok(count) => Tried::Bytes(count),
        Err(Errno::EAGAIN) => Tried::Not,
        Err(errno) => Tried::Error(errno),
    }
}

/// How many bytes come by tcp before a record, where there may be one. A read goes on, where it was not looked as far as it wants; a look cannot, so it says how many bytes it is for.
fn before_record(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, look: usize) -> Result<usize, Tried> {
    while records::may_come(conn) && conn.state() != state::PLAIN {
        match records::hear(conn, fd, rx) {
            records::Next::Bytes(most) if most < look => {
                return Ok(records::further(conn, fd, rx, most, look));
            }
            records::Next::Bytes(most) => return Ok(most),
            records::Next::Record => {}
            records::Next::Wait => {
                records::ask_again(conn);
                return Err(Tried::Not);
            }
        }
    }
    Ok(usize::MAX)
}

/// So many small reads in a row are a stream, not requests and answers.
const STREAK: u32 = 32;
/// What is small.
const SMALL_READ: usize = 8 << 10;
