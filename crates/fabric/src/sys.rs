//! System calls, made directly. The library's own calls must not go through libc's symbols, as it
//! interposes them, and must not set errno.

pub use syscalls::{Errno, Sysno};

#[cfg(sim)]
macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {{
        let words: &[usize] = &[$($crate::sim::Argument::word($arg)),*];
        $crate::sim::call($crate::sys::calls::number::$nr, words)
    }};
}
#[cfg(not(sim))]
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
mod unix;
mod wait;

pub use clock::*;
pub use files::*;
pub use memory::*;
pub use process::*;
pub use random::*;
pub use socket::*;
pub use unix::*;
pub use wait::*;
