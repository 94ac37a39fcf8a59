//! ETHOS: each frame is one UDP datagram, with nothing before it. So every program that exchanges
//! raw frames in UDP can take part. Shunt's hosts announce themselves by a *hello*, a frame of an
//! ethertype that others ignore; it also says whether its sender takes super-frames
//! ([`crate::vnet`]). Those go *wrapped*: addresses, that ethertype, `MAGIC`, `WRAPPED` (`own.rs`),
//! the offload header, and the rest of the frame from its own ethertype on. Others get segments,
//! those of one super-frame in one system call if the kernel cuts datagrams up (UDP_SEGMENT).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use fabric::sys;

use crate::frame::{Drop, EXPERIMENTAL, HEADER, Header};
use crate::mac::Mac;
use crate::net::{Net, Route};
use crate::peers::{Peer, Snapshot};
use crate::poll::Poller;
use crate::sys::{error, wait};
use crate::table::Table;
use crate::vnet::{self, Vnet};

mod batch;
mod inbox;
mod own;
mod udp;

use batch::{Batch, Datagram};
use inbox::Inbox;
pub use own::Own;
use own::{ADDRESSES, ANSWER, ASK, HELLO_LEN, MAGIC, TAKES_SUPERS, WRAPPING};
use udp::{BATCH, DATAGRAM};

/// Bytes after which no more are read: they should still be in the cache when they are sent.
const BURST: usize = 256 << 10;
/// How often a hello goes to each peer. A peer that sends nothing for three of them is down.
const HELLO: u64 = 500_000_000;
const GONE: u64 = 3 * HELLO;
/// The offload header of a frame that needs nothing.
const PLAIN: [u8; vnet::LEN] = [0; vnet::LEN];
/// The size of the socket's buffers.
const BUFFER: i32 = 4 << 20;

type Job = (&'static str, Box<dyn FnOnce() + Send>);

/// The work of the threads of a net.
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
        if !poller.poll(&net.polls, || {
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

/// Adds a frame, which has its offload header before it, to the batch.
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

/// Frames of the interface, each with its offload header.
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

/// Datagrams, to the interface.
fn receive(net: &Net, socket: &UdpSocket) {
    let (mut peers, mut seen) = (net.peers.current(), 0);
    let mut poller = Poller::new(net.settings.spin);
    // One byte more than a frame has, so that a longer one is noticed.
    let mut inbox = Inbox::new(if net.settings.offload { DATAGRAM } else { net.most() + 1 });
    while !net.is_stopped() {
        let mut count = 0;
        if !poller.poll(&net.polls, || {
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

/// Handles a datagram.
fn take(net: &Net, socket: &UdpSocket, peers: &Snapshot, now: u64, frame: &[u8], sender: Option<SocketAddr>) {
    let known = sender.and_then(|sender| peers.at(&sender));
    // Unchecked, the source address names the host.
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

/// Hands a frame of the peer at `place` to the kernel, if it is admitted, or answers a hello.
/// Returns the bytes of the frame; none for a hello.
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

/// Sends hellos, and notes which peers are there.
fn keep(net: &Net, socket: &UdpSocket) {
    let mut next = 0;
    while !net.is_stopped() {
        let now = sys::now();
        let say = now >= next;
        for peer in &net.peers.current().list {
            if say {
                say_hello(net, socket, peer.id, peer.address, true);
                // The way there may have changed.
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

/// The most bytes of a datagram that go to this address in one piece, as far as our kernel knows. A
/// datagram in 45 fragments is lost as soon as one of them is, and firewalls drop fragments: so we
/// cut up a super-frame that does not fit.
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
