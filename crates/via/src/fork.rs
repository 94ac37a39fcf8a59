//! Children of fork(). A child has no part in what its parent has opened: the parent's handles are worth nothing there, its connections are not kept open,
//! and what the child opens, registers and allocates is its own. So all that a process keeps in statics begins anew in the child, whatever
//! threads of the parent were doing with it just then: nothing there is locked, read or freed.

use core::cell::UnsafeCell;
use core::ops::Deref;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, Once, PoisonError};

use fabric::sys;

/// A static that each process has for itself.
pub struct PerProcess<T>(UnsafeCell<T>);

// SAFETY: it is shared as `T` is, but for [`PerProcess::renew`], whose callers are alone.
unsafe impl<T: Sync> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    /// As it is in a process that begins.
    pub const fn new(what: T) -> PerProcess<T> {
        PerProcess(UnsafeCell::new(what))
    }

    /// In a child: what the parent had is left where it is, and not dropped, as its locks may be held by threads that do not exist here.
    ///
    /// # Safety
    /// The process has one thread, which has no reference to it.
    pub unsafe fn renew(&self, what: T) {
        // SAFETY: the caller vouches for it.
        unsafe { self.0.get().write(what) };
    }
}

impl<T> Deref for PerProcess<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: it is written to only where nobody has a reference.
        unsafe { &*self.0.get() }
    }
}

/// A socket that is its process's alone: children close it, so that peers see the end of the one who opened it.
pub struct Fd(OwnedFd);

static OPEN: PerProcess<Mutex<BTreeSet<RawFd>>> = PerProcess::new(Mutex::new(BTreeSet::new()));

impl Fd {
    /// Takes note of one that was opened.
    pub fn new(fd: OwnedFd) -> Fd {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).insert(fd.as_raw_fd());
        Fd(fd)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0.as_raw_fd());
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sees to it that children begin anew. Before anything is opened.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded: it has threads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    // A thread of the parent that opened or closed one just then has the lock; then the child keeps its sockets.
    if let Ok(open) = OPEN.try_lock() {
        for &fd in open.iter() {
            sys::close(fd);
        }
    }
    // SAFETY: a child has one thread, and it is in fork(), not in this library.
    unsafe {
        OPEN.renew(Mutex::new(BTreeSet::new()));
        crate::agent::in_child();
        crate::nic::in_child();
        crate::vi::in_child();
        crate::cq::in_child();
        crate::connect::in_child();
        crate::names::in_child();
        crate::arena::in_child();
    }
}
