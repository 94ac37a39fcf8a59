//! The direction that is written, and where it changes its path.

use core::cell::Cell;

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Remote, trip};

use super::buffers::{IOVS, PIECE, kernel_send, not_now, or_interrupted, pieces, total, waits};
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::layout::{self, TRIP, W, note};
use crate::outcome::{Attempt, Outcome};
use crate::path::room::{room_for, stuck_for_long};
use crate::path::writer::{grow, switch};
use crate::peering::cut;
use crate::peering::peer::Peer;
use crate::reason::Reason;
use crate::rendezvous::meeting;
use crate::signals::Sleeps;
use crate::wake::fire;
use crate::{demote, epoll, faults, gain, process, rendezvous, seen, signals, small_buffers, wait};

/// Where it comes from what is sent.
trait Source {
    fn len(&self) -> usize;
    /// Puts `count` bytes, from `skip` on, into the ring, which has room for them, and publishes
    /// them. How many there were.
    fn put(&self, conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, skip: usize, count: usize) -> usize;
    /// Whether nothing is left from `skip` on, although its length says so.
    fn is_over(&self, skip: usize) -> bool;
    /// Sends by the kernel what lies from `skip` on, or some of it.
    fn by_kernel(&self, fd: i32, skip: usize, flags: i32) -> Result<usize, Errno>;
}

/// The program's buffers.
struct Buffers<'a>(&'a [libc::iovec]);

impl Source for Buffers<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        total(self.0)
    }
    #[inline(always)]
    fn put(&self, conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, skip: usize, count: usize) -> usize {
        copy_in(conn, fd, tx, self.0, skip, count);
        count
    }
    #[inline(always)]
    fn is_over(&self, _skip: usize) -> bool {
        false
    }
    fn by_kernel(&self, fd: i32, skip: usize, flags: i32) -> Result<usize, Errno> {
        kernel_send(fd, self.0, skip, flags)
    }
}

/// Part of a file, from the page cache straight into the ring. What is not there would have to be
/// waited for, under the lock of the direction: then nothing more is sent, and [`File::is_cold`].
pub struct File {
    fd: i32,
    at: u64,
    len: usize,
    /// Flags of preadv2(); `None` where it cannot be told what would wait.
    now: Option<i32>,
    cold: Cell<bool>,
}

impl File {
    /// `len` bytes of the file `fd`, from `at` on. Under no lock: how it can be read is tried out.
    pub fn new(fd: i32, at: u64, len: usize) -> File {
        let mut byte = 0u8;
        let place = [libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }];
        let now = match sys::preadv(fd, &place, at, libc::RWF_NOWAIT) {
            Err(Errno::EOPNOTSUPP) => sys::lies_in_memory(fd).then_some(0),
            _ => Some(libc::RWF_NOWAIT),
        };
        File { fd, at, len, now, cold: Cell::new(false) }
    }

    /// What is left when `done` bytes have been sent.
    pub fn rest(&self, done: usize) -> File {
        File { at: self.at + done as u64, len: self.len - done, cold: Cell::new(false), ..*self }
    }

    /// Whether it has not been sent to its end because some of it must be read in the usual way.
    pub fn is_cold(&self) -> bool {
        self.cold.get()
    }

    fn read(&self, places: &[libc::iovec], skip: usize) -> usize {
        let got = self.now.map(|now| sys::preadv(self.fd, places, self.at + skip as u64, now));
        match got {
            Some(Ok(got)) => got,
            _ => {
                self.cold.set(true);
                0
            }
        }
    }
}

