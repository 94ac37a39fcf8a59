//! The direction that is read: by tcp before the ring, from the rings, by tcp after them.

use fabric::sync::{Ordering, spin_hint};
use fabric::sys::Errno;
use fabric::{Local, Remote, trip};
use stream::spin::{ticks, ticks_of};

use super::buffers::{PIECE, kernel_recv, pieces, total};
use super::companion::{at_mark, from_kernel, rest_by_kernel, take_early};
use super::peek::{look_on, look_out};
use crate::conn::{Conn, Held, InKernel, Rx, flag, path, state};
use crate::kicks::By;
use crate::layout::{BIG_AT, TCP_AT, TRIP, W, note};
use crate::low_water;
use crate::outcome::{Tried, Way};
use crate::path::reader::{end_of_ring, move_to_big, progress, recalled};
use crate::peering::records;
use crate::reason::Reason;
use crate::{close, demote, epoll, faults, kicks, process, rendezvous, seen, wait};

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

/// A call that receives: what it wants, and how far it is.
struct Receiving<'a> {
    iov: &'a [libc::iovec],
    flags: i32,
    want: usize,
    done: usize,
    /// With MSG_PEEK: whether the end has been seen, and until when it waits for more.
    ended: bool,
    deadline: Option<Option<u64>>,
}

/// What follows an attempt.
enum After {
    Return(Way),
    Again,
    /// Until there is something to read.
    Wait,
    /// Until a look finds more than it has seen.
    WaitBeyond(usize),
}

#[inline(always)]
fn receive(conn: &'static Conn, mut fd: i32, iov: &[libc::iovec], flags: i32, orphan: &mut bool) -> Way {
    if let Some(way) = prepare(conn, fd, iov, flags) {
        return way;
    }
    let mut call = Receiving { iov, flags, want: total(iov), done: 0, ended: false, deadline: None };
    loop {
        if conn.state() == state::OFFERED {
            rendezvous::serve_offered();
            rendezvous::answered(conn);
        }
        let Some((tried, turns)) = call.attempt(conn, fd) else { return Way::Done(Err(Errno::EINTR)) };
        let after = call.after(conn, fd, tried, turns);
        let ended = match after {
            After::Return(way) => return way,
            After::Again => continue,
            After::Wait => call.wait(conn, fd, orphan),
            After::WaitBeyond(seen) => call.wait_beyond(conn, fd, seen, orphan),
        };
        if let Some(way) = ended {
            return way;
        }
        if *orphan {
            fd = conn.descriptor();
        }
    }
}

