//! Handlers that the program installs: which of them restart calls. Those that a library installs
//! which a thread of ours has opened (PSM, for one, takes SIGTERM) are not installed: they are the
//! program's to decide.
//!
//! The kernel gets [`run`] for each, which counts that a handler runs and then jumps to it: a wait
//! that is several sleeps of ours is ended by one that runs between two, as the kernel's is (see
//! [`sockets::signals::Sleeps`]). What the program asks for is its own handler. Those of its faults
//! end no wait, and are left as they are.

use core::arch::naked_asm;
use core::ffi::{c_int, c_long};
use core::ptr;
use fabric::sync::{AtomicUsize, Ordering};
use libc::{sigaction as action, sighandler_t};
use sockets::{process, signals, thread};

use crate::next::hooks;

/// The program's handlers, by signal.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
const SIGNALS: usize = 65;

/// What sigset() takes for "block it".
const SIG_HOLD: sighandler_t = 2;

fn is_handler(handler: sighandler_t) -> bool {
    ![libc::SIG_DFL, libc::SIG_IGN, libc::SIG_ERR, SIG_HOLD].contains(&handler)
}

/// A handler on its way to the kernel.
pub struct Given {
    /// What the kernel gets.
    pub handler: sighandler_t,
    place: Option<&'static AtomicUsize>,
    before: sighandler_t,
}

impl Given {
    pub fn new(signal: c_int, handler: sighandler_t) -> Given {
        let place = usize::try_from(signal).ok().and_then(|signal| HANDLERS.get(signal));
        let before = place.map_or(0, |place| place.load(Ordering::Acquire));
        // A child of vfork() has our memory, and signals of its own.
        let counts = is_handler(handler) && signals::may_be_counted(signal) && !process::borrowed();
        match place {
            Some(place) if counts => {
                // Before the kernel has it: a signal may come at once.
                place.store(handler, Ordering::Release);
                Given { handler: run as *const () as usize, place: Some(place), before }
            }
            _ => Given { handler, place: None, before },
        }
    }

    /// The kernel has refused it.
    pub fn refused(&self) {
        if let Some(place) = self.place {
            place.store(self.before, Ordering::Release);
        }
    }

    /// What the program is told of the one before.
    pub fn before(&self, old: sighandler_t) -> sighandler_t {
        if old == run as *const () as usize { self.before } else { old }
    }
}

extern "C" fn counted(signal: c_int) -> usize {
    signals::handler_runs(signal);
    HANDLERS[signal as usize].load(Ordering::Acquire)
}

/// The kernel's handler: the program's finds everything as if it had been called itself.
#[unsafe(naked)]
unsafe extern "C" fn run() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        "push rdi", "push rsi", "push rdx",
        "call {counted}",
        "pop rdx", "pop rsi", "pop rdi",
        "jmp rax",
        counted = sym counted,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        "stp x0, x1, [sp, #-32]!", "stp x2, x30, [sp, #16]",
        "bl {counted}",
        "mov x16, x0",
        "ldp x2, x30, [sp, #16]", "ldp x0, x1, [sp], #32",
        "br x16",
        counted = sym counted,
    );
}

/// A handler was installed, or removed. Not by a child of vfork(), whose signals are its own.
fn installed(signal: c_int, handler: sighandler_t, flags: c_int) {
    if !process::borrowed() {
        signals::installed(signal, is_handler(handler).then_some(flags));
    }
}

/// One of the calls that take a handler and return the one before, with these flags.
unsafe fn set(
    signal: c_int,
    handler: sighandler_t,
    flags: c_int,
    next: impl Fn(c_int, sighandler_t) -> sighandler_t,
) -> sighandler_t {
    if thread::is_ours() {
        return libc::SIG_DFL;
    }
    let given = Given::new(signal, handler);
    let result = next(signal, given.handler);
    if result == libc::SIG_ERR {
        given.refused();
        return result;
    }
    installed(signal, handler, flags);
    given.before(result)
}

/// The kernel's structure for rt_sigaction(2).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAction {
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2), made by number.
///
/// # Safety
/// Both point to such structures, or are null.
pub unsafe fn rt_sigaction(
    signal: c_int,
    new: *const KernelAction,
    old: *mut KernelAction,
    next: impl Fn(*const KernelAction) -> c_long,
) -> c_long {
    // SAFETY: the caller vouches for it.
    let wanted = unsafe { new.as_ref() }.copied();
    let given = Given::new(signal, wanted.map_or(libc::SIG_DFL, |new| new.handler));
    let passed = wanted.map(|new| KernelAction { handler: given.handler, ..new });
    let result = next(passed.as_ref().map_or(ptr::null(), ptr::from_ref));
    if result != 0 {
        given.refused();
        return result;
    }
    // SAFETY: the caller vouches for it.
    if let Some(old) = unsafe { old.as_mut() } {
        old.handler = given.before(old.handler);
    }
    if let Some(new) = wanted {
        installed(signal, new.handler, new.flags as c_int);
    }
    result
}

hooks! {
    fn sigaction(next; signal: c_int, new: *const action, old: *mut action) -> c_int {
        let wanted = new.as_ref().filter(|_| !thread::is_ours()).copied();
        let given = Given::new(signal, wanted.map_or(libc::SIG_DFL, |new| new.sa_sigaction));
        let passed = wanted.map(|new| action { sa_sigaction: given.handler, ..new });
        let result = next(signal, passed.as_ref().map_or(ptr::null(), ptr::from_ref), old);
        if result != 0 {
            given.refused();
            return result;
        }
        if let Some(old) = old.as_mut() {
            old.sa_sigaction = given.before(old.sa_sigaction);
        }
        if let Some(new) = wanted {
            installed(signal, new.sa_sigaction, new.sa_flags);
        }
        result
    }
    fn signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        set(signal, handler, libc::SA_RESTART, |signal, handler| next(signal, handler))
    }
    fn sysv_signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        set(signal, handler, 0, |signal, handler| next(signal, handler))
    }
    fn __sysv_signal(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        set(signal, handler, 0, |signal, handler| next(signal, handler))
    }
    fn sigset(next; signal: c_int, handler: sighandler_t) -> sighandler_t {
        set(signal, handler, 0, |signal, handler| next(signal, handler))
    }
    fn siginterrupt(next; signal: c_int, flag: c_int) -> c_int {
        let result = next(signal, flag);
        if result == 0 {
            signals::installed(signal, Some(if flag == 0 { libc::SA_RESTART } else { 0 }));
        }
        result
    }
}
