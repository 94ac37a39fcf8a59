//! Where others come to: a listening UNIX socket, and those who have connected and have not said yet what they want. Of these there are several, so
//! that one who is slow, or says nothing, delays nobody; and a bounded number, as the one who has been silent longest goes when there are
//! more. Other users are turned away unheard.

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

/// How many may be silent.
const SILENT: usize = 64;
/// How many are let in at once, at most.
const AT_ONCE: usize = 256;
/// How long to wait when there is no descriptor for who has come.
const SHORTAGE_NS: u64 = 10_000_000;

pub(super) struct Door {
    socket: Fd,
    silent: Vec<Fd>,
}

/// One who has said something.
pub(super) struct Came {
    pub(super) socket: Fd,
    pub(super) bytes: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

impl Door {
    /// One of that abstract name. `ADDRINUSE` if there is one.
    pub(super) fn open(name: &[u8]) -> Result<Door, Errno> {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, 128)?;
        Ok(Door { socket, silent: Vec::new() })
    }

    /// Where to listen for what [`Door::next`] gives.
    pub(super) fn descriptors(&self) -> Vec<i32> {
        core::iter::once(&self.socket).chain(&self.silent).map(|fd| fd.as_raw_fd()).collect()
    }

    /// One who has said something, if there is one now.
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

    /// Lets nobody in who has come.
    pub(super) fn turn_away(&mut self) {
        self.let_in();
        self.silent.clear();
    }

    fn let_in(&mut self) {
        for _ in 0..AT_ONCE {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(self.socket.as_fd(), flags) {
                // This host's agent, which may be root's, is heard, but only if it brings somebody.
                Ok(socket) if user::is_kin(&socket) => {
                    if self.silent.len() == SILENT {
                        self.silent.remove(0);
                    }
                    self.silent.push(Fd::new(socket));
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    // Out of descriptors: that of who has been silent longest serves another one.
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

/// Connects to whoever of this user listens by that abstract name. An error if it is nobody, or another user's.
pub(super) fn connect(name: &[u8]) -> Result<Fd, Errno> {
    let socket = socket()?;
    // It does not block: whoever listens may let nobody in.
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
        let name = format!("via-door-test-{}", std::process::id()).into_bytes();
        let mut door = Door::open(&name).unwrap();
        assert_eq!(Door::open(&name).err(), Some(Errno::ADDRINUSE));
        let mut silent: Vec<Fd> = (0..SILENT - 1).map(|_| connect(&name).unwrap()).collect();
        let speaks = connect(&name).unwrap();
        said(&speaks, b"one");
        assert_eq!(door.next().unwrap().bytes, b"one");
        assert!(door.next().is_none());
        assert_eq!(door.silent.len(), SILENT - 1);
        for _ in 0..100 {
            silent.push(connect(&name).unwrap());
            assert!(door.next().is_none());
        }
        assert_eq!(door.silent.len(), SILENT);
        said(&silent[SILENT + 98], b"last");
        assert_eq!(door.next().unwrap().bytes, b"last");
        drop(silent);
        assert!(door.next().is_none());
        assert_eq!(door.silent.len(), 0);
        // A door at which nobody looks: who comes does not wait for ever.
        let waiting: Vec<Fd> = core::iter::from_fn(|| connect(&name).ok()).take(1000).collect();
        assert!((100..1000).contains(&waiting.len()));
    }
}
