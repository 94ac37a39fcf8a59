//! exec, spawn and the passing of descriptors: a connection that may reach a process which knows nothing of rings goes back to tcp
//! first, unread bytes and all. And a program that is started by an accelerated one is accelerated, too.

use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sys;
use libc::{FILE, cmsghdr, msghdr};
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{demote, faults, fork, process, relay};

use crate::next::hooks;
use crate::start;

/// Hands connections over that the next image will hold: those without close-on-exec. `leaves`: it takes this one's place.
pub fn handing_over(leaves: bool) {
    if !process::active() {
        return;
    }
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry
            && sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0)
            && (!process::borrowed() || relay::is_socket_of(fd, conn))
        {
            demote::hand_over(conn, fd, Reason::Exec, leaves);
        }
    });
}

/// exec(): another image takes this one's place, if `exec` does not return.
fn instead(exec: impl FnOnce() -> c_int) -> c_int {
    handing_over(true);
    if !process::active() || process::borrowed() {
        return exec();
    }
    let left = fork::leave_by_exec();
    let result = exec();
    left.stay();
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

/// The environment for the next image, with our library and options in it where the program has dropped them.
///
/// # Safety
/// `env` is null or an array of C strings that ends with null.
unsafe fn environment(env: *const *const c_char) -> *const *const c_char {
    if !process::active() || env.is_null() {
        return env;
    }
    let preload = start::preload_entry();
    if preload.is_empty() {
        return env;
    }
    let mut count = 0;
    let mut place = None;
    // SAFETY: the caller vouches for the array.
    unsafe {
        while !(*env.add(count)).is_null() {
            let entry = CStr::from_ptr(*env.add(count)).to_bytes();
            if let Some(value) = entry.strip_prefix(b"LD_PRELOAD=") {
                let library = &preload[b"LD_PRELOAD=".len()..];
                if value.split(|&byte| byte == b':' || byte == b' ').any(|item| item == library) {
                    return env;
                }
                place = Some(count);
            }
            count += 1;
        }
        let old =
            place.map_or(&[][..], |at| &CStr::from_ptr(*env.add(at)).to_bytes()[b"LD_PRELOAD=".len()..]);
        let options = start::option_entries().count();
        let bytes = (count + options + 2) * 8 + preload.len() + old.len() + 2;
        let Ok(at) = sys::mmap_private(bytes) else { return env };
        let array = at.cast::<*const c_char>();
        core::ptr::copy_nonoverlapping(env, array, count);
        let text = at.add((count + options + 2) * 8);
        core::ptr::copy_nonoverlapping(preload.as_ptr(), text, preload.len());
        if !old.is_empty() {
            *text.add(preload.len()) = b':';
            core::ptr::copy_nonoverlapping(old.as_ptr(), text.add(preload.len() + 1), old.len());
        }
        *array.add(place.unwrap_or(count)) = text.cast();
        let mut end = count + usize::from(place.is_none());
        for option in start::option_entries() {
            let name = option.to_bytes().split_inclusive(|&byte| byte == b'=').next().unwrap_or_default();
            let set = (0..count).any(|index| CStr::from_ptr(*env.add(index)).to_bytes().starts_with(name));
            if !set {
                *array.add(end) = option.as_ptr();
                end += 1;
            }
        }
        array
    }
}

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

hooks! {
    fn execve(next; path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        instead(|| next(path, argv, environment(envp)))
    }
    fn execv(next; path: *const c_char, argv: Strings) -> c_int {
        execve(path, argv, environ)
    }
    fn execvp(next; file: *const c_char, argv: Strings) -> c_int {
        execvpe(file, argv, environ)
    }
    fn execvpe(next; file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        instead(|| next(file, argv, environment(envp)))
    }
    fn fexecve(next; fd: c_int, argv: Strings, envp: Strings) -> c_int {
        instead(|| next(fd, argv, environment(envp)))
    }
    fn execveat(next; dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int) -> c_int {
        instead(|| next(dir, path, argv, environment(envp), flags))
    }
    fn posix_spawn(next; pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pid, path, actions, attributes, argv, environment(envp))
    }
    fn posix_spawnp(next; pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pid, file, actions, attributes, argv, environment(envp))
    }
    // Of glibc 2.39.
    fn pidfd_spawn(next; pidfd: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pidfd, path, actions, attributes, argv, environment(envp))
    }
    fn pidfd_spawnp(next; pidfd: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, argv: Strings, envp: Strings) -> c_int {
        handing_over(false);
        next(pidfd, file, actions, attributes, argv, environment(envp))
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
