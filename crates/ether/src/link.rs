//! A link between two ETHOM hosts: a segment of each end, which the other writes into, a bell of
//! each, and a socket that stays, because its end is the peer's. On one machine both map the
//! segments, and the socket is a UNIX socket. It has a path, DIR/NET/NN.sock, and no abstract name:
//! those are each network namespace's own, and ETHOM joins namespaces and containers. Between
//! machines see [`crate::remote`]; the threads that carry frames use both kinds alike.
//!
//! The host with the lower number connects. On one machine each host sends one message with its
//! number, its segment and its bell.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use fabric::frames::{self, Consumer, Producer};
use fabric::shm::Map;
use fabric::{Remote as _, trip};

use crate::remote::RemotePath;
pub use crate::segment::{ASLEEP, BACK, QUEUE, TRIP};
use crate::sys::{self, Bell};
use crate::table::Net;

const MAGIC: &[u8; 8] = b"ethom\0\0\x01";
/// A message: magic, from, to, size of the sender's queue, name of the net.
const HELLO: usize = 64;

/// One end of a future link: the part that it hands to the other.
#[derive(Debug)]
pub struct End {
    map: Map,
    memory: OwnedFd,
    bell: Arc<Bell>,
    size: usize,
}

/// A link.
#[derive(Debug)]
pub struct Link {
    /// The peer's number.
    pub peer: u16,
    socket: OwnedFd,
    mine: Map,
    path: Path,
    bell: Arc<Bell>,
    my_size: usize,
    their_size: usize,
}

/// The way to the peer.
#[derive(Debug)]
enum Path {
    /// Both map the segments.
    Memory { theirs: Map, bell: Arc<Bell> },
    /// It is on another machine.
    Remote(RemotePath),
}

impl End {
    /// Makes the memory and the bell of one end.
    pub fn new(net: &Net) -> io::Result<End> {
        let (map, fd) = Map::create(c"shunt-ether", QUEUE + frames::bytes(net.queue)).map_err(sys::error)?;
        // SAFETY: the memfd was made for us.
        let memory = unsafe { OwnedFd::from_raw_fd(fd) };
        let bell = Bell::new().inspect_err(|_| {
            // SAFETY: nobody has used it yet.
            unsafe { map.unmap() }
        })?;
        Ok(End { map, memory, bell: Arc::new(bell), size: net.queue })
    }

    /// Sends our number, and hands the end over.
    pub fn offer(&self, socket: &OwnedFd, net: &Net, me: u16, to: u16) -> io::Result<()> {
        let mut hello = [0u8; HELLO];
        hello[..8].copy_from_slice(MAGIC);
        hello[8..10].copy_from_slice(&me.to_le_bytes());
        hello[10..12].copy_from_slice(&to.to_le_bytes());
        hello[16..24].copy_from_slice(&(self.size as u64).to_le_bytes());
        hello[32..32 + net.name.len()].copy_from_slice(net.name.as_bytes()); // at most 32, see the table
        sys::send_with(socket, &hello, [self.memory.as_raw_fd(), self.bell.fd()])
    }
}

impl std::ops::Drop for End {
    fn drop(&mut self) {
        let map = std::mem::replace(&mut self.map, Map::NONE);
        // SAFETY: an end that became a link has given its map away; nobody uses the map of one that
        // did not.
        unsafe { map.unmap() };
    }
}

/// The message of the other end.
#[derive(Debug)]
pub struct Offer {
    /// The host that it claims to be.
    pub from: u16,
    /// The host that it calls.
    pub to: u16,
    size: usize,
    map: Map,
    bell: Arc<Bell>,
}

impl Offer {
    /// Takes the message that waits at the socket. The error says what is wrong with it.
    pub fn take(socket: &OwnedFd, net: &Net) -> io::Result<Offer> {
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut hello = [0u8; HELLO];
        let (len, fds) = sys::receive_with(socket, &mut hello)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !sys::trusted(socket.as_raw_fd()) {
            return Err(wrong("it runs as another user"));
        }
        if len != HELLO || hello[..8] != *MAGIC {
            return Err(wrong("it speaks another version"));
        }
        let mut name = [0; 32];
        name[..net.name.len()].copy_from_slice(net.name.as_bytes());
        if hello[32..] != name {
            return Err(wrong("it is of another net"));
        }
        let word = |at: usize| u16::from_le_bytes([hello[at], hello[at + 1]]);
        let size: [u8; 8] = hello[16..24].try_into().expect("eight bytes");
        let size = usize::try_from(u64::from_le_bytes(size)).unwrap_or(0);
        if !size.is_power_of_two() || !(256 << 10..=64 << 20).contains(&size) {
            return Err(wrong("its queue has an impossible size"));
        }
        let [memory, bell] =
            <[OwnedFd; 2]>::try_from(fds).map_err(|_| wrong("it hands over no memory and bell"))?;
        let bell = Bell::of(bell).ok_or_else(|| wrong("its bell is not one"))?;
        let map = Map::open(memory.as_raw_fd(), QUEUE + frames::bytes(size))
            .map_err(|_| wrong("its memory is not sealed, or not as long as it says"))?;
        Ok(Offer { from: word(8), to: word(10), size, map, bell: Arc::new(bell) })
    }

