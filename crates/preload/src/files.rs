//! read, write, send, recv and their kin: each becomes an array of buffers and flags, and goes to
//! `sockets::io`.

use core::ffi::{c_int, c_void};
use fabric::sys;
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use sockets::conn::{Conn, flag};
use sockets::interface::flags::{receiving_by_tcp, sending_by_tcp};
use sockets::io::{self, Outcome};
use sockets::reason::Reason;
use sockets::{demote, errno, faults, relay, table};

use crate::next::{answer, hooks};

#[inline(always)]
fn one(buffer: *const c_void, len: size_t) -> [iovec; 1] {
    // As the kernel does: at most MAX_RW_COUNT at once.
    [iovec { iov_base: buffer.cast_mut(), iov_len: len.min(0x7fff_f000) }]
}

/// # Safety
/// As for readv: `iov` holds `count` buffers, if `count` is sane.
unsafe fn many<'a>(iov: *const iovec, count: usize) -> Option<&'a [iovec]> {
    if count == 0 || count > 1024 || faults::low(iov) {
        return None; // The kernel's error, or nothing to do.
    }
    // SAFETY: the caller vouches for it.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}

#[inline(always)]
fn carry(
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    only_by_tcp: c_int,
    call: fn(&'static Conn, i32, &[iovec], i32) -> Outcome,
    next: impl FnOnce() -> ssize_t,
) -> ssize_t {
    let Some(conn) = table::conn(fd) else { return next() };
    if only_by_tcp != 0 {
        leave_for_flags(conn, fd);
    }
    if flags & libc::MSG_OOB == 0
        && conn.rests()
        && let Some(_in_kernel) = conn.enter_kernel()
    {
        return next();
    }
    loop {
        match call(conn, fd, iov, flags) {
            Outcome::Done(result) => return answer(result),
            Outcome::Kernel => {
                if let Some(_in_kernel) = conn.enter_kernel() {
                    return next();
                }
            }
        }
    }
}

#[inline(always)]
pub fn receive(fd: c_int, iov: &[iovec], flags: c_int, next: impl FnOnce() -> ssize_t) -> ssize_t {
    carry(fd, iov, flags, receiving_by_tcp(flags), io::recv, || {
        let got = next();
        if got == 1 { 1 + io::second_segment(fd, iov, flags) as ssize_t } else { got }
    })
}

/// As [`receive`], for read() and its kin: of no bytes they say so at once, where recv() waits for
/// some.
#[inline(always)]
fn read_into(fd: c_int, iov: &[iovec], flags: c_int, next: impl FnOnce() -> ssize_t) -> ssize_t {
    if iov.iter().all(|piece| piece.iov_len == 0) { next() } else { receive(fd, iov, flags, next) }
}

/// Flags that we cannot follow, or do not know: back to tcp.
#[cold]
fn leave_for_flags(conn: &'static Conn, fd: c_int) {
    relay::hand_over(conn, fd, Reason::RawCall, false);
}

/// What preadv2() and pwritev2() may ask for without a difference to a socket, or what we follow
/// (RWF_NOWAIT).
const KNOWN_FLAGS: c_int =
    libc::RWF_NOWAIT | libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_APPEND;

/// For others the kernel has an error, or something that we do not know: back to tcp.
fn unknown_flags(fd: c_int, flags: c_int) {
    if flags & !KNOWN_FLAGS != 0
        && let Some(conn) = table::conn(fd)
    {
        relay::hand_over(conn, fd, Reason::RawCall, false);
    }
}

/// The program's SIGPIPE: the kernel sends it when we call the kernel; flags say whether it wants
/// it.
#[inline(always)]
pub fn send_out(fd: c_int, iov: &[iovec], flags: c_int, next: impl FnOnce() -> ssize_t) -> ssize_t {
    carry(fd, iov, flags, sending_by_tcp(flags), io::send, || {
        let sent = next();
        let wanted = iov.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.iov_len));
        if is_short(sent, wanted)
            && let Some(conn) = table::conn(fd)
        {
            owe_room(conn);
        }
        sent
    })
}

/// Whether there was no room, or too little, for what the kernel was to send.
#[inline(always)]
pub fn is_short(sent: ssize_t, wanted: usize) -> bool {
    if sent < 0 { errno::get() == libc::EAGAIN } else { (sent as usize) < wanted }
}

