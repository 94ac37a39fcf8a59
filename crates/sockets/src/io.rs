//! Sending and receiving on a managed connection: one whose calls are ours. Each direction takes bytes over the path that it is on and
//! changes over where the writer announced it: `recv.rs` the one that is read, `send.rs` the one that is written. What blocks, and how, is
//! in `wait.rs`.

use fabric::sync::{Ordering, spin_hint};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, trip};
use host::diag;
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, Held, InKernel, Rx, Tx, flag, path, state};
use crate::far::records;
use crate::kicks::By;
use crate::layout::{self, BIG_AT, KICKS, SMALL_AT, TCP_AT, TRIP, W, note};
use crate::reason::Reason;
use crate::{
    close, demote, epoll, faults, kicks, link, log, narrow, process, real, rendezvous, report, seen, signals,
    wait,
};

mod recv;
mod send;

pub use recv::{keep_error, lend, recv};
pub(crate) use recv::{progress, unread_at_death, until};
pub use send::{File, send, send_file};
pub(crate) use send::{attend, grow, room_for, stuck, stuck_for_long, switch};

/// How a call is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By the kernel alone, on the companion.
    Kernel,
    /// It has been carried out.
    Done(Result<usize, Errno>),
}

/// What one attempt came to.
pub(crate) enum Tried {
    Bytes(usize),
    /// Nothing to read, or no room to write.
    Not,
    End,
    Error(Errno),
    /// The connection is no longer ours: the kernel's call.
    Kernel,
    /// Nothing but the place of urgent data that was read: a call of the kernel's steps over it, a look does not.
    Mark,
}

/// Published (and given back) in pieces of this size, so that both ends copy at the same time.
const PIECE: usize = 32 << 10;

fn on_ring(path: u32) -> bool {
    matches!(path, path::SMALL | path::BIG)
}

/// Where the big ring is that its peer writes, once it has announced it.
pub(crate) fn big_ring(conn: &Conn) -> usize {
    layout::big(conn.word(layout::BIG_RING))
}

/// The bytes of an array of buffers.
pub(crate) fn total(iov: &[libc::iovec]) -> usize {
    iov.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len))
}

/// Calls `each` with the pieces of `count` bytes of the buffers, from `skip` on.
fn pieces(iov: &[libc::iovec], mut skip: usize, mut count: usize, mut each: impl FnMut(*mut u8, usize)) {
    for piece in iov {
        if count == 0 {
            break;
        }
        if skip >= piece.iov_len {
            skip -= piece.iov_len;
            continue;
        }
        let len = (piece.iov_len - skip).min(count);
        each(piece.iov_base.cast::<u8>().wrapping_add(skip), len);
        count -= len;
        skip = 0;
    }
}

/// At most this many pieces in one call to the kernel; the rest is another call's.
const IOVS: usize = 64;

fn with_message<T>(
    iov: &[libc::iovec],
    skip: usize,
    most: usize,
    call: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    with_parts(iov, (0, 0), &mut [], (skip, most), call)
}

/// With two parts of the buffers (from where on, at most how many bytes), and something between them.
fn with_parts<T>(
    iov: &[libc::iovec],
    first: (usize, usize),
    between: &mut [u8],
    second: (usize, usize),
    call: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    let mut part = [libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 }; IOVS];
    let mut used = 0;
    let mut add = |at: *mut u8, len| {
        if used < IOVS {
            part[used] = libc::iovec { iov_base: at.cast(), iov_len: len };
            used += 1;
        }
    };
    let room = |skip, most| total(iov).saturating_sub(skip).min(most);
    pieces(iov, first.0, room(first.0, first.1), &mut add);
    if !between.is_empty() {
        add(between.as_mut_ptr(), between.len());
    }
    pieces(iov, second.0, room(second.0, second.1), &mut add);
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = part.as_mut_ptr();
    message.msg_iovlen = used as _;
    call(&mut message)
}

fn kernel_recv(fd: i32, iov: &[libc::iovec], skip: usize, most: usize, flags: i32) -> Result<usize, Errno> {
    with_message(iov, skip, most, |message| sys::recvmsg(fd, message, flags & !libc::MSG_WAITALL))
}

fn kernel_send(fd: i32, iov: &[libc::iovec], skip: usize, most: usize, flags: i32) -> Result<usize, Errno> {
    with_message(iov, skip, most, |message| sys::sendmsg(fd, message, flags))
}

/// FIONREAD: bytes that a read would find. `None`: the kernel's answer.
pub fn unread(conn: &'static Conn, fd: i32) -> Option<i32> {
    if !conn.is_managed() {
        return None;
    }
    let mut rx = conn.lock_rx(fd)?;
    if conn.is_far() {
        // Records are no bytes of the program's, and one of them says where these go on.
        if matches!(conn.rx.path(), path::SMALL | path::BIG) {
            kicks::look(conn, fd, &mut rx, By::Call);
        }
        while records::may_come(conn) && records::hear(conn, fd, &mut rx) == records::Next::Record {}
        records::seek_stop(conn, fd);
    }
    progress(conn, fd, &mut rx);
    let waiting = || sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64;
    let stop = if conn.has(flag::STOP_AHEAD) { records::BYTES as u64 } else { 0 };
    // Before the ring, and of how many that are there.
    let (before, waits) = match (conn.rx.path(), rx.tcp_left) {
        (path::SMALL | path::BIG, _) => (0, if conn.word(TCP_AT) == 0 { 0 } else { waiting() }),
        (path::TCP, Some(left)) => (left, waiting()),
        _ if stop > 0 => return Some(waiting().saturating_sub(stop) as i32),
        _ => return None,
    };
    if waits < before {
        return Some(waits as i32);
    }
    let position = rx.ring.position();
    let kicks = kicks::owed(conn, &rx);
    // Where the ring ends, and how many come by tcp again behind it, and behind the kicks. What was recalled lies in the ring still, but comes by tcp.
    let (end, again) = match conn.word(TCP_AT) {
        0 if before > 0 && conn.is_far() && waits > before => {
            let run = records::run_at(conn, fd, (before + kicks) as usize);
            let stop = if run.stop { 0 } else { stop };
            let again = waits.saturating_sub(before + kicks + run.len as u64 + stop);
            run.end.map_or((conn.word(W), 0), |end| (end, again))
        }
        0 => (conn.word(W), 0),
        at => (at - 1, waits.saturating_sub(before + kicks + stop)),
    };
    // While the connection grows, both rings can be full.
    let in_ring = end.saturating_sub(position).min(layout::UNDER_WAY as u64);
    let count = before + in_ring + again;
    Some(count as i32)
}

/// SIOCOUTQ: bytes that have not reached the other end. What is in the ring has, what went by tcp before it perhaps not; kicks, which the kernel counts as well, are not the
/// program's. `None`: the kernel's answer.
pub fn unsent(conn: &'static Conn, fd: i32) -> Option<i32> {
    if !conn.is_managed() || !on_ring(conn.tx.path()) {
        return None;
    }
    let tx = conn.lock_tx(fd)?;
    let kicks = tx.kicks_sent.saturating_sub(tx.debt);
    let queued = sys::ioctl_int(fd, libc::TIOCOUTQ).ok()? as u64;
    Some(queued.saturating_sub(kicks) as i32)
}

/// SIOCATMARK: never while bytes of the ring come before those of tcp. `None`: the kernel's answer.
pub fn before_mark(conn: &'static Conn, fd: i32) -> bool {
    unread(conn, fd).is_some_and(|count| count > 0)
}
