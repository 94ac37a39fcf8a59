//! Mutexes whose holders may panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also what a thread that panicked has left.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
