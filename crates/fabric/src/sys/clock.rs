//! The time, and times in the kernel's format.

/// Time since boot in nanoseconds, not adjusted. Read by the vDSO, so no system call is made where
/// the kernel can do without; libc's own function may be another library's (libfaketime).
#[cfg(not(sim))]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The simulated world's.
#[cfg(sim)]
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Processor time that this process has used, in nanoseconds.
pub fn cpu_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = call!(clock_gettime, which, &raw mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds as a timespec.
pub fn timespec(nanos: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}
