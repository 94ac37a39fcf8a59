//! exec, spawn and the passing of descriptors: a connection that may reach a process which knows nothing of rings goes back to tcp
//! first, unread bytes and all. And a program that is started by an accelerated one is accelerated, too.

use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sys;
use libc::{FILE, cmsghdr, msghdr};
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{demote, faults, fork, process, real, relay};

use crate::kept::{self, Kept};
use crate::next::hooks;
use crate::start;

/// Hands connections over that the next image will hold: those without close-on-exec. `leaves`: it takes this one's place, and those that
/// are named in what is returned go on in it.
fn handing_over(leaves: bool) -> Kept {
    if !process::active() {
        return Kept::NONE;
    }
    let mut kept = if leaves { Kept::new() } else { Kept::NONE };
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
            && (!process::borrowed() || relay::is_socket_of(fd, conn))
        {
            kept.hand_over(conn, fd, || demote::hand_over(conn, fd, Reason::Exec, leaves));
        }
    });
    kept
}

/// exec(): another image, of a file or, if that has no name, of a descriptor, takes this one's place, if `exec` does not return. `exec`
/// gets its environment.
///
/// # Safety
/// `file` is null or a C string, `env` is null or an array of such that ends with null.
unsafe fn instead(file: *const c_char, fd: c_int, env: Strings, exec: impl Fn(Strings) -> c_int) -> c_int {
    let mut kept = handing_over(true);
    // SAFETY: the caller vouches for them.
    let with = unsafe { Environment::new(env, kept.variable(file, fd)) };
    let left = (process::active() && !process::borrowed()).then(fork::leave_by_exec);
    let mut result = exec(with.strings);
    if result < 0 && real::errno() == libc::E2BIG && !kept.is_empty() {
        // Our variable may be what is too much.
        // SAFETY: as above.
        let without = unsafe { Environment::new(env, None) };
        result = exec(without.strings);
    }
    let errno = real::errno();
    if let Some(left) = left {
        left.stay();
        kept.stay();
    }
    real::set_errno(errno);
    result
}

/// Hands over the connections whose descriptors a message passes.
///
/// # Safety
/// `message` is null or a valid msghdr.
pub unsafe fn passing(message: *const msghdr) {
    // SAFETY: the caller vouches for the message; the macros walk its control part as the kernel does.
    unsafe {
        if faults::low(message) || (*message).msg_controllen == 0 || faults::low((*message).msg_control) {
            return;
        }
        let mut part: *const cmsghdr = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if (*part).cmsg_level == libc::SOL_SOCKET && (*part).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(part);
                let bytes = ((*part).cmsg_len as usize).saturating_sub(data as usize - part as usize);
                for index in 0..bytes / 4 {
                    let fd = data.cast::<c_int>().add(index).read_unaligned();
                    if let Some(conn) = table::conn(fd) {
                        demote::hand_over(conn, fd, Reason::Passed, true);
                    }
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// The environment for the next image, while it is needed.
struct Environment {
    strings: Strings,
    /// What holds the strings, if they are not the program's.
    mapped: (*mut u8, usize),
}

impl Environment {
    /// As `env`, with our library and options in it where the program has dropped them, and with the variable that says which connections
    /// are `kept`.
    ///
    /// # Safety
    /// `env` is null or an array of C strings that ends with null.
    unsafe fn new(env: Strings, kept: Option<*const c_char>) -> Environment {
        let as_it_is = Environment { strings: env, mapped: (core::ptr::null_mut(), 0) };
        let preload = start::preload_entry();
        if !process::active() || env.is_null() || preload.is_empty() {
            return as_it_is;
        }
        let library = &preload[b"LD_PRELOAD=".len()..];
        let mut count = 0;
        let (mut place, mut old, mut ours, mut stale) = (None, &[][..], false, false);
        // SAFETY: the caller vouches for the array; the new one has room for all of it.
        unsafe {
            while !(*env.add(count)).is_null() {
                let entry = CStr::from_ptr(*env.add(count)).to_bytes();
                if let Some(value) = entry.strip_prefix(b"LD_PRELOAD=") {
                    (place, old) = (Some(count), value);
                    ours |= value.split(|&byte| byte == b':' || byte == b' ').any(|item| item == library);
                }
                stale |= entry.starts_with(kept::NAME);
                count += 1;
            }
            if ours && kept.is_none() && !stale {
                return as_it_is;
            }
            let most = count + start::option_entries().count() + 3;
            let bytes = most * 8 + preload.len() + old.len() + 2;
            let Ok(at) = sys::mmap_private(bytes) else { return as_it_is };
            let array = at.cast::<*const c_char>();
            let mut end = 0;
            let mut add = |entry| {
                *array.add(end) = entry;
                end += 1;
            };
            for index in (0..count).filter(|&index| ours || place != Some(index)) {
                let entry = *env.add(index);
                if !CStr::from_ptr(entry).to_bytes().starts_with(kept::NAME) {
                    add(entry);
                }
            }
            if !ours {
                let text = at.add(most * 8);
                core::ptr::copy_nonoverlapping(preload.as_ptr(), text, preload.len());
                if !old.is_empty() {
                    *text.add(preload.len()) = b':';
                    core::ptr::copy_nonoverlapping(old.as_ptr(), text.add(preload.len() + 1), old.len());
                }
                add(text.cast());
                for option in start::option_entries() {
                    let name =
                        option.to_bytes().split_inclusive(|&byte| byte == b'=').next().unwrap_or_default();
                    let is_set = |index| CStr::from_ptr(*env.add(index)).to_bytes().starts_with(name);
                    if !(0..count).any(is_set) {
                        add(option.as_ptr());
                    }
                }
            }
            if let Some(kept) = kept {
                add(kept);
            }
            Environment { strings: array, mapped: (at, bytes) }
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if self.mapped.1 != 0 {
            sys::munmap(self.mapped.0, self.mapped.1);
        }
    }
}

type Strings = *const *const c_char;

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
        handing_over(false);
        next(pid, path, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn posix_spawnp(next; pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pid, file, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    // Of glibc 2.39.
    fn pidfd_spawn(next; pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pidfd, path, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn pidfd_spawnp(next; pidfd: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pidfd, file, actions, attributes, argv, Environment::new(envp, None).strings)
    }
    fn posix_spawn_file_actions_adddup2(next; actions: *mut c_void, fd: c_int, to: c_int) -> c_int {
        if let Some(conn) = table::conn(fd) {
            demote::hand_over(conn, fd, Reason::Exec, false);
        }
        next(actions, fd, to)
    }
    fn system(next; command: *const c_char) -> c_int {
        if !command.is_null() {
            handing_over(false);
        }
        next(command)
    }
    fn popen(next; command: *const c_char, mode: *const c_char) -> *mut FILE {
        handing_over(false);
        next(command, mode)
    }
}
