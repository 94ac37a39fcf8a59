//! Hands the connection of a program on another host over to the program that waits here for a
//! Virtual Interface.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use fabric::credentials::{self, User};
use host::place::{HANDED_OVER, Name};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

/// Connects to the program that listens at a user's place. None if none does, or one of another
/// user.
pub fn connect(uid: u32, place: &[u8]) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(Name::of(uid, place)?.as_bytes()).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    let (user, _) = User::at(socket.as_raw_fd())?;
    credentials::is_of(uid, user).then_some(socket)
}

/// Hands the connection over to that program.
pub fn hand_over(to: &OwnedFd, connection: BorrowedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [connection];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // A failure has the same effect as nobody waiting there: the connection ends.
    let _ = rustix::net::sendmsg(to, &[IoSlice::new(HANDED_OVER)], &mut control, SendFlags::NOSIGNAL);
}
