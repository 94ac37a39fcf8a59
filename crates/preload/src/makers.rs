//! What makes descriptors that are nothing to follow. Those that a library makes in a thread of
//! ours (libfabric, and what it drives devices by) are kept out of the program's way as our own
//! are: it gets the numbers that it counts on, and may close all that it knows.

use core::ffi::{c_char, c_int, c_uint};
use sockets::{descriptors, thread};

use crate::next::hooks;

/// Hides both ends.
unsafe fn pair(result: c_int, ends: *mut c_int) -> c_int {
    if result == 0 && thread::is_ours() {
        for index in 0..2 {
            // SAFETY: libc has written two numbers there.
            unsafe { *ends.add(index) = descriptors::of_library(*ends.add(index)) };
        }
    }
    result
}

hooks! {
    fn socket(next; family: c_int, kind: c_int, protocol: c_int) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(family, kind, protocol)) } else { next(family, kind, protocol) }
    }
    fn socketpair(next; family: c_int, kind: c_int, protocol: c_int, ends: *mut c_int) -> c_int {
        pair(next(family, kind, protocol, ends), ends)
    }
    fn pipe(next; ends: *mut c_int) -> c_int {
        pair(next(ends), ends)
    }
    fn pipe2(next; ends: *mut c_int, flags: c_int) -> c_int {
        pair(next(ends, flags), ends)
    }
    fn eventfd(next; count: c_uint, flags: c_int) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(count, flags)) } else { next(count, flags) }
    }
    fn timerfd_create(next; clock: c_int, flags: c_int) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(clock, flags)) } else { next(clock, flags) }
    }
    fn open(next; path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(path, flags, mode)) } else { next(path, flags, mode) }
    }
    fn open64(next; path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(path, flags, mode)) } else { next(path, flags, mode) }
    }
    fn openat(next; folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(folder, path, flags, mode)) } else { next(folder, path, flags, mode) }
    }
    fn openat64(next; folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        if thread::is_ours() { descriptors::for_library(|| next(folder, path, flags, mode)) } else { next(folder, path, flags, mode) }
    }
}
