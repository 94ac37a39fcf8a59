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
}
