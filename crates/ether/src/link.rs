//! A link between two ETHOM hosts: a segment of each end, which the other writes into, a bell of each, and a socket that stays, because its
//! end is the peer's. On one machine both map the segments, and it is a UNIX socket, which has a path, DIR/NET/NN.sock, and no abstract name: those
//! are each network namespace's own, and it is namespaces and containers that we join. Between machines see [`crate::far`]; what the threads that
//! carry frames do with a link is the same.
//!
//! Whoever has the lower number connects. On one machine both say who they are and hand over segment and bell in one message each.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use fabric::frames::{self, Consumer, Producer};
use fabric::shm::Map;
use fabric::{Remote as _, trip};

use crate::far::way;
pub use crate::segment::{ASLEEP, BACK, QUEUE, TRIP};
use crate::sys::{self, Bell};
use crate::table::Net;

const MAGIC: &[u8; 8] = b"ethom\0\0\x01";
/// A message: magic, who, to whom, size of the sender's queue, name of the net.
const HELLO: usize = 64;

/// One end of what will be a link: what it hands to the other.
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
    way: Way,
    bell: Arc<Bell>,
    my_size: usize,
    their_size: usize,
}

/// How what is put comes to the peer.
#[derive(Debug)]
enum Way {
    /// Both map the segments.
    Memory { theirs: Map, bell: Arc<Bell> },
    /// It is on another machine.
    Far(way::Way),
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

    /// Says who we are, and hands the end over.
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
        // SAFETY: an end that became a link has given its map away; nobody uses the map of one that did not.
        unsafe { map.unmap() };
    }
}

/// What the other end has said.
#[derive(Debug)]
pub struct Offer {
    /// Who it says it is.
    pub from: u16,
    /// Whom it means.
    pub to: u16,
    size: usize,
    map: Map,
    bell: Arc<Bell>,
}

impl Offer {
    /// Takes the message that waits at the socket; the error says what is wrong with it.
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
            return Err(wrong("its queue has no size that can be"));
        }
        let [memory, bell] =
            <[OwnedFd; 2]>::try_from(fds).map_err(|_| wrong("it hands over no memory and bell"))?;
        let bell = Bell::of(bell).ok_or_else(|| wrong("its bell is none"))?;
        let map = Map::open(memory.as_raw_fd(), QUEUE + frames::bytes(size))
            .map_err(|_| wrong("its memory is not sealed, or not as long as it says"))?;
        Ok(Offer { from: word(8), to: word(10), size, map, bell: Arc::new(bell) })
    }

    /// Both ends together.
    pub fn join(mut self, mut end: End, socket: OwnedFd) -> Link {
        Link {
            peer: self.from,
            socket,
            mine: std::mem::replace(&mut end.map, Map::NONE),
            way: Way::Memory { theirs: std::mem::replace(&mut self.map, Map::NONE), bell: self.bell.clone() },
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
    /// One to a peer on another machine; `size` is that of the own queue.
    pub fn far(peer: u16, socket: OwnedFd, way: way::Way, size: usize) -> Link {
        let (mine, bell, their_size) = (way.mine(), way.bell().clone(), way.size());
        Link { peer, socket, mine, way: Way::Far(way), bell, my_size: size, their_size }
    }

    /// The socket, which can be read when the peer is gone.
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
    pub fn way(&self) -> Option<&way::Way> {
        match &self.way {
            Way::Memory { .. } => None,
            Way::Far(way) => Some(way),
        }
    }

    /// The sending end of the queue to the peer. There may be one.
    pub fn producer(&self) -> Producer {
        Producer::new(self.their_size)
    }

    /// The receiving end of the queue from the peer. There may be one.
    pub fn consumer(&self) -> Consumer {
        Consumer::new(self.my_size)
    }

    /// Puts a frame on the peer's queue; false if that is full.
    #[inline(always)]
    pub fn put(&self, producer: &mut Producer, frame: &[u8]) -> bool {
        match &self.way {
            Way::Memory { theirs, .. } => producer.put(theirs, QUEUE, &self.mine, BACK, &[frame]),
            Way::Far(way) => way.gather(|theirs| producer.put(theirs, QUEUE, &self.mine, BACK, &[frame])),
        }
    }

    /// Publishes what was put, and wakes the peer if it sleeps.
    #[inline(always)]
    pub fn publish(&self, producer: &mut Producer) {
        match &self.way {
            Way::Memory { theirs, bell } => {
                if producer.publish(theirs, QUEUE) && theirs.stimulate(TRIP, trip::RX) != 0 {
                    bell.ring();
                }
            }
            // There the peer's own side looks whether it sleeps.
            Way::Far(way) => {
                if producer.publish(way.remote(), QUEUE) {
                    way.remote().stimulate(TRIP, trip::RX);
                }
            }
        }
    }

    /// Lets go of a frame of `len` bytes that was taken from the own queue.
    #[inline(always)]
    pub fn done(&self, consumer: &mut Consumer, len: usize) {
        match &self.way {
            Way::Memory { theirs, .. } => consumer.done(theirs, BACK, len),
            Way::Far(way) => consumer.done(way.remote(), BACK, len),
        }
    }

    /// Lets what a peer on another machine has sent come in; memory needs nobody for that. `waits`: the caller looks again and again, and then says
    /// [`Link::leave`].
    #[inline(always)]
    pub fn help(&self, waits: bool) {
        if let Way::Far(way) = &self.way {
            if waits {
                way.remote().help()
            } else {
                way.remote().progress()
            };
        }
    }

    /// The caller looks no more.
    pub fn leave(&self) {
        if let Way::Far(way) = &self.way {
            way.remote().leave();
        }
    }

    /// Gives the link up, because the peer does what cannot be, or nothing: the keeper finds the socket at its end.
    pub fn give_up(&self) {
        let _ = fabric::sys::shutdown(self.socket(), libc::SHUT_RDWR);
    }
}

impl std::ops::Drop for Link {
    fn drop(&mut self) {
        // Between machines the segments are the provider's.
        if let Way::Memory { theirs, .. } = &self.way {
            // SAFETY: the threads that use the maps hold the link.
            unsafe {
                self.mine.unmap();
                theirs.unmap();
            }
        }
    }
}
