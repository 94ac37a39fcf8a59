//! Connections: how two Virtual Interfaces find each other and exchange memory (specification, section 3.1).
//!
//! An address that a server waits at is a listening UNIX socket whose abstract name is made of the discriminator: so the kernel is the
//! registry, it is one per network namespace, and nothing is left of a process that dies. The client sends what it has (a [`Hello`] and its
//! memory's descriptors), the server what it has when it accepts, the client confirms. Each has told the other of its posted
//! descriptors before that, so either may send as soon as its call returns. The socket stays: its end is the connection's.
//!
//! At an address of another host the same is said, by the connection that [`far`] finds, without descriptors: the segments are a link's.
//!
//! Peers who both request meet likewise: of both addresses, the smaller one's owner connects; the other one calls it when it comes later.

use core::ffi::c_void;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fabric::shm::Map;
use fabric::sync::{AtomicBool, AtomicU64, Ordering};
use fabric::{hints, sys};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::abi::{Return, ViAttributes};
use crate::agent::{self, Socket};
use crate::arena::Theirs;
use crate::cq::Until;
use crate::far::{self, Peer, Watch};
use crate::handles::{Found, Kind, Place, Pool};
use crate::memory::{Asker, Rights, TABLE, Table};
use crate::nic::{self, ADDRESS, MAX_DISCRIMINATOR, MAX_TRANSFER};
use crate::segment::{self, Segment};
use crate::transfer::{Hints, Memory};
use crate::vi::{self, Offer};

/// A `VIP_NET_ADDRESS`: a host's address and a discriminator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    host: [u8; ADDRESS],
    length: u16,
    discriminator: [u8; MAX_DISCRIMINATOR],
}

impl Address {
    /// `InvalidParameter` if the discriminator is too long. Of the host's bytes, `host` may have fewer than a NIC's address: programs
    /// leave them out where they do not matter.
    pub fn new(host: &[u8], discriminator: &[u8]) -> Result<Address, Return> {
        if discriminator.len() > MAX_DISCRIMINATOR || host.len() > ADDRESS {
            return Err(Return::InvalidParameter);
        }
        let mut address = Address {
            host: [0; ADDRESS],
            length: discriminator.len() as u16,
            discriminator: [0; MAX_DISCRIMINATOR],
        };
        address.host[..host.len()].copy_from_slice(host);
        address.discriminator[..discriminator.len()].copy_from_slice(discriminator);
        Ok(address)
    }

    /// The host's bytes.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The discriminator.
    pub fn discriminator(&self) -> &[u8] {
        &self.discriminator[..usize::from(self.length).min(MAX_DISCRIMINATOR)]
    }

    fn ip(&self) -> Ipv4Addr {
        let [_, _, a, b, c, d] = self.host;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Whether it is an address of this host.
    fn is_here(&self) -> bool {
        UdpSocket::bind((self.ip(), 0)).is_ok()
    }

    /// As it goes between hosts.
    fn append(&self, to: &mut Vec<u8>) {
        to.extend(self.host);
        to.push(self.length as u8);
        to.extend(self.discriminator());
    }

    /// What was appended, taken from the front.
    fn take(from: &mut &[u8]) -> Option<Address> {
        let (host, rest) = from.split_first_chunk::<ADDRESS>()?;
        let (&length, rest) = rest.split_first()?;
        let (discriminator, rest) = rest.split_at_checked(usize::from(length))?;
        *from = rest;
        Address::new(host, discriminator).ok()
    }
}

/// How one end introduces itself.
#[derive(Clone, Copy)]
#[repr(C)]
struct Hello {
    /// [`MAGIC`]: whoever speaks another language is not spoken to.
    magic: u64,
    kind: u32,
    level: u32,
    most: u64,
    nic: u64,
    ptag: u64,
    /// Bit 0: may be written by RDMA, bit 1: may be read; bit 2, 3: its receive queue, its send queue has a completion queue; bit 4: it
    /// can reach the other's memory.
    bits: u64,
    slots: [u64; 2],
    /// Where its arena is, and how long; 0 if there is none.
    arena: [u64; 2],
    /// An address in its process, and what stands there: whoever reads it has a way to its memory.
    probe: [u64; 2],
    from: Address,
    to: Address,
}

/// "VIACONN" and the version of everything that two ends share.
const MAGIC: u64 = 0x5649_4143_4f4e_4e03;
const BYTES: usize = size_of::<Hello>();

mod kind {
    pub const REQUEST: u32 = 1;
    pub const ACCEPT: u32 = 2;
    pub const REJECT: u32 = 3;
    pub const CONFIRM: u32 = 4;
    pub const PEER: u32 = 5;
    /// With what is wrong in `level`: a [`Return`].
    pub const MISMATCH: u32 = 6;
}

impl Hello {
    fn bare(kind: u32, from: &Address, to: &Address) -> Hello {
        Hello {
            magic: MAGIC,
            kind,
            level: 0,
            most: 0,
            nic: 0,
            ptag: 0,
            bits: 0,
            slots: [0; 2],
            arena: [0; 2],
            probe: [0; 2],
            from: *from,
            to: *to,
        }
    }

