//! What a call, and an attempt of it, comes to.

use fabric::sys::Errno;

/// How a call is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// By the kernel alone, on the companion.
    Kernel,
    /// It has been carried out.
    Done(Result<usize, Errno>),
}

/// What one attempt came to.
pub(crate) enum Attempt {
    Bytes(usize),
    /// Nothing to read, or no room to write.
    WouldBlock,
    End,
    Error(Errno),
    /// The connection is no longer ours: the kernel's call.
    Kernel,
    /// Nothing but the place of urgent data that was read: a call of the kernel's steps over it, a
    /// look does not.
    Mark,
}

impl Attempt {
    /// Of a call of the kernel's that does not wait.
    pub(crate) fn of(got: Result<usize, Errno>) -> Attempt {
        match got {
            Ok(0) => Attempt::End,
            Ok(count) => Attempt::Bytes(count),
            Err(Errno::EAGAIN) => Attempt::WouldBlock,
            Err(errno) => Attempt::Error(errno),
        }
    }
}
