//! The way to a port's thread: its bell, and which one it is.

use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use fabric::bell;

use crate::world::OwnedFd;

pub(crate) struct Server {
    bell: OwnedFd,
    /// What pthread_self() is there; 0 until it runs.
    thread: AtomicUsize,
}

impl Server {
    pub fn new(bell: OwnedFd) -> Server {
        Server { bell, thread: AtomicUsize::new(0) }
    }

    /// The port's thread says that it is.
    pub fn is_this_thread(&self) {
        self.thread.store(this_thread(), Ordering::Relaxed);
    }

    /// Whether the calling thread is the port's.
    pub fn is_here(&self) -> bool {
        self.thread.load(Ordering::Relaxed) == this_thread()
    }

    pub fn bell(&self) -> i32 {
        self.bell.as_raw_fd()
    }

    pub fn ring(&self) {
        bell::ring(self.bell());
    }
}

fn this_thread() -> usize {
    // SAFETY: it has no preconditions.
    unsafe { libc::pthread_self() as usize }
}
