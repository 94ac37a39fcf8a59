//! Brings one who comes from another host to who waits here for a Virtual Interface.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};

use fabric::credentials::{self, User};
use host::place::{HANDED_OVER, Name};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

/// Connects to whoever listens at a place of a user's. None if nobody does, or another user.
pub fn knock(uid: u32, place: &[u8]) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let address = SocketAddrUnix::new_abstract_name(Name::of(uid, place)?.as_bytes()).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    let (user, _) = User::at(socket.as_raw_fd())?;
    credentials::is_of(uid, user).then_some(socket)
}

/// Hands the connection of one who comes from another host over to him.
pub fn hand_over(to: &OwnedFd, connection: BorrowedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [connection];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    // Who does not get it is as one who is not there: the connection ends.
    let _ = rustix::net::sendmsg(to, &[IoSlice::new(HANDED_OVER)], &mut control, SendFlags::NOSIGNAL);
}
