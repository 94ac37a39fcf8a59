//! Between hosts: what a connection needs of whoever brings it there, the crate `envoy`, which alone knows of libfabric and of agents. This crate knows that a peer's segment
//! may be a *wire*: then what is written goes into a shadow of it first, where it can be read again, and from there to the peer. Programs that never say that there are other
//! hosts ([`install`]) have none of that.
//!
//! Whoever waits at an address is found by the name of the UNIX socket at which he listens, as on one host: the agent of his host connects there for those who come from
//! others, and hands their TCP connection over.

use core::ffi::c_void;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use fabric::shm::Map;
use fabric::{Mapped as _, Remote, trip};

use crate::abi::Return;
use crate::cq::Bound;
use crate::segment::{self, at, wake};
use crate::until::Until;
use crate::user;
use crate::{agent, vi};

/// The way to a peer on another host: a link, of which one end's segment is this one's. What is put becomes visible there in the order put (rule F1).
pub trait Wire: Send + Sync {
    /// The segment that the peer writes into.
    fn mine(&self) -> Map;
    /// As large as the peer's segment: what was written there, as far as it was from here.
    fn shadow(&self) -> Map;
    /// Bytes of the shadow are to be there.
    fn bytes(&self, offset: usize, len: usize);
    /// This word is to be there.
    fn word(&self, offset: usize, value: u64);
    /// Stimulates a tripwire there; the peer looks itself what is armed.
    fn stimulate(&self, offset: usize, interest: u64);
    /// What is put from now on goes together, as far as it can, when [`Wire::let_go`] is called.
    fn hold(&self);
    /// Undoes [`Wire::hold`].
    fn let_go(&self);
    /// Looks whether something has come.
    fn look(&self);
    /// Asks the peer for an answer, which comes behind all that it has put before it is asked; the question's number.
    fn ask(&self) -> u64;
    /// The last question that it has answered.
    fn answered(&self) -> u64;
    /// Has the peer do what was put at [`at::ASKED`] there; the request's number.
    fn request(&self) -> u64;
    /// What came of it, one of [`reply`], if it is done.
    fn replied(&self, request: u64) -> Option<u64>;
    /// The peer's request, once.
    fn requested(&self) -> Option<u64>;
    /// Says what came of it.
    fn reply(&self, request: u64, what: u64);
    /// Says something to the library's thread there: one of [`agent::Message`].
    fn say(&self, message: u32);
    /// What the peer has said, one after the other; at the end of the link [`agent::Message::Break`].
    fn heard(&self) -> Option<u32>;
    /// The connection of the meeting is over: so is the link, when what is under way has come.
    fn late(&self);
    /// The end, with a last word, which is there, and all that was put, when this returns (or the peer is not).
    fn close(&self, last: Option<u32>);
}

/// What comes of a request for RDMA.
pub mod reply {
    /// It cannot be.
    pub const WRONG: u64 = 0;
    /// It is done.
    pub const DONE: u64 = 1;
    /// It may not be.
    pub const FORBIDDEN: u64 = 2;
}

/// A connection to another host over which two Virtual Interfaces meet. Both ends have proved that they have the cluster's key.
pub trait Line: Send + Sync {
    /// Says something, behind all that was put by the link.
    fn send(&self, bytes: &[u8]) -> bool;
    /// The next that was said; what was put before it is there. None if there is no more.
    fn receive(&self, until: Until) -> Result<Option<Vec<u8>>, Return>;
    /// Whether the other end has given up.
    fn is_over(&self) -> bool;
    /// The link with it.
    fn open(&self, watch: Watch) -> Option<Arc<dyn Wire>>;
    /// A descriptor whose end is the connection's.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// Who brings connections to other hosts.
pub trait Envoy: Send + Sync {
    /// Calls whoever listens by that name at a host. `NoMatch` if nobody does, `NotReachable` if that host is not reached.
    fn call(&self, host: Ipv4Addr, name: &[u8], until: Until) -> Result<Box<dyn Line>, Return>;
    /// Answers one who calls, by a connection that this host's agent has handed over.
    fn accept(&self, connection: OwnedFd) -> Option<Box<dyn Line>>;
    /// This host's address in the cluster.
    fn own_address(&self) -> Option<Ipv4Addr>;
}

static ENVOY: OnceLock<&'static dyn Envoy> = OnceLock::new();

/// There are other hosts.
pub fn install(envoy: &'static dyn Envoy) {
    let _ = ENVOY.set(envoy);
}

pub(crate) fn envoy() -> Option<&'static dyn Envoy> {
    ENVOY.get().copied()
}

