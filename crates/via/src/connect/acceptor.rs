//! Accepts connections: a listening UNIX socket, and the clients that have connected and not sent
//! anything yet. There may be several, so that a slow or silent one delays nobody; but a bounded
//! number, as the one that has been silent longest is dropped when there are more. Connections of
//! other users are closed unread.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fabric::sys;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use super::hello::BYTES;
use crate::process::Fd;
use crate::user;

/// How many clients may be silent.
const SILENT: usize = 64;
/// How many are accepted at once, at most.
const AT_ONCE: usize = 256;
/// How long to wait when there is no descriptor for a client.
const SHORTAGE_NS: u64 = 10_000_000;

pub(super) struct Acceptor {
    socket: Fd,
    silent: Vec<Fd>,
}

/// A client that has sent its first message.
pub(super) struct Came {
    pub(super) socket: Fd,
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Acceptor {
    /// Listens at that abstract name. `ADDRINUSE` if it is taken.
    pub(super) fn open(name: &[u8]) -> Result<Acceptor, Errno> {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(Acceptor { socket, silent: Vec::new() })
    }

    /// The descriptors that become readable when [`Acceptor::next`] may have something.
    pub(super) fn descriptors(&self) -> Vec<i32> {
        core::iter::once(&self.socket).chain(&self.silent).map(|fd| fd.as_raw_fd()).collect()
    }

    /// A client that has sent its first message, if there is one now.
    pub(super) fn next(&mut self) -> Option<Came> {
        self.let_in();
        let mut index = 0;
        while index < self.silent.len() {
            let heard = receive(&self.silent[index]);
            if matches!(heard, Err(Errno::AGAIN | Errno::INTR)) {
                index += 1;
                continue;
            }
            let socket = self.silent.remove(index);
            match heard {
                Ok((bytes, fds)) if !bytes.is_empty() => return Some(Came { socket, bytes, fds }),
                _ => {}
            }
        }
        None
    }

    /// Closes the connections of all clients.
    pub(super) fn turn_away(&mut self) {
        self.let_in();
        self.silent.clear();
    }

    fn let_in(&mut self) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.socket.as_fd(), flags) {
                // This host's agent, which may be root's, is accepted, but only if it brings a
                // client.
                Ok(socket) if user::is_kin(&socket) => {
                    if self.silent.len() == SILENT {
                        self.silent.remove(0);
                    }
                    self.silent.push(Fd::new(socket));
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // Out of descriptors: that of the longest silent client serves another one.
                    if self.silent.is_empty() {
                        let _ = sys::ppoll(&mut [], Some(SHORTAGE_NS));
                    } else {
                        self.silent.remove(0);
                    }
                    return;
                }
            }
        }
    }
}

/// A message, and the descriptors with it.
pub(super) type Message = (Vec<u8>, Vec<OwnedFd>);

/// The next message. No bytes at the end.
pub(super) fn receive(socket: &Fd) -> Result<Message, Errno> {
    let mut bytes = vec![0u8; BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let read = rustix::net::recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, flags);
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    bytes.truncate(read?.bytes);
    Ok((bytes, fds))
}

/// Connects to the process of this user that listens at that abstract name. An error if none does,
/// or another user's.
pub(super) fn connect(name: &[u8]) -> Result<Fd, Errno> {
    let socket = socket()?;
    // Non-blocking: the listener may accept nobody.
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    if user::is_own(&socket) { Ok(socket) } else { Err(Errno::ACCESS) }
}

fn socket() -> Result<Fd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map(Fd::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(socket: &Fd, bytes: &[u8]) {
        assert_eq!(sys::send(socket.as_raw_fd(), bytes.as_ptr(), bytes.len(), 0), Ok(bytes.len()));
    }

    #[test]
    fn silent_ones_delay_nobody_and_are_bounded() {
        let name = format!("via-acceptor-test-{}", std::process::id()).into_bytes();
        let mut acceptor = Acceptor::open(&name).unwrap();
        assert_eq!(Acceptor::open(&name).err(), Some(Errno::ADDRINUSE));
        let mut silent: Vec<Fd> = (0..SILENT - 1).map(|_| connect(&name).unwrap()).collect();
        let speaks = connect(&name).unwrap();
        said(&speaks, b"one");
        assert_eq!(acceptor.next().unwrap().bytes, b"one");
        assert!(acceptor.next().is_none());
        assert_eq!(acceptor.silent.len(), SILENT - 1);
        for _ in 0..100 {
            silent.push(connect(&name).unwrap());
            assert!(acceptor.next().is_none());
        }
        assert_eq!(acceptor.silent.len(), SILENT);
        said(&silent[SILENT + 98], b"last");
        assert_eq!(acceptor.next().unwrap().bytes, b"last");
        drop(silent);
        assert!(acceptor.next().is_none());
        assert_eq!(acceptor.silent.len(), 0);
        // A listener that never accepts: clients do not wait for ever.
        let waiting: Vec<Fd> = core::iter::from_fn(|| connect(&name).ok()).take(1000).collect();
        assert!((100..1000).contains(&waiting.len()));
    }
}
