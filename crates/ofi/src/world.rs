//! Threads, time and descriptors: the machine's, or those of the simulator (`--cfg sim`).

#[cfg(sim)]
pub use fabric::sim::os::{self, Builder, Instant, JoinHandle, OwnedFd};
#[cfg(not(sim))]
pub use {
    libc as os,
    std::os::fd::OwnedFd,
    std::thread::{Builder, JoinHandle},
    std::time::Instant,
};
