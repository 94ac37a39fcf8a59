//! sendfile, splice and their kin. sendfile to a promoted connection reads from the page cache into
//! the ring; the others go back to tcp.

use core::ffi::{c_int, c_uint, c_void};
use fabric::sys::{self, Errno};
use libc::{iovec, loff_t, off_t, size_t, ssize_t};
use sockets::conn::Conn;
use sockets::io::{self, File, Outcome};
use sockets::reason::Reason;
use sockets::{demote, errno, relay, table};

use crate::files::{is_short, owe_room};
use crate::next::{answer, hooks};

/// Back to tcp for a call between the kernel's own buffers: `reads` if it takes bytes from the
/// connection.
fn by_kernel(fd: c_int, reads: bool) {
    if let Some(conn) = table::conn(fd) {
        if reads {
            relay::hand_over(conn, fd, Reason::RawCall, false);
        } else {
            demote::for_kernel(conn, fd, Reason::Splice);
        }
    }
}

/// The same for an aiocb, whose first member is the descriptor. False if it still has bytes that
/// only we can read; errno says that nothing has been queued.
///
/// # Safety
/// `block` is null or a valid aiocb.
unsafe fn by_kernel_of(block: *const c_void) -> bool {
    // SAFETY: the caller vouches for it.
    let Some(&fd) = (unsafe { block.cast::<c_int>().as_ref() }) else { return true };
    by_kernel(fd, true);
    let left = !table::conn(fd).is_some_and(Conn::is_managed);
    if !left {
        errno::set(libc::EAGAIN);
    }
    left
}

/// From a connection into a pipe, where the connection could not be left to the kernel: bytes of
/// the ring lie before those that it has. A page at a time, which a pipe has room for or not.
/// `None`: it is the kernel's after all, or an error of the kernel's.
fn by_hand(conn: &'static Conn, from: c_int, out: c_int, len: size_t, flags: c_uint) -> Option<ssize_t> {
    let mut page = [0u8; libc::PIPE_BUF];
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0;
    if len == 0 || sys::fcntl(out, libc::F_GETPIPE_SZ, 0).is_err() {
        return None;
    }
    let mut pipe = [libc::pollfd { fd: out, events: libc::POLLOUT, revents: 0 }];
    if !waits && sys::ppoll(&mut pipe, Some(0)) == Ok(0) {
        return Some(answer(Err(Errno::EAGAIN)));
    }
    let (at, room) = (page.as_mut_ptr(), len.min(page.len()));
    let place = |len| [iovec { iov_base: at.cast(), iov_len: len }];
    let got = match io::recv(conn, from, &place(room), libc::MSG_PEEK) {
        Outcome::Done(Ok(got)) if got > 0 => got,
        Outcome::Done(result) => return Some(answer(result)),
        Outcome::Kernel => return None,
    };
    // SAFETY: the buffer holds `got` bytes.
    let put = unsafe { crate::files::write(out, at.cast(), got) };
    if put > 0 {
        io::recv(conn, from, &place(put as usize), libc::MSG_DONTWAIT);
    }
    Some(put)
}

unsafe fn send_file(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
    next: impl Fn(size_t) -> ssize_t,
) -> ssize_t {
    let Some(conn) = table::conn(out) else { return next(count) };
    if table::conn(from).is_some() {
        by_kernel(from, true);
    }
    let mut by_tcp = 0;
    while !conn.is_managed() {
        sockets::rendezvous::tick(conn, out);
        if conn.meeting.proof.load(fabric::sync::Ordering::Relaxed) != 0 {
            sockets::rendezvous::meeting::give_up(conn);
        }
        if conn.is_managed() {
            break;
        }
        let most = if conn.may_be_promoted() { PIECE.max(by_tcp / 4) } else { usize::MAX };
        let piece = (count - by_tcp).min(most);
        let Some(in_kernel) = conn.enter_kernel() else { continue };
        let sent = {
            let _in_kernel = in_kernel;
            let sent = next(piece);
            // Before it may move.
            if is_short(sent, piece) {
                owe_room(conn);
            }
            sent
        };
        if sent < 0 {
            return if by_tcp > 0 { by_tcp as ssize_t } else { sent };
        }
        by_tcp += sent as usize;
        if (sent as usize) < piece || by_tcp == count {
            return by_tcp as ssize_t;
        }
    }
    // SAFETY: `offset` is the caller's, the kernel has moved it on by what it sent.
    match unsafe { copy(conn, out, from, offset, count - by_tcp, next) } {
        sent if sent < 0 && by_tcp > 0 => by_tcp as ssize_t,
        sent => sent + by_tcp as ssize_t,
    }
}

