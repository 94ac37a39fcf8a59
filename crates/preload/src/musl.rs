//! stdio on a socket where libc is musl. Its streams call its own read, write and close, too, by
//! pointers that each stream has: we put ours in when the program opens one. The place of these
//! fields is musl's own affair, and has been this one since version 0.8; a stream that does not
//! look so is left alone, and its descriptor goes back to tcp.
//!
//! Descriptors 0 to 2 stay on tcp, as with glibc.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;
use fabric::sync::{AtomicU32, AtomicUsize, Ordering};
use libc::{FILE, iovec, size_t};
use sockets::{descriptors, table};

use crate::loaded::{self, file_of};
use crate::{fds, files};

/// The beginning of musl's FILE.
#[repr(C)]
struct Stream {
    flags: c_uint,
    /// What has been read and not been taken: up to `read_end`. Null while it is written to.
    read_at: *mut u8,
    read_end: *mut u8,
    close: AtomicUsize,
    /// What has been written and not been sent: from `write_begin` to `write_at`. Null while it is
    /// read.
    write_end: *mut u8,
    write_at: *mut u8,
    /// Must be zero, says musl.
    zero: usize,
    write_begin: *mut u8,
    read: AtomicUsize,
    write: AtomicUsize,
    seek: usize,
    buffer: *mut u8,
    buffer_size: usize,
    neighbours: [usize; 2],
    fd: c_int,
}

type Read = unsafe extern "C-unwind" fn(*mut Stream, *mut u8, size_t) -> size_t;
type Write = unsafe extern "C-unwind" fn(*mut Stream, *const u8, size_t) -> size_t;
type Close = unsafe extern "C-unwind" fn(*mut Stream) -> c_int;

/// What feof() and ferror() tell.
const END_SEEN: c_uint = 16;
const ERROR_SEEN: c_uint = 32;

/// musl's own functions: those of the first stream that was opened. 0 if there was none.
static READ: AtomicUsize = AtomicUsize::new(0);
static WRITE: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// Whether libc is musl. What says so is looked for once.
pub fn is_libc() -> bool {
    const UNKNOWN: u32 = 0;
    const NO: u32 = 1;
    const YES: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    match KNOWN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let musl = loaded::find(c"gnu_get_libc_version") == 0;
            KNOWN.store(if musl { YES } else { NO }, Ordering::Relaxed);
            musl
        }
        known => known == YES,
    }
}

/// Puts our functions into a stream that has just been opened: whether they are there, so that the
/// stream is followed as its descriptor is.
///
/// # Safety
/// libc is musl; it is an open stream, which no other thread has yet.
pub unsafe fn follow(stream: *mut FILE) -> bool {
    let stream = stream.cast::<Stream>();
    // SAFETY: the caller vouches for it; a FILE of musl has these fields, and is larger.
    let it = unsafe { &*stream };
    let fields = [
        (&it.read, &READ, read as *const () as usize),
        (&it.write, &WRITE, write as *const () as usize),
        (&it.close, &CLOSE, close as *const () as usize),
    ];
    // SAFETY: it is open.
    if it.fd != unsafe { libc::fileno(stream.cast()) } || it.zero != 0 {
        return false;
    }
    let libcs = file_of(it.read.load(Ordering::Relaxed) as *const c_void);
    let known = fields.iter().all(|(field, theirs, _)| {
        let at = field.load(Ordering::Relaxed);
        let (first, file) = (theirs.load(Ordering::Relaxed), file_of(at as *const c_void));
        file != 0 && file == libcs && (first == 0 || first == at)
    });
    if !known {
        return false;
    }
    for (field, theirs, ours) in fields {
        theirs.store(field.load(Ordering::Relaxed), Ordering::Release);
        field.store(ours, Ordering::Release);
    }
    true
}

/// musl reads into the caller's place but for its last byte, and what is behind it into the buffer:
/// the last byte is taken from there, so that one can be put back.
unsafe extern "C-unwind" fn read(stream: *mut Stream, place: *mut u8, len: size_t) -> size_t {
    // SAFETY: musl calls us as it would call its own function, which has this type: the stream is
    // open and locked, and the place has room for `len` bytes, one at least.
    unsafe {
        let it = &mut *stream;
        if table::conn(it.fd).is_none() {
            return core::mem::transmute::<usize, Read>(READ.load(Ordering::Acquire))(stream, place, len);
        }
        let direct = len - usize::from(it.buffer_size != 0);
        let pieces = [
            iovec { iov_base: place.cast(), iov_len: direct },
            iovec { iov_base: it.buffer.cast(), iov_len: it.buffer_size },
        ];
        let skipped = usize::from(direct == 0);
        let got = files::readv(it.fd, pieces[skipped..].as_ptr(), 2 - skipped as c_int);
        if got <= 0 {
            it.flags |= if got == 0 { END_SEEN } else { ERROR_SEEN };
            return 0;
        }
        let got = got as usize;
        if got <= direct {
            return got;
        }
        it.read_at = it.buffer;
        it.read_end = it.buffer.add(got - direct);
        if it.buffer_size != 0 {
            *place.add(len - 1) = *it.read_at;
            it.read_at = it.read_at.add(1);
        }
        len
    }
}

/// What is in the buffer, and the caller's bytes behind it: all of it, or the stream has an error.
/// Returns how many of the caller's were sent.
unsafe extern "C-unwind" fn write(stream: *mut Stream, bytes: *const u8, len: size_t) -> size_t {
    // SAFETY: as for `read`; there are `len` bytes.
    unsafe {
        let it = &mut *stream;
        if table::conn(it.fd).is_none() {
            return core::mem::transmute::<usize, Write>(WRITE.load(Ordering::Acquire))(stream, bytes, len);
        }
        let held = it.write_at as usize - it.write_begin as usize;
        let mut done = 0;
        while done < held + len {
            let before = done.min(held);
            let pieces = [
                iovec { iov_base: it.write_begin.wrapping_add(before).cast(), iov_len: held - before },
                iovec {
                    iov_base: bytes.wrapping_add(done - before).cast_mut().cast(),
                    iov_len: len - (done - before),
                },
            ];
            let sent = files::writev(it.fd, pieces.as_ptr(), 2);
            if sent < 0 {
                (it.write_at, it.write_begin, it.write_end) =
                    (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
                it.flags |= ERROR_SEEN;
                return done.saturating_sub(held);
            }
            done += sent as usize;
        }
        it.write_end = it.buffer.add(it.buffer_size);
        (it.write_at, it.write_begin) = (it.buffer, it.buffer);
        len
    }
}

unsafe extern "C-unwind" fn close(stream: *mut Stream) -> c_int {
    // SAFETY: as for `read`.
    unsafe {
        fds::closing((*stream).fd);
        let _closing = descriptors::Closing::begin();
        core::mem::transmute::<usize, Close>(CLOSE.load(Ordering::Acquire))(stream)
    }
}
