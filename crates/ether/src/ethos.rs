//! ETHOS: each frame is one UDP datagram, with nothing before it. Whoever speaks raw frames in UDP takes part; among Shunt's hosts a *hello*,
//! a frame of an ethertype that others ignore, tells who is there.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use fabric::sys;

use crate::frame::{Drop, EXPERIMENTAL, HEADER, Header};
use crate::mac::Mac;
use crate::net::{Net, Route};
use crate::peers::Snapshot;
use crate::poll::Poller;
use crate::sys::wait;
use crate::table::Table;

/// Frames that are read, or sent, at once.
const BATCH: usize = 32;
/// How often a hello goes to each peer; one that is not heard of for three of them is not there.
const HELLO: u64 = 500_000_000;
const GONE: u64 = 3 * HELLO;
/// What a hello says after the Ethernet header, before the byte that says whether it wants an answer.
const MAGIC: &[u8; 12] = b"shunt-ether\x01";
/// The length of a hello: the least that Ethernet has.
const HELLO_LEN: usize = 60;
/// Bytes that the socket keeps for us.
const BUFFER: i32 = 4 << 20;

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// What the threads of a net do.
pub fn jobs(net: &Arc<Net>, table: &Table) -> io::Result<[Job; 3]> {
    let mine = table.members(&net.settings.name).find(|(host, _)| host.id == net.me);
    let address = mine.and_then(|(_, address)| address).ok_or(io::ErrorKind::AddrNotAvailable)?;
    let socket = UdpSocket::bind(address).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot take the UDP address {address}: {error}"))
    })?;
    for (name, otherwise) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        // The first needs a right over the machine's network, not only the namespace's.
        let fd = socket.as_raw_fd();
        let _ = sys::setsockopt(fd, libc::SOL_SOCKET, name, BUFFER)
            .or_else(|_| sys::setsockopt(fd, libc::SOL_SOCKET, otherwise, BUFFER));
    }
    let socket = Arc::new(socket);
    let (a, b, c) = (net.clone(), net.clone(), net.clone());
    let (to, from, hello) = (socket.clone(), socket.clone(), socket);
    Ok([
        ("send", Box::new(move || send(&a, &to))),
        ("recv", Box::new(move || receive(&b, &from))),
        ("keep", Box::new(move || keep(&c, &hello))),
    ])
}

/// Frames of the interface, to the peers.
fn send(net: &Net, socket: &UdpSocket) {
    let mut frames = Frames::new(net.most() + 1);
    let (mut peers, mut seen) = (net.peers.current(), 0);
    let mut poller = Poller::new(net.settings.spin);
    let mut batch = Batch::default();
    while !net.is_stopped() {
        let mut count = 0;
        if !poller.look(&net.polls, || {
            count = frames.read(net);
            count > 0
        }) {
            let start = sys::now();
            let woken = wait(&[net.tap.fd(), net.sender.fd()], None);
            poller.slept(sys::now() - start);
            net.wakes.add(1);
            if woken[1] {
                net.sender.silence();
            }
            continue;
        }
        net.peers.refresh(&mut peers, &mut seen);
        for i in 0..count {
            let frame = frames.frame(i);
            let header = match Header::parse(frame) {
                Ok(_) if frame.len() > net.most() => Err(Drop::Oversize),
                other => other,
            };
            match header {
                Ok(header) => {
                    net.readers.show(false, &[frame]);
                    match net.route(&peers, &header) {
                        Route::One(place) => batch.add(socket, &peers, place, frame),
                        Route::All => {
                            for place in 0..peers.list.len() {
                                batch.add(socket, &peers, place, frame);
                            }
                        }
                        Route::Nowhere => net.counters.drop(Drop::UnknownHost),
                    }
                }
                Err(reason) => net.counters.drop(reason),
            }
        }
        batch.flush(socket, &peers);
    }
}

/// Frames as they come from the interface.
struct Frames {
    room: usize,
    bytes: Vec<u8>,
    lens: [usize; BATCH],
}

impl Frames {
    fn new(room: usize) -> Frames {
        Frames { room, bytes: vec![0; room * BATCH], lens: [0; BATCH] }
    }

    fn read(&mut self, net: &Net) -> usize {
        for i in 0..BATCH {
            match net.tap.read(&mut self.bytes[i * self.room..(i + 1) * self.room]) {
                Some(len) => self.lens[i] = len,
                None => return i,
            }
        }
        BATCH
    }

    fn frame(&self, i: usize) -> &[u8] {
        &self.bytes[i * self.room..i * self.room + self.lens[i]]
    }
}

/// Datagrams that go in one system call. They point into frames that live until it was made.
#[derive(Default)]
struct Batch {
    list: Vec<(usize, *const u8, usize)>,
}

impl Batch {
    fn add(&mut self, socket: &UdpSocket, peers: &Snapshot, place: usize, frame: &[u8]) {
        self.list.push((place, frame.as_ptr(), frame.len()));
        if self.list.len() == BATCH {
            self.flush(socket, peers);
        }
    }

