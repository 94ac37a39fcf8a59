//! Jumps (longjmp and its kin): those out of a signal handler may leave a call of ours in the
//! middle, of which the kernel's would have come to its end first.

use core::ffi::c_int;
use sockets::jumps;

use crate::next::hooks;

/// Where glibc keeps the stack pointer of the place that is jumped to, among the words of a
/// jmp_buf; it is mangled there with a word of the thread's own.
const STACK: usize = 6;

/// # Safety
/// `to` is a jmp_buf that setjmp() has filled.
unsafe fn jumping(to: *const usize) {
    let guard: usize;
    // SAFETY: the word is in the thread's control block, where glibc's own longjmp reads it.
    unsafe {
        core::arch::asm!("mov {}, fs:0x30", out(reg) guard, options(nostack, readonly, preserves_flags))
    };
    // SAFETY: the caller's promise.
    jumps::jumps(unsafe { *to.add(STACK) }.rotate_right(17) ^ guard);
}

hooks! {
    fn longjmp(next; to: *const usize, value: c_int) {
        jumping(to);
        next(to, value)
    }
    // The same function in glibc.
    fn _longjmp(next; to: *const usize, value: c_int) {
        longjmp(to, value)
    }
    fn siglongjmp(next; to: *const usize, value: c_int) {
        longjmp(to, value)
    }
    fn __longjmp_chk(next; to: *const usize, value: c_int) {
        jumping(to);
        next(to, value)
    }
}
