//! Reading from the companion: before the ring, and after it.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};

use super::buffers::Wanted;
use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::layout::{SMALL_AT, TCP_AT};
use crate::outcome::Attempt;
use crate::path::reader::{died_unread, learn_boundary, take_turn, turn, unread_at_death};
use crate::path::reading::Turn;
use crate::path::steps;
use crate::peering::{self, Next};
use crate::wait::{self, Number};
use crate::wake::arm::Seen;
use crate::{demote, kicks, signals, table};

pub(super) const SIOCATMARK: u64 = 0x8905;

/// What the kernel has behind bytes that have been received; if it `waits`, until the buffers are
/// full. It sleeps in libc's poll, where a thread can be cancelled. An error is the next call's.
pub(super) fn rest_by_kernel(number: &mut Number, wanted: Wanted, waits: bool) -> usize {
    let (fd, mut got) = (number.fd, 0);
    loop {
        let failed = sys::ready_for(fd, 0) & libc::POLLERR != 0;
        if failed && sys::ioctl_int(fd, libc::FIONREAD) == Ok(0) {
            return got;
        }
        match wanted.behind(wanted.skip + got).there(fd, usize::MAX) {
            Ok(0) => return got,
            Ok(count) => got += count,
            Err(Errno::EAGAIN) if waits && wait::rest_of(number).is_ok() => {}
            Err(_) => return got,
        }
        if !waits || got == wanted.len() {
            return got;
        }
    }
}

/// What follows a first byte that the kernel has just given a call by itself, while a proof of the
/// connection is under way: it may be the first segment of a write whose second one comes at once
/// ([`super::send`]).
#[cold]
pub fn second_segment(fd: i32, iov: &[libc::iovec], flags: i32) -> usize {
    let proves = |conn: &&Conn| conn.meeting.proof.load(Ordering::Relaxed) != 0;
    let wanted = Wanted::all(iov, flags);
    let only_reads = flags & !(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC) == 0;
    if table::conn(fd).filter(proves).is_none() || wanted.room < 2 || !only_reads || at_mark(fd) {
        return 0;
    }
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let _ = sys::ppoll(&mut poll, Some(AT_ONCE_NS));
    if poll[0].revents == libc::POLLIN { wanted.behind(1).there(fd, usize::MAX).unwrap_or(0) } else { 0 }
}

const AT_ONCE_NS: u64 = 50_000;

/// Reads on tcp before the ring; `None` once the ring's turn has come.
#[inline(never)]
pub(super) fn take_early(
    conn: &'static Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    wanted: Wanted,
) -> Option<Attempt> {
    if rx.error != 0 && (!conn.is_managed_now() || conn.word(SMALL_AT) == 0) {
        // Told to a waiter, and to nobody else; what the kernel had ready was read before it slept.
        return Some(kept_error(conn, rx));
    }
    if !conn.is_managed_now() {
        return Some(Attempt::Kernel);
    }
    if conn.has(flag::BROKEN) {
        return Some(Attempt::Error(Errno::ECONNRESET));
    }
    if let Err(errno) = learn_boundary(conn, fd, rx) {
        return Some(Attempt::Error(errno));
    }
    if turn(conn, rx) == Turn::ToRing {
        return take_turn(conn, fd, rx, Turn::ToRing);
    }
    let most = match rx.tcp_left {
        Some(left) => left as usize,
        None => match unannounced(conn, fd, wanted) {
            Early::Most(most) => most,
            Early::Announced => return None,
            Early::Nothing(attempt) => return Some(attempt),
        },
    };
    let look = wanted.looks_at().min(most);
    // Records come behind the boundary only.
    let free = if rx.tcp_left.is_some() { Ok(most) } else { before_record(conn, fd, rx, look) };
    // By an END it may have become known just now where the ring begins.
    let known = rx.tcp_left.is_none() && conn.word(TCP_AT) != 0 && conn.word(SMALL_AT) != 0;
    if conn.rx.path() != path::TCP || known {
        return None;
    }
    let most = match free {
        Ok(free) => most.min(free),
        Err(attempt) => return Some(attempt),
    };
    let _undisturbed = signals::undisturbed();
    steps::begin(&mut rx.step, steps::READING);
    let got = wanted.there(fd, most);
    if !wanted.peeks() {
        let count = got.unwrap_or(0) as u64;
        rx.tcp_read += count;
        if let Some(left) = &mut rx.tcp_left {
            *left -= count;
        }
    }
    steps::end(&mut rx.step, steps::READING);
    // The peer may have changed over, and what it has told or put then come later, or never.
    Some(told(conn, rx, got))
}

/// What can be read while no ring has been announced.
enum Early {
    /// At most so many bytes.
    Most(usize),
    /// A ring has been, just now.
    Announced,
    Nothing(Attempt),
}

