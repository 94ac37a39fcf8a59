//! The library's constructor and destructor.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sync::{AtomicUsize, Ordering};
use fabric::sys;
use options::LogLevel;
use sockets::reason::Reason;
use sockets::{log, process, real, report};

use crate::next::Next;
use crate::options_of::Entries;
use crate::rules_of::Found;
use crate::{end, fds, kept, names, options_of, rules_of, stdio};

#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = finish;

unsafe extern "C" fn start(_argc: c_int, argv: *const *const c_char, env: *const *const c_char) {
    // SAFETY: asks for a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than who started it (setuid, capabilities), by /etc/ld.so.preload: nothing of what that one says is heard,
        // and every call is libc's.
        return;
    }
    // SAFETY: the loader passes the arguments and the environment, arrays that end with null.
    unsafe {
        let guest = !is_preloaded();
        let mut kept = None;
        if guest {
            // Other threads may be reading the environment, and no program is started through us.
            process::be_guest();
        } else {
            kept = kept::take(env);
            names::take(env);
            remember_preload(env);
            remember_options(env);
        }
        let mut problems = 0;
        let options = options_of::read(env, &mut |_| problems += 1);
        if let Some(path) = options.report {
            report::open(path.as_c_str());
        }
        let found = Found::find(&options, Entries::new(env));
        let rules = found.start(rules_of::program(argv));
        if rules.is_err() {
            process::bar(Reason::BadRules);
        }
        process::start(options);
        log::start(&options);
        real::set(
            core::mem::transmute::<usize, real::Recv>(RECV.get()),
            core::mem::transmute::<usize, real::Ppoll>(PPOLL.get()),
            core::mem::transmute::<usize, real::EpollPwait>(EPOLL_PWAIT.get()),
        );
        if process::active() && !guest {
            stdio::follow();
        }
        if process::active() {
            carrier::offer();
        }
        if problems > 0 {
            // The command says which.
            log::note(LogLevel::Warn, "some options are not understood; see 'shunt doctor'");
        }
        if let Err(why) = rules {
            log::note(LogLevel::Warn, format_args!("{why}: every connection stays on tcp"));
        }
        let program = libc::getauxval(libc::AT_EXECFN) as *const c_char;
        if let Some(kept) = kept
            && !program.is_null()
        {
            kept::follow(kept.to_bytes(), CStr::from_ptr(program).to_bytes());
        }
        libc::pthread_atfork(Some(fds::before_fork), Some(fds::parent_of_fork), Some(fds::child_of_fork));
    }
}

/// Whether the program's calls come to us: whether what we define is among what the program itself sees, and not only those who have
/// loaded us (dlopen with RTLD_LOCAL).
fn is_preloaded() -> bool {
    // SAFETY: no name gives the program itself, with all that was there when it started; closing that only counts.
    let version = unsafe {
        let program = libc::dlopen(core::ptr::null(), libc::RTLD_LAZY);
        if program.is_null() {
            return true;
        }
        let version = libc::dlsym(program, c"SHUNT_VERSION".as_ptr());
        libc::dlclose(program);
        version
    };
    // Another copy of us may be preloaded.
    !version.is_null() && file_of(version) == file_of(start as *const c_void)
}

/// Where the file begins that this address belongs to.
fn file_of(address: *const c_void) -> usize {
    // SAFETY: zeroes are a valid Dl_info, which dladdr fills.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        libc::dladdr(address, &mut info);
        info.dli_fbase as usize
    }
}

unsafe extern "C" fn finish() {
    end::leave();
}

static RECV: Next = Next::new(c"recv");
static PPOLL: Next = Next::new(c"ppoll");
static EPOLL_PWAIT: Next = Next::new(c"epoll_pwait");

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

/// Whether the library can be preloaded into a program that this process starts now: not where its path leads nowhere, after chroot() or a change of user.
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

/// Where copies of the program's SHUNT_* variables are, and how many: a program that clears the environment of one that it starts does
/// not change what was said of both.
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
unsafe fn remember_options(env: *const *const c_char) {
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
unsafe fn remember_preload(env: *const *const c_char) {
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
