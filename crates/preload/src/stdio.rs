//! stdio on a socket. libc's streams call libc's own read, write and close, past our hooks; but
//! through a table of functions, one for streams of bytes and one for wide ones. With the first
//! connection of a process we put ours in, so that a stream is followed as its descriptor is: to
//! make the tables writable is dear, and most programs never have a connection. libc checks where
//! the table lies, not what is in it. In musl each stream has its own pointers (`musl.rs`). Where
//! neither works a descriptor that becomes a stream goes back to tcp.

use core::ffi::{CStr, c_char, c_int, c_void};
use fabric::sync::{AtomicU32, Ordering};
use fabric::sys;
use libc::{FILE, size_t, ssize_t};
use sockets::reason::Reason;
use sockets::{descriptors, relay, table};

use crate::next::{Next, hooks};
use crate::{fds, files, musl};

type Table = [usize; SLOTS];
/// glibc's _IO_jump_t: read, write and close are the fields with these numbers.
const SLOTS: usize = 21;
const READ: usize = 14;
const WRITE: usize = 15;
const CLOSE: usize = 17;
/// glibc's _IO_ERR_SEEN, in the first field of a FILE: what ferror() tells.
const ERROR_SEEN: c_int = 0x20;

static FOLLOWED: AtomicU32 = AtomicU32::new(0);
static READ_FILE: Next = Next::new(c"_IO_file_read");
static WRITE_FILE: Next = Next::new(c"_IO_file_write");
static CLOSE_FILE: Next = Next::new(c"_IO_file_close");

/// Puts our functions into both tables, if they are what we know.
pub fn follow() {
    let known = [(READ, READ_FILE.get()), (WRITE, WRITE_FILE.get()), (CLOSE, CLOSE_FILE.get())];
    let ours = [read as *const () as usize, write as *const () as usize, close as *const () as usize];
    let all = [c"_IO_file_jumps", c"_IO_wfile_jumps"].iter().all(|name| replace(name, known, ours));
    FOLLOWED.store(u32::from(all), Ordering::Release);
}

fn replace(name: &CStr, known: [(usize, usize); 3], ours: [usize; 3]) -> bool {
    // SAFETY: the name is a C string.
    let table: *mut Table = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }.cast();
    // SAFETY: libc's table of this name has so many slots.
    if table.is_null() || known.iter().any(|&(slot, theirs)| unsafe { (*table)[slot] } != theirs) {
        return false;
    }
    let (at, len) = (table.cast::<u8>(), size_of::<Table>());
    if sys::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE).is_err() {
        return false;
    }
    for ((slot, _), function) in known.into_iter().zip(ours) {
        // SAFETY: inside the table, writable now; a word is stored at once, so another thread calls
        // the one function or the other.
        unsafe { (&raw mut (*table)[slot]).write_volatile(function) };
    }
    // As the loader leaves it.
    sys::mprotect(at, len, libc::PROT_READ).is_ok()
}

unsafe extern "C-unwind" fn read(stream: *mut FILE, buffer: *mut c_void, len: ssize_t) -> ssize_t {
    // SAFETY: libc calls us as it would call its own function, which has this type.
    unsafe {
        let fd = libc::fileno(stream);
        if table::conn(fd).is_some() {
            return files::read(fd, buffer, len as size_t);
        }
        let next: Transfer = core::mem::transmute(READ_FILE.get());
        next(stream, buffer, len)
    }
}

unsafe extern "C-unwind" fn write(stream: *mut FILE, buffer: *mut c_void, len: ssize_t) -> ssize_t {
    // SAFETY: as for `read`; the flags are the first field of a FILE.
    unsafe {
        let fd = libc::fileno(stream);
        if table::conn(fd).is_none() {
            let next: Transfer = core::mem::transmute(WRITE_FILE.get());
            return next(stream, buffer, len);
        }
        let mut done = 0;
        while done < len {
            let sent = files::write(fd, buffer.byte_add(done as usize), (len - done) as size_t);
            if sent < 0 {
                *stream.cast::<c_int>() |= ERROR_SEEN;
                break;
            }
            done += sent;
        }
        done
    }
}

unsafe extern "C-unwind" fn close(stream: *mut FILE) -> c_int {
    // SAFETY: as for `read`.
    unsafe {
        fds::closing(libc::fileno(stream));
        let _closing = descriptors::Closing::begin();
        let next: unsafe extern "C-unwind" fn(*mut FILE) -> c_int = core::mem::transmute(CLOSE_FILE.get());
        next(stream)
    }
}

type Transfer = unsafe extern "C-unwind" fn(*mut FILE, *mut c_void, ssize_t) -> ssize_t;

/// A stream that has just been opened, or opened anew. Null where that failed.
///
/// # Safety
/// Then it is an open stream that no other thread has yet.
unsafe fn opened(stream: *mut FILE) -> *mut FILE {
    if stream.is_null() || FOLLOWED.load(Ordering::Acquire) != 0 {
        return stream;
    }
    // SAFETY: the caller vouches for it.
    unsafe {
        if musl::is_libc() && musl::follow(stream) {
            return stream;
        }
        let fd = libc::fileno(stream);
        if let Some(conn) = table::conn(fd) {
            relay::hand_over(conn, fd, Reason::Stdio, false);
        }
    }
    stream
}

/// A stream is about to get another file under its number, without a call of its close function.
///
/// # Safety
/// `stream` is a stream.
unsafe fn reopens(stream: *mut FILE) {
    // SAFETY: the caller vouches for it.
    unsafe {
        let fd = libc::fileno(stream);
        if table::conn(fd).is_some() {
            libc::fflush(stream);
            fds::closing(fd);
        }
    }
}

hooks! {
    fn fopen(next; path: *const c_char, mode: *const c_char) -> *mut FILE {
        opened(next(path, mode))
    }
    fn fopen64(next; path: *const c_char, mode: *const c_char) -> *mut FILE {
        opened(next(path, mode))
    }
    fn fdopen(next; fd: c_int, mode: *const c_char) -> *mut FILE {
        opened(next(fd, mode))
    }
    fn _IO_fdopen(next; fd: c_int, mode: *const c_char) -> *mut FILE {
        opened(next(fd, mode))
    }
    fn freopen(next; path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopens(stream);
        opened(next(path, mode, stream))
    }
    fn freopen64(next; path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        reopens(stream);
        opened(next(path, mode, stream))
    }
}
