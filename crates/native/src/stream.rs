//! A connection, as std's `TcpStream`.

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use crate::address::Address;
use crate::open::{Open, cvt};
use crate::path::Path;

/// A connection. `&Stream` reads and writes, too: one thread may read while others write. A write
/// stays in one piece as far as the socket takes it in one piece.
pub struct Stream {
    open: Arc<Open>,
}

/// The value of shunt_path for a connection that goes through memory both ways.
const BOTH_WAYS: c_int = 3;
/// Buffers that one call takes.
const IOV_MAX: usize = 1024;

impl Stream {
    pub(crate) fn of(open: Arc<Open>) -> Stream {
        Stream { open }
    }

    /// Connects to the first of these addresses that answers. `timeout` holds for each of them.
    pub fn connect(address: impl ToSocketAddrs, path: Path, timeout: Option<Duration>) -> io::Result<Stream> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout of zero"));
        }
        each_address(address, |address| connect(address, path, timeout))
    }

    /// The address of the other end.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.open.address(libc::getpeername)
    }

    /// The address of this end.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.open.address(libc::getsockname)
    }

    /// Whether both directions go through memory at this moment. A stream begins by TCP, and may go
    /// back to it.
    pub fn is_promoted(&self) -> bool {
        match (self.open.calls.path, self.open.fd()) {
            // SAFETY: takes any number.
            (Some(path), Ok(fd)) => unsafe { path(fd) == BOTH_WAYS },
            _ => false,
        }
    }

    /// Ends what is written, what is read, or both.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        // SAFETY: takes no memory.
        cvt(unsafe { (self.open.calls.shutdown)(self.open.fd()?, how) }).map(drop)
    }

    /// Whether small pieces are sent at once (TCP_NODELAY). This matters as long as they go by TCP.
    pub fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
        self.open.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, c_int::from(nodelay))
    }

    /// How long a read waits; it fails with [`io::ErrorKind::WouldBlock`] then. `None`: for ever.
    /// Zero is an error, as std has it.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_RCVTIMEO, timeout)
    }

    /// How long a write waits for room, likewise.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.set_timeout(libc::SO_SNDTIMEO, timeout)
    }

    /// Waits until a read would not block: there are bytes, the end, or an error. False if
    /// `timeout` has passed before (`None`: for ever). A signal handler ends it with
    /// [`io::ErrorKind::Interrupted`].
    pub fn poll_readable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.open.poll(libc::POLLIN, millis(timeout))
    }

    /// Reads what is there, without waiting: [`io::ErrorKind::WouldBlock`] if there is nothing; 0
    /// is the end.
    #[inline]
    pub fn read_now(&self, to: &mut [u8]) -> io::Result<usize> {
        let place = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: the buffer is valid for a write of its length.
        let count = unsafe { (self.open.calls.recv)(self.open.fd()?, place, to.len(), libc::MSG_DONTWAIT) };
        Ok(cvt(count)? as usize)
    }

    fn set_timeout(&self, option: c_int, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout of zero"));
        }
        self.open.set(libc::SOL_SOCKET, option, timeval(timeout))
    }
}

fn connect(address: &SocketAddr, path: Path, timeout: Option<Duration>) -> io::Result<Stream> {
    let start = Instant::now();
    let address = Address::from(address);
    let stream = Stream::of(Open::new(address.family(), path, true)?);
    let (calls, fd, (at, len)) = (stream.open.calls, stream.open.fd()?, address.as_ptr());
    if timeout.is_some() {
        // It holds for connect(), too, so the socket need not become a non-blocking one.
        stream.set_write_timeout(timeout)?;
    }
    // SAFETY: the address is valid for its length.
    let connected = cvt(unsafe { (calls.connect)(fd, at, len) }).map(drop);
    match connected {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => wait(&stream, start, timeout)?,
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => return Err(timed_out()),
        result => result?,
    }
    if timeout.is_some() {
        stream.set_write_timeout(None)?;
    }
    Ok(stream)
}

/// Waits for a connection that is still being made after a signal handler has interrupted
/// connect().
fn wait(stream: &Stream, start: Instant, timeout: Option<Duration>) -> io::Result<()> {
    loop {
        let left = timeout.map(|timeout| timeout.saturating_sub(start.elapsed()));
        match stream.open.poll(libc::POLLOUT, millis(left)) {
            Ok(true) => return stream.open.take_error(),
            Ok(false) => return Err(timed_out()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "connection timed out")
}

/// Tries one address after the other, as std does.
pub(crate) fn each_address<T>(
    addresses: impl ToSocketAddrs,
    mut each: impl FnMut(&SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut failed = None;
    for address in addresses.to_socket_addrs()? {
        match each(&address) {
            Ok(made) => return Ok(made),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no address")))
}

/// The timeout for poll(), rounded up, so that it never returns too early. -1: for ever.
pub(crate) fn millis(timeout: Option<Duration>) -> c_int {
    timeout.map_or(-1, |time| c_int::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// The timeout for options, rounded up, as zero means for ever.
fn timeval(timeout: Option<Duration>) -> libc::timeval {
    let micros = timeout.map_or(0, |time| time.as_nanos().div_ceil(1000));
    libc::timeval {
        tv_sec: i64::try_from(micros / 1_000_000).unwrap_or(i64::MAX),
        tv_usec: (micros % 1_000_000) as i64,
    }
}

impl Read for &Stream {
    #[inline]
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let place = to.as_mut_ptr().cast::<c_void>();
        // SAFETY: the buffer is valid for a write of its length.
        let count = cvt(unsafe { (self.open.calls.recv)(self.open.fd()?, place, to.len(), 0) })?;
        Ok(count as usize)
    }

    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut message = message(to.as_mut_ptr().cast(), to.len());
        // SAFETY: the buffers are valid for writes: an IoSliceMut is an iovec.
        let count = cvt(unsafe { (self.open.calls.recvmsg)(self.open.fd()?, &raw mut message, 0) })?;
        Ok(count as usize)
    }
}

impl Write for &Stream {
    #[inline]
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let (fd, flags) = (self.open.fd()?, libc::MSG_NOSIGNAL);
        // SAFETY: the buffer is valid for its length.
        let count = cvt(unsafe { (self.open.calls.send)(fd, from.as_ptr().cast(), from.len(), flags) })?;
        Ok(count as usize)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let message = message(from.as_ptr().cast_mut().cast(), from.len());
        // By sendmsg(), as writev() could raise SIGPIPE.
        // SAFETY: the buffers are valid: an IoSlice is an iovec.
        let count = cvt(unsafe {
            (self.open.calls.sendmsg)(self.open.fd()?, &raw const message, libc::MSG_NOSIGNAL)
        })?;
        Ok(count as usize)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn message(pieces: *mut libc::iovec, count: usize) -> libc::msghdr {
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = pieces;
    message.msg_iovlen = count.min(IOV_MAX) as _;
    message
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        (&*self).read(to)
    }
    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(to)
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        (&*self).write(from)
    }
    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(from)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.open.close();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("peer_addr", &self.peer_addr().ok()).finish()
    }
}
