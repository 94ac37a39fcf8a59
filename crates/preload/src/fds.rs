//! The life of descriptors: connect, accept, dup in all forms, close in all forms, shutdown, fcntl,
//! ioctl.

use core::ffi::{c_int, c_uint, c_ulong, c_void};
use core::mem::offset_of;
use fabric::sys;
use libc::{sockaddr, socklen_t};
use sockets::conn::{Conn, flag};
use sockets::interface::ioctls::Place;
use sockets::interface::{self, What};
use sockets::reason::Reason;
use sockets::rendezvous::meeting;
use sockets::table::{self, Entry};
use sockets::taken::{self, Taken};
use sockets::{
    close as ending, demote, descriptors, epoll, errno, faults, fork, handover, io, lifecycle, low_water,
    process, relay, rendezvous, small_buffers, thread, worth,
};

use crate::next::hooks;

/// Before a descriptor is closed: what it stood for is told. False if it is one of ours.
pub fn closing(fd: c_int) -> bool {
    match table::entry(fd) {
        Entry::None => true,
        Entry::Own => {
            errno::set(libc::EBADF);
            false
        }
        // A child of vfork() closes a number of its own; what we know is its parent's.
        _ if process::borrowed() => true,
        _ => {
            ending::closing(fd);
            true
        }
    }
}

/// The family of an address that the kernel has just read.
fn family(address: *const sockaddr) -> Option<c_int> {
    // SAFETY: not null, and the kernel found its family to be there.
    (!address.is_null()).then(|| unsafe { (&raw const (*address).sa_family).read_unaligned() }.into())
}

/// The service at an address.
fn at(address: *const sockaddr) -> u32 {
    let len = match family(address) {
        Some(libc::AF_INET) => offset_of!(libc::sockaddr_in, sin_zero),
        Some(libc::AF_INET6) => offset_of!(libc::sockaddr_in6, sin6_scope_id),
        _ => return 0,
    };
    // SAFETY: the kernel has taken an address of this family, which is no shorter.
    worth::service(unsafe { core::slice::from_raw_parts(address.cast(), len) })
}

/// After a descriptor was duplicated.
fn duplicated(from: c_int, to: c_int) {
    if process::borrowed() {
        // The number is the child's alone, and for what it executes next.
        if let Some(conn) = table::conn(from)
            && handover::is_socket_of(to, conn)
        {
            relay::hand_over(conn, to, Reason::Exec, true);
        }
        return;
    }
    if matches!(table::entry(from), Entry::None) {
        let errno = errno::get();
        lifecycle::track_unconnected(from);
        errno::set(errno);
    }
    let steady = rendezvous::steady();
    match table::entry(from) {
        Entry::Conn(conn) => {
            conn.refs.fetch_add(1, fabric::sync::Ordering::AcqRel);
            if let Some(Entry::Conn(old)) = table::swap(to, Entry::Conn(conn)) {
                ending::abandon(old);
            }
            drop(steady);
            if to <= libc::STDERR_FILENO {
                // perror(), abort() and others in libc write past us.
                relay::hand_over(conn, to, Reason::Stdio, false);
            }
        }
        Entry::Set(set) => {
            epoll::duplicated(set);
            table::swap(to, Entry::Set(set));
        }
        Entry::None | Entry::Own => {}
    }
}

/// After a descriptor of another process, or of this one, was taken (pidfd_getfd()), or not.
#[cold]
pub fn got_from_process(from: c_int, theirs: c_int, got: c_int) -> c_int {
    if got < 0 || !process::active() || process::borrowed() {
        return got;
    }
    let errno = errno::get();
    match taken::taken(from, theirs, got) {
        Taken::Kernel => {}
        Taken::Own => duplicated(theirs, got),
        Taken::Refused => {
            sys::close(got);
            errno::set(libc::EPERM);
            return -1;
        }
    }
    errno::set(errno);
    got
}

fn duplicate_over(from: c_int, to: c_int, next: impl FnOnce() -> c_int) -> c_int {
    // Only a call that will close the target may tell what it stood for that it is closed.
    if from != to && to >= 0 && sys::fcntl(from, libc::F_GETFD, 0).is_ok() && !closing(to) {
        return -1;
    }
    let counted = descriptors::Closing::begin();
    let fd = next();
    drop(counted);
    if fd >= 0 && from != to {
        duplicated(from, fd);
    }
    fd
}