/// A peer's segment.
pub struct Peer {
    map: Map,
    wire: Option<Arc<dyn Wire>>,
}

impl Peer {
    /// Memory that both ends map; it is unmapped with this.
    pub fn near(map: Map) -> Peer {
        Peer { map, wire: None }
    }

    /// A shadow, and where what is written there goes.
    pub fn far(wire: Arc<dyn Wire>) -> Peer {
        Peer { map: wire.shadow(), wire: Some(wire) }
    }

    /// Between hosts.
    #[inline(always)]
    pub fn wire(&self) -> Option<&Arc<dyn Wire>> {
        self.wire.as_ref()
    }

    /// Fires the tripwire at `trip`, if it is armed. Those who sleep there wake; what was armed, for the others, unless the peer sees to it.
    #[inline(always)]
    pub fn fire(&self, trip: usize) -> u64 {
        match &self.wire {
            None => segment::fire(&self.map, trip),
            Some(wire) => {
                wire.stimulate(trip, trip::RX);
                0
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if self.wire.is_none() {
            // SAFETY: whoever uses the memory borrows it from here.
            unsafe { self.map.unmap() };
        }
    }
}

impl Remote for Peer {
    #[inline(always)]
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for `from`.
        unsafe { self.map.copy_in(offset, from, len) };
        if let Some(wire) = &self.wire {
            wire.bytes(offset, len);
        }
    }
    #[inline(always)]
    fn claim(&self, offset: usize) {
        if self.wire.is_none() {
            self.map.claim(offset);
        }
    }
    #[inline(always)]
    fn put_word(&self, offset: usize, value: u64) {
        self.map.put_word(offset, value);
        if let Some(wire) = &self.wire {
            wire.word(offset, value);
        }
    }
    #[inline(always)]
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        match &self.wire {
            None => self.map.stimulate(offset, interest),
            Some(wire) => {
                wire.stimulate(offset, interest);
                0
            }
        }
    }
    /// Between hosts that is not known here: so it may be.
    #[inline(always)]
    fn armed(&self, offset: usize, interest: u64) -> bool {
        self.wire.is_some() || self.map.armed(offset, interest)
    }
    /// Not used; between hosts the words of a peer are not known here.
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        let held = self.map.or_word(offset, bits);
        self.put_word(offset, held | bits);
        held
    }
}

/// Whom the tripwires of a connection wake, when a peer on another host fires them.
pub struct Watch {
    vi: usize,
    queues: [Option<Bound>; 2],
}

impl Watch {
    pub(crate) fn of(vi: *mut c_void, offer: &vi::Offer) -> Watch {
        Watch { vi: vi.addr(), queues: offer.queues }
    }

    /// The tripwire at `offset` of `mine` was fired; it held that. Called under any lock.
    pub fn fired(&self, mine: &Map, offset: usize, held: u64) {
        let queue = match offset {
            at::TRIP => 0,
            at::COOKIE_TRIP => 1,
            // Nobody waits elsewhere.
            _ => return,
        };
        if held & wake::SLEEPERS != 0 {
            segment::wake_sleepers(mine, offset);
        }
        if held & wake::QUEUE != 0
            && let Some(bound) = &self.queues[queue]
            && bound.hint()
        {
            agent::look_later();
        }
        if held & wake::AGENT != 0 {
            self.kick();
        }
    }

    /// Has the library's thread look after the Virtual Interface, and what its peer has said.
    pub fn kick(&self) {
        agent::kick(self.vi as *mut c_void);
    }
}

/// Whether who has connected is this host's agent, as far as that can be known: it runs as this user, or as root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    user::is_kin(&socket)
}
