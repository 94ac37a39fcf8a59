//! Incoming datagrams: many in one system call, and several in one datagram, which the kernel has
//! joined.

use std::net::SocketAddr;
use std::os::fd::RawFd;

use crate::ethos::udp::{Address, BATCH};

/// Incoming datagrams.
pub(super) struct Inbox {
    room: usize,
    bytes: Vec<u8>,
    lens: [usize; BATCH],
    joined: [Joined; BATCH],
    senders: [Address; BATCH],
}

/// The control message with the length of each datagram that the kernel has joined, but the last
/// (UDP_GRO).
#[repr(C)]
#[derive(Clone, Copy)]
struct Joined {
    head: libc::cmsghdr,
    each: i32,
    padding: i32,
}

impl Joined {
    const NONE: Joined =
        Joined { head: libc::cmsghdr { cmsg_len: 0, cmsg_level: 0, cmsg_type: 0 }, each: 0, padding: 0 };

    fn each(&self) -> Option<usize> {
        let says = (self.head.cmsg_level, self.head.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO);
        usize::try_from(self.each).ok().filter(|each| says && *each > 0)
    }
}

impl Inbox {
    pub(super) fn new(room: usize) -> Inbox {
        Inbox {
            room,
            bytes: vec![0; room * BATCH],
            lens: [0; BATCH],
            joined: [Joined::NONE; BATCH],
            senders: [Address::default(); BATCH],
        }
    }

    pub(super) fn receive(&mut self, socket: RawFd) -> usize {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        // SAFETY: all zeroes are messages of nothing.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for (i, message) in messages.iter_mut().enumerate() {
            self.senders[i] = Address::default();
            self.joined[i] = Joined::NONE;
            let base = self.bytes[i * self.room..].as_mut_ptr();
            parts[i] = libc::iovec { iov_base: base.cast(), iov_len: self.room };
            message.msg_hdr.msg_name = (&raw mut self.senders[i].storage).cast();
            message.msg_hdr.msg_namelen = self.senders[i].len;
            message.msg_hdr.msg_iov = &raw mut parts[i];
            message.msg_hdr.msg_iovlen = 1;
            message.msg_hdr.msg_control = (&raw mut self.joined[i]).cast();
            message.msg_hdr.msg_controllen = size_of::<Joined>();
        }
        let (flags, forever) = (libc::MSG_DONTWAIT, std::ptr::null_mut());
        // SAFETY: each message has a buffer of `room` bytes, an address and a control message,
        // which live until the end of this function.
        let got = unsafe { libc::recvmmsg(socket, messages.as_mut_ptr(), BATCH as u32, flags, forever) };
        let got = got.max(0) as usize;
        for (len, message) in self.lens.iter_mut().zip(&messages[..got]) {
            *len = message.msg_len as usize;
        }
        got
    }

    /// The datagrams of a message: one, unless the kernel has joined some.
    pub(super) fn frames(&self, i: usize) -> impl Iterator<Item = &[u8]> {
        let all = &self.bytes[i * self.room..i * self.room + self.lens[i]];
        let each = self.joined[i].each().unwrap_or(all.len());
        // A datagram without a byte is one, too.
        all.chunks(each.max(1)).chain(all.is_empty().then_some(all))
    }

    pub(super) fn sender(&self, i: usize) -> Option<SocketAddr> {
        self.senders[i].parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use fabric::sys;

    use crate::ethos::udp::DATAGRAM;
    use crate::sys::wait;

    #[test]
    fn datagrams_that_the_kernel_joined_are_taken_apart() {
        let (to, from) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut inbox = Inbox::new(DATAGRAM);
        let mut take = || -> Vec<Vec<u8>> {
            let mut all = Vec::new();
            while wait(&[to.as_raw_fd()], Some(100))[0] {
                for i in 0..inbox.receive(to.as_raw_fd()) {
                    assert_eq!(inbox.sender(i), Some(from.local_addr().unwrap()));
                    all.extend(inbox.frames(i).map(<[u8]>::to_vec));
                }
            }
            all
        };
        sys::setsockopt(to.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).unwrap();
        from.send_to(&[], to.local_addr().unwrap()).unwrap();
        assert_eq!(take(), [[0u8; 0]]);
        // Cut up and joined again, or not, as the kernel decides.
        sys::setsockopt(from.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1000).unwrap();
        let bytes: Vec<u8> = (0..2500u32).map(|i| (i % 251) as u8).collect();
        from.send_to(&bytes, to.local_addr().unwrap()).unwrap();
        assert_eq!(take(), bytes.chunks(1000).collect::<Vec<_>>());
    }
}