/// Closes a range of descriptors but for our own, a run between two of ours at a time.
fn close_range_around(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let close = |from, to| {
        let _closing = descriptors::Closing::begin();
        close(from, to)
    };
    let keeps = flags & CLOSE_RANGE_CLOEXEC != 0;
    let mut from = first;
    for fd in first..(table::top_of_all() as c_uint).min(last.saturating_add(1)) {
        if table::is_own(fd as c_int) {
            if from < fd {
                close(from, fd - 1);
            }
            from = fd + 1;
        } else if !keeps {
            closing(fd as c_int);
        }
    }
    if from <= last { close(from, last) } else { 0 }
}

const CLOSE_RANGE_CLOEXEC: c_int = 4;
const SIOCATMARK: c_ulong = 0x8905;

fn asynchronous(conn: &'static Conn, fd: c_int, flags: c_int) {
    if flags & libc::O_ASYNC != 0 {
        demote::for_kernel(conn, fd, Reason::Async);
    }
    if flags & libc::O_NONBLOCK != 0 { conn.set(flag::NONBLOCK) } else { conn.clear(flag::NONBLOCK) }
}

/// A request on another descriptor that gives a connection to a part of the kernel.
unsafe fn given_away(request: c_ulong, arg: *mut c_void) {
    let fd = match interface::ioctls::names_another(request as u32) {
        None => return,
        Some(Place::Argument) => arg.addr() as c_int,
        Some(Place::Pointed) if faults::low(arg) => return,
        // SAFETY: the request has the program's argument point to a structure that begins with the
        // number.
        Some(Place::Pointed) => unsafe { arg.cast::<c_int>().read_unaligned() },
    };
    if let Some(conn) = table::conn(fd) {
        relay::hand_over(conn, fd, Reason::Passed, true);
    }
}

unsafe fn fcntl_with(fd: c_int, command: c_int, arg: usize, next: impl Fn() -> c_int) -> c_int {
    if thread::is_ours() {
        return match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => descriptors::for_library(next),
            _ => next(),
        };
    }
    if table::is_own(fd) {
        errno::set(libc::EBADF);
        return -1;
    }
    let result = next();
    if result < 0 {
        return result;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicated(fd, result),
        libc::F_SETFL => {
            if let Some(conn) = table::conn(fd) {
                asynchronous(conn, fd, arg as c_int);
            }
        }
        _ => {}
    }
    result
}

/// accept(), and what it has accepted is followed.
///
/// # Safety
///
/// `from` and `len` are as accept() takes them.
unsafe fn accepted(
    listener: c_int,
    from: *mut sockaddr,
    len: *mut socklen_t,
    accept: impl FnOnce(*mut sockaddr, *mut socklen_t) -> c_int,
) -> c_int {
    let room = if faults::low(from) || faults::low(len) {
        0
    } else {
        // SAFETY: as the caller says; addresses of nothing, which the kernel refuses, are not read.
        unsafe { len.read_unaligned() }
    };
    let has_room = room as usize >= size_of::<libc::sa_family_t>();
    let got = accept(from, len);
    if got >= 0 {
        // There was room for the family, and the kernel has written it: to ask for it takes one
        // call more.
        let family = if has_room { family(from) } else { None };
        lifecycle::track(got, false, family, worth::service(&listener.to_ne_bytes()));
    }
    got
}

/// Of 32-bit programs whose time has 64 bits; by the same name on others.
const SO_RCVTIMEO_NEW: c_int = 66;

