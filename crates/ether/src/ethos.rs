//! ETHOS: each frame is one UDP datagram, with nothing before it. Whoever speaks raw frames in UDP takes part; among Shunt's hosts a *hello*,
//! a frame of an ethertype that others ignore, tells who is there, and whether super-frames ([`crate::vnet`]) may come. Those go *wrapped*:
//! addresses, that ethertype, [`MAGIC`], [`WRAPPED`], the offload header, and the rest of the frame from its own ethertype on. Others get segments,
//! those of one super-frame in one system call if the kernel cuts datagrams up (UDP_SEGMENT).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use fabric::sys;

use crate::frame::{Drop, EXPERIMENTAL, HEADER, Header};
use crate::mac::Mac;
use crate::net::{Net, Route};
use crate::peers::{Peer, Snapshot};
use crate::poll::Poller;
use crate::sys::{checked, error, wait};
use crate::table::Table;
use crate::vnet::{self, Segments, Vnet};

/// Frames that are read, or sent, at once.
const BATCH: usize = 32;
/// Bytes after which no more are read: what was read should still be in the cache when it is sent.
const BURST: usize = 256 << 10;
/// How often a hello goes to each peer; one that is not heard of for three of them is not there.
const HELLO: u64 = 500_000_000;
const GONE: u64 = 3 * HELLO;
/// What a frame of Shunt's own says after the Ethernet header, before the byte for its kind.
const MAGIC: &[u8; 12] = b"shunt-ether\x01";
/// Kinds: a hello that is an answer, one that wants one, a wrapped frame.
const ANSWER: u8 = 0;
const ASK: u8 = 1;
const WRAPPED: u8 = 2;
/// What a hello says after its kind, in bits; those of older versions say 0.
const TAKES_SUPERS: u8 = 1;
/// The length of a hello: the least that Ethernet has.
const HELLO_LEN: usize = 60;
/// Bytes of the two addresses, with which a frame begins, wrapped or not.
const ADDRESSES: usize = 12;
/// What is between the addresses and the offload header of a wrapped frame.
const WRAPPING: [u8; 15] = *b"\x88\xb5shunt-ether\x01\x02";
/// The offload header of a frame that needs nothing.
const PLAIN: [u8; vnet::LEN] = [0; vnet::LEN];
/// The most that a datagram holds.
const DATAGRAM: usize = 65_507;
/// Datagrams that the kernel makes of one, at most.
const SEGMENTS: usize = 64;
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
    if net.settings.offload {
        // Older kernels do not join datagrams: then each comes by itself.
        let _ = sys::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
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
    let mut frames =
        Frames::new(vnet::LEN + if net.settings.offload { vnet::LONGEST } else { net.most() + 1 });
    let (mut peers, mut seen) = (net.peers.current(), 0);
    let mut poller = Poller::new(net.settings.spin);
    let mut batch = Batch::default();
    while !net.is_stopped() {
        let mut count = 0;
        if !poller.look(&net.polls, || {
            count = frames.read(net);
            count > 0
        }) {
            net.sleep_at(&mut poller, net.tap.fd(), &net.sender);
            continue;
        }
        net.peers.refresh(&mut peers, &mut seen);
        for i in 0..count {
            if let Err(reason) = pass(net, socket, &peers, &mut batch, frames.frame(i)) {
                net.counters.drop(reason);
            }
        }
        batch.flush(socket, &peers);
        batch.forget();
    }
}

/// Puts a frame, which has its offload header before it, on the batch.
fn pass(
    net: &Net,
    socket: &UdpSocket,
    peers: &Snapshot,
    batch: &mut Batch,
    bytes: &mut [u8],
) -> Result<(), Drop> {
    let (head, frame) = bytes.split_first_chunk_mut().ok_or(Drop::Runt)?;
    let (vnet, header) = (Vnet::parse(head), Header::parse(frame)?);
    if !vnet.is_super() && frame.len() > net.most() {
        return Err(Drop::Oversize);
    }
    if !vnet.fits(frame.len(), net.most()) {
        return Err(Drop::BadOffload);
    }
    if !vnet.is_super() {
        vnet.complete(frame);
    }
    net.readers.show(false, &[frame]);
    let places = match net.route(peers, &header) {
        Route::One(place) => place..place + 1,
        Route::All => 0..peers.list.len(),
        Route::Nowhere => return Err(Drop::UnknownHost),
    };
    let mut cut = None;
    for place in places {
        if !vnet.is_super() {
            batch.add(socket, peers, Datagram::new(place, &[frame], frame.len()));
        } else if takes_supers(&peers.list[place])
            && frame.len() + WRAPPING.len() + vnet::LEN <= peers.list[place].room()
        {
            let (addresses, rest) = frame.split_at(ADDRESSES);
            batch.add(socket, peers, Datagram::new(place, &[addresses, &WRAPPING, head, rest], frame.len()));
        } else {
            let at = match cut {
                Some(at) => at,
                None => *cut.insert(batch.cut(&vnet, frame, net.most())?),
            };
            batch.add_segments(socket, peers, place, at);
        }
    }
    Ok(())
}

