//! The direction that is read: by tcp before the ring, from the rings, by tcp after them.

use fabric::sync::{Ordering, spin_hint};
use fabric::sys::Errno;
use fabric::{Remote, trip};
use stream::spin::{ticks, ticks_of};
use stream::transport::Ends;

use super::buffers::{PIECE, Wanted, not_now, or_interrupted, pieces};
use super::companion::{at_mark, from_kernel, rest_by_kernel, take_early};
use super::peek::{peek_on, peek_out};
use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::kicks::By;
use crate::layout::{TCP_AT, TRIP, W, note};
use crate::outcome::{Attempt, Outcome};
use crate::path::reader::{look_for_unsent, progress, recalled, take_turn, turn};
use crate::path::reading::{self, Turn};
use crate::peering::peer::Peer;
use crate::reason::Reason;
use crate::wait::Number;
use crate::{close, demote, epoll, faults, kicks, low_water, peering, process, rendezvous, seen, wait};

/// Between two looks at the kernel for the connection's life, in ns.
const POLL_NS: u64 = 100_000;

/// Receives into `iov`, as recvmsg() with `flags` does.
pub fn recv(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Outcome {
    let mut number = Number::new(fd);
    let outcome = receive(conn, &mut number, iov, flags);
    number.end_sleeps();
    if !number.orphan {
        return outcome;
    }
    let outcome = match outcome {
        Outcome::Kernel => Outcome::Done(Wanted::all(iov, flags).by_kernel(number.fd, usize::MAX)),
        done => done,
    };
    close::orphan_left(conn);
    outcome
}

/// A call that receives: what it wants behind what it has, and all together.
struct Receiving<'a> {
    rest: Wanted<'a>,
    want: usize,
    /// With MSG_PEEK: whether the end has been seen.
    ended: bool,
}

/// What follows an attempt.
enum After {
    Return(Outcome),
    Again,
    /// Until there is something to read.
    Wait,
    /// Until a look finds more than it has seen.
    WaitBeyond(usize),
}

#[inline(always)]
fn receive(conn: &'static Conn, number: &mut Number, iov: &[libc::iovec], flags: i32) -> Outcome {
    let rest = Wanted::all(iov, flags);
    if let Some(outcome) = prepare(conn, number.fd, rest) {
        return outcome;
    }
    let mut call = Receiving { rest, want: rest.len(), ended: false };
    loop {
        if conn.state() == state::OFFERED {
            rendezvous::serve_offered();
            rendezvous::answered(conn);
        }
        let fd = number.fd;
        let Some((attempt, turns)) = call.attempt(conn, fd) else {
            return call.done_or(Err(not_now(call.rest.waits(conn))));
        };
        let ended = match call.after(conn, number, attempt, turns) {
            After::Return(outcome) => return outcome,
            After::Again => continue,
            After::Wait => call.wait(conn, number),
            After::WaitBeyond(seen) => call.wait_beyond(conn, number, seen),
        };
        if let Some(outcome) = ended {
            return outcome;
        }
    }
}

/// What is no matter of a managed connection, or of no bytes.
#[inline(always)]
fn prepare(conn: &'static Conn, fd: i32, wanted: Wanted) -> Option<Outcome> {
    let Wanted { iov, flags, .. } = wanted;
    if !conn.is_managed() {
        seen::reads(conn, fd, flags);
        let tick = rendezvous::tick(conn, fd);
        if tick.interrupted && wanted.waits(conn) {
            return Some(interrupted(conn, fd, wanted));
        }
        if !conn.is_managed() {
            return Some(Outcome::Kernel);
        }
    }
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Some(Outcome::Done(wanted.by_kernel(fd, usize::MAX)));
    }
    if wanted.len() == 0 {
        return Some(nothing(conn, fd, flags));
    }
    if faults::suspect(iov) { faults::recv(conn, fd, iov, flags, recv) } else { None }
}

/// Receives no bytes, when there are some, or the end.
#[cold]
fn nothing(conn: &'static Conn, fd: i32, flags: i32) -> Outcome {
    let mut byte = 0u8;
    let scratch = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    match recv(conn, fd, &[scratch], flags & !libc::MSG_WAITALL | libc::MSG_PEEK) {
        Outcome::Done(Ok(_)) => Outcome::Done(Ok(0)),
        outcome => outcome,
    }
}

