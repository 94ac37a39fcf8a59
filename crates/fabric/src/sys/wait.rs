//! Waiting until descriptors are ready: poll and epoll sets.

use core::ptr;
use syscalls::Errno;

use super::clock::timespec;

/// poll with nanoseconds; `None` waits for ever.
pub fn ppoll(fds: &mut [libc::pollfd], nanos: Option<u64>) -> Result<usize, Errno> {
    let timeout = nanos.map(timespec);
    let at = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    call!(ppoll, fds.as_mut_ptr(), fds.len(), at, 0, 8)
}

/// What `fd` is ready for now, as poll() tells it, of `events` and what is always told.
pub fn ready_for(fd: i32, events: i16) -> i16 {
    let mut poll = [libc::pollfd { fd, events, revents: 0 }];
    if ppoll(&mut poll, Some(0)).is_ok_and(|ready| ready > 0) { poll[0].revents } else { 0 }
}

/// Whether a read of `fd` would not block: there is data, or the end.
pub fn readable(fd: i32) -> bool {
    ready_for(fd, libc::POLLIN) != 0
}

/// Whether a write to `fd` would not block: there is room, or an error.
pub fn writable(fd: i32) -> bool {
    ready_for(fd, libc::POLLOUT) != 0
}

/// Makes an epoll set.
pub fn epoll_create() -> Result<i32, Errno> {
    call!(epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as i32)
}

/// Changes an epoll set.
pub fn epoll_ctl(set: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<(), Errno> {
    let event = libc::epoll_event { events, u64: data };
    call!(epoll_ctl, set, op, fd, &raw const event).map(drop)
}

/// Waits on an epoll set, at most `millis` (-1: for ever).
pub fn epoll_wait(set: i32, events: *mut libc::epoll_event, max: i32, millis: i32) -> Result<usize, Errno> {
    call!(epoll_pwait, set, events, max, millis, 0, 8)
}

/// Whether a descriptor becomes ready for `events` (poll()'s) within `nanos` nanoseconds.
pub fn waits_for(fd: i32, events: i16, nanos: u64) -> bool {
    ppoll(&mut [libc::pollfd { fd, events, revents: 0 }], Some(nanos)).is_ok_and(|count| count > 0)
}

/// ppoll as the kernel has it.
///
/// # Safety
/// `timeout` is null or valid; the rest is the kernel's to check.
pub unsafe fn ppoll_raw(
    fds: *mut libc::pollfd,
    count: u64,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // The kernel writes the remaining time back: libc hides that, and so do we.
    // SAFETY: the caller vouches for it.
    let copy = unsafe { timeout.as_ref() }.copied();
    call!(ppoll, fds, count, copy.as_ref().map_or(ptr::null(), ptr::from_ref), mask, 8)
}

/// epoll_pwait as the kernel has it.
pub fn epoll_pwait(
    set: i32,
    events: *mut libc::epoll_event,
    max: i32,
    millis: i32,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    call!(epoll_pwait, set, events, max, millis, mask, 8)
}

/// Most calls do nothing, some let other threads run, a few sleep for up to 300 us: see
/// [`crate::sync::perturb`].
#[cfg(perturb)]
pub fn perturb() {
    let mut dice = super::clock::now().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    dice ^= dice >> 29;
    dice = dice.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    match dice % 512 {
        0..2 => drop(ppoll(&mut [], Some(dice / 512 % 300_000))),
        2..10 => super::process::yield_now(),
        _ => {}
    }
}
