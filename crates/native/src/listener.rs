//! Listening sockets.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::open::{Open, cvt};
use crate::path::Path;
use crate::stream::{Stream, each_address, millis};

/// A listening socket.
pub struct Listener {
    open: Arc<Open>,
}

/// Connections that may wait to be accepted; the kernel limits it (net.core.somaxconn).
const BACKLOG: i32 = 4096;

impl Listener {
    /// Listens on the first of these addresses that is free. Port 0: any free port.
    pub fn bind(address: impl ToSocketAddrs, path: Path) -> io::Result<Listener> {
        each_address(address, |address| {
            let address = Address::from(address);
            let open = Open::new(address.family(), path, false)?;
            let listener = Listener { open };
            // As std does: connections left by a server that has just ended do not keep the port
            // busy.
            listener.open.set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1i32)?;
            let (fd, (at, len)) = (listener.open.fd()?, address.as_ptr());
            // SAFETY: the address is valid for its length.
            cvt(unsafe { libc::bind(fd, at, len) })?;
            // SAFETY: takes no memory.
            cvt(unsafe { libc::listen(fd, BACKLOG) })?;
            Ok(listener)
        })
    }

    /// Waits for a connection. Returns it with the address of the other end.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        loop {
            let mut address = Address::empty();
            let (place, len) = address.as_mut_ptr();
            let (accept4, own) = (self.open.calls.accept4, self.open.fd()?);
            // SAFETY: the address is valid for a write of its length.
            let fd = unsafe { accept4(own, place, len, libc::SOCK_CLOEXEC) };
            match cvt(fd) {
                Ok(fd) => {
                    // If another thread calls fork() just here, the child keeps the descriptor open
                    // until it ends, or calls exec().
                    let stream = Stream::of(Open::enter(fd, self.open.calls, true));
                    return Ok((stream, address.to_std()?));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until a connection is there to be accepted, for `timeout` at most. False if none has
    /// come. A signal handler ends the wait ([`io::ErrorKind::Interrupted`]); [`Listener::accept`]
    /// goes on waiting.
    pub fn poll_acceptable(&self, timeout: Option<Duration>) -> io::Result<bool> {
        self.open.poll(libc::POLLIN, millis(timeout))
    }

    /// The address where it listens.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.open.address(libc::getsockname)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.open.close();
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr().ok()).finish()
    }
}
