//! Functions of libc that came, or moved to libc, after glibc 2.17, for our own code and for Rust's
//! library in it. The linker would bind them to the version that they have on the machine on which
//! we are built, and an older libc would load neither us nor the program. What we need beyond
//! them, each glibc has since 2.17 (`tests/symbols.rs`).
//!
//! Those of libpthread and libdl, which are in libc since 2.34, are looked up by name when they are
//! called. A program that has loaded neither library starts no threads and loads nothing. The
//! others are system calls.
//!
//! musl has them all in one file, of which we ask for nothing that only glibc has: its linker takes
//! libc.so.6, which we name, for musl itself, and ends a program whose library asks for more.
//!
//! No other code gets these: they are hidden.
//!
//! And hooks of calls that an older libc does not have ([`call`]): a program may make them by
//! syscall().

use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sync::{AtomicPtr, AtomicUsize, Ordering};
use syscalls::{Errno, Sysno, syscall};

use crate::loaded;
use sockets::errno;

/// Gives a function the name that others in this library call it by. Rust's library does without
/// some, and names them weakly, as they must be here, then.
macro_rules! hidden {
    ($name:ident) => {
        hidden!($name, ".globl ");
    };
    ($name:ident, $binding:literal) => {
        #[cfg(target_arch = "x86_64")]
        hidden!($name, $binding, "jmp");
        #[cfg(target_arch = "aarch64")]
        hidden!($name, $binding, "b");
    };
    ($name:ident, $binding:literal, $jump:literal) => {
        global_asm!(
            concat!(".pushsection .text.older.", stringify!($name), ",\"ax\",@progbits"),
            concat!($binding, stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($name), ": ", $jump, " {at}"),
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            at = sym $name,
        );
    };
}

/// Functions that are looked up, and what they return where nothing has them.
macro_rules! looked_up {
    ($($name:ident$function:tt -> $result:ty, else $absent:expr;)*) => {
        looked_up! { (".globl ") $($name$function -> $result, else $absent;)* }
    };
    (($binding:literal) $($name:ident($($arg:ident: $type:ty),*) -> $result:ty, else $absent:expr;)*) => {$(
        /// # Safety
        /// As for libc's function of this name.
        unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $result {
            static KNOWN: AtomicUsize = AtomicUsize::new(0);
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            };
            match found(&KNOWN, NAME) {
                0 => $absent,
                // SAFETY: libc's function has this type; the caller keeps its contract.
                at => unsafe {
                    core::mem::transmute::<usize, unsafe extern "C-unwind" fn($($type),*) -> $result>(at)($($arg),*)
                },
            }
        }
        hidden!($name, $binding);
    )*};
}

