//! Outgoing datagrams: many in one system call, and several in one datagram, which the kernel cuts
//! up.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;

use crate::ethos::udp::{Address, BATCH, DATAGRAM};
use crate::frame::Drop;
use crate::peers::Snapshot;
use crate::sys::checked;
use crate::vnet::{Segments, Vnet};

/// Datagrams that the kernel makes of one, at most.
const SEGMENTS: usize = 64;

/// The datagrams for a peer: one in parts, or several, all but the last of `each` bytes, that lie
/// one after the other.
#[derive(Clone, Copy)]
pub(super) struct Datagram {
    place: usize,
    parts: [libc::iovec; 4],
    count: usize,
    each: usize,
    /// For the counters: frames, and their bytes.
    frames: usize,
    bytes: usize,
}

impl Datagram {
    pub(super) fn new(place: usize, of: &[&[u8]], bytes: usize) -> Datagram {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4];
        for (part, from) in parts.iter_mut().zip(of) {
            *part = libc::iovec { iov_base: from.as_ptr() as *mut _, iov_len: from.len() };
        }
        Datagram { place, parts, count: of.len(), each: 0, frames: 1, bytes }
    }

    /// Its datagrams, one by one.
    fn apart(self) -> impl Iterator<Item = Datagram> {
        let [part, ..] = self.parts;
        (0..part.iov_len).step_by(self.each).map(move |at| {
            let bytes = self.each.min(part.iov_len - at);
            let mut parts = self.parts;
            parts[0] = libc::iovec { iov_base: part.iov_base.wrapping_byte_add(at), iov_len: bytes };
            Datagram { parts, frames: 1, bytes, ..self }
        })
    }
}

/// The control message that makes the kernel cut a datagram up.
#[repr(C)]
#[derive(Clone, Copy)]
struct Cut {
    head: libc::cmsghdr,
    each: [u16; 4],
}

impl Cut {
    fn into(each: usize) -> Cut {
        let head = libc::cmsghdr {
            cmsg_len: size_of::<libc::cmsghdr>() + size_of::<u16>(),
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        };
        Cut { head, each: [each as u16, 0, 0, 0] } // no datagram is longer
    }
}

/// Datagrams of one system call. They point into frames and segments that live until it was made.
#[derive(Default)]
pub(super) struct Batch {
    list: Vec<Datagram>,
    /// The pieces of super-frames; datagrams point into the first `used` of them.
    segments: Vec<Segments>,
    used: usize,
}

impl Batch {
    /// Cuts a super-frame up; returns the place of its segments.
    pub(super) fn cut(&mut self, vnet: &Vnet, frame: &[u8], most: usize) -> Result<usize, Drop> {
        if self.used == self.segments.len() {
            self.segments.push(Segments::default());
        }
        self.segments[self.used].cut(vnet, frame, most)?;
        self.used += 1;
        Ok(self.used - 1)
    }

    pub(super) fn add_segments(&mut self, socket: &UdpSocket, peers: &Snapshot, place: usize, at: usize) {
        let together = if peers.list[place].refuses_segments() { 1 } else { SEGMENTS };
        let each = self.segments[at].each();
        let groups = self.segments[at].groups(together, DATAGRAM);
        let groups: Vec<Datagram> = groups
            .map(|group| {
                let frames = group.len().div_ceil(each);
                Datagram { each, frames, ..Datagram::new(place, &[group], group.len()) }
            })
            .collect();
        for group in groups {
            self.add(socket, peers, group);
        }
    }

    pub(super) fn add(&mut self, socket: &UdpSocket, peers: &Snapshot, datagram: Datagram) {
        self.list.push(datagram);
        if self.list.len() == BATCH {
            self.flush(socket, peers);
        }
    }

    /// Sends all datagrams. Frames and segments must still be as they were when these were added.
    pub(super) fn flush(&mut self, socket: &UdpSocket, peers: &Snapshot) {
        let mut next = 0;
        while next < self.list.len() {
            let failed = match submit(socket, peers, &self.list[next..]) {
                Ok(sent) => {
                    for datagram in &self.list[next..next + sent] {
                        let counters = &peers.list[datagram.place].counters;
                        counters.frames_out.add_mine(datagram.frames as u64);
                        counters.bytes_out.add_mine(datagram.bytes as u64);
                    }
                    next += sent;
                    continue;
                }
                Err(error) => error.raw_os_error(),
            };
            if failed == Some(libc::EINTR) {
                continue;
            }
            // The first of them could not be sent.
            let first = self.list[next];
            let peer = &peers.list[first.place];
            if first.frames > 1 && !matches!(failed, Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) {
                // One by one they may go: they do not fit the way there whole (EINVAL, EMSGSIZE),
                // or the device cannot cut (EIO), or the kernel is old.
                peer.set_refuses_segments(true);
                self.list.splice(next..next + 1, first.apart());
                continue;
            }
            // There is no way there, or they are too long for it.
            let reason = match failed {
                Some(libc::EMSGSIZE) => Drop::Oversize,
                Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Drop::QueueFull,
                _ => Drop::NoPeer,
            };
            peer.counters.drop_many(reason, first.frames as u64);
            next += 1;
        }
        self.list.clear();
    }

    /// Drops the segments, to which nothing points after [`Batch::flush`].
    pub(super) fn forget(&mut self) {
        self.used = 0;
    }
}

/// Sends the first datagrams of `list`; returns how many.
fn submit(socket: &UdpSocket, peers: &Snapshot, list: &[Datagram]) -> io::Result<usize> {
    let mut addresses = [Address::default(); BATCH];
    let mut cuts = [Cut::into(0); BATCH];
    let mut parts = [[libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4]; BATCH];
    // SAFETY: all zeroes are messages of nothing.
    let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
    let count = list.len().min(BATCH);
    for (i, datagram) in list[..count].iter().enumerate() {
        let peer = &peers.list[datagram.place];
        let message = &mut messages[i].msg_hdr;
        addresses[i] = Address::of(&peer.address.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()));
        parts[i] = datagram.parts;
        message.msg_name = (&raw mut addresses[i].storage).cast();
        message.msg_namelen = addresses[i].len;
        message.msg_iov = parts[i].as_mut_ptr();
        message.msg_iovlen = datagram.count;
        if datagram.frames > 1 {
            cuts[i] = Cut::into(datagram.each);
            message.msg_control = (&raw mut cuts[i]).cast();
            message.msg_controllen = size_of::<Cut>();
        }
    }
    let fd = socket.as_raw_fd();
    // SAFETY: the messages point to locals of this function, and to frames, which live until the
    // batch is flushed.
    let done = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0) };
    checked(done as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_the_kernel_does_not_cut_up_go_apart() {
        let bytes = [7; 2500];
        let all = Datagram { each: 1000, frames: 3, ..Datagram::new(5, &[&bytes], 2500) };
        let apart: Vec<Datagram> = all.apart().collect();
        let starts = apart.iter().map(|one| one.parts[0].iov_base as usize - bytes.as_ptr() as usize);
        assert_eq!(starts.collect::<Vec<_>>(), [0, 1000, 2000]);
        assert_eq!(apart.iter().map(|one| one.parts[0].iov_len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert!(apart.iter().all(|one| (one.place, one.frames, one.bytes) == (5, 1, one.parts[0].iov_len)));
    }
}