    fn new(kind: u32, offer: Option<&Offer>, from: &Address, to: &Address) -> Hello {
        let mut hello = Hello { probe: probe(), ..Hello::bare(kind, from, to) };
        if let Some(offer) = offer {
            let attributes = &offer.attributes;
            hello.level = attributes.reliability_level.into();
            hello.most = attributes.max_transfer_size;
            (hello.nic, hello.ptag) = (offer.nic as u64, attributes.ptag as u64);
            hello.bits = u64::from(attributes.enable_rdma_write != 0)
                | u64::from(attributes.enable_rdma_read != 0) << 1
                | u64::from(offer.queues[0].is_some()) << 2
                | u64::from(offer.queues[1].is_some()) << 3;
            hello.arena = nic::arena().map_or([0; 2], |arena| arena.place());
            hello.slots = offer.queues.map(|queue| queue.map_or(0, |queue| queue.slot as u64));
        }
        hello
    }

    /// Tells whether the other's memory can be reached.
    fn reaching(mut self, memory: &Memory) -> Hello {
        self.bits |= u64::from(memory.is_direct()) << 4;
        self
    }

    /// Bytes are placed directly only if each can reach the other: so both use their memory alike.
    fn agree(&self, memory: &Memory) {
        memory.direct.fetch_and(self.bits >> 4 & 1 != 0, Ordering::Relaxed);
    }

    /// As it goes between hosts: what concerns one host's memory is left out.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.level.to_le_bytes());
        bytes.extend(self.most.to_le_bytes());
        bytes.push(self.bits as u8 & 3);
        self.from.append(&mut bytes);
        self.to.append(&mut bytes);
        bytes
    }

    /// What came from another host; none if it cannot be.
    fn parse(mut bytes: &[u8]) -> Option<Hello> {
        fn some<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*first)
        }
        let kind = u32::from_le_bytes(some(&mut bytes)?);
        let level = u32::from_le_bytes(some(&mut bytes)?);
        let most = u64::from_le_bytes(some(&mut bytes)?);
        let [bits] = some(&mut bytes)?;
        let (from, to) = (Address::take(&mut bytes)?, Address::take(&mut bytes)?);
        let can_be = (kind::REQUEST..=kind::MISMATCH).contains(&kind)
            && level <= u32::from(u16::MAX)
            && most <= MAX_TRANSFER as u64
            && bits <= 3;
        let bits = u64::from(bits);
        (can_be && bytes.is_empty()).then(|| Hello { level, most, bits, ..Hello::bare(kind, &from, &to) })
    }

    fn rights(&self) -> Rights {
        Rights { write: self.bits & 1 != 0, read: self.bits & 2 != 0 }
    }

    fn attributes(&self) -> ViAttributes {
        ViAttributes {
            reliability_level: self.level as u16,
            max_transfer_size: self.most,
            qos: core::ptr::null_mut(),
            ptag: core::ptr::null_mut(),
            enable_rdma_write: i32::from(self.bits & 1 != 0),
            enable_rdma_read: i32::from(self.bits & 2 != 0),
        }
    }
}

