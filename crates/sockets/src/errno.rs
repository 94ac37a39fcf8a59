//! The calling thread's errno, as libc's callers find it.

/// The calling thread's errno.
pub fn get() -> i32 {
    // SAFETY: libc gives each thread a valid address.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set(errno: i32) {
    // SAFETY: libc gives each thread a valid address.
    unsafe { *libc::__errno_location() = errno }
}
