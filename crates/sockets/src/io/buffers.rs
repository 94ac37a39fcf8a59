//! The buffers of a call, and calls of the kernel with a part of them.

use fabric::sys::{self, Errno};

use crate::conn::{Conn, flag};
use crate::outcome::Outcome;
use crate::seen;

/// Published (and given back) in pieces of this size, so that both ends copy at the same time.
pub(super) const PIECE: usize = 32 << 10;

/// The bytes of an array of buffers.
pub(crate) fn total(iov: &[libc::iovec]) -> usize {
    iov.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len))
}

/// Calls `each` with the pieces of `count` bytes of the buffers, from `skip` on.
#[inline(always)]
pub(super) fn pieces(
    iov: &[libc::iovec],
    mut skip: usize,
    mut count: usize,
    mut each: impl FnMut(*mut u8, usize),
) {
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
pub(super) const IOVS: usize = 64;

/// Calls with two parts of the buffers (from where on, at most how many bytes), and something
/// between them.
pub(super) fn with_parts<T>(
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

pub(super) fn kernel_send(fd: i32, iov: &[libc::iovec], skip: usize, flags: i32) -> Result<usize, Errno> {
    with_parts(iov, (0, 0), &mut [], (skip, usize::MAX), |message| sys::sendmsg(fd, message, flags))
}

/// What a call is to receive: into its buffers from `skip` on, with these flags.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) iov: &'a [libc::iovec],
    pub(super) skip: usize,
    pub(super) flags: i32,
    /// How many bytes the buffers have room for.
    pub(super) room: usize,
}

impl<'a> Wanted<'a> {
    /// All that there is room for.
    #[inline(always)]
    pub(super) fn all(iov: &'a [libc::iovec], flags: i32) -> Self {
        Wanted { iov, skip: 0, flags, room: total(iov) }
    }

    /// How many bytes that are.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.room - self.skip
    }

    #[inline(always)]
    pub(super) fn peeks(&self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Whether the call waits for bytes if there are none.
    #[inline(always)]
    pub(super) fn waits(&self, conn: &Conn) -> bool {
        waits(conn, self.flags)
    }

    /// How many bytes it must find at once: a read can go on, a look cannot.
    pub(super) fn looks_at(&self) -> usize {
        if self.peeks() { self.len() } else { 0 }
    }

    /// What is wanted behind `seen` bytes.
    pub(super) fn behind(self, seen: usize) -> Self {
        Wanted { skip: seen, ..self }
    }

    /// Receives at most `most` bytes from the kernel, as the flags say.
    pub(super) fn by_kernel(&self, fd: i32, most: usize) -> Result<usize, Errno> {
        let flags = self.flags & !libc::MSG_WAITALL;
        with_parts(self.iov, (0, 0), &mut [], (self.skip, most), |message| sys::recvmsg(fd, message, flags))
    }

    /// As [`Wanted::by_kernel`], what is there.
    pub(super) fn there(&self, fd: i32, most: usize) -> Result<usize, Errno> {
        Wanted { flags: self.flags | libc::MSG_DONTWAIT, ..*self }.by_kernel(fd, most)
    }
}

/// What a call on `fd` comes to that was made with MSG_DONTWAIT, as a handler has ended it: EINTR
/// where it would have waited.
pub(super) fn or_interrupted(fd: i32, result: Result<usize, Errno>) -> Outcome {
    Outcome::Done(match result {
        Err(Errno::EAGAIN) if seen::blocks(fd) => Err(Errno::EINTR),
        result => result,
    })
}

/// What a call comes to in a handler of a thread that is in the middle of such a call itself: it
/// can be made when the handler has returned.
#[cold]
pub(super) fn not_now(waits: bool) -> Errno {
    if waits { Errno::EINTR } else { Errno::EAGAIN }
}

/// Whether a call with these flags waits.
#[inline(always)]
pub(super) fn waits(conn: &Conn, flags: i32) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && !conn.has(flag::NONBLOCK)
}