/// A handler has ended the call: it takes what is there.
#[cold]
fn interrupted(conn: &'static Conn, fd: i32, wanted: Wanted) -> Outcome {
    or_interrupted(
        fd,
        match recv(conn, fd, wanted.iov, wanted.flags | libc::MSG_DONTWAIT) {
            Outcome::Kernel => wanted.there(fd, usize::MAX),
            Outcome::Done(got) => got,
        },
    )
}

impl Receiving<'_> {
    /// Whether it waits for all that it wants.
    #[inline(always)]
    fn wants_all(&self) -> bool {
        self.rest.flags & libc::MSG_WAITALL != 0 && !self.rest.peeks()
    }

    #[inline(always)]
    fn done_or(&self, result: Result<usize, Errno>) -> Outcome {
        Outcome::Done(if self.rest.skip > 0 { Ok(self.rest.skip) } else { result })
    }

    /// One attempt under the lock, and what others are to know of it afterwards. True with it: it
    /// has come to where the path changes. `None`: the lock cannot be had.
    #[inline(always)]
    fn attempt(&self, conn: &'static Conn, fd: i32) -> Option<(Attempt, bool)> {
        let peek = self.rest.peeks();
        let mut rx = conn.lock_rx(fd)?;
        let told = !peering::facts(conn).shares_memory;
        let given = told.then(|| rx.ring.given());
        let attempt = match take(conn, fd, &mut rx, self.rest) {
            Attempt::Bytes(seen) if peek && seen < self.want => {
                Attempt::Bytes(peek_on(conn, fd, &mut rx, self.rest.behind(seen)))
            }
            attempt => attempt,
        };
        let gives = told.then(|| rx.ring.given()) != given;
        let turns = matches!(attempt, Attempt::Bytes(count) if !peek && self.rest.skip + count < self.want)
            && at_turn(conn, &rx);
        let rest_is_read = conn.has(flag::REST) && rest_is_read(conn, fd, &rx);
        // To release the lock is the fence between what was given back and whether a writer waits
        // for it.
        drop(rx);
        if rest_is_read {
            epoll::drop_stand_ins(conn);
        }
        if matches!(attempt, Attempt::Bytes(_)) && !peek {
            wake_writer(conn, fd, told.then_some(gives));
        }
        Some((attempt, turns))
    }

    #[inline(always)]
    fn after(&mut self, conn: &'static Conn, number: &mut Number, attempt: Attempt, turns: bool) -> After {
        let fd = number.fd;
        let attempt = match attempt {
            // Who sends urgent data is on tcp, and stays there. The place must not be left unread:
            // at close() the peer would be told so.
            Attempt::Mark => {
                demote::now(conn, fd, Reason::Urgent);
                if conn.is_managed() { Attempt::WouldBlock } else { Attempt::Kernel }
            }
            attempt => attempt,
        };
        match attempt {
            // With MSG_WAITALL a look waits for all as well.
            Attempt::Bytes(count)
                if self.rest.peeks()
                    && count < self.want
                    && self.rest.flags & libc::MSG_WAITALL != 0
                    && self.rest.waits(conn)
                    && !self.ended =>
            {
                // Asked before the next look, which sees what came before the end.
                self.ended = kicks::ended(conn, fd) || conn.has(flag::BROKEN);
                if self.ended { After::Again } else { After::WaitBeyond(count) }
            }
            Attempt::Bytes(count) => {
                self.rest.skip += count;
                // A read that gives less than was asked for says that there is no more, which who
                // polls for edges, or knows of the end, goes by. So it goes on where the path
                // changes.
                if self.rest.skip == self.want || !self.wants_all() && !turns {
                    return After::Return(Outcome::Done(Ok(self.rest.skip)));
                }
                After::Again
            }
            Attempt::End => After::Return(Outcome::Done(Ok(self.rest.skip))),
            Attempt::Error(errno) => {
                // The bytes first, and the error, unless the fault is this call's, by the next
                // call.
                if self.rest.skip > 0
                    && errno != Errno::EFAULT
                    && let Some(mut rx) = conn.lock_rx(fd)
                {
                    rx.error = errno.into_raw();
                    // A reset has not been told, then.
                    conn.clear(flag::RESET_TOLD);
                }
                After::Return(self.done_or(Err(errno)))
            }
            Attempt::Kernel if self.rest.skip == 0 => After::Return(Outcome::Kernel),
            // A read stops at the mark of urgent data, and goes on behind it when called again.
            Attempt::Kernel if at_mark(fd) => After::Return(Outcome::Done(Ok(self.rest.skip))),
            // The rest by the kernel, unless calls have become ours again.
            Attempt::Kernel => {
                if let Some(_in_kernel) = conn.enter_kernel() {
                    let waits = self.wants_all() && self.rest.flags & libc::MSG_DONTWAIT == 0;
                    return After::Return(self.rest_by_kernel(number, waits));
                }
                conn.is_managed();
                After::Again
            }
            Attempt::WouldBlock if self.rest.skip > 0 && !self.wants_all() => {
                After::Return(Outcome::Done(Ok(self.rest.skip)))
            }
            Attempt::WouldBlock if !self.rest.waits(conn) => {
                demote::attend(conn, fd);
                After::Return(self.done_or(Err(Errno::EAGAIN)))
            }
            Attempt::WouldBlock | Attempt::Mark => After::Wait,
        }
    }

    fn rest_by_kernel(&self, number: &mut Number, waits: bool) -> Outcome {
        Outcome::Done(Ok(self.rest.skip + rest_by_kernel(number, self.rest, waits)))
    }

    /// Waits until a read may find something. With what the call then returns, if it does.
    #[inline(always)]
    fn wait(&self, conn: &'static Conn, number: &mut Number) -> Option<Outcome> {
        demote::attend(conn, number.fd);
        if self.rest.skip > 0 {
            number.moved();
        }
        let waited = wait::readable(conn, number);
        if process::ended() {
            // Another thread has locked the process in meanwhile: the call goes on as libc's.
            return Some(match self.rest.skip {
                0 => Outcome::Kernel,
                _ => self.rest_by_kernel(number, self.wants_all()),
            });
        }
        waited.err().map(|errno| self.done_or(Err(errno)))
    }

    /// Waits until a look may find more than the bytes that it has `seen`.
    #[cold]
    fn wait_beyond(&self, conn: &'static Conn, number: &mut Number, seen: usize) -> Option<Outcome> {
        demote::attend(conn, number.fd);
        number.moved();
        let waited = wait::more(conn, number, seen);
        waited.is_err().then_some(Outcome::Done(Ok(seen)))
    }
}

