//! The interface between a simulated process and the simulator, instead of the machine
//! (`--cfg sim`): system calls, clock, scheduler. The simulator (`crates/sim`) compiles this file,
//! too, so both sides have one layout.

use core::ffi::{c_char, c_void};

/// The functions and words that the simulator gives to each copy of the library. One thread runs at
/// a time, so plain memory will do.
#[repr(C)]
pub struct Host {
    /// Steps on shared memory that the thread may still make before another one gets its turn. A
    /// thread that finds zero calls [`Host::pause`].
    pub budget: *mut u64,
    /// Lets others run.
    pub pause: unsafe extern "C" fn(),
    /// One turn of a spin loop: time goes on, and others may run.
    pub spin: unsafe extern "C" fn(),
    /// A system call. Returns when the call does: its value, or minus the error, as the kernel
    /// would.
    pub call: unsafe extern "C" fn(number: i32, arguments: *const [usize; 6]) -> isize,
    /// The processor's clock: one tick is a nanosecond.
    pub ticks: unsafe extern "C" fn() -> u64,
    /// libc's function of this name; null if the simulator has none.
    pub next: unsafe extern "C" fn(name: *const c_char) -> *const c_void,
    /// [`THREAD_BYTES`] of memory of the thread's own, zeroed when the thread began.
    pub thread: unsafe extern "C" fn() -> *mut u8,
    /// The number of a rule of the machine that is switched off, to show that it is needed
    /// (`sockets/src/path/rules.rs` numbers them from 1); 0 if all hold.
    pub off: u32,
}

/// Bytes of memory that a thread has for itself.
pub const THREAD_BYTES: usize = 256;