impl Source for File {
    fn len(&self) -> usize {
        self.len
    }
    fn put(&self, conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, skip: usize, count: usize) -> usize {
        let ends = conn.ends();
        let mut done = 0;
        while done < count {
            let places = tx.ring.places(&ends, (count - done).min(PIECE)).map(|(offset, len)| libc::iovec {
                iov_base: ends.theirs.map().base().wrapping_add(offset).cast(),
                iov_len: len,
            });
            let want = total(&places);
            let got = self.read(&places, skip + done);
            written(&ends.theirs, &places, got);
            tx.ring.filled(got);
            tx.ring.publish(&ends);
            done += got;
            if got < want {
                break;
            }
            if done < count {
                wake_early(conn, fd, tx);
            }
        }
        conn.counters.wrote(tx.ring.position());
        done
    }
    fn is_over(&self, skip: usize) -> bool {
        let mut byte = 0u8;
        self.read(&[libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 }], skip) == 0
    }
    fn by_kernel(&self, fd: i32, skip: usize, flags: i32) -> Result<usize, Errno> {
        let mut bytes = [0u8; 16 << 10];
        let room = bytes.len().min(self.len - skip);
        let got = self.read(&[libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: room }], skip);
        if got == 0 { Ok(0) } else { sys::send(fd, bytes.as_ptr(), got, flags) }
    }
}

/// So many bytes have been read into these places of the peer's segment.
fn written(theirs: &Peer, places: &[libc::iovec], mut count: usize) {
    for place in places {
        let len = place.iov_len.min(count);
        theirs.written(place.iov_base.addr() - theirs.map().base().addr(), len);
        count -= len;
        if count == 0 {
            break;
        }
    }
}

/// Sends part of a file, as sendfile() does.
pub fn send_file(conn: &'static Conn, fd: i32, file: &File) -> Outcome {
    send_from(conn, fd, file, 0)
}

