//! A process's connection to the agent of its host: an abstract UNIX socket, whose names are each network namespace's own. Runs inside other people's programs, on a thread of ours.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use fabric::credentials::{self, User};

use crate::wire::{FromAgent, MOST, REPORT, Said as _, ToAgent};

/// The address of the agent of a user: it serves that user's processes; root's serves all users'.
pub fn address(uid: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("shunt-agent/{uid}");
    for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    (address, (mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len()) as libc::socklen_t)
}

/// A new socket of the kind that is used, non-blocking.
pub fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
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
    let sent = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A message of at most so many bytes; `None`: none is there now. Of one that is longer the rest is lost, and the end is told as an error.
pub fn receive(socket: &OwnedFd, to: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: a slice of so many bytes.
    let got = unsafe {
        libc::recv(socket.as_raw_fd(), to.as_mut_ptr().cast(), to.len(), libc::MSG_DONTWAIT | libc::MSG_TRUNC)
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
        if unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Anybody can take the name.
        if !User::at(socket.as_raw_fd()).is_some_and(|(user, _)| credentials::is_of(uid, user)) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Client { socket })
    }

    /// Readable when the agent has said something, or is gone.
    pub fn as_raw_fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Says something. An error means that the agent is gone, or so far behind that it is as if.
    pub fn send(&self, message: &ToAgent) -> io::Result<()> {
        send(&self.socket, &message.bytes())
    }

    /// What it has said; `None`: nothing now.
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

    /// How the agent is, in JSON.
    pub fn status(&self) -> io::Result<Vec<u8>> {
        self.send(&ToAgent::Status)?;
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: an array of one.
        unsafe { libc::poll(&mut poll, 1, 5000) };
        let mut bytes = vec![0; REPORT];
        match receive(&self.socket, &mut bytes)?.and_then(|len| FromAgent::parse(&bytes[..len])) {
            Some(FromAgent::Status(report)) => Ok(report),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}