/// What is no matter of a managed connection, or of no bytes.
#[inline(always)]
fn prepare(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Option<Way> {
    if !conn.is_managed() {
        seen::reads(conn, fd, flags);
        rendezvous::tick(conn, fd);
        if !conn.is_managed() {
            return Some(Way::Kernel);
        }
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Some(Way::Done(kernel_recv(fd, iov, 0, usize::MAX, flags)));
    }
    if total(iov) == 0 {
        return Some(Way::Done(Ok(0)));
    }
    if faults::suspect(iov) { faults::recv(conn, fd, iov, flags, recv) } else { None }
}

impl Receiving<'_> {
    #[inline(always)]
    fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Whether it waits for all that it wants.
    #[inline(always)]
    fn wants_all(&self) -> bool {
        self.flags & libc::MSG_WAITALL != 0 && !self.peeks()
    }

    #[inline(always)]
    fn done_or(&self, result: Result<usize, Errno>) -> Way {
        Way::Done(if self.done > 0 { Ok(self.done) } else { result })
    }

    /// One attempt under the lock, and what others are to know of it afterwards. True with it: it has come to where the path changes. `None`: the lock cannot
    /// be had.
    #[inline(always)]
    fn attempt(&self, conn: &'static Conn, fd: i32) -> Option<(Tried, bool)> {
        let (peek, far) = (self.peeks(), conn.is_far());
        let mut rx = conn.lock_rx(fd)?;
        let given = far.then(|| rx.ring.given());
        let tried = match take(conn, fd, &mut rx, self.iov, self.done, self.flags) {
            Tried::Bytes(seen) if peek && seen < self.want => {
                Tried::Bytes(look_on(conn, fd, &mut rx, self.iov, seen, self.flags))
            }
            tried => tried,
        };
        let gives = far.then(|| rx.ring.given()) != given;
        let turns = matches!(tried, Tried::Bytes(count) if !peek && self.done + count < self.want)
            && at_turn(conn, &rx);
        let rest_is_read = conn.has(flag::REST) && rest_is_read(conn, fd, &rx);
        // To release the lock is the fence between what was given back and whether a writer waits for it.
        drop(rx);
        if rest_is_read {
            epoll::drop_stand_ins(conn);
        }
        if matches!(tried, Tried::Bytes(_)) && !peek {
            wake_writer(conn, fd, gives);
        }
        Some((tried, turns))
    }

    #[inline(always)]
    fn after(&mut self, conn: &'static Conn, fd: i32, tried: Tried, turns: bool) -> After {
        let flags = self.flags;
        let tried = match tried {
            // Who sends urgent data is on tcp, and stays there. The place must not be left unread: at close() the peer would be told so.
            Tried::Mark => {
                demote::now(conn, fd, Reason::Urgent);
                if conn.is_managed() { Tried::Not } else { Tried::Kernel }
            }
            tried => tried,
        };
        match tried {
            // With MSG_WAITALL a look waits for all as well.
            Tried::Bytes(count)
                if self.peeks()
                    && count < self.want
                    && flags & (libc::MSG_WAITALL | libc::MSG_DONTWAIT) == libc::MSG_WAITALL
                    && !(conn.has(flag::NONBLOCK) || self.ended) =>
            {
                // Asked before the next look, which sees what came before the end.
                self.ended = kicks::ended(conn, fd) || conn.has(flag::BROKEN);
                if self.ended { After::Again } else { After::WaitBeyond(count) }
            }
            Tried::Bytes(count) => {
                self.done += count;
                // A read that gives less than was asked for says that there is no more, which who polls for edges, or knows of the
                // end, goes by. So it goes on where the path changes.
                if self.done == self.want || !self.wants_all() && !turns {
                    return After::Return(Way::Done(Ok(self.done)));
                }
                After::Again
            }
            Tried::End => After::Return(Way::Done(Ok(self.done))),
            Tried::Error(errno) => {
                // The bytes first, and the error, unless the fault is this call's, by the next call.
                if self.done > 0
                    && errno != Errno::EFAULT
                    && let Some(mut rx) = conn.lock_rx(fd)
                {
                    rx.error = errno.into_raw();
                }
                After::Return(self.done_or(Err(errno)))
            }
            Tried::Kernel if self.done == 0 => After::Return(Way::Kernel),
            // A read stops at the mark of urgent data, and goes on behind it when called again.
            Tried::Kernel if at_mark(fd) => After::Return(Way::Done(Ok(self.done))),
            // The rest by the kernel, unless calls have become ours again.
            Tried::Kernel if conn.enter_kernel() => {
                let _in_kernel = InKernel(conn);
                After::Return(self.rest_by_kernel(fd, self.wants_all() && flags & libc::MSG_DONTWAIT == 0))
            }
            Tried::Kernel => {
                conn.is_managed();
                After::Again
            }
            Tried::Not if self.done > 0 && !self.wants_all() => After::Return(Way::Done(Ok(self.done))),
            Tried::Not if flags & libc::MSG_DONTWAIT != 0 || conn.has(flag::NONBLOCK) => {
                demote::attend(conn, fd);
                After::Return(self.done_or(Err(Errno::EAGAIN)))
            }
            Tried::Not | Tried::Mark => After::Wait,
        }
    }

    fn rest_by_kernel(&self, fd: i32, waits: bool) -> Way {
        Way::Done(Ok(self.done + rest_by_kernel(fd, self.iov, self.done, self.flags, waits)))
    }

    /// Waits until a read may find something. With what the call then returns, if it does.
    #[inline(always)]
    fn wait(&self, conn: &'static Conn, fd: i32, orphan: &mut bool) -> Option<Way> {
        demote::attend(conn, fd);
        let waited = wait::readable(conn, fd, orphan);
        if process::ended() {
            // Another thread has locked the process in meanwhile: the call goes on as libc's.
            let fd = if *orphan { conn.descriptor() } else { fd };
            return Some(match self.done {
                0 => Way::Kernel,
                _ => self.rest_by_kernel(fd, self.wants_all()),
            });
        }
        waited.err().map(|errno| self.done_or(Err(errno)))
    }

    /// Waits until a look may find more than the bytes that it has `seen`.
    #[cold]
    fn wait_beyond(&mut self, conn: &'static Conn, fd: i32, seen: usize, orphan: &mut bool) -> Option<Way> {
        demote::attend(conn, fd);
        let until = *self.deadline.get_or_insert_with(|| wait::deadline(fd, libc::SO_RCVTIMEO));
        let waited = wait::more(conn, fd, seen, until, orphan);
        waited.is_err().then_some(Way::Done(Ok(seen)))
    }
}

/// After bytes were read: a writer that waits for room is woken, and told how much was given back.
#[inline(always)]
fn wake_writer(conn: &'static Conn, fd: i32, gives: bool) {
    if conn.is_far() {
        // Whether the writer waits is not known between hosts: it is told what was given back, and looks itself.
        if gives {
            kicks::fire(conn, fd, trip::TX);
        }
    } else if path::is_ring(conn.rx.path()) && conn.theirs().armed(conn.at(TRIP), trip::TX) {
        if let Some(mut rx) = conn.lock_rx(fd)
            && path::is_ring(conn.rx.path())
        {
            rx.ring.give_back(&conn.ends());
        }
        kicks::fire(conn, fd, trip::TX);
    }
}

/// Some of what stays in the ring may have been read: whether that was all of it.
#[cold]
fn rest_is_read(conn: &Conn, fd: i32, rx: &Rx) -> bool {
    low_water::adjust(conn, fd, rx);
    conn.word(TCP_AT) == rx.ring.position() + 1
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

/// So many small reads in a row are a stream, not requests and answers.
const STREAK: u32 = 32;
/// What is small.
const SMALL_READ: usize = 8 << 10;
