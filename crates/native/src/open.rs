//! An open socket, and the list of all of them. The list has two purposes. In a child of fork()
//! streams are closed, so that the parent's connections end when the parent closes them. And if a
//! number comes a second time, other code has closed a stream's descriptor: the list shows that, so
//! that no stream reads or writes another one's bytes.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::{cell, io};

use fabric::sync::{AtomicBool, Ordering};

use crate::address::Address;
use crate::calls::Calls;
use crate::library;
use crate::path::Path;

/// An open socket.
pub struct Open {
    fd: c_int,
    pub calls: &'static Calls,
    /// Whether it is a connection, which is closed in a child.
    stream: bool,
    /// The kernel's cookie of the socket: tells it from another one with the same number.
    cookie: u64,
    /// Whether the number is not ours any more.
    lost: AtomicBool,
}

impl Open {
    /// Makes a socket for addresses of this family.
    pub fn new(family: c_int, path: Path, stream: bool) -> io::Result<Arc<Open>> {
        let calls = library::calls(path);
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        // SAFETY: takes no memory.
        let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_TCP) };
        let fd = cvt(fd)?;
        if let Some(is_new) = calls.is_new {
            // SAFETY: takes any number.
            unsafe { is_new(fd) };
        }
        Ok(Open::enter(fd, calls, stream))
    }

    /// Puts a socket that was just made, or accepted, into the list.
    pub fn enter(fd: c_int, calls: &'static Calls, stream: bool) -> Arc<Open> {
        watch_forks();
        let cookie = cookie(fd).unwrap_or(0);
        let open = Arc::new(Open { fd, calls, stream, cookie, lost: AtomicBool::new(false) });
        if let Some(before) = lock().insert(fd, open.clone()) {
            before.lost.store(true, Ordering::Release);
        }
        open
    }

    /// Its number, if that is still ours.
    #[inline]
    pub fn fd(&self) -> io::Result<c_int> {
        // Pairs with the store when the number is lost: nothing else depends on it.
        match self.lost.load(Ordering::Acquire) {
            false => Ok(self.fd),
            true => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// Sets an option of the socket.
    pub fn set<T>(&self, level: c_int, name: c_int, value: T) -> io::Result<()> {
        let len = size_of::<T>() as libc::socklen_t;
        // SAFETY: the value is valid for so many bytes.
        cvt(unsafe { (self.calls.setsockopt)(self.fd()?, level, name, (&raw const value).cast(), len) })
            .map(drop)
    }

    /// The error that waits at the socket, if one does.
    pub fn take_error(&self) -> io::Result<()> {
        match option::<c_int>(self.fd()?, libc::SO_ERROR)? {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// An address of the socket, which `ask` (getsockname, getpeername) gives.
    pub fn address(
        &self,
        ask: unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int,
    ) -> io::Result<SocketAddr> {
        let mut address = Address::empty();
        let (place, len) = address.as_mut_ptr();
        // SAFETY: the address is valid for a write of its length.
        cvt(unsafe { ask(self.fd()?, place, len) })?;
        address.to_std()
    }

    /// Waits until one of `events` occurs, `millis` at most (-1: for ever). False if none does.
    pub fn poll(&self, events: i16, millis: c_int) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.fd()?, events, revents: 0 };
        // SAFETY: one entry, which is valid.
        let count = cvt(unsafe { (self.calls.poll)(&raw mut poll, 1, millis) })?;
        if poll.revents & libc::POLLNVAL != 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        Ok(count > 0)
    }

    /// Closes it. Drop does not do that, as the list holds the socket, too.
    pub fn close(self: &Arc<Open>) {
        if self.lost.load(Ordering::Acquire) {
            return;
        }
        self.shut_down();
        let mut all = lock();
        // It stays in the list while it is being closed, for a fork() in between. Now the number
        // may be another one's already.
        if all.get(&self.fd).is_some_and(|open| Arc::ptr_eq(open, self)) {
            all.remove(&self.fd);
        }
    }

    /// Closes the descriptor, unless other code has, and the number belongs to another file now.
    fn shut_down(&self) {
        if self.cookie == 0 || cookie(self.fd) == Some(self.cookie) {
            // SAFETY: it is ours, and nobody uses it any more.
            unsafe { (self.calls.close)(self.fd) };
        }
    }
}

/// The kernel's SO_COOKIE.
fn cookie(fd: c_int) -> Option<u64> {
    option(fd, libc::SO_COOKIE).ok()
}

fn option<T: Default>(fd: c_int, name: c_int) -> io::Result<T> {
    let (mut value, mut len) = (T::default(), size_of::<T>() as libc::socklen_t);
    let place = (&raw mut value).cast::<c_void>();
    // SAFETY: the value is valid for a write of so many bytes, and any bytes are a valid integer.
    cvt(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, place, &raw mut len) })?;
    Ok(value)
}

/// The result of a call, or errno.
pub fn cvt<T: PartialOrd + Default>(result: T) -> io::Result<T> {
    if result < T::default() { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// All that are open, by number.
type Opens = BTreeMap<c_int, Arc<Open>>;
static OPENS: Mutex<Opens> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, Opens> {
    OPENS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list's guard, kept while a fork() is made.
struct Frozen(cell::UnsafeCell<Option<MutexGuard<'static, Opens>>>);
// SAFETY: written and read only by the one thread that makes the fork(), and its child; libc makes
// one at a time.
unsafe impl Sync for Frozen {}
static FROZEN: Frozen = Frozen(cell::UnsafeCell::new(None));

/// Registers the handlers for fork(), once. The library registers before, so that in the child it
/// knows of the new process first.
fn watch_forks() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the three functions live as long as this code does: libc forgets them if it is
        // unloaded.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
    });
}

unsafe extern "C" fn before() {
    let opens = lock();
    // SAFETY: as `Frozen` says.
    unsafe { *FROZEN.0.get() = Some(opens) };
}

unsafe extern "C" fn after() {
    // SAFETY: as `Frozen` says.
    unsafe { *FROZEN.0.get() = None };
}

unsafe extern "C" fn child() {
    // SAFETY: as `Frozen` says.
    let Some(opens) = (unsafe { (*FROZEN.0.get()).take() }) else { return };
    // They stay in the list: removing them would free memory, and malloc's own handler may not have
    // run yet.
    for open in opens.values().filter(|open| open.stream) {
        open.shut_down();
        open.lost.store(true, Ordering::Release);
    }
}
