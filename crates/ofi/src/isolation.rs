//! Undoes what libfabric, and the libraries that its providers open, change in the process when
//! they are opened, and that is the program's to decide:
//!
//! * Signal handlers. PSM's library takes SIGTERM and others in its constructor, and ends the
//!   process.
//! * libc's functions, patched in place. libfabric's cache of registrations watches mmap and its
//!   like that way. Links have registered memory of their own, and do not need it.
//!
//! In children of fork(), which never call these libraries, their destructors are removed: they
//! would wait for ever for locks that threads of the parent had at that moment.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use fabric::sys;

/// The number of signals.
const SIGNALS: usize = 64;

/// Asks libfabric not to patch libc, by its own variable: there is no other way. If the program
/// uses libfabric, too, and has set the variable, its value stays.
pub fn ask_not_to_patch() {
    // SAFETY: two C strings; the program does not run yet.
    unsafe { libc::setenv(c"FI_MR_CACHE_MONITOR".as_ptr(), c"disabled".as_ptr(), 0) };
}

/// The process before libraries are opened: the action for each signal, and the loaded libraries.
/// Where Shunt's hooks stand in front of libc's functions they have kept handlers out already
/// (`preload`'s signals.rs). They do not in a program that has opened the library for itself alone,
/// nor against direct system calls.
pub struct Before {
    actions: [Option<libc::sigaction>; SIGNALS],
    /// The libraries that were loaded, by the addresses at which they begin.
    loaded: Vec<usize>,
}

impl Before {
    /// The state at this moment.
    pub fn now() -> Before {
        let loaded = libraries().iter().map(|library| library.base).collect();
        Before { actions: std::array::from_fn(action), loaded }
    }

    /// Keeps the destructors of the libraries that were opened since out of children of fork().
    pub fn keep_destructors(&self) {
        for library in libraries() {
            let free = || DESTRUCTORS.iter().find(|place| place.load(Ordering::Relaxed).is_null());
            if !self.loaded.contains(&library.base)
                && let Some(entry) = library.destructors()
                && !DESTRUCTORS.iter().any(|place| place.load(Ordering::Relaxed) == entry)
                && let Some(place) = free()
            {
                place.store(entry, Ordering::Release);
            }
        }
    }

    /// Undoes the changes of the libraries that were opened since.
    pub fn restore(&self) {
        for at in 0..SIGNALS {
            let (Some(was), Some(now)) = (&self.actions[at], action(at)) else { continue };
            if now.sa_sigaction == was.sa_sigaction {
                continue;
            }
            let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
            // SAFETY: any address may be asked about; the result is written where there is room for
            // it.
            let known = unsafe { libc::dladdr(now.sa_sigaction as *const _, place.as_mut_ptr()) } != 0;
            // SAFETY: zeroes are a valid value of it.
            let place = unsafe { place.assume_init() };
            if known && !self.loaded.contains(&(place.dli_fbase as usize)) {
                // SAFETY: as it was before.
                unsafe { libc::sigaction(at as i32 + 1, was, ptr::null_mut()) };
            }
        }
    }
}

fn action(at: usize) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed; what it is now is written where there is room for it.
    let done = unsafe { libc::sigaction(at as i32 + 1, ptr::null(), action.as_mut_ptr()) };
    // SAFETY: zeroes are a valid value of it.
    (done == 0).then(|| unsafe { action.assume_init() })
}

/// An entry of a library's dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_NULL: i64 = 0;
const DT_FINI_ARRAYSZ: i64 = 28;

/// For each library that was opened, the place of the number of bytes of its destructors.
static DESTRUCTORS: [AtomicPtr<Dynamic>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

/// Removes them in the child of fork(). The dynamic linker reads these places when the process
/// ends.
pub fn forked() {
    for place in &DESTRUCTORS {
        let entry = place.load(Ordering::Acquire);
        if entry.is_null() {
            break;
        }
        let page = entry.map_addr(|at| at & !(PAGE - 1)).cast::<u8>();
        // The entry may lie across two pages.
        if sys::mprotect(page, 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE).is_ok()
            || sys::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE).is_ok()
        {
            // SAFETY: an entry of the dynamic section of a library that is never unloaded
            // (libfabric is opened so, and what it needs stays with it), writable now. It stays so:
            // what else is on the page may have been writable before.
            unsafe { (*entry).value = 0 };
        }
    }
}

const PAGE: usize = 4096;

struct Loaded {
    /// Where the library begins, as `dladdr` has it: at its first segment.
    base: usize,
    dynamic: *mut Dynamic,
}

impl Loaded {
    fn destructors(&self) -> Option<*mut Dynamic> {
        let mut entry = self.dynamic;
        if entry.is_null() {
            return None;
        }
        loop {
            // SAFETY: a dynamic section ends with an entry of the tag DT_NULL.
            match unsafe { (*entry).tag } {
                DT_NULL => return None,
                DT_FINI_ARRAYSZ => return Some(entry),
                // SAFETY: as above.
                _ => entry = unsafe { entry.add(1) },
            }
        }
    }
}

/// The libraries that are loaded.
fn libraries() -> Vec<Loaded> {
    let mut loaded = Vec::new();
    // SAFETY: the callback has this type, and its data is the vector, which lives until it returns.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut loaded).cast()) };
    loaded
}

extern "C" fn note(library: *mut libc::dl_phdr_info, _: usize, loaded: *mut libc::c_void) -> i32 {
    // SAFETY: both are what `dl_iterate_phdr` and its caller pass: a description with so many
    // headers, and a vector.
    unsafe {
        let library = &*library;
        let headers = std::slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into());
        let at = |kind| headers.iter().find(|header| header.p_type == kind).map(|header| header.p_vaddr);
        let first = at(libc::PT_LOAD).unwrap_or(0) as usize & !(PAGE - 1);
        let dynamic = at(libc::PT_DYNAMIC).map_or(0, |at| library.dlpi_addr + at);
        (*loaded.cast::<Vec<Loaded>>())
            .push(Loaded { base: library.dlpi_addr as usize + first, dynamic: dynamic as *mut Dynamic });
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_library_does_that_is_opened_is_undone() {
        let before = Before::now();
        assert!(before.loaded.len() > 1);
        // As if a library that was opened since had installed a handler: libc's `abort`, with libc
        // not among those that were loaded before.
        let mut libc_unknown = Before::now();
        let abort = libc::abort as *const () as usize;
        let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: as in `restore`.
        let base = unsafe {
            libc::dladdr(abort as *const _, place.as_mut_ptr());
            place.assume_init().dli_fbase as usize
        };
        libc_unknown.loaded.retain(|&at| at != base);
        assert_eq!(libc_unknown.loaded.len() + 1, before.loaded.len(), "libc is there");
        let take = || {
            let mut wanted = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: zeroes are a valid value of it, and a signal that nobody sends.
            unsafe {
                (*wanted.as_mut_ptr()).sa_sigaction = abort;
                libc::sigaction(libc::SIGPWR, wanted.as_ptr(), ptr::null_mut());
            }
            action(libc::SIGPWR as usize - 1).map(|action| action.sa_sigaction)
        };
        assert_eq!(take(), Some(abort));
        before.restore();
        assert_eq!(
            action(libc::SIGPWR as usize - 1).map(|action| action.sa_sigaction),
            Some(abort),
            "the program's own"
        );
        libc_unknown.restore();
        assert_eq!(action(libc::SIGPWR as usize - 1).map(|action| action.sa_sigaction), Some(libc::SIG_DFL));
    }
}
