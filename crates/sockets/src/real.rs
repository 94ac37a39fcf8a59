//! libc's own functions, for the calls in which a thread sleeps: they are the ones that know of cancellation. The library fills
//! this in; without it (in tests of this crate) the kernel is called directly.

use fabric::sync::{AtomicUsize, Ordering};

/// recv(2).
pub type Recv = unsafe extern "C-unwind" fn(i32, *mut u8, usize, i32) -> isize;
/// ppoll(2).
pub type Ppoll =
    unsafe extern "C-unwind" fn(*mut libc::pollfd, u64, *const libc::timespec, *const libc::sigset_t) -> i32;
/// epoll_pwait2 is younger than Debian 12's oldest kernels: epoll_pwait(2).
pub type EpollPwait =
    unsafe extern "C-unwind" fn(i32, *mut libc::epoll_event, i32, i32, *const libc::sigset_t) -> i32;

static RECV: AtomicUsize = AtomicUsize::new(0);
static PPOLL: AtomicUsize = AtomicUsize::new(0);
static EPOLL_PWAIT: AtomicUsize = AtomicUsize::new(0);

/// Tells of libc's functions.
pub fn set(recv: Recv, ppoll: Ppoll, epoll_pwait: EpollPwait) {
    RECV.store(recv as usize, Ordering::Release);
    PPOLL.store(ppoll as usize, Ordering::Release);
    EPOLL_PWAIT.store(epoll_pwait as usize, Ordering::Release);
}

/// libc's recv: returns -1 and sets errno.
pub fn recv() -> Recv {
    let at = RECV.load(Ordering::Acquire);
    // SAFETY: only `set` stores here, a function of this type.
    if at == 0 { direct_recv } else { unsafe { core::mem::transmute::<usize, Recv>(at) } }
}

/// libc's ppoll.
pub fn ppoll() -> Ppoll {
    let at = PPOLL.load(Ordering::Acquire);
    // SAFETY: as above.
    if at == 0 { direct_ppoll } else { unsafe { core::mem::transmute::<usize, Ppoll>(at) } }
}

/// libc's epoll_pwait.
pub fn epoll_pwait() -> EpollPwait {
    let at = EPOLL_PWAIT.load(Ordering::Acquire);
    // SAFETY: as above.
    if at == 0 { direct_epoll_pwait } else { unsafe { core::mem::transmute::<usize, EpollPwait>(at) } }
}

/// The calling thread's errno.
pub fn errno() -> i32 {
    // SAFETY: libc gives each thread a valid address.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(errno: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

fn result<T: TryFrom<usize>>(result: Result<usize, fabric::sys::Errno>, failed: T) -> T {
    match result {
        Ok(value) => T::try_from(value).unwrap_or(failed),
        Err(errno) => {
            set_errno(errno.into_raw());
            failed
        }
    }
}

unsafe extern "C-unwind" fn direct_recv(fd: i32, to: *mut u8, len: usize, flags: i32) -> isize {
    result(fabric::sys::recv(fd, to, len, flags), -1)
}

unsafe extern "C-unwind" fn direct_ppoll(
    fds: *mut libc::pollfd,
    count: u64,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> i32 {
    // SAFETY: the caller keeps ppoll's contract.
    result(unsafe { fabric::sys::ppoll_raw(fds, count, timeout, mask) }, -1)
}

unsafe extern "C-unwind" fn direct_epoll_pwait(
    set: i32,
    events: *mut libc::epoll_event,
    max: i32,
    timeout: i32,
    mask: *const libc::sigset_t,
) -> i32 {
    result(fabric::sys::epoll_pwait(set, events, max, timeout, mask), -1)
}