    fn flush(&mut self, socket: &UdpSocket, peers: &Snapshot) {
        if self.list.is_empty() {
            return;
        }
        let mut addresses: [Address; BATCH] = [Address::default(); BATCH];
        // SAFETY: all zeroes are messages of nothing.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        for (i, &(place, frame, len)) in self.list.iter().enumerate() {
            let peer = &peers.list[place];
            addresses[i] = Address::of(&peer.address.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()));
            parts[i] = libc::iovec { iov_base: frame as *mut _, iov_len: len };
            messages[i].msg_hdr.msg_name = (&raw mut addresses[i].storage).cast();
            messages[i].msg_hdr.msg_namelen = addresses[i].len;
            messages[i].msg_hdr.msg_iov = &raw mut parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        let mut sent = 0;
        while sent < self.list.len() {
            let rest = &mut messages[sent..self.list.len()];
            // SAFETY: the messages point to what lives until the end of this function, and to frames, which live until the batch is flushed.
            let done = unsafe { libc::sendmmsg(socket.as_raw_fd(), rest.as_mut_ptr(), rest.len() as u32, 0) };
            for &(place, _, len) in &self.list[sent..sent + done.max(0) as usize] {
                let counters = &peers.list[place].counters;
                counters.frames_out.add_mine(1);
                counters.bytes_out.add_mine(len as u64);
            }
            sent += done.max(0) as usize;
            if done < 0 {
                let error = io::Error::last_os_error().raw_os_error();
                if error == Some(libc::EINTR) {
                    continue;
                }
                // The first of them could not be sent: there is no way there, or it is too long for that way.
                let reason = match error {
                    Some(libc::EMSGSIZE) => Drop::Oversize,
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Drop::QueueFull,
                    _ => Drop::NoPeer,
                };
                peers.list[self.list[sent].0].counters.drop(reason);
                sent += 1;
            }
        }
        self.list.clear();
    }
}

/// Datagrams, to the interface.
fn receive(net: &Net, socket: &UdpSocket) {
    let (mut peers, mut seen) = (net.peers.current(), 0);
    let mut poller = Poller::new(net.settings.spin);
    // One byte more than a frame has: what is too long shows.
    let mut inbox = Inbox::new(net.most() + 1);
    while !net.is_stopped() {
        let mut count = 0;
        if !poller.look(&net.polls, || {
            count = inbox.receive(socket.as_raw_fd());
            count > 0
        }) {
            let start = sys::now();
            let woken = wait(&[socket.as_raw_fd(), net.receiver.fd()], None);
            poller.slept(sys::now() - start);
            net.wakes.add(1);
            if woken[1] {
                net.receiver.silence();
            }
            continue;
        }
        net.peers.refresh(&mut peers, &mut seen);
        let now = sys::now();
        for i in 0..count {
            take(net, socket, &peers, now, inbox.frame(i), inbox.sender(i));
        }
    }
}

/// A datagram that came.
fn take(net: &Net, socket: &UdpSocket, peers: &Snapshot, now: u64, frame: &[u8], sender: Option<SocketAddr>) {
    let known = sender.and_then(|sender| peers.at(&sender));
    // Unchecked, the host is the one that the source address says.
    let place = known.or_else(|| {
        let claimed = (!net.settings.source_check).then(|| Header::parse(frame).ok()?.from.host()).flatten();
        claimed.and_then(|id| peers.place(id))
    });
    let Some(place) = place else {
        if net.settings.source_check {
            return net.counters.drop(if frame.len() < HEADER { Drop::Runt } else { Drop::WrongSource });
        }
        return match Header::admit(frame, frame.len(), net.most(), None, net.me) {
            Ok(_) if net.tap.write(frame) => net.counters.frames_in.add_mine(1),
            Ok(_) => net.counters.drop(Drop::Refused),
            Err(reason) => net.counters.drop(reason),
        };
    };
    let peer = &peers.list[place];
    match net.admit(peers, place, frame, frame.len(), net.most()) {
        Ok(header) => {
            peer.hear(now);
            if header.ethertype == EXPERIMENTAL
                && let Some(wants) = is_hello(frame)
            {
                if wants && peer.may_answer(now, HELLO / 10) {
                    say_hello(net, socket, peer.id, peer.address, false);
                }
                if !peer.is_up() {
                    net.keeper.ring();
                }
                return;
            }
            net.readers.show(true, &[frame]);
            if net.tap.write(frame) {
                peer.counters.frames_in.add_mine(1);
                peer.counters.bytes_in.add_mine(frame.len() as u64);
            } else {
                peer.counters.drop(Drop::Refused);
            }
        }
        Err(reason) => peer.counters.drop(reason),
    }
}