    /// Makes a link of both ends.
    pub fn join(mut self, mut end: End, socket: OwnedFd) -> Link {
        Link {
            peer: self.from,
            socket,
            mine: std::mem::replace(&mut end.map, Map::NONE),
            path: Path::Memory {
                theirs: std::mem::replace(&mut self.map, Map::NONE),
                bell: self.bell.clone(),
            },
            bell: end.bell.clone(),
            my_size: end.size,
            their_size: self.size,
        }
    }
}

impl std::ops::Drop for Offer {
    fn drop(&mut self) {
        let map = std::mem::replace(&mut self.map, Map::NONE);
        // SAFETY: an offer that became a link has given its map away.
        unsafe { map.unmap() };
    }
}

impl Link {
    /// A link to a peer on another machine; `size` is that of the own queue.
    pub fn remote(peer: u16, socket: OwnedFd, path: RemotePath, size: usize) -> Link {
        let (mine, bell, their_size) = (path.mine(), path.bell().clone(), path.size());
        Link { peer, socket, mine, path: Path::Remote(path), bell, my_size: size, their_size }
    }

    /// The socket, which is readable when the peer is gone.
    pub fn socket(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The bell that is rung for us.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }

    /// The segment that the peer writes into.
    pub fn mine(&self) -> &Map {
        &self.mine
    }

    /// The way to a peer on another machine.
    pub fn remote_path(&self) -> Option<&RemotePath> {
        match &self.path {
            Path::Memory { .. } => None,
            Path::Remote(path) => Some(path),
        }
    }

    /// The sending end of the queue to the peer. There must be only one.
    pub fn producer(&self) -> Producer {
        Producer::new(self.their_size)
    }

    /// The receiving end of the queue from the peer. There must be only one.
    pub fn consumer(&self) -> Consumer {
        Consumer::new(self.my_size)
    }

    /// Puts a frame on the peer's queue; false if that is full.
    #[inline(always)]
    pub fn put(&self, producer: &mut Producer, frame: &[u8]) -> bool {
        match &self.path {
            Path::Memory { theirs, .. } => producer.put(theirs, QUEUE, &self.mine, BACK, &[frame]),
            Path::Remote(path) => {
                path.gather(|theirs| producer.put(theirs, QUEUE, &self.mine, BACK, &[frame]))
            }
        }
    }

    /// Publishes what was put, and wakes the peer if it sleeps.
    #[inline(always)]
    pub fn publish(&self, producer: &mut Producer) {
        match &self.path {
            Path::Memory { theirs, bell } => {
                if producer.publish(theirs, QUEUE) && theirs.stimulate(TRIP, trip::RX) != 0 {
                    bell.ring();
                }
            }
            // There the peer's own side checks whether it sleeps.
            Path::Remote(path) => {
                if producer.publish(path.remote(), QUEUE) {
                    path.remote().stimulate(TRIP, trip::RX);
                }
            }
        }
    }

    /// Gives back a frame of `len` bytes that was taken from the own queue.
    #[inline(always)]
    pub fn done(&self, consumer: &mut Consumer, len: usize) {
        match &self.path {
            Path::Memory { theirs, .. } => consumer.done(theirs, BACK, len),
            Path::Remote(path) => consumer.done(path.remote(), BACK, len),
        }
    }

    /// Lets frames of a peer on another machine arrive; for memory it does nothing. `waits`: the
    /// caller polls again and again, and then calls [`Link::leave`].
    #[inline(always)]
    pub fn help(&self, waits: bool) {
        if let Path::Remote(path) = &self.path {
            if waits {
                path.remote().help()
            } else {
                path.remote().progress()
            };
        }
    }

    /// The caller stops polling.
    pub fn leave(&self) {
        if let Path::Remote(path) = &self.path {
            path.remote().leave();
        }
    }

    /// Gives the link up, because the peer breaks the rules, or does nothing: the keeper finds the
    /// socket at its end.
    pub fn give_up(&self) {
        let _ = fabric::sys::shutdown(self.socket(), libc::SHUT_RDWR);
    }
}

impl std::ops::Drop for Link {
    fn drop(&mut self) {
        // Between machines the segments are the provider's.
        if let Path::Memory { theirs, .. } = &self.path {
            // SAFETY: the threads that use the maps hold the link.
            unsafe {
                self.mine.unmap();
                theirs.unmap();
            }
        }
    }
}
