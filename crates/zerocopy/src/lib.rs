//! Zero-copy receive for Rust programs that know of Shunt ("Impact of High Performance Sockets on
//! Data Intensive Applications", section 5.1). [`Reader`] is a [`BufRead`]. Where Shunt carries the
//! connection through memory, its buffer is that memory: bytes are read where they lie, and
//! [`BufRead::consume`] gives them back. Elsewhere (by tcp, or where the program does not run under
//! Shunt) it reads into a buffer of its own, as [`std::io::BufReader`] does. C programs have the
//! same in `shunt.h`.
//!
//! ```no_run
//! use std::io::BufRead;
//!
//! let stream = std::net::TcpStream::connect("localhost:7000")?;
//! // SAFETY: the other end is a program of ours, which does not change what it has sent.
//! let mut reader = unsafe { shunt_zerocopy::Reader::new(stream) };
//! loop {
//!     let bytes = reader.fill_buf()?;
//!     if bytes.is_empty() {
//!         break;
//!     }
//!     let count = bytes.len();
//!     println!("{count} bytes, {} in place", if reader.is_lent() { "read" } else { "copied" });
//!     reader.consume(count);
//! }
//! # std::io::Result::Ok(())
//! ```

#![warn(missing_docs)]

use std::ffi::{CStr, c_int, c_void};
use std::io::{self, BufRead, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::OnceLock;
use std::{mem, ptr, slice};

/// Bytes of the own buffer.
const BUFFER: usize = 64 << 10;

/// A connected stream socket, read where the bytes lie.
#[derive(Debug)]
pub struct Reader<S> {
    socket: S,
    /// The bytes that are lent and not given back: their address and number.
    lent: (usize, usize),
    own: Vec<u8>,
    /// The unread part of them: from, to.
    unread: (usize, usize),
}

impl<S: Read + AsFd> Reader<S> {
    /// Reads from `socket`.
    ///
    /// # Safety
    /// The bytes that [`BufRead::fill_buf`] returns are shared with the process at the other end,
    /// which Shunt has proved to be the same user's. That process must not change bytes that it has
    /// sent; no program does that sends by send() or write() under Shunt. Until they are consumed,
    /// the socket must not be read in another way, closed, or handed to another process or program
    /// (by exec or by passing the descriptor).
    pub unsafe fn new(socket: S) -> Reader<S> {
        Reader { socket, lent: (0, 0), own: Vec::new(), unread: (0, 0) }
    }

    /// Whether the bytes that [`BufRead::fill_buf`] returned last, and that were not consumed, are
    /// read in place, without a copy.
    pub fn is_lent(&self) -> bool {
        self.lent.1 > 0
    }

    /// The socket.
    pub fn get_ref(&self) -> &S {
        &self.socket
    }

    /// The socket. Bytes in the own buffer are lost, as [`std::io::BufReader::into_inner`]'s are.
    /// Bytes that are lent are not lost.
    pub fn into_inner(self) -> S {
        self.socket
    }

    fn fill(&mut self) -> io::Result<()> {
        if let Some(calls) = calls() {
            let (mut data, fd) = (ptr::null(), self.socket.as_fd().as_raw_fd());
            // SAFETY: as shunt.h says; `data` is valid for a write.
            let count = unsafe { (calls.recv)(fd, &raw mut data, isize::MAX as usize, libc::MSG_ZEROCOPY) };
            let errno = io::Error::last_os_error();
            match usize::try_from(count) {
                Ok(count) => {
                    self.lent = (data.addr(), count);
                    return Ok(());
                }
                Err(_) if errno.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                Err(_) => return Err(errno),
            }
        }
        self.own.resize(BUFFER, 0);
        self.unread = (0, self.socket.read(&mut self.own)?);
        Ok(())
    }
}

impl<S: Read + AsFd> BufRead for Reader<S> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.lent.1 == 0 && self.unread.0 == self.unread.1 {
            self.fill()?;
        }
        if self.lent.1 == 0 {
            return Ok(&self.own[self.unread.0..self.unread.1]);
        }
        // SAFETY: they were lent, and the caller of `new` vouches that nobody changes or takes
        // them.
        Ok(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.lent.0), self.lent.1) })
    }

    fn consume(&mut self, count: usize) {
        if self.lent.1 == 0 {
            self.unread.0 = (self.unread.0 + count).min(self.unread.1);
            return;
        }
        let count = count.min(self.lent.1);
        if let Some(calls) = calls() {
            // SAFETY: as shunt.h says.
            let result = unsafe { (calls.release)(self.socket.as_fd().as_raw_fd(), count) };
            debug_assert_eq!(result, 0, "somebody else has read from the socket");
        }
        self.lent = (self.lent.0 + count, self.lent.1 - count);
    }
}

impl<S: Read + AsFd> Read for Reader<S> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(to)?;
        self.consume(count);
        Ok(count)
    }
}

type Recv = unsafe extern "C-unwind" fn(c_int, *mut *const c_void, usize, c_int) -> isize;
type Release = unsafe extern "C-unwind" fn(c_int, usize) -> c_int;

/// The functions of shunt.h.
#[derive(Clone, Copy)]
struct Calls {
    recv: Recv,
    release: Release,
}

/// The functions, if the program runs under Shunt.
fn calls() -> Option<Calls> {
    static CALLS: OnceLock<Option<Calls>> = OnceLock::new();
    *CALLS.get_or_init(|| {
        let (recv, release) = (find(c"shunt_recv_zc")?, find(c"shunt_release")?);
        // SAFETY: these are the functions that shunt.h declares.
        let release = unsafe { mem::transmute::<*mut c_void, Release>(release) };
        // SAFETY: as above.
        Some(Calls { recv: unsafe { mem::transmute::<*mut c_void, Recv>(recv) }, release })
    })
}

fn find(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
