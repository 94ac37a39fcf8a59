//! The library's constructor and destructor.

#[cfg(sim)]
use core::ffi::c_int;
use core::ffi::{CStr, c_char, c_void};
use options::LogLevel;
use sockets::reason::Reason;
use sockets::{lifecycle, log, next, process, report};

use crate::loaded::file_of;
use crate::next::Next;
use crate::options_of::Entries;
use crate::rules_of::Found;
use crate::{end, fds, inherited, kept, names, options_of, rules_of, stdio};

#[cfg(not(sim))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: unsafe extern "C" fn() = constructor;

#[cfg(not(sim))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: unsafe extern "C" fn() = finish;

/// glibc passes a constructor the arguments and the environment, musl nothing: both have put them
/// where the program finds them.
#[cfg(not(sim))]
unsafe extern "C" fn constructor() {
    unsafe extern "C" {
        static environ: *const *const c_char;
        static program_invocation_name: *const c_char;
    }
    // SAFETY: no other thread is there that would write to them, or libc's variables are read as by
    // any other library that is loaded later. The name is a C string or null, the environment an
    // array of such that ends with null.
    unsafe { start(program_invocation_name, environ) }
}

/// # Safety
/// `name` is null or a C string, how the program was called; `env` an array of C strings that ends
/// with null.
unsafe fn start(name: *const c_char, env: *const *const c_char) {
    // SAFETY: asks for a number.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        // A program with more rights than who started it (setuid, capabilities), by
        // /etc/ld.so.preload: nothing of what that one says is heard, and every call is libc's.
        return;
    }
    // SAFETY: the caller vouches for the name and the environment.
    unsafe {
        let guest = !is_preloaded();
        let mut kept = None;
        if guest {
            // Other threads may be reading the environment, and no program is started through us.
            process::be_guest();
        } else {
            kept = kept::take(env);
            names::take(env);
            inherited::remember_preload(env);
            inherited::remember_options(env);
        }
        let mut problems = 0;
        let options = process::set_options(|options| options_of::read(options, env, &mut |_| problems += 1));
        if let Some(path) = options.report {
            report::open(path.as_c_str());
        }
        let found = Found::find(options, Entries::new(env));
        let rules = found.start(rules_of::program(name));
        if rules.is_err() {
            process::bar(Reason::BadRules);
        }
        process::start();
        log::start(options);
        next::set(
            core::mem::transmute::<usize, next::Recv>(RECV.get()),
            core::mem::transmute::<usize, next::Ppoll>(PPOLL.get()),
            core::mem::transmute::<usize, next::EpollPwait>(EPOLL_PWAIT.get()),
            core::mem::transmute::<usize, next::TestCancel>(TEST_CANCEL.get()),
        );
        if process::active() && !guest {
            lifecycle::at_first(stdio::follow);
        }
        if process::active() {
            progress::offer();
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
        #[cfg(not(sim))]
        libc::pthread_atfork(Some(fds::before_fork), Some(fds::parent_of_fork), Some(fds::child_of_fork));
    }
}

/// Whether the program's calls come to us: whether what we define is among what the program itself
/// sees, and not only those who have loaded us (dlopen with RTLD_LOCAL).
fn is_preloaded() -> bool {
    if cfg!(sim) {
        return true;
    }
    // SAFETY: no name gives the program itself, with all that was there when it started; closing
    // that only counts.
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

unsafe extern "C" fn finish() {
    end::leave();
}

static RECV: Next = Next::new(c"recv");
static PPOLL: Next = Next::new(c"ppoll");
static EPOLL_PWAIT: Next = Next::new(c"epoll_pwait");
static TEST_CANCEL: Next = Next::new(c"pthread_testcancel");

/// Begins a simulated process: instead of the constructor, which the loader calls when nothing of
/// the simulation is there.
///
/// # Safety
/// As for [`fabric::sim::begin`] and for a constructor.
#[cfg(sim)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_sim_start(
    host: *const fabric::seam::Host,
    argv: *const *const c_char,
    env: *const *const c_char,
) {
    // SAFETY: the caller vouches for all of it.
    unsafe {
        fabric::sim::begin(host);
        start(*argv, env);
    }
}

/// Its counts, as a report has them.
#[cfg(sim)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_sim_counts() -> *const u64 {
    report::counts()
}

/// What it does about fork(): before it, and after it in the parent and in the child.
#[cfg(sim)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_sim_fork(stage: c_int) {
    // SAFETY: the host calls it where libc calls what pthread_atfork() was given.
    unsafe {
        match stage {
            0 => fds::before_fork(),
            1 => fds::parent_of_fork(),
            _ => fds::child_of_fork(),
        }
    }
}

/// Ends it, as the destructor does.
#[cfg(sim)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_sim_end() {
    progress::at_exit();
    // SAFETY: asks for nothing.
    unsafe { finish() }
}
