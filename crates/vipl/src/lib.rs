//! `libvipl.so`: the C functions of `include/vipl.h`. Each is a few lines over `via`, which read
//! its arguments and write its results. A null pointer where something is to be written is
//! `VIP_INVALID_PARAMETER`, as is a handle that does not exist.
#![allow(non_snake_case)] // the specification's names

mod connect;
mod cq;
mod memory;
mod names;
mod nic;
mod vi;

use core::ffi::c_void;

use via::abi::Return;

/// The result of a call that returns nothing else.
fn told(result: Result<(), Return>) -> Return {
    result.err().unwrap_or(Return::Success)
}

/// Writes a result where the program wants it.
///
/// # Safety
/// `to` is null, or may be written.
unsafe fn given<T>(to: *mut T, make: impl FnOnce() -> Result<T, Return>) -> Return {
    if to.is_null() {
        return Return::InvalidParameter;
    }
    match make() {
        Ok(value) => {
            // SAFETY: the caller vouches for it, and it is not null.
            unsafe { to.write(value) };
            Return::Success
        }
        Err(error) => error,
    }
}

/// A handle.
type Handle = *mut c_void;
