//! A process's connection to the agent of its host: an abstract UNIX socket, whose name each
//! network namespace has for itself. This runs inside other people's programs, on a thread of the
//! library's own.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use fabric::credentials::{self, User};
#[cfg(sim)]
use fabric::sim::os::{self, OwnedFd};
use fabric::sys;
#[cfg(not(sim))]
use {libc as os, std::os::fd::OwnedFd};

use crate::wire::{FromAgent, MOST, Message as _, REPORT, ToAgent};

/// The address of a user's agent. An agent serves that user's processes; root's agent serves all.
pub fn address(uid: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    sys::unix_address(format!("\0shunt-agent/{uid}").bytes())
}

/// A new socket of the type that agents use, non-blocking.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = unsafe { os::socket(libc::AF_UNIX, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just made.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a message.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a slice of so many bytes.
    let sent = unsafe { os::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a message of at most `to.len()` bytes. `None`: none is there now. The rest of a longer
/// message is lost. The end of the connection is an error.
pub fn receive(socket: &OwnedFd, to: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: a slice of so many bytes.
    let got = unsafe {
        os::recv(socket.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), libc::MSG_DONTWAIT | libc::MSG_TRUNC)
    };
    match got {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        got if got < 0 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
        got if got as usize > to.len() => Err(io::ErrorKind::InvalidData.into()),
        got => Ok(Some(got as usize)),
    }
}

/// A connection to the agent.
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Connects to the user's agent, or to root's.
    pub fn connect() -> io::Result<Client> {
        let own = fabric::sys::geteuid();
        Client::of(own).or_else(|error| if own == 0 { Err(error) } else { Client::of(0) })
    }

    fn of(uid: u32) -> io::Result<Client> {
        let socket = socket()?;
        let (address, len) = address(uid);
        // SAFETY: an address of so many bytes.
        if unsafe { os::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Anybody can take the name, so ask who has it.
        if !User::at(socket.as_raw_fd()).is_some_and(|(user, _)| credentials::is_of(uid, user)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Client { socket })
    }

    /// Readable when the agent has sent a message, or has gone.
    pub fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Sends a message. An error means that the agent is gone, or too far behind to be of use.
    pub fn send(&self, message: &ToAgent) -> io::Result<()> {
        send(&self.socket, &message.bytes())
    }

    /// Receives a message; `None`: there is none now.
    pub fn receive(&self) -> io::Result<Option<FromAgent>> {
        let mut bytes = [0; MOST];
        match receive(&self.socket, &mut bytes)? {
            None => Ok(None),
            Some(len) => match FromAgent::parse(&bytes[..len]) {
                Some(message) => Ok(Some(message)),
                None => Err(io::ErrorKind::InvalidData.into()),
            },
        }
    }

    /// The agent's report on itself, in JSON.
    pub fn status(&self) -> io::Result<Vec<u8>> {
        self.send(&ToAgent::Status)?;
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: an array of one.
        unsafe { os::poll(&mut poll, 1, 5000) };
        let mut bytes = vec![0; REPORT];
        match receive(&self.socket, &mut bytes)?.and_then(|len| FromAgent::parse(&bytes[..len])) {
            Some(FromAgent::Status(report)) => Ok(report),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
