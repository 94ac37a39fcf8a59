//! Libraries that take libc's functions before ours: loaded with RTLD_DEEPBIND, or into a namespace
//! with a libc of its own (dlmopen). What they do with a descriptor cannot be seen, so connections
//! go back to tcp before one is loaded. One that is loaded by its path with RTLD_DEEPBIND is then
//! bound to us (`binding.rs`), and what is connected later may move to memory; any other keeps the
//! process on tcp.
//!
//! dlopen() asks who called it, to search that library's own path. So the hooks look at the flags
//! and then jump: the caller is what it was. A path is not searched for, and we may be the caller.

use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sys;
use sockets::process;
use sockets::reason::Reason;

use crate::next::Next;
use crate::{binding, uring};

static DLOPEN: Next = Next::pointer(c"dlopen");
static DLMOPEN: Next = Next::pointer(c"dlmopen");

/// Before dlopen(): where to go on.
unsafe extern "C" fn opening(file: *const c_char, flags: c_int) -> usize {
    if flags & libc::RTLD_DEEPBIND != 0 && concerns_us() {
        // SAFETY: the program gives a C string.
        if unsafe { is_path(file) } && !binding::depends_on_caller() {
            return open_deep as *const () as usize;
        }
        uring::step_aside(Reason::DeepBind);
    }
    DLOPEN.get()
}

/// Not if no call of the program is ours. It may be that our constructor has not run yet.
fn concerns_us() -> bool {
    // SAFETY: asks for a number.
    !process::is_guest() && unsafe { libc::getauxval(libc::AT_SECURE) } == 0
}

/// Whether a file is named by a path, without names that stand for another.
///
/// # Safety
/// It is a C string, or null.
unsafe fn is_path(file: *const c_char) -> bool {
    if file.is_null() {
        return false;
    }
    // SAFETY: the caller vouches for it.
    let file = unsafe { CStr::from_ptr(file) }.to_bytes();
    file.contains(&b'/') && !file.contains(&b'$')
}

/// dlopen() of a path with RTLD_DEEPBIND. What the library does while it is loaded goes past us, so
/// nothing is in memory meanwhile.
unsafe extern "C-unwind" fn open_deep(file: *const c_char, flags: c_int) -> *mut c_void {
    process::bar_for_now();
    uring::give_back(Reason::DeepBind);
    let threads = sys::threads();
    // SAFETY: the caller keeps dlopen()'s contract; what it returns is open.
    let (handle, bound) = unsafe {
        let open = core::mem::transmute::<
            usize,
            unsafe extern "C-unwind" fn(*const c_char, c_int) -> *mut c_void,
        >(DLOPEN.get());
        let handle = open(file, flags);
        (handle, handle.is_null() || binding::bind(handle).is_ok())
    };
    // A thread that the library has started may be in a call of libc's, or be binding one.
    if !bound || threads.is_none() || sys::threads() != threads {
        process::bar(Reason::DeepBind);
    }
    process::unbar();
    handle
}

/// Before dlmopen(): the same.
unsafe extern "C" fn opening_in(namespace: isize, flags: c_int) -> usize {
    let deep = namespace != libc::LM_ID_BASE as isize || flags & libc::RTLD_DEEPBIND != 0;
    if deep && concerns_us() {
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
        "call {opening}",
        "add rsp, 8", "pop rsi", "pop rdi",
        "jmp rax",
        opening = sym opening,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x0, x1, [sp, #-32]!", "str x30, [sp, #16]",
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
