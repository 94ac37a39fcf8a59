//! The peer's segment of a link. On one host that is memory which both map. Between hosts it is the
//! *shadow*, memory of ours that is as large, and an outbox: what is written goes into the shadow
//! first, where it can be read again, and then, in the order written, to the peer (`wire.rs`).

use fabric::shm::Map;
use fabric::{Local, Mapped as _, Remote};

use super::kind::Peering;
use super::wire::Wire;

impl Peering {
    /// The segment of a peer that maps the same memory.
    pub(crate) fn of_memory(self, map: Map) -> Peer {
        Peer { map, peering: self }
    }
}

/// A peer's segment, or, as [`stream::transport::Ends`] has both of one type, our own.
#[derive(Debug, Clone, Copy)]
pub struct Peer {
    map: Map,
    peering: Peering,
}

impl Peer {
    pub const NONE: Peer = Peer { map: Map::NONE, peering: Peering::LOCAL };

    /// Memory that both ends map, or that is ours.
    #[inline(always)]
    pub const fn near(map: Map) -> Peer {
        Peer { map, peering: Peering::LOCAL }
    }

    /// A shadow, and where what is written there goes.
    pub fn remote(map: Map, wire: &'static Wire) -> Peer {
        Peer { map, peering: Peering::remote(wire) }
    }

    #[inline(always)]
    pub(crate) fn peering(&self) -> Peering {
        self.peering
    }

    /// The memory itself: that of a peer on this host, or its shadow.
    #[inline(always)]
    pub fn map(&self) -> Map {
        self.map
    }

    /// Bytes have been written there by other means than [`Remote::put`].
    pub fn written(&self, offset: usize, len: usize) {
        if let Some(wire) = self.peering.wire() {
            wire.bytes(offset, len);
        }
    }
}

impl Local for Peer {
    #[inline(always)]
    fn word(&self, offset: usize) -> u64 {
        self.map.word(offset)
    }
    #[inline(always)]
    fn set_word(&self, offset: usize, value: u64) {
        self.map.set_word(offset, value);
    }
    #[inline(always)]
    fn swap_word(&self, offset: usize, value: u64) -> u64 {
        self.map.swap_word(offset, value)
    }
    #[inline(always)]
    fn replace_word(&self, offset: usize, old: u64, new: u64) -> Result<(), u64> {
        self.map.replace_word(offset, old, new)
    }
    #[inline(always)]
    fn foresee(&self, offset: usize) {
        self.map.foresee(offset);
    }
    #[inline(always)]
    unsafe fn get(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller vouches for `to`.
        unsafe { self.map.copy_out(offset, to, len) };
    }
}

impl Remote for Peer {
    #[inline(always)]
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for `from`.
        unsafe { self.map.copy_in(offset, from, len) };
        if let Some(wire) = self.peering.wire() {
            wire.bytes(offset, len);
        }
    }
    #[inline(always)]
    fn claim(&self, offset: usize) {
        if self.peering.wire().is_none() {
            self.map.claim(offset);
        }
    }
    #[inline(always)]
    fn expect(&self, offset: usize) {
        if self.peering.wire().is_none() {
            self.map.expect(offset);
        }
    }
    #[inline(always)]
    fn put_word(&self, offset: usize, value: u64) {
        self.map.put_word(offset, value);
        if let Some(wire) = self.peering.wire() {
            wire.word(offset, value);
        }
    }
    /// Between hosts it is the peer who looks what is armed there: nothing is left for the caller
    /// to do.
    #[inline(always)]
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        match self.peering.wire() {
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
        self.peering.wire().is_some() || self.map.armed(offset, interest)
    }
    /// Between hosts, what we have set there, and not what the peer has.
    #[inline(always)]
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        let held = self.map.or_word(offset, bits);
        match self.peering.wire() {
            None => held,
            Some(wire) => {
                wire.or(offset, bits);
                0
            }
        }
    }
}
