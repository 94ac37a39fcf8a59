//! A unit of work while it runs in a process: its copies see here that it was cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set once.
#[derive(Debug, Default)]
pub struct Flag(AtomicBool);

impl Flag {
    /// Whether it is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it. Copies that sleep must be woken.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A unit of work.
#[derive(Debug)]
pub struct Running {
    /// Its number, which grows.
    pub id: u64,
    /// Its parameters: the bytes that were appended.
    pub params: Vec<u8>,
    cancelled: Flag,
    /// All that runs in this process is given up: a neighbour was lost.
    aborted: Arc<Flag>,
}

impl Running {
    /// One that begins, of a session that may be aborted.
    pub fn new(id: u64, params: Vec<u8>, aborted: Arc<Flag>) -> Running {
        Running { id, params, cancelled: Flag::default(), aborted }
    }

    /// Whether it was cancelled.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_set() || self.is_aborted()
    }

    /// Whether not even its end is wanted any more.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.aborted.is_set()
    }

    /// Cancels it. Copies that sleep must be woken.
    pub fn cancel(&self) {
        self.cancelled.set();
    }
}

/// The end of a copy's wait.
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// When the unit of work is cancelled.
    Cancelled(&'a Running),
    /// When not even its end is wanted: ends are written and waited for whether or not it was
    /// cancelled.
    Aborted(&'a Running),
}

impl Until<'_> {
    /// Whether that is so.
    #[inline]
    pub fn is_over(&self) -> bool {
        match self {
            Until::Cancelled(running) => running.is_cancelled(),
            Until::Aborted(running) => running.is_aborted(),
        }
    }

    /// The unit of work.
    pub fn uow(&self) -> u64 {
        match self {
            Until::Cancelled(running) | Until::Aborted(running) => running.id,
        }
    }
}
