//! exec, spawn and the passing of descriptors: a connection that may reach a process which knows
//! nothing of rings goes back to tcp first, unread bytes and all. And a program that is started by
//! an accelerated one is accelerated, too.

use core::ffi::{c_char, c_int, c_void};
use fabric::sys;
use libc::FILE;
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{errno, fork, handover, process, relay};

use crate::environment::{self, Environment, Strings};
use crate::kept::Kept;
use crate::next::hooks;

/// Hands connections over that the next image will hold: those without close-on-exec. `leaves`: it
/// takes this one's place, and, if it is accelerated, those that are named in what is returned go
/// on in it.
fn handing_over(leaves: bool, accelerated: bool) -> Kept {
    if !process::active() {
        return Kept::NONE;
    }
    let mut kept = if leaves && accelerated { Kept::new() } else { Kept::NONE };
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
            && (!process::borrowed() || handover::is_socket_of(fd, conn))
        {
            kept.hand_over(conn, fd, || relay::hand_over(conn, fd, Reason::Exec, leaves));
        }
    });
    kept
}

/// exec(): another image, of a file or, if that has no name, of a descriptor, takes this one's
/// place, if `exec` does not return. `exec` gets its environment.
///
/// # Safety
/// `file` is null or a C string, `env` is null or an array of such that ends with null.
unsafe fn instead(file: *const c_char, fd: c_int, env: Strings, exec: impl Fn(Strings) -> c_int) -> c_int {
    // SAFETY: the caller vouches for it.
    let accelerated = unsafe { environment::accelerates(env) };
    let mut kept = handing_over(true, accelerated);
    // SAFETY: the caller vouches for them.
    let with = unsafe { Environment::new(env, kept.variable(file, fd)) };
    let left = (process::active() && !process::borrowed()).then(fork::leave_by_exec);
    let mut result = exec(with.strings);
    if result < 0 && errno::get() == libc::E2BIG && !kept.is_empty() {
        // Our variable may be what is too much.
        // SAFETY: as above.
        let without = unsafe { Environment::new(env, None) };
        result = exec(without.strings);
    }
    let errno = errno::get();
    if let Some(left) = left {
        left.stay();
        kept.stay();
    }
    errno::set(errno);
    result
}

unsafe extern "C" {
    static environ: Strings;
}

hooks! {
    fn execve(next; path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        instead(path, -1, envp, |env| next(path, argv, env))
    }
    fn execv(next; path: *const c_char, argv: Strings) -> c_int {
        execve(path, argv, environ)
    }
    fn execvp(next; file: *const c_char, argv: Strings) -> c_int {
        execvpe(file, argv, environ)
    }
    fn execvpe(next; file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        instead(file, -1, envp, |env| next(file, argv, env))
    }
    fn fexecve(next; fd: c_int, argv: Strings, envp: Strings) -> c_int {
        instead(core::ptr::null(), fd, envp, |env| next(fd, argv, env))
    }
    fn execveat(next; dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        instead(path, dir, envp, |env| next(dir, path, argv, env, flags))
    }
    fn posix_spawn(next; pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false, true);
        next(pid, path, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn posix_spawnp(next; pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false, true);
        next(pid, file, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    // Of glibc 2.39.
    fn pidfd_spawn(next; pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false, true);
        next(pidfd, path, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn pidfd_spawnp(next; pidfd: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false, true);
        next(pidfd, file, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn posix_spawn_file_actions_adddup2(next; actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
        if let Some(conn) = table::conn(fd) {
            relay::hand_over(conn, fd, Reason::Exec, false);
        }
        next(actions, fd, to)
    }
    fn system(next; command: *const c_char) -> c_int {
        if !command.is_null() {
            handing_over(false, true);
            environment::forget_lost_library(environ.cast_mut());
        }
        next(command)
    }
    fn popen(next; command: *const c_char, mode: *const c_char) -> *mut FILE {
        handing_over(false, true);
        environment::forget_lost_library(environ.cast_mut());
        next(command, mode)
    }
}