/// Sends `iov`, as sendmsg() with `flags` does.
#[inline(always)]
pub fn send(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Outcome {
    if flags & libc::MSG_OOB != 0 && conn.state() != state::PLAIN {
        // Before anything is offered, too: the kernel counts the urgent byte, a reader does not.
        demote::now(conn, fd, Reason::Urgent);
    }
    if !conn.is_managed() {
        let tick = rendezvous::tick(conn, fd);
        if tick.interrupted && waits(conn, flags) {
            return interrupted(conn, fd, iov, flags | libc::MSG_DONTWAIT, send);
        }
        if !conn.is_managed() {
            if tick.late {
                rendezvous::nap(conn);
            }
            if conn.meeting.proof.load(Ordering::Relaxed) != 0
                && meeting::cuts(conn)
                && let Some(outcome) = send_cut(conn, fd, iov, flags)
            {
                return outcome;
            }
            return Outcome::Kernel;
        }
    }
    if faults::suspect(iov)
        && let Some(outcome) = faults::send(conn, fd, iov, flags, send)
    {
        return outcome;
    }
    send_from(conn, fd, &Buffers(iov), flags)
}

/// A handler has ended the call: it sends what there is room for.
#[cold]
fn interrupted(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32, send: faults::Call) -> Outcome {
    let sent = match send(conn, fd, iov, flags) {
        Outcome::Kernel => kernel_send(fd, iov, 0, flags),
        Outcome::Done(sent) => sent,
    };
    or_interrupted(fd, sent)
}

/// Sends on tcp while a proof of the connection is under way ([`meeting::cut`]): short writes in
/// one segment or in two. Nothing may come between the two: other threads write under the lock of
/// the direction, too, and handlers are kept out. Before a call that the kernel makes alone, as it
/// may wait, the proof is given up. `None`: it is to make it.
#[cold]
fn send_cut(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Option<Outcome> {
    let _in_kernel = conn.enter_kernel()?;
    let undisturbed = signals::undisturbed();
    let tx = conn.tx.lock()?;
    if flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 || iov.len() > IOVS {
        meeting::give_up(conn);
        return None;
    }
    let want = total(iov);
    let cut = meeting::cut(conn, fd, want);
    let in_two = cut.as_ref().is_some_and(|cut| cut.in_two);
    match in_segments(fd, iov, flags | libc::MSG_DONTWAIT, in_two) {
        Ok(sent) if sent == want => {
            if let Some(cut) = cut {
                cut.done();
            }
            Some(Outcome::Done(Ok(sent)))
        }
        Err(Errno::EAGAIN) => {
            meeting::give_up(conn);
            None
        }
        Err(errno) => Some(Outcome::Done(Err(errno))),
        Ok(sent) => {
            meeting::give_up(conn);
            conn.set(flag::TX_FULL);
            let blocks = flags & libc::MSG_DONTWAIT == 0 && seen::blocks(fd);
            drop((tx, undisturbed));
            let sent = if blocks { send_rest(conn, fd, iov, sent, flags) } else { sent };
            Some(Outcome::Done(Ok(sent)))
        }
    }
}

/// Sends what the kernel had no room for, after the first `done` bytes; how many have been sent in
/// the end. Whoever waits does so in libc's poll, where a thread can be cancelled. An error that
/// the kernel has to tell is the next call's.
fn send_rest(conn: &'static Conn, fd: i32, iov: &[libc::iovec], mut done: usize, flags: i32) -> usize {
    let (want, mut sleeps) = (total(iov), Sleeps::new());
    sleeps.moved();
    while done < want && wait::writable(conn, fd, &mut sleeps).is_ok() {
        if is_over(fd) {
            break;
        }
        match kernel_send(fd, iov, done, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => done += sent,
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    done
}

/// Sends now, its first byte in a segment of its own if it is to go `in_two`. Both are sent at
/// once, so that the peer's program hardly ever reads the one without the other.
fn in_segments(fd: i32, iov: &[libc::iovec], flags: i32, in_two: bool) -> Result<usize, Errno> {
    let Some(first) = iov.iter().find(|part| part.iov_len > 0).filter(|_| in_two) else {
        return kernel_send(fd, iov, 0, flags);
    };
    let nodelay = |on: i32| sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, on);
    // Else the rest would wait for the acknowledgement of the first byte.
    let delays = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Ok(0) && nodelay(1).is_ok();
    let first = [libc::iovec { iov_base: first.iov_base, iov_len: 1 }];
    let began = kernel_send(fd, &first, 0, flags | libc::MSG_MORE | libc::MSG_EOR);
    let rest = began.and_then(|_| kernel_send(fd, iov, 1, flags));
    if began.is_ok() && rest.is_err() {
        // Sends what waits.
        let _ = nodelay(1);
    }
    if delays {
        let _ = nodelay(0);
    }
    match rest {
        Ok(rest) => Ok(1 + rest),
        // There was no room for more, or that cannot be read.
        Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EFAULT) if began.is_ok() => Ok(1),
        // The connection is at an end, whatever has been sent.
        Err(errno) => Err(errno),
    }
}

#[inline(always)]
fn send_from(conn: &'static Conn, fd: i32, source: &impl Source, flags: i32) -> Outcome {
    let want = source.len();
    let mut done = 0;
    let mut sleeps = Sleeps::new();
    loop {
        if conn.state() == state::OFFERED {
            rendezvous::serve_offered();
            rendezvous::answered(conn);
        }
        let or_done = |result| Outcome::Done(if done > 0 { Ok(done) } else { result });
        let Some(mut tx) = conn.lock_tx(fd) else { return or_done(Err(not_now(waits(conn, flags)))) };
        expect_hint(conn, &mut tx);
        let attempt = give(conn, fd, &mut tx, source, done, flags);
        // To release the lock is the fence between what was published and whether anybody waits for
        // it, or recalls it.
        drop(tx);
        if matches!(attempt, Attempt::Bytes(_)) && path::is_ring(conn.tx.path()) {
            if conn.theirs().armed(conn.at(TRIP), trip::RX) {
                wake_reader(conn, fd);
            }
            if conn.notes() & note::RECALL != 0 {
                demote::attend(conn, fd);
            }
        }
        match attempt {
            Attempt::Bytes(count) => {
                done += count;
                if done >= want {
                    return Outcome::Done(Ok(done));
                }
            }
            Attempt::End => return Outcome::Done(Ok(done)),
            Attempt::Error(errno) => return or_done(Err(errno)),
            Attempt::Kernel if done == 0 => return Outcome::Kernel,
            // The rest by the kernel, unless calls have become ours again. Who waits does so in
            // libc's poll, where a thread can be cancelled.
            Attempt::Kernel => {
                let Some(in_kernel) = conn.enter_kernel() else {
                    conn.is_managed();
                    continue;
                };
                let rest = rest_by_kernel(fd, source, done, flags);
                drop(in_kernel);
                done += rest.unwrap_or(0);
                let more = matches!(rest, Ok(1..) | Err(Errno::EAGAIN)) && done < want;
                if !more || !waits(conn, flags) {
                    return Outcome::Done(Ok(done));
                }
                if rest.is_err() {
                    sleeps.moved();
                    let waited = wait::writable(conn, fd, &mut sleeps);
                    if process::ended() {
                        return after_the_end(fd, source, done, flags);
                    }
                    if waited.is_err() {
                        return Outcome::Done(Ok(done));
                    }
                }
            }
            Attempt::WouldBlock if !waits(conn, flags) => {
                epoll::want_room(conn);
                return or_done(Err(Errno::EAGAIN));
            }
            Attempt::WouldBlock | Attempt::Mark => {
                if done > 0 {
                    sleeps.moved();
                }
                let waited = wait::writable(conn, fd, &mut sleeps);
                if process::ended() {
                    return after_the_end(fd, source, done, flags);
                }
                if let Err(errno) = waited {
                    return or_done(Err(errno));
                }
            }
        }
    }
}

/// The peer is armed for what was put.
#[cold]
fn wake_reader(conn: &'static Conn, fd: i32) {
    if let Some(mut tx) = conn.lock_tx(fd) {
        fire::wake_armed(conn, fd, &mut tx, trip::RX);
    }
    gain::judge(conn, fd);
}

/// Another thread has locked the process in while this one slept: the call goes on as libc's.
#[cold]
fn after_the_end(fd: i32, source: &impl Source, done: usize, flags: i32) -> Outcome {
    match done {
        0 => Outcome::Kernel,
        done => Outcome::Done(Ok(done + rest_by_kernel(fd, source, done, flags).unwrap_or(0))),
    }
}

/// One attempt to write, under the lock.
fn give(
    conn: &'static Conn,
    fd: i32,
    tx: &mut Held<'_, Tx>,
    source: &impl Source,
    skip: usize,
    flags: i32,
) -> Attempt {
    let want = source.len() - skip;
    loop {
        match conn.tx.path() {
            path::TCP => {
                if !conn.is_managed_now() {
                    return Attempt::Kernel;
                }
                if !cut::before_tcp(conn, fd, tx) {
                    return Attempt::WouldBlock;
                }
                if want > 0 && switch(conn, fd, tx) {
                    continue;
                }
                return to_kernel(fd, source, skip, flags);
            }
            path::SMALL | path::BIG => {
                if conn.has(flag::SHUT_WR | flag::BROKEN) {
                    return to_kernel(fd, source, skip, flags);
                }
                if demote::attend_writing(conn, fd, tx) {
                    continue;
                }
                if want == 0 {
                    return Attempt::Bytes(0);
                }
                let Ok(mut room) = room_for(conn, fd, tx, want) else {
                    conn.break_off(fd);
                    return Attempt::Error(Errno::ECONNRESET);
                };
                if room < want
                    && conn.tx.path() == path::SMALL
                    && wants_more(conn, tx, want, room, flags)
                    && (conn.is_via() || !small_buffers::both(conn, fd))
                {
                    if !grow(conn, tx) && conn.is_via() {
                        demote::out_of_rings(conn, fd, tx);
                        continue;
                    }
                    room = room_for(conn, fd, tx, want).unwrap_or(0);
                }
                if room == 0 {
                    return if source.is_over(skip) { Attempt::End } else { Attempt::WouldBlock };
                }
                return match source.put(conn, fd, tx, skip, room.min(want)) {
                    0 => Attempt::End,
                    count => Attempt::Bytes(count),
                };
            }
            path::RESEND => {
                if !demote::resend(conn, fd, tx) {
                    return Attempt::WouldBlock;
                }
            }
            _ => {
                if !fire::pay(conn, fd, tx) || !cut::before_tcp(conn, fd, tx) {
                    return Attempt::WouldBlock;
                }
                if demote::finish(conn) {
                    return Attempt::Kernel;
                }
                // What the kernel has told already it does not tell again.
                if skip == 0
                    && let Some(kept) = conn.rx.try_lock().and_then(|mut rx| rx.take_error())
                {
                    return Attempt::Error(kept);
                }
                return to_kernel(fd, source, skip, flags);
            }
        }
    }
}

/// Sends by the kernel now what lies behind bytes that have been sent. An error is the next call's
/// to be told of, and so is a signal.
fn rest_by_kernel(fd: i32, source: &impl Source, skip: usize, flags: i32) -> Result<usize, Errno> {
    if is_over(fd) {
        return Ok(0);
    }
    source.by_kernel(fd, skip, flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Whether the connection has been reset. There are errors that leave it as it is (IP_RECVERR).
fn is_over(fd: i32) -> bool {
    let told = sys::ready_for(fd, 0);
    if told & (libc::POLLERR | libc::POLLHUP) == libc::POLLERR {
        // The kernel may be in the middle of a reset: this question waits until it is done.
        let _ = sys::ioctl_int(fd, libc::FIONREAD);
        return sys::ready_for(fd, 0) & libc::POLLHUP != 0;
    }
    told & libc::POLLHUP != 0
}

fn to_kernel(fd: i32, source: &impl Source, skip: usize, flags: i32) -> Attempt {
    if skip > 0 {
        return match rest_by_kernel(fd, source, skip, flags) {
            Ok(count @ 1..) => Attempt::Bytes(count),
            Err(Errno::EAGAIN) => Attempt::WouldBlock,
            Ok(0) | Err(_) => Attempt::End,
        };
    }
    match source.by_kernel(fd, skip, flags | libc::MSG_DONTWAIT) {
        Ok(0) if source.len() == skip => Attempt::Bytes(0),
        sent => Attempt::of(sent),
    }
}

fn wants_more(conn: &Conn, tx: &mut Held<'_, Tx>, want: usize, room: usize, flags: i32) -> bool {
    if conn.is_via() {
        // One that can wait does so for a while.
        return room == 0 && !waits(conn, flags) && stuck_for_long(conn, tx);
    }
    if !process::options().grow {
        return false;
    }
    if room == 0 {
        tx.full += 1;
    }
    want > layout::SMALL / 2 || tx.full > 4
}

fn copy_in(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, iov: &[libc::iovec], skip: usize, count: usize) {
    let ends = conn.ends();
    let (mut unpublished, mut done) = (0, 0);
    pieces(iov, skip, count, |from, len| {
        let mut at = 0;
        while at < len {
            let piece = (len - at).min(PIECE - unpublished);
            // SAFETY: the program vouches for its buffers (what `faults` does not catch ends it);
            // `room` vouched for count bytes of ring.
            unsafe { tx.ring.put(&ends, from.add(at), piece) };
            at += piece;
            unpublished += piece;
            if unpublished == PIECE {
                (unpublished, done) = (0, done + PIECE);
                if done < count {
                    tx.ring.show(&ends);
                    wake_early(conn, fd, tx);
                }
            }
        }
    });
    tx.ring.publish(&ends);
    tx.ring.claim(&ends, count);
    conn.counters.wrote(tx.ring.position());
}

/// Where the last message had to be hinted, this one will be, most likely. What that takes lies in
/// three lines, which the reader's processor has; each would be waited for in turn, as none may be
/// written before the one before it.
#[inline(always)]
fn expect_hint(conn: &Conn, tx: &mut Held<'_, Tx>) {
    let hints = core::mem::take(&mut tx.hinted);
    if hints != 0 {
        let theirs = conn.theirs();
        for line in [conn.at(W), conn.at(TRIP), hints] {
            theirs.expect(line);
        }
    }
}

/// More is coming: a reader that sleeps wakes up meanwhile, as it would at the first segment of
/// tcp. One that falls asleep only now, and is not seen here yet, is seen at the end.
fn wake_early(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    if conn.theirs().armed(conn.at(TRIP), trip::RX) {
        fire::wake(conn, fd, tx, trip::RX);
    }
}