/// Of a file that one call sends by tcp, so much goes at a time, and more as more has gone: else
/// the connection would be as young after any file as before.
const PIECE: usize = 64 << 10;

/// sendfile into the ring.
///
/// # Safety
/// As for sendfile.
unsafe fn copy(
    conn: &'static Conn,
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
    next: impl Fn(size_t) -> ssize_t,
) -> ssize_t {
    // SAFETY: the program vouches for `offset`.
    let start = match unsafe { offset.as_ref() } {
        Some(&at) => at,
        None => match sys::lseek(from, 0, libc::SEEK_CUR) {
            Ok(at) => at as off_t,
            Err(_) => {
                by_kernel(out, false);
                return next(count);
            }
        },
    };
    let file = File::new(from, start as u64, count);
    let mut done = 0;
    let mut result = 0;
    while done < count {
        let rest = file.rest(done);
        let sent = match io::send_file(conn, out, &rest) {
            Outcome::Done(Err(errno)) => answer(Err(errno)),
            Outcome::Done(Ok(sent)) if sent > 0 || !rest.is_cold() => sent as ssize_t,
            _ => match by_buffer(out, from, start as u64 + done as u64, count - done) {
                Some(sent) => sent,
                None if done == 0 => {
                    by_kernel(out, false);
                    return next(count);
                }
                None => break,
            },
        };
        if sent <= 0 {
            result = sent;
            break;
        }
        done += sent as usize;
    }
    if done > 0 {
        // SAFETY: as above.
        match unsafe { offset.as_mut() } {
            Some(place) => *place = start + done as off_t,
            None => {
                let _ = sys::lseek(from, start + done as off_t, libc::SEEK_SET);
            }
        }
        return done as ssize_t;
    }
    result
}

/// Sends a little of a file by way of a buffer; `None` if it cannot be read.
fn by_buffer(out: c_int, from: c_int, at: u64, count: usize) -> Option<ssize_t> {
    let mut buffer = [0u8; 16 << 10];
    let want = count.min(buffer.len());
    let got = sys::pread(from, &mut buffer[..want], at).ok()?;
    if got == 0 {
        return Some(0);
    }
    // SAFETY: the buffer holds `got` bytes.
    Some(unsafe { crate::files::write(out, buffer.as_ptr().cast::<c_void>(), got) })
}

hooks! {
    fn sendfile(next; out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(out, from, offset, count, |count| next(out, from, offset, count))
    }
    fn sendfile64(next; out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        send_file(out, from, offset, count, |count| next(out, from, offset, count))
    }
    fn splice(next; from: c_int, from_at: *mut loff_t, out: c_int, out_at: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t {
        if let Some(conn) = table::conn(from) {
            relay::hand_over(conn, from, Reason::Splice, false);
        }
        by_kernel(out, false);
        if let Some(conn) = table::conn(from)
            && conn.is_managed()
            && from_at.is_null()
            && out_at.is_null()
            && let Some(put) = by_hand(conn, from, out, len, flags)
        {
            return put;
        }
        next(from, from_at, out, out_at, len, flags)
    }
    fn tee(next; from: c_int, out: c_int, len: size_t, flags: c_uint) -> ssize_t {
        by_kernel(from, true);
        by_kernel(out, false);
        next(from, out, len, flags)
    }
    fn vmsplice(next; fd: c_int, iov: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
        by_kernel(fd, true);
        next(fd, iov, count, flags)
    }
    fn copy_file_range(next; from: c_int, from_at: *mut loff_t, out: c_int, out_at: *mut loff_t, len: size_t, flags: c_uint) -> ssize_t {
        by_kernel(from, true);
        by_kernel(out, false);
        next(from, from_at, out, out_at, len, flags)
    }
    // A thread of libc's would read and write the companion.
    fn aio_read(next; block: *mut c_void) -> c_int {
        if by_kernel_of(block) { next(block) } else { -1 }
    }
    fn aio_read64(next; block: *mut c_void) -> c_int {
        if by_kernel_of(block) { next(block) } else { -1 }
    }
    fn aio_write(next; block: *mut c_void) -> c_int {
        if by_kernel_of(block) { next(block) } else { -1 }
    }
    fn aio_write64(next; block: *mut c_void) -> c_int {
        if by_kernel_of(block) { next(block) } else { -1 }
    }
    fn lio_listio(next; mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int {
        for index in 0..count.max(0) as usize {
            if !by_kernel_of(*list.add(index)) {
                return -1;
            }
        }
        next(mode, list, count, event)
    }
    fn lio_listio64(next; mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int {
        for index in 0..count.max(0) as usize {
            if !by_kernel_of(*list.add(index)) {
                return -1;
            }
        }
        next(mode, list, count, event)
    }
}