hooks! {
    fn connect(next; fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
        let known = table::conn(fd);
        let before = meeting::connecting();
        let result = next(fd, to, len);
        let begun = result == 0 || matches!(errno::get(), libc::EINPROGRESS | libc::EINTR);
        if begun && known.is_none() && process::active() {
            let errno = errno::get();
            lifecycle::track(fd, true, family(to), at(to));
            errno::set(errno);
        }
        if let Some(before) = before
            && begun
            && let Some(conn) = table::conn(fd)
        {
            meeting::connected(conn, before);
        }
        if let Some(conn) = known
            && result == 0
            && !to.is_null()
            && i32::from((*to).sa_family) == libc::AF_UNSPEC
        {
            // The socket was disconnected; it may be connected again to someone else.
            demote::for_kernel(conn, fd, Reason::Option);
            closing(fd);
        }
        result
    }
    fn listen(next; fd: c_int, backlog: c_int) -> c_int {
        // Followed since it was duplicated, or became a member of an epoll set: it will never be a
        // connection.
        if table::conn(fd).is_some_and(|conn| !conn.is_managed()) {
            closing(fd);
        }
        meeting::listens(fd);
        next(fd, backlog)
    }
    fn accept(next; fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int {
        if thread::is_ours() {
            return descriptors::for_library(|| next(fd, from, len));
        }
        accepted(fd, from, len, |from, len| next(fd, from, len))
    }
    fn accept4(next; fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        if thread::is_ours() {
            return descriptors::for_library(|| next(fd, from, len, flags));
        }
        accepted(fd, from, len, |from, len| next(fd, from, len, flags))
    }
    fn close(next; fd: c_int) -> c_int {
        if thread::is_ours() && table::is_own(fd) {
            descriptors::library_closes(fd);
            return 0;
        }
        if !closing(fd) {
            return -1;
        }
        let _closing = descriptors::Closing::begin();
        next(fd)
    }
    fn close_range(next; first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if first > last {
            return next(first, last, flags);
        }
        // With CLOSE_RANGE_UNSHARE the table of descriptors becomes ours alone; the ranges then
        // follow one by one.
        close_range_around(first, last, flags, |from, to| next(from, to, flags))
    }
    fn closefrom(next; first: c_int) {
        let first = first.max(0) as c_uint;
        close_range_around(first, c_uint::MAX, 0, |from, to| close_range(from, to, 0));
    }
    fn dup(next; fd: c_int) -> c_int {
        if thread::is_ours() {
            return descriptors::for_library(|| next(fd));
        }
        if table::is_own(fd) {
            errno::set(libc::EBADF);
            return -1;
        }
        let got = next(fd);
        if got >= 0 {
            duplicated(fd, got);
        }
        got
    }
    fn dup2(next; from: c_int, to: c_int) -> c_int {
        duplicate_over(from, to, || next(from, to))
    }
    fn dup3(next; from: c_int, to: c_int, flags: c_int) -> c_int {
        duplicate_over(from, to, || next(from, to, flags))
    }
    fn pidfd_getfd(next; process: c_int, fd: c_int, flags: c_uint) -> c_int {
        got_from_process(process, fd, next(process, fd, flags))
    }
    fn fcntl(next; fd: c_int, command: c_int, arg: usize) -> c_int {
        fcntl_with(fd, command, arg, || next(fd, command, arg))
    }
    fn fcntl64(next; fd: c_int, command: c_int, arg: usize) -> c_int {
        fcntl_with(fd, command, arg, || next(fd, command, arg))
    }
    fn ioctl(next; fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
        let Some(conn) = table::conn(fd) else {
            given_away(request, arg);
            return next(fd, request, arg);
        };
        match request {
            libc::FIONREAD if !faults::low(arg) => match io::unread(conn, fd) {
                Some(count) => {
                    *arg.cast::<c_int>() = count;
                    0
                }
                None => next(fd, request, arg),
            },
            libc::TIOCOUTQ if !faults::low(arg) => match io::unsent(conn, fd) {
                Some(count) => {
                    *arg.cast::<c_int>() = count;
                    0
                }
                None => next(fd, request, arg),
            },
            SIOCATMARK if !faults::low(arg) && io::before_mark(conn, fd) => {
                *arg.cast::<c_int>() = 0;
                0
            }
            libc::FIONBIO => {
                let result = next(fd, request, arg);
                if result == 0 && !faults::low(arg) {
                    if *arg.cast::<c_int>() != 0 { conn.set(flag::NONBLOCK) } else { conn.clear(flag::NONBLOCK) }
                }
                result
            }
            libc::FIOASYNC => {
                demote::for_kernel(conn, fd, Reason::Async);
                next(fd, request, arg)
            }
            _ => {
                if interface::ioctls::of(request as u32) == What::Tcp {
                    relay::hand_over(conn, fd, Reason::RawCall, false);
                }
                next(fd, request, arg)
            }
        }
    }
    fn sockatmark(next; fd: c_int) -> c_int {
        match table::conn(fd) {
            Some(conn) if io::before_mark(conn, fd) => 0,
            _ => next(fd),
        }
    }
    fn shutdown(next; fd: c_int, how: c_int) -> c_int {
        if let Some(conn) = table::conn(fd)
            && (libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how)
        {
            ending::shut(conn, fd, how);
        }
        next(fd, how)
    }
    fn setsockopt(next; fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
        meeting::option_used(level, name);
        let Some(conn) = table::conn(fd) else { return next(fd, level, name, value, len) };
        let number = if faults::low(value) || len < 4 { None } else { Some(value.cast::<c_int>().read_unaligned()) };
        if let (libc::IPPROTO_TCP, libc::TCP_NODELAY | libc::TCP_CORK, Some(number)) = (level, name, number)
            && conn.is_managed()
        {
            let kept = if name == libc::TCP_NODELAY { flag::NODELAY } else { flag::CORK };
            if number != 0 { conn.set(kept) } else { conn.clear(kept) }
            return 0;
        }
        let harmless = |number| interface::options::is_harmless(level, name, number);
        if interface::options::set(level, name) == What::Tcp && !number.is_some_and(harmless) {
            // Before the kernel knows: some hold for what waits unread, too.
            relay::hand_over(conn, fd, Reason::Option, false);
            if (level, name) == (libc::SOL_SOCKET, libc::SO_PEEK_OFF) && conn.is_managed() {
                // Looks of ours would move what is the program's. Kernels before 6.9 have no such
                // option for tcp, and say so.
                errno::set(libc::EOPNOTSUPP);
                return -1;
            }
        }
        if let (libc::SOL_SOCKET, libc::SO_RCVLOWAT, Some(mark)) = (level, name, number)
            && low_water::set(conn, fd, mark)
        {
            return 0;
        }
        let result = meeting::undisturbed(conn, || next(fd, level, name, value, len));
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if result == 0 => small_buffers::receive_buffer_set(conn, fd),
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | SO_RCVTIMEO_NEW) => conn.clear(flag::UNLIMITED),
            _ => {}
        }
        result
    }
    fn getsockopt(next; fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        meeting::option_used(level, name);
        if interface::options::got(level, name) == What::Tcp
            && let Some(conn) = table::conn(fd)
        {
            relay::hand_over(conn, fd, Reason::Option, false);
        }
        let result = match table::conn(fd) {
            Some(conn) => meeting::undisturbed(conn, || next(fd, level, name, value, len)),
            None => next(fd, level, name, value, len),
        };
        if result == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_RCVLOWAT)
            && let Some(mark) = table::conn(fd).and_then(low_water::get)
        {
            core::ptr::copy_nonoverlapping((&raw const mark).cast(), value.cast::<u8>(), 4.min(*len as usize));
        }
        if result == 0
            && (level, name) == (libc::SOL_SOCKET, libc::SO_ERROR)
            && *len as usize == size_of::<c_int>()
            && value.cast::<c_int>().read_unaligned() == 0
            && let Some(error) = table::conn(fd).and_then(|conn| io::take_error(conn, fd))
        {
            value.cast::<c_int>().write_unaligned(error);
        }
        if result == 0
            && level == libc::IPPROTO_TCP
            && (name == libc::TCP_NODELAY || name == libc::TCP_CORK)
            && let Some(conn) = table::conn(fd)
            && conn.is_managed()
        {
            let kept = if name == libc::TCP_NODELAY { flag::NODELAY } else { flag::CORK };
            let number = c_int::from(conn.has(kept)).to_ne_bytes();
            // As much of it as the program, and then the kernel, has said that there is room for.
            core::ptr::copy_nonoverlapping(number.as_ptr(), value.cast(), number.len().min(*len as usize));
        }
        result
    }
}

/// Registered with pthread_atfork, so that every fork() inside libc is seen, too.
pub unsafe extern "C" fn before_fork() {
    if !process::ended() {
        fork::prepare();
    }
}

pub unsafe extern "C" fn parent_of_fork() {
    if !process::ended() {
        fork::parent();
    }
}

pub unsafe extern "C" fn child_of_fork() {
    if !process::ended() {
        fork::child();
    }
}