/// Bytes that were there before we found nothing announced come before the boundary; later ones may
/// be kicks, or what follows a demotion. So: look how many there are, look at the announcement,
/// then take so many.
fn unannounced(conn: &Conn, fd: i32, wanted: Wanted) -> Early {
    let mut waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as usize;
    let marked = waiting == 0 && at_mark(fd);
    if marked {
        // FIONREAD counts up to the mark of urgent data, and a read goes on behind it.
        let look = Wanted { flags: wanted.flags | libc::MSG_PEEK, ..wanted };
        waiting = look.there(fd, usize::MAX).unwrap_or(0);
    }
    if conn.word(SMALL_AT) != 0 {
        return Early::Announced;
    }
    if waiting > 0 {
        return Early::Most(waiting);
    }
    if kicks::shut_here(conn, fd) {
        return Early::Nothing(Attempt::End);
    }
    if !conn.has(flag::PEER_FIN | flag::PEER_HUP) && !at_end(fd) {
        return Early::Nothing(if marked { Attempt::Mark } else { Attempt::WouldBlock });
    }
    // The end, or an error: nothing that could be mistaken. What was announced before it comes
    // first.
    if conn.word(SMALL_AT) != 0 { Early::Announced } else { Early::Most(usize::MAX) }
}

/// Takes the error that was kept for this call.
pub(super) fn kept_error(conn: &Conn, rx: &mut Held<'_, Rx>) -> Attempt {
    let errno = Errno::new(core::mem::take(&mut rx.error));
    told(conn, rx, Err(errno))
}

/// What the kernel has told, or what is told instead of an end that was not the peer's doing.
fn told(conn: &Conn, rx: &mut Held<'_, Rx>, got: Result<usize, Errno>) -> Attempt {
    if got == Ok(0) && peering::follow(conn, conn.descriptor()) {
        // Its writer was killed before it had sent them.
        conn.follow.store(0, Ordering::Relaxed);
        return Attempt::Error(Errno::ECONNRESET);
    }
    let errno = match got {
        // This end's own doing.
        Ok(0) if kicks::shut_here(conn, conn.descriptor()) => return Attempt::End,
        Ok(0) => None,
        Err(Errno::ECONNRESET) => Some(Errno::ECONNRESET),
        got => return Attempt::of(got),
    };
    // Between hosts it may have put more than has come.
    match peering::died_untold(conn) {
        Some(true) if !conn.has(flag::RESET_TOLD) => {
            conn.set(flag::RESET_TOLD);
            return Attempt::Error(Errno::ECONNRESET);
        }
        None => {
            let before = Seen::to_read(conn);
            // All that the peer's process had put before the end is here when it has answered.
            peering::settle(conn);
            if peering::died_untold(conn).is_some() || Seen::to_read(conn) != before {
                errno.inspect(|&errno| rx.keep_error(errno));
                return Attempt::WouldBlock;
            }
            // It was a child's, say, which had no link to tell it by.
        }
        Some(_) => {}
    }
    if errno.is_none() && peering::closed_unread(conn) {
        return Attempt::Error(Errno::ECONNRESET);
    }
    if peering::facts(conn).uses_records && unread_at_death(conn) == Some(true) {
        // That it has closed, and how far it had read, may be on the way beside the companion.
        peering::settle(conn);
    }
    // A peer that was killed has told nothing. With tcp the kernel would have reset the connection
    // if, and only if, bytes of ours were unread; here it looks at kicks instead.
    match died_unread(conn) {
        Some(true) if errno.is_none() => Attempt::Error(Errno::ECONNRESET),
        // Of what the peer has sent by tcp a reset may have taken the rest.
        Some(false) if errno.is_some() && path::is_ring(conn.rx.path()) => Attempt::End,
        _ => Attempt::of(got),
    }
}

/// Whether the kernel has the end of a connection, or an error, to tell.
pub(super) fn at_end(fd: i32) -> bool {
    sys::ready_for(fd, libc::POLLRDHUP) != 0
}

/// Whether the next byte to be read is urgent data, which a read leaves out.
pub(super) fn at_mark(fd: i32) -> bool {
    sys::ioctl_int(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Reads from the companion, after the ring.
#[inline(never)]
pub(super) fn from_kernel(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, wanted: Wanted) -> Attempt {
    // Before calls are the kernel's again: it has told this, and would not again.
    if rx.error != 0 {
        return kept_error(conn, rx);
    }
    if conn.rx.path() == path::LAST && demote::finish(conn) {
        return Attempt::Kernel;
    }
    if wanted.skip > 0 && at_mark(fd) {
        return Attempt::End;
    }
    let most = match before_record(conn, fd, rx, wanted.looks_at()) {
        Ok(_) if rx.error != 0 => return kept_error(conn, rx),
        Ok(most) => most,
        Err(attempt) => return attempt,
    };
    let got = wanted.there(fd, most);
    told(conn, rx, got)
}

/// How many bytes come by tcp before a record, where there may be one. A read goes on, where it was
/// not looked as far as it wants; a look cannot, so it says how many bytes it is for.
pub(super) fn before_record(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    look: usize,
) -> Result<usize, Attempt> {
    while peering::may_come(conn) && conn.state() != state::PLAIN {
        match kicks::hear(conn, fd, rx) {
            Next::Bytes(most) if most < look => {
                return Ok(peering::further(conn, fd, rx, most, look));
            }
            Next::Bytes(most) => return Ok(most),
            Next::Record => {}
            Next::Wait => {
                peering::ask_again(conn);
                return Err(Attempt::WouldBlock);
            }
            Next::Nothing => return Err(Attempt::WouldBlock),
        }
    }
    Ok(usize::MAX)
}
