//! System calls, made directly: the library's own calls must not go through libc's symbols, which it interposes, nor set errno.

pub use syscalls::{Errno, Sysno};

macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        // SAFETY: each caller below passes what the kernel's interface for this call asks for.
        unsafe { syscalls::syscall!($crate::sys::calls::number::$nr $(, $arg)*) }
    };
}

pub mod calls;
#[cfg(not(loom))]
pub mod locking;
#[cfg(loom)]
#[path = "sys/locking_not.rs"]
pub mod locking;

mod clock;
mod files;
mod memory;
mod process;
mod random;
mod socket;
mod wait;

pub use clock::*;
pub use files::*;
pub use memory::*;
pub use process::*;
pub use random::*;
pub use socket::*;
pub use wait::*;
