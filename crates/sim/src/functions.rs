//! The simulated libc: what the library finds behind its hooks, and what a program calls that runs
//! plainly. Each function is its system call.

use std::ffi::{CStr, c_char, c_int, c_void};

use syscalls::Sysno;

use crate::world;

fn result(value: isize) -> isize {
    if value < 0 {
        // SAFETY: libc gives each thread a valid address; the scheduler keeps one value for each
        // simulated thread.
        unsafe { *libc::__errno_location() = -value as i32 };
        return -1;
    }
    value
}

macro_rules! functions {
    ($($name:ident = $call:ident($($arg:ident: $type:ty),*; $($value:expr),*) -> $ret:ty;)*) => {
        $(
            unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
                let words: &[usize] = &[$(($value) as usize),*];
                result(world::call(Sysno::$call, words)) as $ret
            }
        )*
        /// The function of this name; null if there is none.
        pub fn find(name: &CStr) -> *mut c_void {
            match name.to_bytes() {
                b"execve" => execve as *mut c_void,
                $(name if name == stringify!($name).as_bytes() => $name as *mut c_void,)*
                _ => crate::hosts::find(name),
            }
        }
    };
}

unsafe extern "C-unwind" fn execve(
    _: *const c_char,
    _: *const *const c_char,
    env: *const *const c_char,
) -> c_int {
    let mut strings = Vec::new();
    // SAFETY: the caller passes an array of strings that ends with null.
    unsafe {
        let mut place = env;
        while !(*place).is_null() {
            strings.push(CStr::from_ptr(*place).to_owned());
            place = place.add(1);
        }
    }
    world::exec(strings)
}

type Fd = c_int;
type At = *mut c_void;

functions! {
    socket = socket(a: c_int, b: c_int, c: c_int; a, b, c) -> c_int;
    socketpair = socketpair(a: c_int, b: c_int, c: c_int, fds: At; a, b, c, fds) -> c_int;
    bind = bind(fd: Fd, at: At, len: u32; fd, at, len) -> c_int;
    listen = listen(fd: Fd, backlog: c_int; fd, backlog) -> c_int;
    accept = accept4(fd: Fd, at: At, len: At; fd, at, len, 0) -> c_int;
    accept4 = accept4(fd: Fd, at: At, len: At, flags: c_int; fd, at, len, flags) -> c_int;
    connect = connect(fd: Fd, at: At, len: u32; fd, at, len) -> c_int;
    read = read(fd: Fd, at: At, len: usize; fd, at, len) -> isize;
    write = write(fd: Fd, at: At, len: usize; fd, at, len) -> isize;
    readv = readv(fd: Fd, at: At, count: c_int; fd, at, count) -> isize;
    writev = writev(fd: Fd, at: At, count: c_int; fd, at, count) -> isize;
    recv = recvfrom(fd: Fd, at: At, len: usize, flags: c_int; fd, at, len, flags, 0, 0) -> isize;
    send = sendto(fd: Fd, at: At, len: usize, flags: c_int; fd, at, len, flags, 0, 0) -> isize;
    recvfrom = recvfrom(fd: Fd, at: At, len: usize, flags: c_int, from: At, from_len: At; fd, at, len, flags, from, from_len) -> isize;
    sendto = sendto(fd: Fd, at: At, len: usize, flags: c_int, to: At, to_len: u32; fd, at, len, flags, to, to_len) -> isize;
    recvmsg = recvmsg(fd: Fd, at: At, flags: c_int; fd, at, flags) -> isize;
    sendmsg = sendmsg(fd: Fd, at: At, flags: c_int; fd, at, flags) -> isize;
    close = close(fd: Fd; fd) -> c_int;
    shutdown = shutdown(fd: Fd, how: c_int; fd, how) -> c_int;
    dup = dup(fd: Fd; fd) -> c_int;
    dup2 = dup2(fd: Fd, to: Fd; fd, to) -> c_int;
    dup3 = dup3(fd: Fd, to: Fd, flags: c_int; fd, to, flags) -> c_int;
    fcntl = fcntl(fd: Fd, command: c_int, arg: usize; fd, command, arg) -> c_int;
    fcntl64 = fcntl(fd: Fd, command: c_int, arg: usize; fd, command, arg) -> c_int;
    ioctl = ioctl(fd: Fd, command: usize, arg: At; fd, command, arg) -> c_int;
    poll = poll(fds: At, count: usize, millis: c_int; fds, count, millis) -> c_int;
    ppoll = ppoll(fds: At, count: usize, time: At, mask: At; fds, count, time, mask, 8) -> c_int;
    epoll_create = epoll_create1(_size: c_int; 0) -> c_int;
    epoll_create1 = epoll_create1(flags: c_int; flags) -> c_int;
    epoll_ctl = epoll_ctl(set: Fd, op: c_int, fd: Fd, event: At; set, op, fd, event) -> c_int;
    epoll_wait = epoll_pwait(set: Fd, events: At, most: c_int, millis: c_int; set, events, most, millis, 0, 8) -> c_int;
    epoll_pwait = epoll_pwait(set: Fd, events: At, most: c_int, millis: c_int, mask: At; set, events, most, millis, mask, 8) -> c_int;
    setsockopt = setsockopt(fd: Fd, level: c_int, name: c_int, at: At, len: u32; fd, level, name, at, len) -> c_int;
    getsockopt = getsockopt(fd: Fd, level: c_int, name: c_int, at: At, len: At; fd, level, name, at, len) -> c_int;
    getsockname = getsockname(fd: Fd, at: At, len: At; fd, at, len) -> c_int;
    getpeername = getpeername(fd: Fd, at: At, len: At; fd, at, len) -> c_int;
    sigaction = rt_sigaction(signal: c_int, new: At, old: At; signal, new, old, 8) -> c_int;
    eventfd = eventfd2(count: u32, flags: c_int; count, flags) -> c_int;
    sched_yield = sched_yield(;) -> c_int;
    getpid = getpid(;) -> c_int;
}

/// As the library looks for one.
pub unsafe extern "C" fn next(name: *const c_char) -> *const c_void {
    // SAFETY: the library passes a C string.
    find(unsafe { CStr::from_ptr(name) })
}