/// Something for peers to read. Where the kernel lets none but parents at a process's memory (Yama), this one lets its user's others.
fn probe() -> [u64; 2] {
    static PROBE: AtomicU64 = AtomicU64::new(0);
    if PROBE.load(Ordering::Relaxed) == 0 {
        // SAFETY: changes nothing but who may do that.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    }
    let _ = PROBE.compare_exchange(0, sys::random() | 1, Ordering::AcqRel, Ordering::Relaxed);
    [(&raw const PROBE) as u64, PROBE.load(Ordering::Acquire)]
}

/// What came from the other end: its hello, and its memory.
struct Heard {
    hello: Hello,
    fds: Vec<OwnedFd>,
}

/// What is understood of a hello of another host, as it would be said again. For the fuzzer.
#[doc(hidden)]
pub fn understood(bytes: &[u8]) -> Option<Vec<u8>> {
    Hello::parse(bytes).map(|hello| hello.bytes())
}

/// That over which a connection is made.
enum Line {
    /// A socket, on one host.
    Near(OwnedFd),
    Far(Box<dyn far::Line>),
}

impl Line {
    /// Connects to whoever listens at a place that `to` names. `NoMatch` if nobody does, `NotReachable` if it is another host's that is not
    /// to be reached.
    fn connect(to: &Address, place: &[u8], until: Until) -> Result<Line, Return> {
        if !to.is_here() {
            return far::envoy().ok_or(Return::NotReachable)?.call(to.ip(), place, until).map(Line::Far);
        }
        let connected = || {
            let socket = socket()?;
            rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(&name(place))?)?;
            Ok(Line::Near(socket))
        };
        connected().map_err(|_: Errno| Return::NoMatch)
    }

    /// Hears what somebody has to say who has connected, or whose connection from another host this host's agent hands over.
    fn accept(socket: OwnedFd) -> Result<Option<(Line, Heard)>, Return> {
        let until = Until::after(PATIENCE_MS);
        let Some((bytes, mut fds)) = receive(&socket, until)? else { return Ok(None) };
        if bytes != far::HANDED_OVER {
            return Ok(near(&bytes, fds).map(|heard| (Line::Near(socket), heard)));
        }
        let connection = fds.pop().filter(|_| far::is_trusted(&socket));
        let line = connection.zip(far::envoy()).and_then(|(connection, envoy)| envoy.accept(connection));
        let Some(line) = line.map(Line::Far) else { return Ok(None) };
        Ok(line.receive(until)?.map(|heard| (line, heard)))
    }

    fn send(&self, hello: &Hello, offer: Option<&Offer>) -> bool {
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Far(line) => return line.send(&hello.bytes()),
        };
        // SAFETY: a Hello has no padding: the kernel reads as many bytes as it has.
        let bytes = unsafe { core::slice::from_raw_parts(core::ptr::from_ref(hello).cast::<u8>(), BYTES) };
        let mut fds = Vec::new();
        if let Some(offer) = offer {
            let Ok(regions) = nic::regions() else { return false };
            let arena = nic::arena().map(|arena| arena.memfd());
            let numbers = [Some(offer.segment.memfd()), Some(regions.memfd()), arena];
            let queues = offer.queues.map(|queue| queue.map(|queue| queue.memfd()));
            fds.extend(numbers.into_iter().chain(queues).flatten().map(|fd| {
                // SAFETY: it is open: the segment and the queues are held by the Virtual Interface, which the caller has.
                unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
            }));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(5))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return false;
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = rustix::net::sendmsg(socket, &[std::io::IoSlice::new(bytes)], &mut control, flags);
        sent == Ok(BYTES)
    }

    /// The next hello. None if there is no more: the other end is gone, or speaks another language.
    fn receive(&self, until: Until) -> Result<Option<Heard>, Return> {
        match self {
            Line::Near(socket) => Ok(receive(socket, until)?.and_then(|(bytes, fds)| near(&bytes, fds))),
            Line::Far(line) => {
                let hello = line.receive(until)?.and_then(|bytes| Hello::parse(&bytes));
                Ok(hello.map(|hello| Heard { hello, fds: Vec::new() }))
            }
        }
    }

    /// Whether the other end has given up.
    fn is_over(&self) -> bool {
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Far(line) => return line.is_over(),
        };
        let events = libc::POLLIN | libc::POLLRDHUP;
        let mut poll = [libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }];
        sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0
            && poll[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Opens the memory of the other end. None if it is not what it must be.
    fn open(&self, heard: Heard, handle: *mut c_void, offer: &Offer) -> Option<Arc<Memory>> {
        let Heard { hello, fds } = heard;
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Far(line) => return open_far(line.as_ref(), &hello, handle, offer),
        };
        let peer = rustix::net::sockopt::socket_peercred(socket).ok()?;
        let pid = peer.pid.as_raw_nonzero().get() as u32;
        let mut fds = fds.into_iter();
        let theirs = Peer::near(open_map(fds.next()?, segment::BYTES)?);
        let regions = Some(Table::of(open_map(fds.next()?, TABLE)?)?);
        let mut memory = Memory {
            mine: offer.segment.clone(),
            theirs,
            pid,
            direct: AtomicBool::new(is_reached(pid, hello.probe)),
            regions,
            arena: None,
            asker: Asker { nic: hello.nic as *mut c_void, ptag: hello.ptag as *mut c_void },
            rights: hello.rights(),
            queues: [None; 2],
        };
        if hello.arena[1] != 0 {
            // Who has no room for it does without.
            memory.arena = Theirs::open(fds.next()?, hello.arena);
        }
        for (index, queue) in memory.queues.iter_mut().enumerate() {
            if hello.bits >> (2 + index) & 1 != 0 {
                let slot = usize::try_from(hello.slots[index]).ok().filter(|&slot| slot < hints::SLOTS)?;
                *queue = Some(Hints { map: open_map(fds.next()?, hints::BYTES)?, slot });
            }
        }
        Some(Arc::new(memory))
    }
}

