//! Whether the program waits for a connection by calls that we see. Some make theirs with an
//! instruction of their own (Bun waits so for its epoll sets, and reads by libc): the kernel, which
//! they ask, knows nothing of what lies in a ring. So a connection is promoted only when the
//! program has been seen to wait for it: by poll() or select(), by a read that waited, or by
//! epoll_wait() on each of its sets.

use fabric::sync::Ordering;
use fabric::sys;

use crate::conn::{Conn, flag};
use crate::{epoll, worth};

/// The connection is among those that poll() or select() waits for.
#[inline]
pub fn waited_for(conn: &Conn) {
    if !conn.has(flag::SEEN) {
        conn.set(flag::SEEN);
    }
}

/// The program reads. That it waits then is asked of the kernel for some reads, until it has been
/// seen to: not before the last ones without which the connection stays on tcp anyway, as most end
/// before.
#[inline]
pub(crate) fn reads(conn: &Conn, fd: i32, flags: i32) {
    if !conn.has(flag::SEEN) && conn.epolls.load(Ordering::Relaxed) == 0 {
        look(conn, fd, flags);
    }
}

#[cold]
fn look(conn: &Conn, fd: i32, flags: i32) {
    conn.set(flag::READ);
    if conn.ops.load(Ordering::Relaxed) + LAST < worth::calls(conn) {
        return;
    }
    if flags & libc::MSG_DONTWAIT != 0 {
        return;
    }
    let unasked = conn.unasked.load(Ordering::Relaxed);
    if unasked > 0 {
        conn.unasked.store(unasked - 1, Ordering::Relaxed);
    } else if !blocks(fd) {
        conn.unasked.store(UNASKED, Ordering::Relaxed);
    } else if sys::ioctl_int(fd, libc::FIONREAD) == Ok(0) {
        conn.set(flag::SEEN);
    }
}

/// After one by a descriptor that does not block, which a program does not change often.
const UNASKED: u32 = 15;

/// So many calls before a connection may move its reads are looked at.
const LAST: u32 = 2;

/// Whether the program has been seen to wait for it.
pub(crate) fn waits(conn: &'static Conn, fd: i32) -> bool {
    match conn.epolls.load(Ordering::Acquire) {
        // One that only writes waits for room where it writes.
        0 => conn.has(flag::SEEN) || !conn.has(flag::READ) && blocks(fd),
        _ => epoll::waited_for(conn),
    }
}

/// Whether it is read by calls that may wait, and each has found something there so far.
pub(crate) fn reads_blocking(conn: &Conn, fd: i32) -> bool {
    conn.has(flag::READ) && blocks(fd)
}

/// Whether calls on it wait. Before a connection is managed only the kernel knows.
pub(crate) fn blocks(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0)
}
