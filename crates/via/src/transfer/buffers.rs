//! Buffers of a descriptor, and bytes between them and memory, of this process or another one.

use fabric::{Remote, sys};

use crate::abi::Segment as Buffer;
use crate::limits::MAX_SEGMENTS;

/// Where a message begins in an eager buffer of `all` bytes behind `position`: not across its end.
pub(super) fn eager_start(position: u64, length: usize, all: usize) -> Option<u64> {
    let offset = position as usize % all;
    if length > all {
        None
    } else if offset + length > all {
        Some(position + (all - offset) as u64)
    } else {
        Some(position)
    }
}

/// The part of some buffers that has `length` bytes from byte `from` on.
#[cold]
pub(super) fn part_of<'a>(
    buffers: &[Buffer],
    mut from: usize,
    mut length: usize,
    parts: &'a mut [Buffer; MAX_SEGMENTS],
) -> &'a [Buffer] {
    let mut count = 0;
    for buffer in buffers {
        let all = buffer.length as usize;
        let skipped = from.min(all);
        let taken = (all - skipped).min(length);
        if taken > 0 {
            let address = buffer.address + skipped as u64;
            parts[count] = Buffer { address, handle: buffer.handle, length: taken as u32 };
            count += 1;
        }
        from -= skipped;
        length -= taken;
    }
    &parts[..count]
}

/// Copies buffers one behind the other.
///
/// # Safety
/// The buffers must be mapped, and `to` have room for all.
pub(super) unsafe fn gather(from: &[Buffer], mut to: *mut u8) {
    for buffer in from {
        // SAFETY: the caller vouches for both.
        unsafe {
            core::ptr::copy(buffer.address as *const u8, to, buffer.length as usize);
            to = to.add(buffer.length as usize);
        }
    }
}

/// Puts buffers one behind the other.
///
/// # Safety
/// The buffers must be mapped.
#[inline]
pub(super) unsafe fn put_all<R: Remote>(map: &R, mut to: usize, buffers: &[Buffer]) {
    for buffer in buffers {
        // SAFETY: the caller vouches for the buffer.
        unsafe { map.put(to, buffer.address as *const u8, buffer.length as usize) };
        to += buffer.length as usize;
    }
}

/// Copies `length` bytes into buffers, by a function that copies from one place of the message.
///
/// # Safety
/// The buffers must be mapped, and be long enough together.
#[inline(always)]
pub(super) unsafe fn scatter(to: &[Buffer], length: usize, mut copy: impl FnMut(usize, *mut u8, usize)) {
    let mut done = 0;
    for buffer in to {
        let part = (length - done).min(buffer.length as usize);
        if part > 0 {
            copy(done, buffer.address as *mut u8, part);
            done += part;
        }
    }
}

/// Copies `length` bytes between buffers here and there, by the kernel. False if not all were
/// copied.
///
/// # Safety
/// The buffers here must be mapped.
pub(super) unsafe fn copy(pid: u32, here: &[Buffer], there: &[Buffer], length: usize, write: bool) -> bool {
    if length == 0 {
        return true;
    }
    let (mut local, mut remote) = ([iovec(0, 0); MAX_SEGMENTS], [iovec(0, 0); MAX_SEGMENTS]);
    let local = fill(&mut local, here, length);
    let remote = fill(&mut remote, there, length);
    let copied = if write {
        // SAFETY: the caller vouches for the buffers.
        unsafe { sys::process_vm_writev(pid, local, remote) }
    } else {
        // SAFETY: as above.
        unsafe { sys::process_vm_readv(pid, local, remote) }
    };
    copied == Ok(length)
}

/// The first `length` bytes of some buffers, for the kernel.
pub(super) fn fill<'a>(
    to: &'a mut [libc::iovec; MAX_SEGMENTS],
    from: &[Buffer],
    length: usize,
) -> &'a [libc::iovec] {
    let mut left = length;
    let mut count = 0;
    for buffer in from {
        let part = left.min(buffer.length as usize);
        if part > 0 {
            to[count] = iovec(buffer.address, part);
            count += 1;
        }
        left -= part;
    }
    &to[..count]
}

pub(super) fn iovec(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut _, iov_len: length }
}