/// Where the program has it, if a library that does is loaded by now: the first in the order of
/// symbols, as if we were linked with it. A sanitizer in the program has its own pthread_create().
fn found(known: &AtomicUsize, name: &CStr) -> usize {
    let mut at = known.load(Ordering::Relaxed);
    if at == 0 {
        // SAFETY: the name is a C string.
        at = unsafe { dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
        known.store(at, Ordering::Relaxed);
    }
    at
}

type Thread = libc::pthread_t;
type Attributes = libc::pthread_attr_t;
type Key = libc::pthread_key_t;
type Run = extern "C" fn(*mut c_void) -> *mut c_void;
type Destroy = Option<unsafe extern "C" fn(*mut c_void)>;

looked_up! {
    pthread_create(thread: *mut Thread, attributes: *const Attributes, run: Run, argument: *mut c_void) -> c_int,
        else libc::EAGAIN;
    pthread_join(thread: Thread, result: *mut *mut c_void) -> c_int, else libc::ESRCH;
    pthread_detach(thread: Thread) -> c_int, else libc::ESRCH;
    pthread_setname_np(thread: Thread, name: *const c_char) -> c_int, else libc::ESRCH;
    pthread_attr_setstacksize(attributes: *mut Attributes, size: usize) -> c_int, else libc::EINVAL;
    pthread_attr_getstack(attributes: *const Attributes, begin: *mut *mut c_void, size: *mut usize) -> c_int,
        else libc::EINVAL;
    pthread_attr_getguardsize(attributes: *const Attributes, size: *mut usize) -> c_int, else libc::EINVAL;
    pthread_getattr_np(thread: Thread, attributes: *mut Attributes) -> c_int, else libc::ESRCH;
    pthread_key_create(key: *mut Key, destroy: Destroy) -> c_int, else libc::EAGAIN;
    pthread_key_delete(key: Key) -> c_int, else libc::EINVAL;
    pthread_setspecific(key: Key, value: *const c_void) -> c_int, else libc::EINVAL;
    dladdr(address: *const c_void, about: *mut libc::Dl_info) -> c_int, else 0;
    dlclose(handle: *mut c_void) -> c_int, else -1;
    dlerror() -> *mut c_char, else core::ptr::null_mut();
    dlinfo(handle: *mut c_void, request: c_int, answer: *mut c_void) -> c_int, else -1;
}

looked_up! {
    (".weak ")
    // Since 2.18. Where it is not there, what a thread of ours has is not freed when it ends.
    __cxa_thread_atexit_impl(destroy: Destroy, object: *mut c_void, library: *mut c_void) -> c_int, else -1;
}

/// Where a variable of each thread is. glibc has it in the dynamic linker's file, which we would
/// have to name, and musl's linker would look for. The linker makes the calls: this goes to libc's
/// function, once it is known, with one instruction.
#[cfg(target_arch = "x86_64")]
static TLS_GET_ADDR: AtomicPtr<c_void> = AtomicPtr::new(find_tls_get_addr as *mut c_void);
#[cfg(target_arch = "x86_64")]
global_asm!(
    ".pushsection .text.older.__tls_get_addr,\"ax\",@progbits",
    ".globl __tls_get_addr",
    ".hidden __tls_get_addr",
    ".type __tls_get_addr,@function",
    "__tls_get_addr: jmp qword ptr [rip + {at}]",
    ".size __tls_get_addr, . - __tls_get_addr",
    ".popsection",
    at = sym TLS_GET_ADDR,
);

/// # Safety
/// As for libc's function.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn find_tls_get_addr(variable: *const c_void) -> *mut c_void {
    // Nothing on this way has variables of a thread.
    let at = loaded::find(c"__tls_get_addr");
    TLS_GET_ADDR.store(at as *mut c_void, Ordering::Relaxed);
    // SAFETY: a libc with which we are loaded has it, or the linker had not made room for our
    // variables.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn(*const c_void) -> *mut c_void>(at)(variable) }
}

type Handler = Option<unsafe extern "C" fn()>;

/// pthread_atfork(), which glibc has in a part of itself that is linked into each file, and which
/// calls a function that musl does not have.
///
/// # Safety
/// As for libc's function of this name.
unsafe extern "C-unwind" fn pthread_atfork(before: Handler, parent: Handler, child: Handler) -> c_int {
    unsafe extern "C" {
        /// Stands for this file.
        static __dso_handle: c_void;
    }
    type Register = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
    match loaded::find(c"__register_atfork") {
        0 => match loaded::find(c"pthread_atfork") {
            0 => libc::ENOSYS,
            // SAFETY: libc's function has this type; the caller keeps its contract.
            at => unsafe {
                core::mem::transmute::<usize, unsafe extern "C" fn(Handler, Handler, Handler) -> c_int>(at)(
                    before, parent, child,
                )
            },
        },
        // SAFETY: the same.
        at => unsafe {
            core::mem::transmute::<usize, Register>(at)(before, parent, child, &raw const __dso_handle)
        },
    }
}
hidden!(pthread_atfork);

