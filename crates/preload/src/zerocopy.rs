//! Zero-copy receive ("Impact of High Performance Sockets on Data Intensive Applications", section
//! 5.1, Zero-Copy SocketVIA): a program that knows of Shunt reads what came where it lies. Not
//! hooks, but functions that such a program looks up (`shunt.h`).
//!
//! What is lent is not taken: it is the next bytes of the stream, which any other call would read
//! as well, until they are given back. So a program that forgets them, or dies, leaves nothing
//! behind, and nothing has to be remembered here.

use core::cell::Cell;
use core::ptr;

use libc::{c_int, c_void, size_t, ssize_t};
use sockets::conn::{path, state};
use sockets::table::Entry;
use sockets::{close, errno, io, table};

use crate::files::recv;

/// Bytes that a thread has for what came by tcp.
const BUFFER: usize = 64 << 10;

thread_local! {
    /// Where, once it was needed.
    static PLACE: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Lends the next bytes of a connected socket, `len` at most: `*data` is where they are, the result
/// how many. They may be read, not written, until [`shunt_release`] gives them back, the descriptor
/// is closed, handed to another program or process, or the thread borrows again. Waits as recv()
/// does, and returns as it does at the end (0) or for an error (-1 and errno). Of `flags`
/// MSG_DONTWAIT counts, and MSG_ZEROCOPY: EOPNOTSUPP where they would have to be copied.
///
/// # Safety
/// `data` is valid for a write.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn shunt_recv_zc(
    fd: c_int,
    data: *mut *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    let in_place = flags & libc::MSG_ZEROCOPY != 0;
    let flags = flags & libc::MSG_DONTWAIT | libc::MSG_PEEK;
    if len == 0 {
        errno::set(libc::EINVAL);
        return -1;
    }
    let mut byte = 0u8;
    // SAFETY: the byte is valid. It waits.
    let first = unsafe { recv(fd, (&raw mut byte).cast(), 1, flags) };
    if first <= 0 {
        return first;
    }
    let (place, count) = match table::conn(fd).and_then(|conn| io::lend(conn, fd, len)) {
        Some((place, count)) => (place, count as ssize_t),
        None if in_place => {
            errno::set(libc::EOPNOTSUPP);
            return -1;
        }
        None => {
            let Some(buffer) = buffer() else {
                errno::set(libc::ENOMEM);
                return -1;
            };
            // SAFETY: the buffer has room for so many.
            let count = unsafe { recv(fd, buffer.cast(), len.min(BUFFER), flags | libc::MSG_DONTWAIT) };
            (buffer.cast_const(), count)
        }
    };
    // SAFETY: the caller vouches for it.
    unsafe { *data = place.cast() };
    count
}

/// Gives `len` lent bytes back, from the first on: the next call reads what comes after them. 0, or
/// -1 and errno if there are not as many.
#[unsafe(no_mangle)]
extern "C-unwind" fn shunt_release(fd: c_int, mut len: size_t) -> c_int {
    let mut byte = 0u8;
    while len > 0 {
        // Neither the kernel nor a ring writes anything for MSG_TRUNC, but the kernel wants to know
        // how much it may throw away.
        let place = buffer().unwrap_or(&raw mut byte);
        let part = len.min(if ptr::eq(place, &raw const byte) { 1 } else { BUFFER });
        // SAFETY: there is room for so many.
        let gone = unsafe { recv(fd, place.cast(), part, libc::MSG_TRUNC | libc::MSG_DONTWAIT) };
        match gone {
            1.. => len -= gone as usize,
            0 => {
                errno::set(libc::EINVAL);
                return -1;
            }
            _ if errno::get() == libc::EINTR => {}
            _ => return -1,
        }
    }
    0
}

/// Which way the bytes of a connected socket go now: [`READ`] if those that are read come through
/// memory, [`WRITTEN`] likewise; 0 by tcp.
#[unsafe(no_mangle)]
extern "C-unwind" fn shunt_path(fd: c_int) -> c_int {
    let Some(conn) = table::conn(fd).filter(|conn| conn.state() == state::PROMOTED) else { return 0 };
    let in_memory = |path: u32| c_int::from(matches!(path, path::SMALL | path::BIG));
    READ * in_memory(conn.rx.path()) + WRITTEN * in_memory(conn.tx.path())
}

/// A descriptor is a socket that has just been made: if its number is known to be something else,
/// that was closed where nobody saw it. For `native`, whose process may do that: without it the new
/// socket would go on with the old one's bytes.
#[unsafe(no_mangle)]
extern "C-unwind" fn shunt_is_new(fd: c_int) {
    if let Entry::Conn(_) = table::entry(fd)
        && let Some(Entry::Conn(conn)) = table::swap(fd, Entry::None)
    {
        close::abandon(conn);
    }
}

const READ: c_int = 1;
const WRITTEN: c_int = 2;

fn buffer() -> Option<*mut u8> {
    PLACE.with(|place| {
        if place.get().is_null() {
            place.set(fabric::sys::mmap_private(BUFFER).ok()?);
        }
        Some(place.get())
    })
}
