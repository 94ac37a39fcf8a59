//! For the progress thread, which is ordinary Rust: threads, time, descriptors and the few
//! functions of libc that it calls, as the simulator has them.

use core::ffi::{c_int, c_void};
use core::ops::Add;
use core::ptr;
use core::time::Duration;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use syscalls::Errno;

use crate::sys;

fn result(done: Result<usize, Errno>) -> isize {
    match done {
        Ok(value) => value as isize,
        Err(errno) => {
            // SAFETY: libc gives each thread a valid address; the scheduler keeps one value for
            // each simulated thread.
            unsafe { *libc::__errno_location() = errno.into_raw() };
            -1
        }
    }
}

/// # Safety
/// None is needed; it is libc's signature.
pub unsafe fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    result(sys::socket(family, kind, protocol).map(|fd| fd as usize)) as c_int
}

/// # Safety
/// As libc's.
pub unsafe fn connect(fd: c_int, address: *const libc::sockaddr, len: libc::socklen_t) -> c_int {
    result(sys::connect(fd, address, len).map(|()| 0)) as c_int
}

/// # Safety
/// As libc's.
pub unsafe fn send(fd: c_int, from: *const c_void, len: usize, flags: c_int) -> isize {
    result(sys::send(fd, from.cast(), len, flags))
}

/// # Safety
/// As libc's.
pub unsafe fn recv(fd: c_int, to: *mut c_void, len: usize, flags: c_int) -> isize {
    result(sys::recv(fd, to.cast(), len, flags))
}

/// # Safety
/// As libc's.
pub unsafe fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, millis: c_int) -> c_int {
    let fds = match count {
        0 => &mut [],
        // SAFETY: the caller's word.
        _ => unsafe { core::slice::from_raw_parts_mut(fds, count as usize) },
    };
    let nanos = u64::try_from(millis).ok().map(|millis| millis * 1_000_000);
    result(sys::ppoll(fds, nanos)) as c_int
}

/// # Safety
/// None is needed; it is libc's signature.
pub unsafe fn eventfd(_: u32, _: c_int) -> c_int {
    result(sys::eventfd().map(|fd| fd as usize)) as c_int
}

/// A descriptor that is closed when this is dropped.
#[derive(Debug)]
pub struct OwnedFd(RawFd);

impl FromRawFd for OwnedFd {
    unsafe fn from_raw_fd(fd: RawFd) -> OwnedFd {
        OwnedFd(fd)
    }
}

impl AsRawFd for OwnedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl Drop for OwnedFd {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// A time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    pub fn now() -> Instant {
        Instant(Duration::from_nanos(sys::now()))
    }
    pub fn elapsed(&self) -> Duration {
        Instant::now().0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

/// Makes threads.
#[derive(Debug, Default)]
pub struct Builder;

type Spawn = unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void), *mut c_void) -> u32;
type Join = unsafe extern "C" fn(u32);

impl Builder {
    pub fn new() -> Builder {
        Builder
    }

    #[must_use]
    pub fn name(self, _: String) -> Builder {
        self
    }

    /// # Errors
    /// If the simulator has no threads for libraries.
    pub fn spawn<T: 'static>(self, body: impl FnOnce() -> T + 'static) -> io::Result<JoinHandle<T>> {
        let spawn = super::next(c"shunt_sim_spawn");
        if spawn.is_null() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let result = Arc::new(Mutex::new(None));
        let to = Arc::clone(&result);
        let work: Box<dyn FnOnce()> = Box::new(move || {
            let done = body();
            *to.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        });
        // SAFETY: the simulator's function of this name has this type; `run` gets what it takes.
        let tid = unsafe {
            core::mem::transmute::<*const c_void, Spawn>(spawn)(run, Box::into_raw(Box::new(work)).cast())
        };
        Ok(JoinHandle { tid, result })
    }
}

unsafe extern "C" fn run(work: *mut c_void) {
    // SAFETY: `spawn` has made it, for this call alone.
    unsafe { Box::from_raw(work.cast::<Box<dyn FnOnce()>>())() }
}

/// A thread that was made.
#[derive(Debug)]
pub struct JoinHandle<T> {
    tid: u32,
    result: Arc<Mutex<Option<T>>>,
}

impl<T> JoinHandle<T> {
    /// Waits for its end.
    ///
    /// # Errors
    /// If it has not come to its end.
    pub fn join(self) -> std::thread::Result<T> {
        let join = super::next(c"shunt_sim_join");
        // SAFETY: the simulator's function of this name has this type.
        unsafe { core::mem::transmute::<*const c_void, Join>(join)(self.tid) };
        let done = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.ok_or_else(|| Box::new(ptr::null::<c_void>() as usize) as _)
    }
}
