//! Sockets of the UNIX domain: their names, and descriptors that are passed by them.

use syscalls::Errno;

use super::{recvmsg, sendmsg, setsockopt};

/// The address that a socket has by this name: a path, or a zero and a name in the abstract
/// namespace. What is too long is cut off.
pub fn unix_address(name: impl IntoIterator<Item = u8>) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let mut len = core::mem::offset_of!(libc::sockaddr_un, sun_path);
    for (place, byte) in address.sun_path.iter_mut().zip(name) {
        *place = byte as _;
        len += 1;
    }
    (address, len as u32)
}

/// The abstract address "shunt/", a number in hexadecimal digits, and `rest`. It goes when its
/// process goes.
pub fn numbered_address(number: u64, rest: &[u8]) -> (libc::sockaddr_un, u32) {
    let digits = (0..16).map(|digit| b"0123456789abcdef"[(number >> (60 - 4 * digit)) as usize & 15]);
    unix_address(b"\0shunt/".iter().copied().chain(digits).chain(rest.iter().copied()))
}

/// Descriptors that a message of ours may pass.
pub const PASSED: usize = 10;
/// And any message (SCM_MAX_FD).
pub const MOST_PASSED: usize = 253;

/// Where in a control message its data begins.
const DATA: usize = 16;

const CONTROL: usize = DATA + (4 * MOST_PASSED).next_multiple_of(8);

#[repr(align(8))]
struct Control([u8; CONTROL]);

/// A message of one part, with control data.
fn message(iov: &mut libc::iovec, control: &mut Control, len: usize) -> libc::msghdr {
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = len;
    message
}

/// Sends bytes and, with them, [`PASSED`] descriptors at most.
pub fn send_with(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<usize, Errno> {
    send_with_flags(socket, bytes, fds, 0)
}

/// As [`send_with`]; does not wait, whatever the socket's flags are.
pub fn send_with_now(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<usize, Errno> {
    send_with_flags(socket, bytes, fds, libc::MSG_DONTWAIT)
}

fn send_with_flags(socket: i32, bytes: &[u8], fds: &[i32], flags: i32) -> Result<usize, Errno> {
    let mut control = Control([0; CONTROL]);
    let len = DATA + fds.len() * 4;
    control.0[0..8].copy_from_slice(&len.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (place, fd) in control.0[DATA..].chunks_exact_mut(4).zip(fds) {
        place.copy_from_slice(&fd.to_ne_bytes());
    }
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = message(&mut iov, &mut control, len.next_multiple_of(8));
    sendmsg(socket, &message, libc::MSG_NOSIGNAL | flags)
}

/// Whether descriptors may be passed by a socket: Linux 6.16, in `asm-generic/socket.h`.
pub const SO_PASSRIGHTS: i32 = 83;

/// Whether a message is there to be received, were it an empty one: at the end of a connection
/// none is. Of descriptors that come with it none is looked at.
pub fn message_waits(socket: i32) -> Result<bool, Errno> {
    // With the sender's credentials there is something for which there is no room here.
    setsockopt(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, 1)?;
    let mut byte = 0u8;
    let mut iov = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut control = Control([0; CONTROL]);
    let mut message = message(&mut iov, &mut control, 0);
    let got = recvmsg(socket, &mut message, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    setsockopt(socket, libc::SOL_SOCKET, libc::SO_PASSCRED, 0)?;
    match got {
        Ok(0) => Ok(message.msg_flags & libc::MSG_CTRUNC != 0),
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Receives a message and the descriptors that come with it, as far as `fds` has places; the others
/// are given no numbers. How long it is, and whether anything was cut off. Does not wait.
pub fn receive_with(socket: i32, bytes: &mut [u8], fds: &mut [i32]) -> Result<(usize, bool), Errno> {
    let mut control = Control([0; CONTROL]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut iov, &mut control, DATA + fds.len() * 4);
    let got = recvmsg(socket, &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)?;
    let (cut, room) = (message.msg_flags & libc::MSG_CTRUNC != 0, message.msg_controllen);
    let len = usize::from_ne_bytes(core::array::from_fn(|i| control.0[i])).min(room);
    if let Some(data) = control.0.get(DATA..len) {
        for (place, bytes) in fds.iter_mut().zip(data.chunks_exact(4)) {
            *place = i32::from_ne_bytes(core::array::from_fn(|i| bytes[i]));
        }
    }
    Ok((got, cut))
}
