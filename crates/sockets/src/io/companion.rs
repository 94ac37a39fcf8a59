//! Reading from the companion: before the ring, and after it.

use fabric::sys::{self, Errno};

use super::buffers::{kernel_recv, total};
use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::layout::SMALL_AT;
use crate::outcome::Tried;
use crate::path::reader::{died_unread, learn_boundary};
use crate::path::steps;
use crate::peering::records;
use crate::{demote, real, signals};

pub(super) const SIOCATMARK: u64 = 0x8905;

/// What the kernel has for the buffers from `skip` on; if it `waits`, until they are full. It sleeps in libc's recv, where a thread can be cancelled.
pub(super) fn rest_by_kernel(fd: i32, iov: &[libc::iovec], skip: usize, flags: i32, waits: bool) -> usize {
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

/// Reads on tcp before the ring; `None` once the ring's turn has come.
pub(super) fn take_early(
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
        None => match unannounced(conn, fd, iov, skip, flags) {
            Early::Most(most) => most,
            Early::Announced => return None,
            Early::Nothing(tried) => return Some(tried),
        },
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

/// What can be read while no ring has been announced.
enum Early {
    /// At most so many bytes.
    Most(usize),
    /// A ring has been, just now.
    Announced,
    Nothing(Tried),
}

/// Bytes that were there before we found nothing announced come before the boundary; later ones may be kicks, or what follows a demotion. So: look
/// how many there are, look at the announcement, then take so many.
fn unannounced(conn: &Conn, fd: i32, iov: &[libc::iovec], skip: usize, flags: i32) -> Early {
    let mut waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as usize;
    let marked = waiting == 0 && at_mark(fd);
    if marked {
        // FIONREAD counts up to the mark of urgent data, and a read goes on behind it.
        waiting =
            kernel_recv(fd, iov, skip, usize::MAX, flags | libc::MSG_PEEK | libc::MSG_DONTWAIT).unwrap_or(0);
    }
    if conn.word(SMALL_AT) != 0 {
        return Early::Announced;
    }
    if waiting > 0 {
        return Early::Most(waiting);
    }
    if !conn.has(flag::PEER_FIN | flag::PEER_HUP) && !at_end(fd) {
        return Early::Nothing(if marked { Tried::Mark } else { Tried::Not });
    }
    // The end, or an error: nothing that could be mistaken. What was announced before it comes first.
    if conn.word(SMALL_AT) != 0 { Early::Announced } else { Early::Most(usize::MAX) }
}

/// Takes the error that was kept for this call. A peer that was killed with nothing unread has ended, as with tcp.
pub(super) fn kept_error(conn: &Conn, rx: &mut Held<'_, Rx>) -> Tried {
    match Errno::new(core::mem::take(&mut rx.error)) {
        Errno::ECONNRESET if died_unread(conn) == Some(false) => Tried::End,
        errno => Tried::Error(errno),
    }
}

/// Whether the kernel has the end of a connection, or an error, to tell.
pub(super) fn at_end(fd: i32) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0
}

/// Whether the next byte to be read is urgent data, which a read leaves out.
pub(super) fn at_mark(fd: i32) -> bool {
    sys::ioctl_int(fd, SIOCATMARK).is_ok_and(|at| at != 0)
}

/// Reads from the companion, after the ring.
pub(super) fn from_kernel(
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
pub(super) fn before_record(
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    look: usize,
) -> Result<usize, Tried> {
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