/// A message of a socket, and the descriptors with it.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// The next one. None at the end.
fn receive(socket: &OwnedFd, until: Until) -> Result<Option<Message>, Return> {
    wait_for(&[socket.as_raw_fd()], until)?;
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
    let Ok(message) = read else { return Ok(None) };
    bytes.truncate(message.bytes);
    Ok(Some((bytes, fds)))
}

/// The hello of a process of this host, if it is one.
fn near(bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Heard> {
    // SAFETY: so many bytes; plain words, any bytes are some.
    let hello = (bytes.len() == BYTES).then(|| unsafe { bytes.as_ptr().cast::<Hello>().read_unaligned() })?;
    (hello.magic == MAGIC).then_some(Heard { hello, fds })
}

/// A link with a peer on another host. Nothing but the segments is in reach there; what RDMA is for is asked for.
fn open_far(line: &dyn far::Line, hello: &Hello, handle: *mut c_void, offer: &Offer) -> Option<Arc<Memory>> {
    let wire = line.open(Watch::of(handle, offer))?;
    let mine = Arc::new(Segment::far(wire.clone()));
    let nobody = Asker { nic: core::ptr::null_mut(), ptag: core::ptr::null_mut() };
    vi::exchange(handle, offer, &mine).then(|| {
        Arc::new(Memory {
            mine,
            theirs: Peer::far(wire),
            pid: 0,
            direct: AtomicBool::new(false),
            regions: None,
            arena: None,
            asker: nobody,
            rights: hello.rights(),
            queues: [None; 2],
        })
    })
}

fn open_map(fd: OwnedFd, len: usize) -> Option<Map> {
    Map::open(fd.as_raw_fd(), len).ok()
}

/// Whether the memory of a process is within reach.
fn is_reached(pid: u32, [address, value]: [u64; 2]) -> bool {
    let mut found = 0u64;
    let local = [libc::iovec { iov_base: (&raw mut found).cast(), iov_len: 8 }];
    let remote = [libc::iovec { iov_base: address as *mut c_void, iov_len: 8 }];
    // SAFETY: eight bytes.
    let read = unsafe { sys::process_vm_readv(pid, &local, &remote) };
    read == Ok(8) && found == value
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Waits until one of the sockets has something to say.
fn wait_for(fds: &[i32], until: Until) -> Result<(), Return> {
    loop {
        let mut poll: Vec<libc::pollfd> =
            fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        let nanos = until.left().ok_or(Return::Timeout)?;
        match sys::ppoll(&mut poll, Some(nanos)) {
            Ok(0) | Err(sys::Errno::EINTR) => {}
            Ok(_) => return Ok(()),
            Err(_) => return Err(Return::ErrorResource),
        }
    }
}

/// What a meeting place is called.
fn place(what: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut place = vec![what];
    for part in parts {
        place.push(part.len() as u8);
        place.extend_from_slice(part);
    }
    debug_assert!(place.len() <= far::PLACE);
    place
}

/// The abstract name of one of this user's.
fn name(place: &[u8]) -> Vec<u8> {
    far::name(sys::geteuid(), place)
}

/// How long a process that was found may take for its part of the handshake.
const PATIENCE_MS: u64 = 5000;
/// How long a client is held up that found nobody: it will ask again at once.
const NOBODY_NS: u64 = 1_000_000;

// ---- client and server ----

/// A listening socket at an address, for all threads that wait there.
struct Listener {
    socket: OwnedFd,
    users: usize,
}

/// By name.
type Listeners = HashMap<Vec<u8>, Arc<Mutex<Listener>>>;
static LISTENERS: Mutex<Option<Listeners>> = Mutex::new(None);

/// A request that a server has not answered yet.
struct Request {
    asked: Mutex<Option<(Line, Option<Heard>, *mut c_void)>>,
}

// SAFETY: the pointer is a handle, a number.
unsafe impl Sync for Request {}

const MAX_REQUESTS: usize = 4096;
static REQUESTS: Pool<Request> = Pool::new(Kind::Request, &REQUEST_PLACES);
static REQUEST_PLACES: [Place<Request>; MAX_REQUESTS] =
    [const { Place::new(Request { asked: Mutex::new(None) }) }; MAX_REQUESTS];

/// What a server learns of a client: a handle to answer by, the client's address and attributes.
pub struct Asked {
    /// For [`accept`] or [`reject`].
    pub handle: *mut c_void,
    /// Whence.
    pub from: Address,
    /// Of the client's Virtual Interface.
    pub attributes: ViAttributes,
}

/// `VipConnectWait`: waits at an address for a client. `ErrorResource` if another process waits there.
pub fn wait(nic: *mut c_void, at: &Address, until: Until) -> Result<Asked, Return> {
    nic::check(nic)?;
    let name = name(&place(b'd', &[at.discriminator()]));
    let listener = listen_at(&name)?;
    let asked = (|| loop {
        let fd = lock(&listener).socket.as_raw_fd();
        wait_for(&[fd], until)?;
        let flags = SocketFlags::CLOEXEC;
        let accepted = {
            let listener = lock(&listener);
            rustix::net::accept_with(&listener.socket, flags)
        };
        // Another thread may have been faster.
        let Ok(socket) = accepted else { continue };
        let Ok(Some((line, heard))) = Line::accept(socket) else { continue };
        if heard.hello.kind != kind::REQUEST {
            continue;
        }
        let hello = heard.hello;
        let (handle, request) = REQUESTS.give_out().ok_or(Return::ErrorResource)?;
        *lock(&request.asked) = Some((line, Some(heard), nic));
        return Ok(Asked { handle, from: hello.from, attributes: hello.attributes() });
    })();
    leave(&name, &listener);
    asked
}

fn listen_at(name: &[u8]) -> Result<Arc<Mutex<Listener>>, Return> {
    let mut listeners = lock(&LISTENERS);
    let listeners = listeners.get_or_insert_with(HashMap::new);
    if let Some(listener) = listeners.get(name) {
        lock(listener).users += 1;
        return Ok(listener.clone());
    }
    let listener = Arc::new(Mutex::new(Listener { socket: bind(name)?, users: 1 }));
    listeners.insert(name.to_vec(), listener.clone());
    Ok(listener)
}

fn bind(name: &[u8]) -> Result<OwnedFd, Return> {
    let made = || {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
        rustix::net::listen(&socket, 128)?;
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(socket)
    };
    made().map_err(|_: Errno| Return::ErrorResource)
}

fn leave(name: &[u8], listener: &Arc<Mutex<Listener>>) {
    let mut listeners = lock(&LISTENERS);
    let mut listener = lock(listener);
    listener.users -= 1;
    if listener.users == 0
        && let Some(listeners) = listeners.as_mut()
    {
        listeners.remove(name);
    }
}

/// `VipConnectAccept`. Attributes that do not match leave the request as it is, to be tried again or rejected; so does
/// `Timeout`, when the client has given up.
pub fn accept(request: *mut c_void, handle: *mut c_void) -> Result<(), Return> {
    let found = find(request)?;
    let mut asked = lock(&found.asked);
    let Some((line, heard, nic)) = asked.as_mut() else { return Err(Return::InvalidParameter) };
    if !found.stands() || vi::find(handle)?.nic() != *nic {
        return Err(Return::InvalidParameter);
    }
    let Some(hello) = heard.as_ref().map(|heard| heard.hello) else { return Err(Return::Timeout) };
    let offer = vi::begin(handle)?;
    let accepted = (|| {
        matches(&hello, &offer.attributes)?;
        if line.is_over() {
            return Err(Return::Timeout);
        }
        let taken = heard.take().ok_or(Return::Timeout)?;
        let memory = line.open(taken, handle, &offer).ok_or(Return::ErrorResource)?;
        answer(handle, line, &offer, &hello, memory)
    })();
    if let Err(error) = accepted {
        vi::abandon(handle, heard.is_none());
        return Err(error);
    }
    let Some((line, ..)) = asked.take() else { return Err(Return::InvalidParameter) };
    REQUESTS.take_back(&found);
    drop(asked);
    let _ = line;
    Ok(())
}

/// The server's part of the handshake, from its hello on.
fn answer(
    handle: *mut c_void,
    line: &Line,
    offer: &Offer,
    hello: &Hello,
    memory: Arc<Memory>,
) -> Result<(), Return> {
    if !vi::prepare(handle, &memory) {
        return Err(Return::InvalidState);
    }
    let accept = Hello::new(kind::ACCEPT, Some(offer), &hello.to, &hello.from).reaching(&memory);
    if !line.send(&accept, Some(offer)) {
        return Err(Return::Timeout);
    }
    match line.receive(Until::after(PATIENCE_MS))? {
        Some(confirmed) if confirmed.hello.kind == kind::CONFIRM => confirmed.hello.agree(&memory),
        _ => return Err(Return::Timeout),
    }
    connected(handle, line, memory)
}

/// Both have everything.
fn connected(handle: *mut c_void, line: &Line, memory: Arc<Memory>) -> Result<(), Return> {
    let socket = match line {
        Line::Near(socket) => socket.as_fd().try_clone_to_owned().ok(),
        Line::Far(line) => line.descriptor(),
    };
    let wire = memory.theirs.wire().cloned();
    let is_far = wire.is_some();
    let socket = Arc::new(Socket::new(socket.ok_or(Return::ErrorResource)?, wire));
    agent::listen_to(handle, &socket)?;
    if !vi::established(handle, memory, socket) {
        return Err(Return::InvalidState);
    }
    if is_far {
        // What it has said before is heard now.
        agent::kick(handle);
    }
    Ok(())
}

/// `VipConnectReject`.
pub fn reject(request: *mut c_void) -> Result<(), Return> {
    let found = find(request)?;
    let mut asked = lock(&found.asked);
    let Some((line, heard, _)) = asked.take() else { return Err(Return::InvalidParameter) };
    if let Some(heard) = heard {
        line.send(&Hello::new(kind::REJECT, None, &heard.hello.to, &heard.hello.from), None);
    }
    REQUESTS.take_back(&found);
    Ok(())
}

/// What must be the same at both ends.
fn matches(hello: &Hello, own: &ViAttributes) -> Result<(), Return> {
    if hello.level != u32::from(own.reliability_level) {
        Err(Return::InvalidReliabilityLevel)
    } else if hello.most != own.max_transfer_size {
        Err(Return::InvalidMtu)
    } else {
        Ok(())
    }
}

/// `VipConnectRequest`: asks whoever waits at `to`, and waits for the answer; the attributes of the Virtual Interface there. `NoMatch` if
/// nobody waits, `NotReachable` if it is another host's address, and that one is not reached.
pub fn request(
    handle: *mut c_void,
    from: &Address,
    to: &Address,
    until: Until,
) -> Result<ViAttributes, Return> {
    let offer = vi::begin(handle)?;
    let mut seen = false;
    let asked = (|| {
        let line = Line::connect(to, &place(b'd', &[to.discriminator()]), until).inspect_err(|error| {
            if *error == Return::NoMatch {
                let _ = sys::ppoll(&mut [], Some(NOBODY_NS));
            }
        })?;
        seen = true;
        ask(handle, &line, &offer, &Hello::new(kind::REQUEST, Some(&offer), from, to), until)
    })();
    if asked.is_err() {
        vi::abandon(handle, seen);
    }
    asked
}

/// The client's part of the handshake.
fn ask(
    handle: *mut c_void,
    line: &Line,
    offer: &Offer,
    hello: &Hello,
    until: Until,
) -> Result<ViAttributes, Return> {
    if !line.send(hello, Some(offer)) {
        return Err(Return::NoMatch);
    }
    let heard = match line.receive(until)? {
        Some(heard) if heard.hello.kind == kind::ACCEPT => heard,
        Some(heard) if heard.hello.kind == kind::REJECT => return Err(Return::Reject),
        Some(heard) if heard.hello.kind == kind::MISMATCH => return Err(mismatch(heard.hello.level)),
        // Whoever waited has stopped waiting.
        _ => return Err(Return::NoMatch),
    };
    let accepted = heard.hello;
    let memory = line.open(heard, handle, offer).ok_or(Return::ErrorResource)?;
    accepted.agree(&memory);
    let confirm = Hello::new(kind::CONFIRM, None, &hello.from, &hello.to).reaching(&memory);
    if !vi::prepare(handle, &memory) {
        return Err(Return::InvalidState);
    }
    connected(handle, line, memory)?;
    line.send(&confirm, None);
    Ok(accepted.attributes())
}

fn mismatch(code: u32) -> Return {
    match code {
        6 => Return::InvalidReliabilityLevel,
        7 => Return::InvalidMtu,
        8 => Return::InvalidQos,
        _ => Return::ErrorResource,
    }
}

fn find(handle: *mut c_void) -> Result<Found<Request>, Return> {
    REQUESTS.find(handle).ok_or(Return::InvalidParameter)
}

// ---- peers ----

/// A connection that was asked for and is not made yet, or has failed and nobody has heard of it.
struct Pending {
    result: Mutex<Option<Result<ViAttributes, Return>>>,
    told: Condvar,
    /// Written to end the waiting.
    bell: i32,
}

// SAFETY: the pointers in the attributes are null.
unsafe impl Sync for Pending {}
// SAFETY: as above.
unsafe impl Send for Pending {}

impl Drop for Pending {
    fn drop(&mut self) {
        sys::close(self.bell);
    }
}

static PENDING: Mutex<Option<HashMap<usize, Arc<Pending>>>> = Mutex::new(None);

/// `VipConnectPeerRequest`: asks for a connection with whoever asks for one with the addresses the other way round, until `until`.
pub fn request_peer(handle: *mut c_void, from: &Address, to: &Address, until: Until) -> Result<(), Return> {
    let parts = |one: &Address, other: &Address| {
        place(b'p', &[one.host(), one.discriminator(), other.host(), other.discriminator()])
    };
    let (own, theirs) = (parts(from, to), parts(to, from));
    if own == theirs {
        return Err(Return::InvalidParameter);
    }
    let offer = vi::begin(handle)?;
    let begun = (|| {
        let listener = bind(&name(&own))?;
        let bell = fabric::bell::create().map_err(|_| Return::ErrorResource)?;
        let pending = Arc::new(Pending { result: Mutex::new(None), told: Condvar::new(), bell });
        let (from, to) = (*from, *to);
        let (address, kept) = (handle.addr(), pending.clone());
        std::thread::Builder::new()
            .name("via-peer".into())
            .stack_size(128 << 10)
            .spawn(move || {
                let handle = address as *mut c_void;
                let met = Meeting { listener, bell: kept.bell, own, theirs, from, to, until };
                let mut seen = false;
                let result = met.meet(handle, &offer, &mut seen);
                // Who hears of the result may listen there again.
                drop(met);
                if result.is_err() {
                    vi::abandon(handle, seen);
                }
                *lock(&kept.result) = Some(result);
                kept.told.notify_all();
            })
            .map_err(|_| Return::ErrorResource)?;
        lock(&PENDING).get_or_insert_with(HashMap::new).insert(address, pending);
        Ok(())
    })();
    if begun.is_err() {
        vi::abandon(handle, false);
    }
    begun
}

/// Two who look for each other.
struct Meeting {
    listener: OwnedFd,
    bell: i32,
    /// What both listen at.
    own: Vec<u8>,
    theirs: Vec<u8>,
    from: Address,
    to: Address,
    until: Until,
}

impl Meeting {
    fn meet(&self, handle: *mut c_void, offer: &Offer, seen: &mut bool) -> Result<ViAttributes, Return> {
        if self.own < self.theirs {
            self.connect(handle, offer, seen)
        } else {
            self.listen(handle, offer, seen)
        }
    }

    /// Connects as soon as the other one is there.
    fn connect(&self, handle: *mut c_void, offer: &Offer, seen: &mut bool) -> Result<ViAttributes, Return> {
        loop {
            let asked = Line::connect(&self.to, &self.theirs, self.until).and_then(|line| {
                *seen = true;
                let hello = Hello::new(kind::PEER, Some(offer), &self.from, &self.to);
                ask(handle, &line, offer, &hello, self.until)
            });
            match asked {
                // Not there, or it has given up just now; another one may come.
                Err(Return::NoMatch) => {}
                asked => return asked,
            }
            // A call from the other one, or the end of the program's patience.
            drop(self.next()?);
        }
    }

    /// Waits for the other one, whom it calls, in case that it was there before.
    fn listen(&self, handle: *mut c_void, offer: &Offer, seen: &mut bool) -> Result<ViAttributes, Return> {
        match Line::connect(&self.to, &self.theirs, self.until) {
            Err(Return::NotReachable) => return Err(Return::NotReachable),
            called => drop(called),
        }
        loop {
            let Ok(Some((line, heard))) = Line::accept(self.next()?) else { continue };
            let hello = heard.hello;
            if hello.kind != kind::PEER {
                continue;
            }
            if let Err(error) = matches(&hello, &offer.attributes) {
                let mut told = Hello::new(kind::MISMATCH, None, &hello.to, &hello.from);
                told.level = error as u32;
                line.send(&told, None);
                return Err(error);
            }
            *seen = true;
            let memory = line.open(heard, handle, offer).ok_or(Return::ErrorResource)?;
            answer(handle, &line, offer, &hello, memory)?;
            return Ok(hello.attributes());
        }
    }

    /// The next one who connects.
    fn next(&self) -> Result<OwnedFd, Return> {
        loop {
            wait_for(&[self.listener.as_raw_fd(), self.bell], self.until)?;
            if sys::readable(self.bell) {
                return Err(Return::InvalidState);
            }
            if let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                return Ok(socket);
            }
        }
    }
}

/// `VipConnectPeerDone`: what became of the request. `NotDone` if nothing yet, `InvalidState` if there is none.
pub fn peer_done(handle: *mut c_void) -> Result<ViAttributes, Return> {
    vi::find(handle)?;
    let mut all = lock(&PENDING);
    let pending = all.as_mut().ok_or(Return::InvalidState)?;
    let waiting = pending.get(&handle.addr()).ok_or(Return::InvalidState)?;
    let result = lock(&waiting.result).take().ok_or(Return::NotDone)?;
    pending.remove(&handle.addr());
    result
}

/// `VipConnectPeerWait`: as [`peer_done`], and waits for the end of the request.
pub fn peer_wait(handle: *mut c_void) -> Result<ViAttributes, Return> {
    vi::find(handle)?;
    let pending = lock(&PENDING).as_ref().and_then(|all| all.get(&handle.addr()).cloned());
    let pending = pending.ok_or(Return::InvalidState)?;
    let mut result = lock(&pending.result);
    while result.is_none() {
        result = pending.told.wait(result).unwrap_or_else(PoisonError::into_inner);
    }
    drop(result);
    peer_done(handle)
}

/// A Virtual Interface is disconnected: it does not look for its peer any more.
pub(crate) fn cancel(handle: *mut c_void) {
    let pending = lock(&PENDING).as_mut().and_then(|all| all.remove(&handle.addr()));
    let Some(pending) = pending else { return };
    fabric::bell::ring(pending.bell);
    let mut result = lock(&pending.result);
    while result.is_none() {
        result = pending.told.wait(result).unwrap_or_else(PoisonError::into_inner);
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_of_another_host_is_understood_and_nothing_else_is() {
        let from = Address::new(&[0, 0, 10, 1, 0, 2], b"me").unwrap();
        let to = Address::new(&[0, 0, 10, 1, 0, 1], &[7; MAX_DISCRIMINATOR]).unwrap();
        let hello =
            |kind, level, most, bits| Hello { level, most, bits, ..Hello::bare(kind, &from, &to) }.bytes();
        let bytes = hello(kind::REQUEST, 2, MAX_TRANSFER as u64, 3);
        assert!(bytes.len() <= 128, "what `envoy` takes");
        let understood = Hello::parse(&bytes).unwrap();
        assert_eq!((understood.from, understood.to, understood.bits), (from, to, 3));
        assert_eq!(understood.bytes(), bytes);
        for len in 0..bytes.len() {
            assert!(Hello::parse(&bytes[..len]).is_none());
        }
        assert!(Hello::parse(&[&bytes[..], &[0]].concat()).is_none());
        for wrong in [
            hello(0, 2, 1, 0),
            hello(kind::MISMATCH + 1, 2, 1, 0),
            hello(kind::REQUEST, 1 << 16, 1, 0),
            hello(kind::REQUEST, 2, MAX_TRANSFER as u64 + 1, 0),
        ] {
            assert!(Hello::parse(&wrong).is_none());
        }
        let mut long = bytes;
        long[17 + ADDRESS] = 33;
        assert!(Hello::parse(&long).is_none(), "a discriminator that is too long");
    }

    #[test]
    fn places_are_short_enough_for_a_name() {
        let long = Address::new(&[255; ADDRESS], &[255; MAX_DISCRIMINATOR]).unwrap();
        let parts = [long.host(), long.discriminator(), long.host(), long.discriminator()];
        let place = place(b'p', &parts);
        assert!(place.len() <= far::PLACE);
        assert!(SocketAddrUnix::new_abstract_name(&far::name(u32::MAX, &place)).is_ok());
    }
}
