//! The lock of a work queue. Threads of one process may share a Virtual Interface, but hardly ever
//! use it at the same moment, and every call takes a lock. So releasing it is a plain store, which
//! costs next to nothing; a lock that wakes sleepers needs another atomic exchange. A thread that
//! finds it taken spins, then lets others run, then sleeps for longer and longer.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

#[cfg(not(loom))]
use fabric::sync::spin_hint;
use fabric::sync::{AtomicU32, Ordering};

/// Data that one thread uses at a time.
pub struct Lock<T> {
    taken: AtomicU32,
    what: UnsafeCell<T>,
}

// SAFETY: the holder of the lock is alone with the data.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock is held while this lives.
pub struct Guard<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    /// A lock that is free.
    #[cfg(not(loom))]
    pub const fn new(what: T) -> Lock<T> {
        Lock { taken: AtomicU32::new(0), what: UnsafeCell::new(what) }
    }

    /// As above, for the model checker.
    #[cfg(loom)]
    pub fn new(what: T) -> Lock<T> {
        Lock { taken: AtomicU32::new(0), what: UnsafeCell::new(what) }
    }

    /// Waits until the lock is free, and takes it.
    #[inline(always)]
    pub fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.lock_slowly();
        }
        Guard(self)
    }

    #[inline(always)]
    fn take(&self) -> bool {
        self.taken.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn lock_slowly(&self) {
        let mut turns = 0u32;
        while !self.take() {
            wait(turns);
            turns = turns.saturating_add(1);
        }
    }
}

#[cfg(not(loom))]
fn wait(turns: u32) {
    match turns {
        0..200 => spin_hint(),
        200..220 => fabric::sys::yield_now(),
        _ => std::thread::sleep(core::time::Duration::from_micros(u64::from(turns - 219).min(20) * 50)),
    }
}

#[cfg(loom)]
fn wait(_turns: u32) {
    loom::thread::yield_now();
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the guard's thread has the lock.
        unsafe { &*self.0.what.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard's thread has the lock.
        unsafe { &mut *self.0.what.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.taken.store(0, Ordering::Release);
    }
}
