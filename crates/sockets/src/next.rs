//! The next definitions behind ours in the order of symbols, libc's own functions, for the calls in
//! which a thread sleeps: they are the ones that know of cancellation. The library tells of them;
//! without it (in tests of this crate) the kernel is called directly.

use core::mem::transmute;

use fabric::sync::{AtomicUsize, Ordering};
use fabric::sys::{self, Errno};

/// recv(2).
pub type Recv = unsafe extern "C-unwind" fn(i32, *mut u8, usize, i32) -> isize;
/// ppoll(2).
pub type Ppoll =
    unsafe extern "C-unwind" fn(*mut libc::pollfd, u64, *const libc::timespec, *const libc::sigset_t) -> i32;
/// epoll_pwait2 is younger than Debian 12's oldest kernels: epoll_pwait(2).
pub type EpollPwait =
    unsafe extern "C-unwind" fn(i32, *mut libc::epoll_event, i32, i32, *const libc::sigset_t) -> i32;

/// pthread_testcancel(3).
pub type TestCancel = unsafe extern "C-unwind" fn();

static RECV: AtomicUsize = AtomicUsize::new(0);
static PPOLL: AtomicUsize = AtomicUsize::new(0);
static EPOLL_PWAIT: AtomicUsize = AtomicUsize::new(0);
static TEST_CANCEL: AtomicUsize = AtomicUsize::new(0);

/// Tells of libc's functions.
pub fn set(recv: Recv, ppoll: Ppoll, epoll_pwait: EpollPwait, test_cancel: TestCancel) {
    TEST_CANCEL.store(test_cancel as usize, Ordering::Release);
    RECV.store(recv as usize, Ordering::Release);
    PPOLL.store(ppoll as usize, Ordering::Release);
    EPOLL_PWAIT.store(epoll_pwait as usize, Ordering::Release);
}

/// Waits in recv() until there is a byte, which stays there (1), or the end (0).
pub(crate) fn wait_in_recv(fd: i32) -> Result<usize, Errno> {
    let mut byte = 0;
    match RECV.load(Ordering::Acquire) {
        0 => sys::recv(fd, &raw mut byte, 1, libc::MSG_PEEK),
        // SAFETY: only `set` stores here, a function of this type; there is room for one byte.
        at => answered(unsafe { transmute::<usize, Recv>(at)(fd, &raw mut byte, 1, libc::MSG_PEEK) }),
    }
}

/// ppoll(); the mask is the program's, or null.
pub(crate) fn ppoll(
    polls: &mut [libc::pollfd],
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let timeout = nanos.map(sys::timespec);
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let (at, count) = (polls.as_mut_ptr(), polls.len() as u64);
    match PPOLL.load(Ordering::Acquire) {
        // SAFETY: the array is valid, the timeout too, or null.
        0 => unsafe { sys::ppoll_raw(at, count, timeout, mask) },
        // SAFETY: only `set` stores here, a function of this type; the rest as above.
        next => answered(unsafe { transmute::<usize, Ppoll>(next)(at, count, timeout, mask) } as isize),
    }
}

/// epoll_pwait(), which rounds the time up to milliseconds; the mask is the program's, or null.
#[inline]
pub(crate) fn epoll_pwait(
    set: i32,
    places: &mut [libc::epoll_event],
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let millis = nanos.map_or(-1, |nanos| nanos.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
    let (at, most) = (places.as_mut_ptr(), places.len().min(i32::MAX as usize) as i32);
    match EPOLL_PWAIT.load(Ordering::Acquire) {
        0 => sys::epoll_pwait(set, at, most, millis, mask),
        next => {
            // SAFETY: only `set` stores here, a function of this type; the array is valid.
            let got = unsafe { transmute::<usize, EpollPwait>(next)(set, at, most, millis, mask) };
            answered(got as isize)
        }
    }
}

/// A thread that is to be cancelled ends here: before it sleeps in a call that libc knows nothing
/// of, and when a signal has ended that sleep, which may be libc's own (from glibc 2.41 on it sends
/// one to whichever thread it cancels, and its handler does nothing in calls that are not libc's).
/// No lock may be held.
pub(crate) fn test_cancel() {
    let at = TEST_CANCEL.load(Ordering::Acquire);
    if at != 0 {
        // SAFETY: only `set` stores here, a function of this type.
        unsafe { transmute::<usize, TestCancel>(at)() };
    }
}

/// Of libc's functions, which set errno.
fn answered(got: isize) -> Result<usize, Errno> {
    usize::try_from(got).map_err(|_| Errno::new(crate::errno::get()))
}