fn takes_supers(peer: &Peer) -> bool {
    let greeted = peer.greeted();
    greeted != 0 && sys::now() < greeted + GONE
}

/// Frames as they come from the interface, each with its offload header.
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
        let (mut count, mut bytes) = (0, 0);
        while count < BATCH && bytes < BURST {
            match net.tap.read(&mut self.bytes[count * self.room..(count + 1) * self.room]) {
                Some(len) => self.lens[count] = len,
                None => break,
            }
            bytes += self.lens[count];
            count += 1;
        }
        count
    }

    fn frame(&mut self, i: usize) -> &mut [u8] {
        &mut self.bytes[i * self.room..i * self.room + self.lens[i]]
    }
}

/// What goes to a peer: one datagram in parts, or several, all but the last of `each` bytes, that lie one after the other.
#[derive(Clone, Copy)]
struct Datagram {
    place: usize,
    parts: [libc::iovec; 4],
    count: usize,
    each: usize,
    /// What is counted: frames, and their bytes.
    frames: usize,
    bytes: usize,
}

impl Datagram {
    fn new(place: usize, of: &[&[u8]], bytes: usize) -> Datagram {
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; 4];
        for (part, from) in parts.iter_mut().zip(of) {
            *part = libc::iovec { iov_base: from.as_ptr() as *mut _, iov_len: from.len() };
        }
        Datagram { place, parts, count: of.len(), each: 0, frames: 1, bytes }
    }

    /// Its datagrams, each by itself.
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

/// The control message that has the kernel cut a datagram up.
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

/// Datagrams that go in one system call. They point into frames and segments that live until it was made.
#[derive(Default)]
struct Batch {
    list: Vec<Datagram>,
    /// What super-frames were cut into; the first `used` of them are pointed into.
    segments: Vec<Segments>,
    used: usize,
}

impl Batch {
    /// Cuts a super-frame up; where the segments are.
    fn cut(&mut self, vnet: &Vnet, frame: &[u8], most: usize) -> Result<usize, Drop> {
        if self.used == self.segments.len() {
            self.segments.push(Segments::default());
        }
        self.segments[self.used].cut(vnet, frame, most)?;
        self.used += 1;
        Ok(self.used - 1)
    }

    fn add_segments(&mut self, socket: &UdpSocket, peers: &Snapshot, place: usize, at: usize) {
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

    fn add(&mut self, socket: &UdpSocket, peers: &Snapshot, datagram: Datagram) {
        self.list.push(datagram);
        if self.list.len() == BATCH {
            self.flush(socket, peers);
        }
    }

    /// Sends what there is. Frames and segments must still be what they were when it was added.
    fn flush(&mut self, socket: &UdpSocket, peers: &Snapshot) {
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
                // One by one it may: they do not fit the way there whole (EINVAL, EMSGSIZE), or the device cannot (EIO), or the kernel is old.
                peer.set_refuses_segments(true);
                self.list.splice(next..next + 1, first.apart());
                continue;
            }
            // There is no way there, or it is too long for that way.
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

    /// Lets go of the segments, to which nothing points after [`Batch::flush`].
    fn forget(&mut self) {
        self.used = 0;
    }
}

/// Sends the first datagrams of `list`; how many went.
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
    // SAFETY: the messages point to what lives until the end of this function, and to frames, which live until the batch is flushed.
    let done = unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0) };
    checked(done as isize)
}

