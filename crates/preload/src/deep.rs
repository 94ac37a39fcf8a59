//! Libraries that take libc's functions before ours: loaded with RTLD_DEEPBIND, or into a namespace
//! with a libc of its own (dlmopen). What they do with a descriptor cannot be seen, so connections
//! go back to tcp before one is loaded.
//!
//! dlopen() asks who called it, to search that library's own path. So the hooks look at the flags
//! and then jump: the caller is what it was.

use core::arch::naked_asm;
use core::ffi::c_int;
use sockets::reason::Reason;

use crate::next::Next;
use crate::uring;

static DLOPEN: Next = Next::new(c"dlopen");
static DLMOPEN: Next = Next::new(c"dlmopen");

/// Before dlopen() with these flags: where to go on.
unsafe extern "C" fn opening(flags: c_int) -> usize {
    if flags & libc::RTLD_DEEPBIND != 0 {
        uring::step_aside(Reason::DeepBind);
    }
    DLOPEN.get()
}

/// Before dlmopen(): the same.
unsafe extern "C" fn opening_in(namespace: isize, flags: c_int) -> usize {
    if namespace != libc::LM_ID_BASE as isize || flags & libc::RTLD_DEEPBIND != 0 {
        uring::step_aside(Reason::DeepBind);
    }
    DLMOPEN.get()
}

/// # Safety
/// As for libc's function of this name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlopen() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8",
        "mov edi, esi",
        "call {opening}",
        "add rsp, 8", "pop rsi", "pop rdi",
        "jmp rax",
        opening = sym opening,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x0, x1, [sp, #-32]!", "str x30, [sp, #16]",
        "mov w0, w1",
        "bl {opening}",
        "mov x16, x0",
        "ldr x30, [sp, #16]", "ldp x0, x1, [sp], #32",
        "br x16",
        opening = sym opening,
    );
}

/// # Safety
/// As for libc's function of this name.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlmopen() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "mov esi, edx",
        "call {opening}",
        "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        opening = sym opening_in,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x0, x1, [sp, #-32]!", "stp x2, x30, [sp, #16]",
        "mov w1, w2",
        "bl {opening}",
        "mov x16, x0",
        "ldp x2, x30, [sp, #16]", "ldp x0, x1, [sp], #32",
        "br x16",
        opening = sym opening_in,
    );
}
