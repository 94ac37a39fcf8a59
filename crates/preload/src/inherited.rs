//! What programs that this process starts are given: our entry of LD_PRELOAD, and the SHUNT_*
//! variables, as they were when it began.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use fabric::sync::{AtomicUsize, Ordering};
use fabric::sys;

use crate::options_of;

const PRELOAD_MAX: usize = 1024;

struct Preload(UnsafeCell<[u8; PRELOAD_MAX]>);

// SAFETY: written by the constructor only, before PRELOAD_LEN is set.
unsafe impl Sync for Preload {}

static PRELOAD: Preload = Preload(UnsafeCell::new([0; PRELOAD_MAX]));

static PRELOAD_LEN: AtomicUsize = AtomicUsize::new(0);

/// "LD_PRELOAD=" and the path under which this library was preloaded; empty if it was not.
pub fn preload_entry() -> &'static [u8] {
    let len = PRELOAD_LEN.load(Ordering::Acquire);
    // SAFETY: not written after PRELOAD_LEN was set.
    unsafe { &(&*PRELOAD.0.get())[..len] }
}

/// Whether the library can be preloaded into a program that this process starts now: not where its
/// path leads nowhere, after chroot() or a change of user.
pub fn library_is_there() -> bool {
    let entry = preload_entry();
    let Some(path) = entry.strip_prefix(b"LD_PRELOAD=") else { return true };
    if !path.starts_with(b"/") {
        return true; // The dynamic linker looks for it.
    }
    let mut name = [0; PRELOAD_MAX];
    name[..path.len()].copy_from_slice(path);
    let Ok(name) = CStr::from_bytes_until_nul(&name) else { return true };
    let opened = sys::open(name, libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK, 0);
    match opened {
        Ok(fd) => sys::close(fd),
        // There may be no descriptor left.
        Err(sys::Errno::EMFILE | sys::Errno::ENFILE) => {}
        Err(_) => return false,
    }
    true
}

/// Where copies of the program's SHUNT_* variables are, and how many: a program that clears the
/// environment of one that it starts does not change what was said of both.
static OPTIONS: [AtomicUsize; OPTIONS_MAX] = [const { AtomicUsize::new(0) }; OPTIONS_MAX];

static OPTIONS_LEN: AtomicUsize = AtomicUsize::new(0);

const OPTIONS_MAX: usize = 64;

/// The SHUNT_* variables that this process was started with.
pub fn option_entries() -> impl Iterator<Item = &'static CStr> {
    let len = OPTIONS_LEN.load(Ordering::Acquire);
    // SAFETY: set to copies that are never unmapped, before OPTIONS_LEN was.
    OPTIONS[..len].iter().map(|at| unsafe { CStr::from_ptr(at.load(Ordering::Relaxed) as *const c_char) })
}

/// # Safety
/// `env` is an array of C strings that ends with null.
pub unsafe fn remember_options(env: *const *const c_char) {
    let entries = || {
        // SAFETY: the caller vouches for the array.
        let all = unsafe { options_of::Entries::new(env) };
        all.filter(|entry| entry.starts_with(b"SHUNT_")).take(OPTIONS_MAX)
    };
    let bytes: usize = entries().map(|entry| entry.len() + 1).sum();
    if bytes == 0 {
        return;
    }
    let Ok(mut at) = sys::mmap_private(bytes) else { return };
    let mut len = 0;
    for entry in entries() {
        OPTIONS[len].store(at as usize, Ordering::Relaxed);
        // SAFETY: the mapping has room for all of them, each with its zero, which is there already.
        unsafe {
            core::ptr::copy_nonoverlapping(entry.as_ptr(), at, entry.len());
            at = at.add(entry.len() + 1);
        }
        len += 1;
    }
    OPTIONS_LEN.store(len, Ordering::Release);
}

/// # Safety
/// `env` is an array of C strings that ends with null.
pub unsafe fn remember_preload(env: *const *const c_char) {
    // SAFETY: the caller vouches for the array; dladdr fills the structure.
    unsafe {
        let mut place = env;
        while !place.is_null() && !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            place = place.add(1);
            let Some(value) = entry.strip_prefix(b"LD_PRELOAD=") else { continue };
            let ours =
                value.split(|&byte| byte == b':' || byte == b' ').find(|item| item.ends_with(b"libshunt.so"));
            if let Some(ours) = ours
                && ours.len() + 12 < PRELOAD_MAX
            {
                let buffer = &mut *PRELOAD.0.get();
                buffer[..11].copy_from_slice(b"LD_PRELOAD=");
                buffer[11..11 + ours.len()].copy_from_slice(ours);
                PRELOAD_LEN.store(11 + ours.len(), Ordering::Release);
            }
        }
    }
}
