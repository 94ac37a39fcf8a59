//! The peer's segment, of a connection on one host or between hosts.

use std::sync::Arc;

use fabric::shm::Map;
use fabric::{Mapped as _, Remote, trip};

use crate::remote::link::Wire;
use crate::segment;

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

    /// A shadow, and the wire that brings it to the peer.
    pub fn remote(wire: Arc<dyn Wire>) -> Peer {
        Peer { map: wire.shadow(), wire: Some(wire) }
    }

    /// The wire, between hosts.
    #[inline(always)]
    pub fn wire(&self) -> Option<&Arc<dyn Wire>> {
        self.wire.as_ref()
    }

    /// Fires the tripwire at `trip`, if it is armed, and wakes its sleepers. Returns what was
    /// armed, for the others to be woken; nothing if the peer does that.
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
            // SAFETY: all users of the memory borrow it from here.
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
    /// Between hosts it cannot be known here, so it may be.
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
