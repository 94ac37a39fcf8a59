//! The connection over which two Virtual Interfaces are connected: on one host a UNIX socket, by
//! which memory is passed; between hosts the one that [`remote`] makes. Also the places where the
//! two ends find each other.

use core::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use fabric::shm::Map;
use fabric::sync::AtomicBool;
use fabric::{hints, sys};
use host::place::{HANDED_OVER, LONGEST, Name};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::acceptor::{self, Came, Message};
use super::hello::{Address, BYTES, Hello, MAGIC};
use crate::abi::Return;
use crate::arena::Theirs;
use crate::memory::{Asker, TABLE, Table};
use crate::opened;
use crate::process::Fd;
use crate::remote::{self, Peer, Watch};
use crate::segment::{self, Segment};
use crate::transfer::{Hints, Memory};
use crate::until::Until;
use crate::user;
use crate::vi::{self, Offer};

/// How long a process that was found may take for its part of the handshake.
pub(super) const PATIENCE_MS: u64 = 5000;

/// The hello of the other end, and its memory.
pub(super) struct Heard {
    pub(super) hello: Hello,
    fds: Vec<OwnedFd>,
}

/// The connection of the handshake.
pub(super) enum Line {
    /// A socket, on one host.
    Near(Fd),
    Remote(Box<dyn remote::Line>),
}

impl Line {
    /// Connects to the process that listens at a place that `to` names. `NoMatch` if none does,
    /// `NotReachable` if it is another host's that cannot be reached.
    pub(super) fn connect(to: &Address, place: &[u8], until: Until) -> Result<Line, Return> {
        if !to.is_here() {
            return remote::cm().ok_or(Return::NotReachable)?.call(to.ip(), place, until).map(Line::Remote);
        }
        acceptor::connect(&name(place)).map(Line::Near).map_err(|_| Return::NoMatch)
    }

    /// A client that has sent its hello, or whose connection from another host this host's agent
    /// hands over.
    pub(super) fn accept(came: Came) -> Result<Option<(Line, Heard)>, Return> {
        let until = Until::after(PATIENCE_MS);
        let Came { socket, bytes, mut fds } = came;
        if bytes != HANDED_OVER {
            let heard = near(&bytes, fds).filter(|_| user::is_own(&socket));
            return Ok(heard.map(|heard| (Line::Near(socket), heard)));
        }
        let connection = fds.pop().filter(|_| remote::is_trusted(&socket));
        let line = connection.zip(remote::cm()).and_then(|(connection, cm)| cm.accept(connection));
        let Some(line) = line.map(Line::Remote) else { return Ok(None) };
        Ok(line.receive(until)?.map(|heard| (line, heard)))
    }

    pub(super) fn send(&self, hello: &Hello, offer: Option<&Offer>) -> bool {
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Remote(line) => return line.send(&hello.bytes()),
        };
        // SAFETY: a Hello has no padding: the kernel reads as many bytes as it has.
        let bytes = unsafe { core::slice::from_raw_parts(core::ptr::from_ref(hello).cast::<u8>(), BYTES) };
        let mut fds = Vec::new();
        if let Some(offer) = offer {
            let Ok(regions) = opened::regions() else { return false };
            let arena = opened::arena().map(|arena| arena.memfd());
            let numbers = [Some(offer.segment.memfd()), Some(regions.memfd()), arena];
            let queues = offer.queues.map(|queue| queue.map(|queue| queue.memfd()));
            fds.extend(numbers.into_iter().chain(queues).flatten().map(|fd| {
                // SAFETY: it is open: the segment and the queues are held by the Virtual Interface,
                // which the caller has.
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

    /// The next hello. None if there is no more: the other end is gone, or uses another protocol.
    pub(super) fn receive(&self, until: Until) -> Result<Option<Heard>, Return> {
        match self {
            Line::Near(socket) => Ok(receive(socket, until)?.and_then(|(bytes, fds)| near(&bytes, fds))),
            Line::Remote(line) => {
                let hello = line.receive(until)?.and_then(|bytes| Hello::parse(&bytes));
                Ok(hello.map(|hello| Heard { hello, fds: Vec::new() }))
            }
        }
    }

    /// Whether the other end has given up.
    pub(super) fn is_over(&self) -> bool {
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Remote(line) => return line.is_over(),
        };
        let events = libc::POLLIN | libc::POLLRDHUP;
        let mut poll = [libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }];
        sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0
            && poll[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Opens the memory of the other end. None if it is malformed.
    pub(super) fn open(&self, heard: Heard, handle: *mut c_void, offer: &Offer) -> Option<Arc<Memory>> {
        let Heard { hello, fds } = heard;
        let socket = match self {
            Line::Near(socket) => socket,
            Line::Remote(line) => return open_remote(line.as_ref(), &hello, handle, offer),
        };
        let pid = user::process(socket)?;
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
            // Without room for it, the connection goes without an arena.
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

/// The next message of a socket, and the descriptors with it. None at the end.
fn receive(socket: &Fd, until: Until) -> Result<Option<Message>, Return> {
    wait_for(&[socket.as_raw_fd()], until)?;
    Ok(acceptor::receive(socket).ok().filter(|(bytes, _)| !bytes.is_empty()))
}

/// The hello of a process of this host, if it is one.
fn near(bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Heard> {
    // SAFETY: so many bytes; plain words, any bytes are some.
    let hello = (bytes.len() == BYTES).then(|| unsafe { bytes.as_ptr().cast::<Hello>().read_unaligned() })?;
    (hello.magic == MAGIC).then_some(Heard { hello, fds })
}

/// A link with a peer on another host. Only the segments are in reach there; RDMA is a request.
fn open_remote(
    line: &dyn remote::Line,
    hello: &Hello,
    handle: *mut c_void,
    offer: &Offer,
) -> Option<Arc<Memory>> {
    let wire = line.open(Watch::of(handle, offer.queues))?;
    let mine = Arc::new(Segment::remote(wire.clone()));
    let nobody = Asker { nic: core::ptr::null_mut(), ptag: core::ptr::null_mut() };
    vi::exchange(handle, offer, &mine).then(|| {
        Arc::new(Memory {
            mine,
            theirs: Peer::remote(wire),
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

/// Waits until one of the sockets is readable.
pub(super) fn wait_for(fds: &[i32], until: Until) -> Result<(), Return> {
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

/// The name of a place to connect to.
pub(super) fn place(what: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut place = vec![what];
    for part in parts {
        place.push(part.len() as u8);
        place.extend_from_slice(part);
    }
    debug_assert!(place.len() <= LONGEST);
    place
}

/// The abstract name of a place of this user's.
pub(super) fn name(place: &[u8]) -> Vec<u8> {
    let name = Name::of(sys::geteuid(), place).expect("places are short enough");
    name.as_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{ADDRESS, MAX_DISCRIMINATOR};
    use rustix::net::SocketAddrUnix;

    #[test]
    fn places_are_short_enough_for_a_name() {
        let long = Address::new(&[255; ADDRESS], &[255; MAX_DISCRIMINATOR]).unwrap();
        let parts = [long.host(), long.discriminator(), long.host(), long.discriminator()];
        let place = place(b'p', &parts);
        assert!(place.len() <= LONGEST);
        assert!(
            Name::of(u32::MAX, &place)
                .is_some_and(|name| SocketAddrUnix::new_abstract_name(name.as_bytes()).is_ok())
        );
    }
}
