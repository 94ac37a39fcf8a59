//! Mutexes whose holders may panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a thread has panicked that had the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
