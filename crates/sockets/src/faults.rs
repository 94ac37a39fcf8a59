//! Bad buffers. The kernel answers EFAULT where a program passes an address at which it has no
//! memory; a copy of ours would end the program. What programs really pass by mistake is a null
//! pointer, or a field of a structure at null: addresses in the first 64 KB are caught here, at the
//! price of a comparison. A bad address elsewhere does end the program (SIGSEGV), unlike with tcp.

use fabric::sys::{self, Errno};

use crate::conn::Conn;
use crate::io::{self, Outcome};

/// The call itself, made again with the buffers that are good.
pub(crate) type Call = fn(&'static Conn, i32, &[libc::iovec], i32) -> Outcome;

/// Below this the kernel lets no program have memory (vm.mmap_min_addr), unless the administrator
/// says otherwise.
const LOWEST: usize = 64 << 10;
/// The kernel sends in pieces of about this size: a piece that a bad address is in does not go,
/// those before it do.
const PIECE: usize = 32 << 10;

/// Whether nothing can be read or written at `at`, because it is null or nearly so.
#[inline(always)]
pub fn low<T>(at: *const T) -> bool {
    at.addr() < LOWEST
}

/// Whether one of the buffers may be bad.
#[inline(always)]
pub(crate) fn suspect(iov: &[libc::iovec]) -> bool {
    iov.iter().any(|piece| low(piece.iov_base) && piece.iov_len > 0)
}

/// The buffers before the first bad one; `None` if none is bad: old programs may have memory at 0.
fn before_bad(iov: &[libc::iovec]) -> Option<&[libc::iovec]> {
    let bad = iov.iter().position(|piece| {
        low(piece.iov_base) && piece.iov_len > 0 && !sys::is_mapped(piece.iov_base.cast_const().cast(), 1)
    })?;
    iov.get(..bad)
}

/// Receives where a buffer is [`suspect`]; `None` if the call may go on as any other.
#[cold]
pub(crate) fn recv(
    conn: &'static Conn,
    fd: i32,
    iov: &[libc::iovec],
    flags: i32,
    call: Call,
) -> Option<Outcome> {
    // Bytes that are thrown away need no place.
    if flags & libc::MSG_TRUNC != 0 {
        return None;
    }
    let good = before_bad(iov)?;
    let room = io::total(good);
    if room == 0 {
        // Waits, and tells what goes before EFAULT: the end, an error, that there is nothing.
        let mut byte = 0u8;
        let scratch = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        return Some(match call(conn, fd, &[scratch], flags & !libc::MSG_WAITALL | libc::MSG_PEEK) {
            Outcome::Done(Ok(1..)) => Outcome::Done(Err(Errno::EFAULT)),
            outcome => outcome,
        });
    }
    let unread = io::unread(conn, fd).map_or_else(|| sys::ioctl_int(fd, libc::FIONREAD), Ok);
    if room < PIECE && unread.is_ok_and(|unread| unread as usize > room) {
        return Some(Outcome::Done(Err(Errno::EFAULT)));
    }
    Some(call(conn, fd, good, flags))
}

/// Sends where a buffer is [`suspect`]; `None` if the call may go on as any other.
#[cold]
pub(crate) fn send(
    conn: &'static Conn,
    fd: i32,
    iov: &[libc::iovec],
    flags: i32,
    call: Call,
) -> Option<Outcome> {
    let good = before_bad(iov)?;
    if io::total(good) >= PIECE {
        return Some(call(conn, fd, good, flags));
    }
    // An empty one tells what goes before EFAULT: that the connection is shut, or at an end.
    Some(match call(conn, fd, &[], flags) {
        Outcome::Done(Ok(_)) => Outcome::Done(Err(Errno::EFAULT)),
        outcome => outcome,
    })
}
