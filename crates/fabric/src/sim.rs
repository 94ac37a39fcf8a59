//! The library in a simulated process (`--cfg sim`): atomics that let other threads run, and system
//! calls that the simulator's kernel answers. Each process is a copy of the library of its own, so
//! its statics belong to that process.

#![allow(missing_docs)]

pub mod os;

use crate::seam::Host;
use core::ffi::{CStr, c_void};
use core::ptr::addr_of;
use syscalls::Errno;

pub use crate::seam::THREAD_BYTES;

static mut HOST: *const Host = core::ptr::null();

/// Gives the process its host.
///
/// # Safety
/// Called once, before anything else of the library; the host outlives the process.
pub unsafe fn begin(host: *const Host) {
    // SAFETY: no other thread runs.
    unsafe { HOST = host }
}

#[inline(always)]
fn host() -> Option<&'static Host> {
    // SAFETY: `begin` has stored it before any thread ran, and it outlives the process.
    unsafe { addr_of!(HOST).read().as_ref() }
}

/// Called before each step on shared memory.
#[inline(always)]
pub fn step() {
    let Some(host) = host() else { return };
    // SAFETY: the host's, and one thread runs at a time.
    unsafe {
        if *host.budget == 0 {
            (host.pause)();
        } else {
            *host.budget -= 1;
        }
    }
}

pub fn spin() {
    if let Some(host) = host() {
        // SAFETY: the host's function, which asks for nothing.
        unsafe { (host.spin)() }
    }
}

pub fn ticks() -> u64 {
    // SAFETY: as above.
    host().map_or(0, |host| unsafe { (host.ticks)() })
}

/// Memory of the thread's own.
pub fn thread() -> *mut u8 {
    // SAFETY: as above.
    unsafe { (host().expect("begun").thread)() }
}

/// libc's function of this name.
pub fn next(name: &CStr) -> *const c_void {
    // SAFETY: the name is a C string.
    host().map_or(core::ptr::null(), |host| unsafe { (host.next)(name.as_ptr()) })
}

/// The number of the rule that is switched off; 0 if all hold.
pub fn off() -> u32 {
    host().map_or(0, |host| host.off)
}

/// A system call.
pub fn call(number: syscalls::Sysno, arguments: &[usize]) -> Result<usize, Errno> {
    let Some(host) = host() else { return Err(Errno::ENOSYS) };
    let mut words = [0; 6];
    words[..arguments.len()].copy_from_slice(arguments);
    // SAFETY: the arguments are what the caller would have given the kernel.
    let value = unsafe { (host.call)(number as i32, &raw const words) };
    Errno::from_ret(value as usize)
}

/// An argument of a system call, as the kernel takes it.
pub trait Argument {
    fn word(self) -> usize;
}

macro_rules! arguments {
    ($($type:ty),*) => {$(
        impl Argument for $type {
            fn word(self) -> usize { self as usize }
        }
    )*};
}
arguments!(usize, isize, u8, u32, i32, u64, i64, u16, i16);

impl<T: ?Sized> Argument for *const T {
    fn word(self) -> usize {
        self.cast::<u8>() as usize
    }
}
impl<T: ?Sized> Argument for *mut T {
    fn word(self) -> usize {
        self.cast::<u8>() as usize
    }
}
