//! One end's memory for a connection, which the other end writes into: its *segment*, a sealed
//! memfd. Both ends map both. Between hosts it is memory of the link ([`crate::remote`]).

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use fabric::shm::Map;
use fabric::{Local, Remote, sys, trip};

use crate::remote::link::Wire;
use crate::wire;

/// The layout of a segment, in bytes from its beginning. Words that the peer writes often have a
/// line of their own.
pub mod at {
    use super::wire;

    /// Tripwire of threads that wait for messages: armed by the owner, fired by the peer.
    pub const TRIP: usize = 0;
    /// Tripwire of threads that wait for cookies, because their sends are deferred.
    pub const COOKIE_TRIP: usize = 64;
    /// The peer has shut the gate before its buffers ([`crate::gate`]).
    pub const SHUT: usize = 128;
    /// The peer transfers to or from buffers of this process.
    pub const BUSY: usize = 136;
    /// How far the peer has read what was put into its eager buffer.
    pub const EAGER_READ: usize = 192;
    /// The peer's cookies ([`crate::wire`]).
    pub const COOKIES: usize = 256;
    /// The peer's messages.
    pub const TRANSFERS: usize = (COOKIES + wire::COOKIE_QUEUE).next_multiple_of(4096);
    /// Bytes of messages that do not fit into their entries.
    pub const EAGER: usize = TRANSFERS + wire::TRANSFER_QUEUE;
    /// Between hosts, the peer's request for RDMA: place, operation and length in two words, and
    /// behind these the bytes that it writes.
    pub const ASKED: usize = super::BYTES;
    /// The bytes that the peer read for us.
    pub const GOT: usize = ASKED + 64 + crate::limits::MAX_TRANSFER;
}

/// The waiters that a tripwire must wake, in its word beside [`trip::RX`].
pub mod wake {
    /// Threads that sleep on the word itself.
    pub const SLEEPERS: u64 = 1 << 4;
    /// The library's thread, by a message on the connection's socket.
    pub const AGENT: u64 = 1 << 5;
    /// A completion queue, by a hint.
    pub const QUEUE: u64 = 1 << 6;
}

/// Bytes of the eager buffer that are used: as few as small messages need, so that they stay in the
/// processors' caches.
pub const EAGER: usize = 128 << 10;
/// Where nothing can be placed in the peer's memory directly, the longest messages go through it,
/// wherever it is that the last one ended.
pub const EAGER_ALL: usize = 2 * crate::limits::MAX_TRANSFER;
/// Bytes of a segment. Unused parts take no memory.
pub const BYTES: usize = at::EAGER + EAGER_ALL;
/// The same between hosts.
pub const FAR_BYTES: usize = at::GOT + crate::limits::MAX_TRANSFER;

/// The segment of one end, for one connection: a peer that is gone, or breaks the rules, has no
/// access to the next one's.
pub struct Segment {
    map: Map,
    memfd: i32,
    /// Where the next cookie is, or will be.
    next_cookie: AtomicUsize,
    /// Between hosts, the wire that has the memory.
    wire: Option<Arc<dyn Wire>>,
}

impl Segment {
    /// A new one, zeroed.
    pub fn new() -> Result<Segment, sys::Errno> {
        let (map, memfd) = Map::create(c"via-segment", BYTES)?;
        Ok(Segment { map, memfd, next_cookie: AtomicUsize::new(at::COOKIES), wire: None })
    }

    /// The segment of a link between hosts.
    pub fn remote(wire: Arc<dyn Wire>) -> Segment {
        Segment { map: wire.mine(), memfd: -1, next_cookie: AtomicUsize::new(at::COOKIES), wire: Some(wire) }
    }

    /// For the peer.
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// Notes where the next cookie is, or will be.
    #[inline]
    pub fn note_cookie(&self, at: usize) {
        self.next_cookie.store(at, Ordering::Relaxed);
    }

    /// Announces that the program may soon send: it has received and is about to answer, and the
    /// peer has just written a cookie.
    #[inline]
    pub fn foresee_cookie(&self) {
        self.map.foresee(self.next_cookie.load(Ordering::Relaxed));
    }

    /// The memory.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Arms the tripwire at `at` for one of [`wake`], too. The caller must check again what it
    /// waits for before it waits.
    pub fn arm(&self, at: usize, whom: u64) {
        trip::arm(&self.map, at, |was| was | trip::RX | whom);
    }

    /// Whether the tripwire at `at` is armed for `whom`.
    #[inline]
    pub fn is_armed(&self, at: usize, whom: u64) -> bool {
        self.map.word(at) & whom != 0
    }

    /// Fires the tripwire at `at`, as the peer would.
    pub fn fire(&self, at: usize) -> u64 {
        fire(&self.map, at)
    }

    /// Sleeps, at most `nanos`, unless the tripwire at `at` has been fired since it was armed.
    pub fn sleep(&self, at: usize, nanos: u64) {
        sleep(&self.map, at, nanos);
    }
}

/// Sleeps on the tripwire at `at`, at most `nanos`, unless it has been fired since it was armed.
pub fn sleep(map: &Map, at: usize, nanos: u64) {
    let armed = map.word(at);
    if armed & wake::SLEEPERS != 0 {
        let _ = trip::wait(map, at, armed, nanos);
    }
}

/// Fires the tripwire at `at` of a segment, the peer's or one's own, and wakes its sleepers.
/// Returns what was armed, for the others to be woken.
#[inline]
pub fn fire(map: &Map, at: usize) -> u64 {
    let armed = map.stimulate(at, trip::RX);
    if armed & wake::SLEEPERS != 0 {
        wake_sleepers(map, at);
    }
    armed
}

/// Wakes all threads that sleep on the word at `at`.
#[cold]
pub fn wake_sleepers(map: &Map, at: usize) {
    trip::wake(map, at, u32::MAX >> 1);
}

impl Drop for Segment {
    fn drop(&mut self) {
        if self.wire.is_none() {
            sys::close(self.memfd);
            // SAFETY: all users of the memory borrow it from here.
            unsafe { self.map.unmap() };
        }
    }
}
