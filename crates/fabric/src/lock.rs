//! Locks that are words in shared memory and survive their owner. The word holds the owner's thread
//! id. A thread that has waited long asks the kernel whether the owner lives, and takes the lock
//! over if it does not.
//!
//! The data that they protect is left consistent by construction: indices are published last. Where
//! that is impossible, the holder marks each operation that it begins, and the next holder
//! completes it.

use crate::sync::{AtomicU32, Ordering, futex_wait, futex_wake, perturb, spin_hint, thread_lives};

const WAITERS: u32 = 1 << 31;

/// The lock; zeroed memory is an unlocked one.
#[repr(transparent)]
#[derive(Debug)]
pub struct Lock(AtomicU32);

impl Default for Lock {
    fn default() -> Self {
        Self::new()
    }
}

impl Lock {
    /// An unlocked lock.
    pub fn new() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// An unlocked lock, in a static.
    #[cfg(not(loom))]
    pub const fn unlocked() -> Lock {
        Lock(AtomicU32::new(0))
    }

    /// Unlocks, whoever holds it: for the child of fork(), in which the holder does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Takes the lock for thread `tid`. Returns false at once if the thread has it already; the
    /// caller must not unlock then (it runs in a signal handler that interrupted the holder).
    #[inline(always)]
    #[must_use]
    pub fn lock(&self, tid: u32) -> bool {
        perturb();
        match self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => true,
            Err(_) => self.lock_slowly(tid),
        }
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    #[must_use]
    pub fn try_lock(&self, tid: u32) -> bool {
        self.0.compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock. This is a full fence: what was stored before is visible before anything
    /// is loaded afterwards.
    #[inline(always)]
    pub fn unlock(&self) {
        perturb();
        let was = self.0.swap(0, Ordering::SeqCst);
        // On x86 the swap is a fence by itself.
        #[cfg(any(loom, not(target_arch = "x86_64")))]
        crate::sync::fence(Ordering::SeqCst);
        if was & WAITERS != 0 {
            futex_wake(&self.0, 1);
        }
    }

    /// The thread that holds it, or 0.
    pub fn owner(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !WAITERS
    }

    #[cold]
    fn lock_slowly(&self, tid: u32) -> bool {
        let mut turns = 0u32;
        loop {
            let held = self.0.load(Ordering::Relaxed);
            if held & !WAITERS == tid {
                return false;
            }
            if held == 0 {
                // Others may sleep behind the previous owner: keep the mark once we have slept.
                let mine = if turns >= SPINS { tid | WAITERS } else { tid };
                if self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return true;
                }
                continue;
            }
            turns += 1;
            if turns < SPINS {
                spin_hint();
                continue;
            }
            if held & WAITERS == 0
                && self
                    .0
                    .compare_exchange(held, held | WAITERS, Ordering::Relaxed, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            futex_wait(&self.0, held | WAITERS, 10_000_000);
            let still = self.0.load(Ordering::Relaxed);
            if still != 0 && still & !WAITERS == held & !WAITERS && !thread_lives(held & !WAITERS) {
                let mine = tid | WAITERS;
                if self.0.compare_exchange(still, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return true;
                }
            }
        }
    }
}

const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };
