//! What processes and threads of the simulated world have of signals.

use std::rc::Rc;

use sim::kernel::Pid;

/// The one signal that there is.
pub const SIGNAL: i32 = libc::SIGUSR1;
pub const BIT: u64 = 1 << (SIGNAL - 1);

/// What a process does about it.
#[derive(Clone)]
pub struct Handler {
    pub pid: Pid,
    /// SA_RESTART.
    pub restarts: bool,
    pub body: Rc<dyn Fn()>,
    /// What the library has given the kernel for it.
    pub given: extern "C" fn(i32),
}

/// What a thread has of it.
#[derive(Debug, Default, Clone, Copy)]
pub struct Signals {
    pub pending: bool,
    /// Whether one may come: programs let them come within calls on connections.
    pub hears: bool,
    /// What it blocks instead, in ppoll() and its like.
    pub instead: Option<u64>,
    /// How many handlers have run, and other reasons for EINTR.
    pub handled: u64,
    /// It was stopped in a call that ends by that.
    pub continued: bool,
    /// The handler that it has given to rt_sigaction() last.
    pub given: usize,
    /// How many handlers it is in, and how many have run.
    pub within: u32,
    pub run: u64,
    /// Of the call that hears, when its first sleep began, and how many had run.
    pub slept: Option<(u64, u64)>,
}

/// In so much time a wait may be several sleeps that a handler between them does not end.
pub const MOMENT_NS: u64 = 30_000_000;