/// Datagrams, to the interface.
fn receive(net: &Net, socket: &UdpSocket) {
    let (mut peers, mut seen) = (net.peers.current(), 0);
    let mut poller = Poller::new(net.settings.spin);
    // One byte more than a frame has: what is too long shows.
    let mut inbox = Inbox::new(if net.settings.offload { DATAGRAM } else { net.most() + 1 });
    while !net.is_stopped() {
        let mut count = 0;
        if !poller.look(&net.polls, || {
            count = inbox.receive(socket.as_raw_fd());
            count > 0
        }) {
            net.sleep_at(&mut poller, socket.as_raw_fd(), &net.receiver);
            continue;
        }
        net.peers.refresh(&mut peers, &mut seen);
        let now = sys::now();
        for i in 0..count {
            for frame in inbox.frames(i) {
                take(net, socket, &peers, now, frame, inbox.sender(i));
            }
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
            Ok(_) if net.tap.write([&PLAIN, frame]) => net.counters.frames_in.add_mine(1),
            Ok(_) => net.counters.drop(Drop::Refused),
            Err(reason) => net.counters.drop(reason),
        };
    };
    let peer = &peers.list[place];
    match deliver(net, socket, peers, place, now, frame) {
        Ok(0) => {}
        Ok(bytes) => {
            peer.counters.frames_in.add_mine(1);
            peer.counters.bytes_in.add_mine(bytes as u64);
        }
        Err(reason) => peer.counters.drop(reason),
    }
}

/// Hands what the peer at `place` sent to the kernel, if it is let in, or does what a hello asks for. The bytes of the frame; none of a hello.
fn deliver(
    net: &Net,
    socket: &UdpSocket,
    peers: &Snapshot,
    place: usize,
    now: u64,
    frame: &[u8],
) -> Result<usize, Drop> {
    let own = Own::parse(frame);
    let (bytes, most) = match own {
        Some(Own::Wrapped { rest, .. }) => (ADDRESSES + rest.len(), vnet::LONGEST),
        _ => (frame.len(), net.most()),
    };
    net.admit(peers, place, frame, bytes, most)?;
    let peer = &peers.list[place];
    peer.hear(now);
    let taken = match own {
        Some(Own::Hello { wants_answer, takes_supers }) => {
            peer.greet(now, takes_supers);
            if wants_answer && peer.may_answer(now, HELLO / 10) {
                say_hello(net, socket, peer.id, peer.address, false);
            }
            if !peer.is_up() {
                net.keeper.ring();
            }
            return Ok(0);
        }
        Some(Own::Wrapped { offload, rest }) => {
            if bytes < HEADER {
                return Err(Drop::Runt);
            }
            if !net.settings.offload || !Vnet::parse(offload).fits(bytes, net.most()) {
                return Err(Drop::BadOffload);
            }
            let addresses = &frame[..ADDRESSES];
            net.readers.show(true, &[addresses, rest]);
            net.tap.write([offload, addresses, rest])
        }
        None => {
            net.readers.show(true, &[frame]);
            net.tap.write([&PLAIN, frame])
        }
    };
    if taken { Ok(bytes) } else { Err(Drop::Refused) }
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
                // The way there may be another one by now.
                peer.set_refuses_segments(false);
                peer.set_room(peer.address.and_then(|address| room(address).ok()).unwrap_or(0));
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

/// What a datagram to this address holds that goes there in one piece, as far as our kernel knows. One in 45 fragments is lost as soon as
/// one of them is, and firewalls drop fragments: so a super-frame that does not fit is cut up by us.
fn room(address: SocketAddr) -> io::Result<usize> {
    let (probe, level, name, headers) = match address {
        SocketAddr::V4(_) => {
            (UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?, libc::IPPROTO_IP, libc::IP_MTU, 28)
        }
        SocketAddr::V6(_) => {
            (UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?, libc::IPPROTO_IPV6, libc::IPV6_MTU, 48)
        }
    };
    probe.connect(address)?;
    let mtu: i32 = sys::getsockopt(probe.as_raw_fd(), level, name).map_err(error)?;
    Ok(usize::try_from(mtu).unwrap_or(0).saturating_sub(headers).min(DATAGRAM))
}

fn say_hello(net: &Net, socket: &UdpSocket, id: u16, address: Option<SocketAddr>, wants_answer: bool) {
    let mut frame = [0; HELLO_LEN];
    frame[..6].copy_from_slice(&Mac::of_host(id).0);
    frame[6..12].copy_from_slice(&Mac::of_host(net.me).0);
    frame[12..14].copy_from_slice(&EXPERIMENTAL.to_be_bytes());
    frame[14..26].copy_from_slice(MAGIC);
    frame[26] = if wants_answer { ASK } else { ANSWER };
    frame[27] = if net.settings.offload { TAKES_SUPERS } else { 0 };
    if let Some(address) = address {
        let _ = socket.send_to(&frame, address); // it is not there: that shows
    }
}

/// A frame of Shunt's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own<'a> {
    /// A hello.
    Hello {
        /// Whether it wants an answer.
        wants_answer: bool,
        /// Whether super-frames may go to whoever says it.
        takes_supers: bool,
    },
    /// Another frame, whose addresses come before this.
    Wrapped {
        /// Its offload header.
        offload: &'a [u8; vnet::LEN],
        /// What comes after the addresses.
        rest: &'a [u8],
    },
}