/// dlsym(), for which the next definition is the one behind the library that calls it: this one. A
/// program that has no dlsym() has no handles either, and hardly two definitions of anything.
///
/// # Safety
/// As for libc's function of this name.
unsafe extern "C-unwind" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known == 0 {
        known = loaded::find(c"dlsym");
        KNOWN.store(known, Ordering::Relaxed);
    }
    // SAFETY: the caller keeps dlsym()'s contract.
    unsafe {
        if known == 0 {
            return loaded::find(CStr::from_ptr(name)) as *mut c_void;
        }
        core::mem::transmute::<usize, unsafe extern "C-unwind" fn(*mut c_void, *const c_char) -> *mut c_void>(
            known,
        )(handle, name)
    }
}
hidden!(dlsym);

/// What stands for a function of a system call that this libc does not have.
pub fn call(name: &CStr) -> Option<usize> {
    let function = match name.to_bytes() {
        b"close_range" => close_range as *const (),
        b"copy_file_range" => copy_file_range as *const (),
        b"epoll_pwait2" => epoll_pwait2 as *const (),
        b"execveat" => execveat as *const (),
        b"preadv2" => preadv2 as *const (),
        b"pwritev2" => pwritev2 as *const (),
        _ => return None,
    };
    Some(function as usize)
}

/// Functions of system calls with the same arguments, and some that follow.
macro_rules! calls {
    ($($name:ident($($arg:ident),*) $(, $more:literal)*;)*) => {$(
        /// # Safety
        /// As for libc's function of this name.
        unsafe extern "C" fn $name($($arg: usize),*) -> isize {
            // SAFETY: the caller keeps its contract.
            let result = unsafe { syscall!(Sysno::$name, $($arg),* $(, $more)*) };
            answer(result)
        }
    )*};
}

calls! {
    close_range(first, last, flags);
    copy_file_range(from, from_at, to, to_at, len, flags);
    // The length of the mask.
    epoll_pwait2(set, events, most, timeout, mask), 8;
    execveat(folder, path, arguments, environment, flags);
}

/// # Safety
/// As for libc's function of this name.
unsafe extern "C" fn preadv2(fd: usize, places: usize, count: usize, at: usize, flags: usize) -> isize {
    // SAFETY: the caller keeps its contract. The upper half of the offset is of 32-bit machines.
    answer(unsafe { syscall!(Sysno::preadv2, fd, places, count, at, 0, flags) })
}

/// # Safety
/// As for libc's function of this name.
unsafe extern "C" fn pwritev2(fd: usize, places: usize, count: usize, at: usize, flags: usize) -> isize {
    // SAFETY: as for preadv2().
    answer(unsafe { syscall!(Sysno::pwritev2, fd, places, count, at, 0, flags) })
}

fn answer(result: Result<usize, Errno>) -> isize {
    result.map_or_else(
        |why| {
            errno::set(why.into_raw());
            -1
        },
        |value| value as isize,
    )
}

/// # Safety
/// As for libc's function of this name, and so on.
unsafe extern "C" fn fstat64(fd: c_int, about: *mut libc::stat64) -> c_int {
    // SAFETY: the caller's place has the layout that the kernel gives.
    answer(unsafe { syscall!(Sysno::fstat, fd, about) }) as c_int
}
hidden!(fstat64);

unsafe extern "C" fn stat64(path: *const c_char, about: *mut libc::stat64) -> c_int {
    // SAFETY: as for fstat64().
    answer(unsafe { syscall!(Sysno::newfstatat, libc::AT_FDCWD, path, about, 0) }) as c_int
}
hidden!(stat64);

unsafe extern "C" fn statx(
    folder: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    about: *mut libc::statx,
) -> c_int {
    // SAFETY: as for fstat64().
    answer(unsafe { syscall!(Sysno::statx, folder, path, flags, mask, about) }) as c_int
}
hidden!(statx, ".weak ");

unsafe extern "C" fn getrandom(bytes: *mut c_void, len: usize, flags: u32) -> isize {
    // SAFETY: the caller has room for so many bytes.
    answer(unsafe { syscall!(Sysno::getrandom, bytes, len, flags) })
}
hidden!(getrandom, ".weak ");

unsafe extern "C" fn gettid() -> libc::pid_t {
    fabric::sys::gettid() as libc::pid_t
}
hidden!(gettid, ".weak ");
