//! The interface of a socket, in tables: every socket option, ioctl, flag and system call of Linux
//! 6.18 that can reach a connection, and what is done when a program uses it. The hooks ask here;
//! what stands in no table means tcp. `tests/interface.rs` compares the tables with the headers of
//! the machine, so that a name that a new kernel brings is noticed.

pub mod calls;
pub mod flags;
pub mod ioctls;
pub mod options;

/// What is done when a program uses something on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// We do it, as the kernel would.
    Follow,
    /// It does not matter where the bytes go; the kernel does it on the companion.
    Pass,
    /// Only the kernel's tcp can do it: the connection goes back, or is not promoted.
    Tcp,
    /// It may be about any connection of the process: all of them go back, and none is promoted
    /// from then on.
    Process,
}