impl Own<'_> {
    /// What a frame is, if it is one of these.
    pub fn parse(frame: &[u8]) -> Option<Own<'_>> {
        let (ethertype, body) = frame.get(ADDRESSES..)?.split_first_chunk()?;
        let (magic, body) = body.split_first_chunk()?;
        let (kind, body) = body.split_first()?;
        if (u16::from_be_bytes(*ethertype), magic) != (EXPERIMENTAL, MAGIC) {
            return None;
        }
        match *kind {
            ANSWER | ASK => {
                let takes_supers = body.first().is_some_and(|bits| bits & TAKES_SUPERS != 0);
                Some(Own::Hello { wants_answer: *kind == ASK, takes_supers })
            }
            WRAPPED => body.split_first_chunk().map(|(offload, rest)| Own::Wrapped { offload, rest }),
            _ => None,
        }
    }
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
    joined: [Joined; BATCH],
    senders: [Address; BATCH],
}

/// The control message that says of how many bytes each datagram was that the kernel has joined, but the last (UDP_GRO).
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
    fn new(room: usize) -> Inbox {
        Inbox {
            room,
            bytes: vec![0; room * BATCH],
            lens: [0; BATCH],
            joined: [Joined::NONE; BATCH],
            senders: [Address::default(); BATCH],
        }
    }

    fn receive(&mut self, socket: RawFd) -> usize {
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
        // SAFETY: each message has a buffer of `room` bytes, an address and a control message, which live until the end of this function.
        let got = unsafe { libc::recvmmsg(socket, messages.as_mut_ptr(), BATCH as u32, flags, forever) };
        let got = got.max(0) as usize;
        for (len, message) in self.lens.iter_mut().zip(&messages[..got]) {
            *len = message.msg_len as usize;
        }
        got
    }

    /// The datagrams of a message: one, unless the kernel has joined some.
    fn frames(&self, i: usize) -> impl Iterator<Item = &[u8]> {
        let all = &self.bytes[i * self.room..i * self.room + self.lens[i]];
        let each = self.joined[i].each().unwrap_or(all.len());
        // One without a byte is one, too.
        all.chunks(each.max(1)).chain(all.is_empty().then_some(all))
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
        // Cut up and joined again, or not, as the kernel likes.
        sys::setsockopt(from.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 1000).unwrap();
        let bytes: Vec<u8> = (0..2500u32).map(|i| (i % 251) as u8).collect();
        from.send_to(&bytes, to.local_addr().unwrap()).unwrap();
        assert_eq!(take(), bytes.chunks(1000).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_is_shunts_own_is_taken_for_it() {
        let mut frame = [0; HELLO_LEN];
        assert_eq!(Own::parse(&frame), None);
        frame[12..26].copy_from_slice(&WRAPPING[..14]);
        let hello = |wants_answer, takes_supers| Some(Own::Hello { wants_answer, takes_supers });
        assert_eq!(Own::parse(&frame), hello(false, false), "as older versions say it");
        frame[26] = ASK;
        assert_eq!(Own::parse(&frame[..27]), hello(true, false));
        frame[27] = 0xff;
        assert_eq!(Own::parse(&frame), hello(true, true));
        assert_eq!(Own::parse(&frame[..26]), None);
        frame[26] = WRAPPED;
        assert_eq!(
            Own::parse(&frame),
            Some(Own::Wrapped { offload: &[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0], rest: &[0; 23] })
        );
        assert_eq!(Own::parse(&frame[..36]), None);
        frame[26] = 3;
        assert_eq!(Own::parse(&frame), None);
        frame[26] = ASK;
        frame[13] = 0;
        assert_eq!(Own::parse(&frame), None, "it is IP");
    }

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