/// Says hello, and sees who is there.
fn keep(net: &Net, socket: &UdpSocket) {
    let mut next = 0;
    while !net.is_stopped() {
        let now = sys::now();
        let say = now >= next;
        for peer in &net.peers.current().list {
            if say {
                say_hello(net, socket, peer.id, peer.address, true);
            }
            let heard = peer.heard();
            peer.set_up(heard != 0 && now < heard + GONE);
        }
        if say {
            next = now + HELLO;
        }
        if let Err(error) = net.follow_carrier() {
            eprintln!("shunt ether: {}: cannot set its carrier: {error}", net.settings.interface);
        }
        if wait(&[net.keeper.fd()], Some(HELLO / 4 / 1_000_000))[0] {
            net.keeper.silence();
        }
    }
}

fn say_hello(net: &Net, socket: &UdpSocket, id: u16, address: Option<SocketAddr>, wants_answer: bool) {
    let mut frame = [0; HELLO_LEN];
    frame[..6].copy_from_slice(&Mac::of_host(id).0);
    frame[6..12].copy_from_slice(&Mac::of_host(net.me).0);
    frame[12..14].copy_from_slice(&EXPERIMENTAL.to_be_bytes());
    frame[14..26].copy_from_slice(MAGIC);
    frame[26] = wants_answer.into();
    if let Some(address) = address {
        let _ = socket.send_to(&frame, address); // it is not there: that shows
    }
}

/// Whether a frame is a hello, and if so whether it wants an answer.
pub fn is_hello(frame: &[u8]) -> Option<bool> {
    let body = frame.get(HEADER..)?;
    (body.first_chunk() == Some(MAGIC)).then(|| body.get(MAGIC.len()).is_some_and(|kind| *kind != 0))
}

/// A socket address as the kernel has it.
#[derive(Clone, Copy)]
struct Address {
    storage: libc::sockaddr_in6,
    len: u32,
}

impl Default for Address {
    fn default() -> Address {
        // SAFETY: all zeroes are an address of no family.
        Address { storage: unsafe { std::mem::zeroed() }, len: size_of::<libc::sockaddr_in6>() as u32 }
    }
}

impl Address {
    fn of(address: &SocketAddr) -> Address {
        let mut all = Address::default();
        match address {
            SocketAddr::V6(v6) => {
                all.storage = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
            }
            SocketAddr::V4(v4) => {
                let short = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: an IPv4 address is the shorter of the two.
                unsafe { (&raw mut all.storage).cast::<libc::sockaddr_in>().write(short) };
                all.len = size_of::<libc::sockaddr_in>() as u32;
            }
        }
        all
    }

    fn parse(&self) -> Option<SocketAddr> {
        let v6 = &self.storage;
        match i32::from(v6.sin6_family) {
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            libc::AF_INET => {
                // SAFETY: the family says so, and that address is the shorter one.
                let v4 = unsafe { (&raw const *v6).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            _ => None,
        }
    }
}

/// Datagrams as they come.
struct Inbox {
    room: usize,
    bytes: Vec<u8>,
    lens: [usize; BATCH],
    senders: [Address; BATCH],
}

impl Inbox {
    fn new(room: usize) -> Inbox {
        Inbox { room, bytes: vec![0; room * BATCH], lens: [0; BATCH], senders: [Address::default(); BATCH] }
    }

    fn receive(&mut self, socket: RawFd) -> usize {
        // SAFETY: all zeroes are messages of nothing.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) =
            unsafe { std::mem::zeroed() };
        for (i, message) in messages.iter_mut().enumerate() {
            self.senders[i] = Address::default();
            let base = self.bytes[i * self.room..].as_mut_ptr();
            parts[i] = libc::iovec { iov_base: base.cast(), iov_len: self.room };
            message.msg_hdr.msg_name = (&raw mut self.senders[i].storage).cast();
            message.msg_hdr.msg_namelen = self.senders[i].len;
            message.msg_hdr.msg_iov = &raw mut parts[i];
            message.msg_hdr.msg_iovlen = 1;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: each message has a buffer of `room` bytes and an address, which live until the end of this function.
        let got = unsafe {
            libc::recvmmsg(socket, messages.as_mut_ptr(), BATCH as u32, flags, std::ptr::null_mut())
        };
        let got = got.max(0) as usize;
        for (len, message) in self.lens.iter_mut().zip(&messages[..got]) {
            *len = message.msg_len as usize;
        }
        got
    }

    fn frame(&self, i: usize) -> &[u8] {
        &self.bytes[i * self.room..i * self.room + self.lens[i]]
    }

    fn sender(&self, i: usize) -> Option<SocketAddr> {
        self.senders[i].parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        for text in ["10.1.2.3:7471", "[fd00::1]:7", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::of(&address).parse(), Some(address));
        }
        assert_eq!(Address::default().parse(), None);
    }

    #[test]
    fn only_a_hello_is_one() {
        let mut frame = [0; HELLO_LEN];
        assert_eq!(is_hello(&frame), None);
        frame[14..26].copy_from_slice(MAGIC);
        assert_eq!(is_hello(&frame), Some(false));
        frame[26] = 1;
        assert_eq!(is_hello(&frame), Some(true));
        assert_eq!(is_hello(&frame[..20]), None);
    }
}
