//! Resources of one process: statics that begin anew in a child of fork(), and sockets that a child
//! closes. [`crate::fork`] handles both.

use core::cell::UnsafeCell;
use core::ops::Deref;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use fabric::sys;

/// A static that each process has for itself.
pub struct PerProcess<T>(UnsafeCell<T>);

// SAFETY: it is shared as `T` is, but for [`PerProcess::renew`], whose callers are alone.
unsafe impl<T: Sync> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    /// Its value in a process that begins.
    pub const fn new(what: T) -> PerProcess<T> {
        PerProcess(UnsafeCell::new(what))
    }

    /// In a child: the parent's value is overwritten and not dropped, as its locks may be held by
    /// threads that do not exist here.
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
        // SAFETY: it is written only where nobody has a reference.
        unsafe { &*self.0.get() }
    }
}

/// A socket that is its process's alone: children close it, so that peers see the end when the
/// process that opened it ends.
pub struct Fd(OwnedFd);

static OPEN: PerProcess<Mutex<BTreeSet<RawFd>>> = PerProcess::new(Mutex::new(BTreeSet::new()));

impl Fd {
    /// Registers a socket that was opened.
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

/// Closes the parent's sockets in a child.
///
/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // A thread of the parent that opened or closed one just then has the lock; then the child keeps
    // its sockets.
    if let Ok(open) = OPEN.try_lock() {
        for &fd in open.iter() {
            sys::close(fd);
        }
    }
    // SAFETY: the caller vouches for it.
    unsafe { OPEN.renew(Mutex::new(BTreeSet::new())) };
}