/// Whoever waits for room by edges is owed one: should the connection move meanwhile, the kernel's
/// would not be told.
#[cold]
pub fn owe_room(conn: &Conn) {
    conn.set(flag::TX_FULL);
}

hooks! {
    fn read(next; fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        read_into(fd, &one(buffer, len), 0, || next(fd, buffer, len))
    }
    fn __read_chk(next; fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        if len > room {
            return next(fd, buffer, len, room);
        }
        read_into(fd, &one(buffer, len), 0, || next(fd, buffer, len, room))
    }
    fn readv(next; fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match many(iov, count as usize) {
            Some(pieces) => read_into(fd, pieces, 0, || next(fd, iov, count)),
            None => next(fd, iov, count),
        }
    }
    fn recv(next; fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        receive(fd, &one(buffer, len), flags, || next(fd, buffer, len, flags))
    }
    fn __recv_chk(next; fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        if len > room {
            return next(fd, buffer, len, room, flags);
        }
        receive(fd, &one(buffer, len), flags, || next(fd, buffer, len, room, flags))
    }
    fn recvfrom(next; fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t {
        let mut by_kernel = false;
        let got = receive(fd, &one(buffer, len), flags, || {
            by_kernel = true;
            next(fd, buffer, len, flags, from, from_len)
        });
        if !by_kernel && got >= 0 && !from.is_null() && !from_len.is_null() {
            *from_len = 0;
        }
        got
    }
    fn __recvfrom_chk(next; fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr, from_len: *mut socklen_t) -> ssize_t {
        if len > room {
            return next(fd, buffer, len, room, flags, from, from_len);
        }
        let mut by_kernel = false;
        let got = receive(fd, &one(buffer, len), flags, || {
            by_kernel = true;
            next(fd, buffer, len, room, flags, from, from_len)
        });
        if !by_kernel && got >= 0 && !from.is_null() && !from_len.is_null() {
            *from_len = 0;
        }
        got
    }
    fn recvmsg(next; fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
        if table::conn(fd).is_none() || faults::low(message) {
            return next(fd, message, flags);
        }
        let none = Some(&[][..]).filter(|_| (*message).msg_iovlen == 0);
        match none.or_else(|| many((*message).msg_iov, (*message).msg_iovlen)) {
            Some(pieces) => {
                let mut by_kernel = false;
                let got = receive(fd, pieces, flags, || {
                    by_kernel = true;
                    next(fd, message, flags)
                });
                if !by_kernel && got >= 0 {
                    (*message).msg_namelen = 0;
                    (*message).msg_controllen = 0;
                    (*message).msg_flags = 0;
                }
                got
            }
            None => next(fd, message, flags),
        }
    }
    fn recvmmsg(next; fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int, timeout: *mut timespec) -> c_int {
        match table::conn(fd) {
            Some(conn) if !faults::low(messages) => match conn.enter_kernel() {
                Some(_in_kernel) => next(fd, messages, count, flags, timeout),
                None => receive_messages(conn, fd, messages, count, flags, timeout),
            },
            _ => next(fd, messages, count, flags, timeout),
        }
    }
    fn write(next; fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        send_out(fd, &one(buffer, len), 0, || next(fd, buffer, len))
    }
    fn writev(next; fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match many(iov, count as usize) {
            Some(pieces) => send_out(fd, pieces, 0, || next(fd, iov, count)),
            None => next(fd, iov, count),
        }
    }
    fn preadv2(next; fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        unknown_flags(fd, flags);
        match many(iov, count as usize) {
            Some(pieces) if offset == -1 && flags & !KNOWN_FLAGS == 0 && table::conn(fd).is_some() => {
                let flags_of_socket = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
                read_into(fd, pieces, flags_of_socket, || next(fd, iov, count, offset, flags))
            }
            _ => next(fd, iov, count, offset, flags),
        }
    }
    fn pwritev2(next; fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        unknown_flags(fd, flags);
        match many(iov, count as usize) {
            Some(pieces) if offset == -1 && flags & !KNOWN_FLAGS == 0 && table::conn(fd).is_some() => {
                let flags_of_socket = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
                send_out(fd, pieces, flags_of_socket, || next(fd, iov, count, offset, flags))
            }
            _ => next(fd, iov, count, offset, flags),
        }
    }
    fn preadv64v2(next; fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        preadv2(fd, iov, count, offset, flags)
    }
    fn pwritev64v2(next; fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t {
        pwritev2(fd, iov, count, offset, flags)
    }
    fn send(next; fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send_out(fd, &one(buffer, len), flags, || next(fd, buffer, len, flags))
    }
    fn sendto(next; fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t) -> ssize_t {
        send_out(fd, &one(buffer, len), flags, || next(fd, buffer, len, flags, to, to_len))
    }
    fn sendmsg(next; fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
        if faults::low(message) {
            return next(fd, message, flags);
        }
        let Some(conn) = table::conn(fd) else {
            crate::passed::passing(message);
            return next(fd, message, flags);
        };
        if (*message).msg_controllen != 0 {
            demote::for_kernel(conn, fd, Reason::Option);
        }
        match many((*message).msg_iov, (*message).msg_iovlen) {
            Some(pieces) => send_out(fd, pieces, flags, || next(fd, message, flags)),
            None => next(fd, message, flags),
        }
    }
    fn sendmmsg(next; fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int {
        if faults::low(messages) {
            return next(fd, messages, count, flags);
        }
        if table::conn(fd).is_none() {
            for index in 0..count as usize {
                crate::passed::passing(&raw const (*messages.add(index)).msg_hdr);
            }
            return next(fd, messages, count, flags);
        }
        let mut done = 0;
        while done < count {
            let each = messages.add(done as usize);
            let sent = sendmsg(fd, &raw const (*each).msg_hdr, flags);
            if sent < 0 {
                break;
            }
            (*each).msg_len = sent as u32;
            done += 1;
        }
        if done > 0 { done as c_int } else { -1 }
    }
}

/// recvmmsg(), as the kernel does it: it waits for each message, or only for the first, and looks
/// at the time after each.
///
/// # Safety
/// As for recvmmsg.
unsafe fn receive_messages(
    conn: &Conn,
    fd: c_int,
    messages: *mut mmsghdr,
    count: u32,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    // SAFETY: the caller vouches for it.
    let time = unsafe { timeout.as_mut() };
    let nanos = match &time {
        None => u64::MAX,
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => {
            errno::set(libc::EINVAL);
            return -1;
        }
        Some(time) => (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64),
    };
    let start = sys::now();
    let (mut done, mut left) = (0, nanos);
    while done < count.min(1024) {
        let waits = done == 0 || flags & libc::MSG_WAITFORONE == 0;
        let extra = if waits { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the caller vouches for `count` messages.
        let got = unsafe {
            let each = messages.add(done as usize);
            let got = recvmsg(fd, &raw mut (*each).msg_hdr, flags & !libc::MSG_WAITFORONE | extra);
            (*each).msg_len = got.max(0) as u32;
            got
        };
        if got < 0 {
            let errno = errno::get();
            if done > 0 && errno == libc::ECONNRESET {
                // For the next call: it is told once.
                io::keep_error(conn, fd, errno);
            }
            break;
        }
        done += 1;
        left = nanos.saturating_sub(sys::now() - start);
        if left == 0 {
            break;
        }
    }
    if let Some(time) = time
        && done > 0
    {
        *time = sys::timespec(left);
    }
    if done > 0 { done as c_int } else { -1 }
}

/// Writes all of a buffer, for stdio-like calls; false with errno set.
///
/// # Safety
/// `buffer` is valid for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shunt_write_all(fd: c_int, buffer: *const u8, len: size_t) -> c_int {
    let mut done = 0;
    while done < len {
        // SAFETY: inside the caller's buffer.
        let sent = unsafe { write(fd, buffer.add(done).cast(), len - done) };
        if sent < 0 {
            if errno::get() == libc::EINTR {
                continue;
            }
            return -1;
        }
        done += sent as usize;
    }
    0
}

/// Whether calls on a descriptor may have to be ours.
#[unsafe(no_mangle)]
extern "C-unwind" fn shunt_follows(fd: c_int) -> c_int {
    c_int::from(table::conn(fd).is_some())
}
