//! Second names that libc exports for the same functions. No header declares them, but libraries
//! that were written against an older libc, or want to pass macros and interposers by, call them.

use core::ffi::{c_int, c_void};
use libc::{fd_set, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval};

use crate::next::hooks;
use crate::{fds, files, signals, waits};

hooks! {
    fn __read(next; fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        files::read(fd, buffer, len)
    }
    fn __write(next; fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        files::write(fd, buffer, len)
    }
    fn __send(next; fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        files::send(fd, buffer, len, flags)
    }
    fn __connect(next; fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        fds::connect(fd, to, len)
    }
    fn __close(next; fd: c_int) -> c_int {
        fds::close(fd)
    }
    fn __dup2(next; from: c_int, to: c_int) -> c_int {
        fds::dup2(from, to)
    }
    fn __fcntl(next; fd: c_int, command: c_int, arg: usize) -> c_int {
        fds::fcntl(fd, command, arg)
    }
    fn __poll(next; fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
        waits::poll(fds, count, millis)
    }
    fn __select(next; count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        waits::select(count, read, write, except, timeout)
    }
    fn __sigaction(next; signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        signals::sigaction(signal, new, old)
    }
    fn bsd_signal(next; signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        signals::signal(signal, handler)
    }
    fn ssignal(next; signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
        signals::signal(signal, handler)
    }
}