/// After bytes were read: a writer that waits for room is woken. One that does not share memory is
/// told of what was given back: then `told` says whether anything was.
#[inline(always)]
fn wake_writer(conn: &'static Conn, fd: i32, told: Option<bool>) {
    if let Some(gives) = told {
        // Whether the writer waits is not known: it looks itself.
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

/// Takes that error, for the program that asks for one.
pub fn take_error(conn: &Conn, fd: i32) -> Option<i32> {
    let mut rx = conn.lock_rx(fd).filter(|_| conn.is_managed_now())?;
    rx.take_error().map(Errno::into_raw)
}

/// Whether a read has come to the place where the path changes, or to where it was looked for
/// records.
#[inline(always)]
fn at_turn(conn: &Conn, rx: &Held<'_, Rx>) -> bool {
    match conn.rx.path() {
        // Also if none may come any more, by now.
        path::TCP | path::LAST if peering::facts(conn).uses_records => true,
        path::SMALL | path::BIG if peering::end_due(conn) => true,
        _ => turn(conn, rx) != Turn::Nowhere,
    }
}

/// One attempt to read, under the lock.
fn take(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, wanted: Wanted) -> Attempt {
    loop {
        match conn.rx.path() {
            path::TCP => match take_early(conn, fd, rx, wanted) {
                Some(attempt) => return attempt,
                None => continue,
            },
            path::SMALL | path::BIG if conn.is_recalled_at(rx.ring.position()) => {
                match recalled(conn, fd, rx) {
                    // The connection is at an end, and calls are still ours.
                    Some(Attempt::Kernel) => return from_kernel(conn, fd, rx, wanted),
                    Some(attempt) => return attempt,
                    None => {}
                }
            }
            ring @ (path::SMALL | path::BIG) => {
                let want = wanted.len();
                gather(conn, rx);
                let ends = conn.ends();
                let Ok(ready) = rx.ring.ready(&ends, want, || conn.until(ring)) else {
                    conn.break_off(fd);
                    return Attempt::Error(Errno::ECONNRESET);
                };
                if ready > 0 && !conn.has(flag::BROKEN) {
                    let count = ready.min(want);
                    copy_out(conn, &ends, rx, wanted, count);
                    return Attempt::Bytes(count);
                }
                match empty(conn, fd, rx, ring, wanted.waits(conn)) {
                    Some(Attempt::Kernel) => return from_kernel(conn, fd, rx, wanted),
                    Some(attempt) => return attempt,
                    None => continue,
                }
            }
            _ if conn.has(flag::UNSENT) && look_for_unsent(conn, fd, rx) => {}
            _ => return from_kernel(conn, fd, rx, wanted),
        }
    }
}

/// Lets a stream of small messages gather a little. A reader that takes each one as it comes makes
/// the line with the write position go to and fro for each, which costs the writer more than the
/// message; a few at a time cost one.
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

fn copy_out(conn: &Conn, ends: &Ends<'_, Peer>, rx: &mut Held<'_, Rx>, wanted: Wanted, count: usize) {
    rx.streak = if count < SMALL_READ { rx.streak.saturating_add(1) } else { 0 };
    if wanted.peeks() {
        return peek_out(conn, &rx.ring, wanted, count);
    }
    let discard = wanted.flags & libc::MSG_TRUNC != 0;
    pieces(wanted.iov, wanted.skip, count, |to, len| {
        let mut at = 0;
        while at < len {
            let piece = (len - at).min(PIECE);
            if !discard {
                // SAFETY: the program vouches for its buffers (what `faults` does not catch ends
                // it); `ready` vouched for count bytes of ring.
                unsafe { rx.ring.peek(ends, 0, to.add(at), piece) };
            }
            rx.ring.consume(ends, piece);
            at += piece;
        }
    });
    conn.counters.ring_in.store(rx.ring.position(), Ordering::Relaxed);
}

/// The ring is empty: is it the end of the ring, of the connection, or is there just nothing?
/// `None`: look again.
fn empty(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, ring: u32, blocks: bool) -> Option<Attempt> {
    let turns = turn(conn, rx);
    if turns != Turn::Nowhere {
        return take_turn(conn, fd, rx, turns);
    }
    if conn.has(flag::BROKEN) {
        return Some(Attempt::Error(Errno::ECONNRESET));
    }
    if rx.error != 0 {
        return Some(Attempt::Kernel);
    }
    let now = ticks();
    let told = conn.has(flag::PEER_FIN | flag::PEER_HUP | flag::SHUT_RD)
        || conn.notes() & (note::CLOSED | note::SHUT_WR) != 0
        || peering::end_due(conn);
    // One that will sleep in the kernel is told there. But not beside others, or such as were
    // killed or jumped out of their sleep: there a kick that nobody has taken would wake it again
    // and again. Nor between hosts, where the end of the link is told elsewhere.
    let told_asleep =
        blocks && conn.waiters.load(Ordering::Acquire) == 0 && !peering::facts(conn).uses_records;
    if !told && (told_asleep || now.wrapping_sub(rx.looked) < ticks_of(POLL_NS)) {
        return Some(Attempt::WouldBlock);
    }
    rx.looked = now;
    match kicks::poll(conn, fd, rx, By::Call) {
        // This end's own doing. What comes by the companion is not read: there may be kicks.
        kicks::Polled::Nothing if kicks::shut_here(conn, fd) => Some(Attempt::End),
        kicks::Polled::Nothing => Some(Attempt::WouldBlock),
        // The end, or bytes of someone whom we do not follow. What the peer put in the ring before
        // comes first.
        kicks::Polled::End | kicks::Polled::Data => {
            let (position, written) = (rx.ring.position(), conn.word(W));
            let again = reading::looks_again(position, written, conn.until(ring), turn(conn, rx));
            if again { None } else { Some(Attempt::Kernel) }
        }
    }
}

/// So many small reads in a row are a stream, not requests and answers.
const STREAK: u32 = 32;
/// What is small.
const SMALL_READ: usize = 8 << 10;
