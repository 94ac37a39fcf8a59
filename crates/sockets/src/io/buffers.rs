//! The buffers of a call, and calls of the kernel with a part of them.

use fabric::sys::{self, Errno};

/// Published (and given back) in pieces of this size, so that both ends copy at the same time.
pub(super) const PIECE: usize = 32 << 10;

/// The bytes of an array of buffers.
pub(crate) fn total(iov: &[libc::iovec]) -> usize {
    iov.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len))
}

/// Calls `each` with the pieces of `count` bytes of the buffers, from `skip` on.
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

pub(super) fn with_message<T>(
    iov: &[libc::iovec],
    skip: usize,
    most: usize,
    call: impl FnOnce(&mut libc::msghdr) -> T,
) -> T {
    with_parts(iov, (0, 0), &mut [], (skip, most), call)
}

/// With two parts of the buffers (from where on, at most how many bytes), and something between them.
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

pub(super) fn kernel_recv(
    fd: i32,
    iov: &[libc::iovec],
    skip: usize,
    most: usize,
    flags: i32,
) -> Result<usize, Errno> {
    with_message(iov, skip, most, |message| sys::recvmsg(fd, message, flags & !libc::MSG_WAITALL))
}

pub(super) fn kernel_send(
    fd: i32,
    iov: &[libc::iovec],
    skip: usize,
    most: usize,
    flags: i32,
) -> Result<usize, Errno> {
    with_message(iov, skip, most, |message| sys::sendmsg(fd, message, flags))
}
