//! Registered memory and protection tags: what a Virtual Interface may touch, here and at its peer (specification, section 2.3).
//!
//! A region's handle names a record in the NIC's *region table*, 64 bytes of a shared segment: peers read it before they reach into our
//! memory for RDMA, as an adapter reads the translation table of its host. Nothing but the owner writes there.
//!
//! Nothing is pinned: one host's memory needs not to be. What registering promises is checked where it matters: a region with posted
//! descriptors in it cannot be deregistered ([`Regions::hold`] counts), and an address that is not mapped cannot be registered.

use core::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use fabric::shm::Map;
use fabric::{Local, sys};

use crate::abi::Return;

/// Regions of a process.
pub const REGIONS: usize = 16384;
/// Bytes that a process may register in one region, and in all. No real limit, as nothing is pinned: what addresses there are.
pub const BYTES: usize = 1 << 46;

/// What peers may do with a region by RDMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// They may write.
    pub write: bool,
    /// They may read.
    pub read: bool,
}

/// The attributes of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// Its protection tag; null is one as well.
    pub ptag: *mut c_void,
    /// What peers may do.
    pub rights: Rights,
}

impl Default for Attributes {
    /// Those of a region that was registered without any.
    fn default() -> Attributes {
        Attributes { ptag: core::ptr::null_mut(), rights: Rights { write: false, read: false } }
    }
}

/// Who asks for memory: the handle of its NIC, and the tag of its Virtual Interface. Null may touch every region of that NIC handle:
/// programs make their Virtual Interfaces without a tag and register their memory with one.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    /// A NIC's handle.
    pub nic: *mut c_void,
    /// A Virtual Interface's tag.
    pub ptag: *mut c_void,
}

// SAFETY: handles are numbers.
unsafe impl Send for Asker {}
// SAFETY: as above.
unsafe impl Sync for Asker {}

/// The regions of this process.
pub struct Regions {
    table: Map,
    memfd: i32,
    free: Mutex<Free>,
}

struct Free {
    given_back: Vec<u32>,
    used: u32,
    bytes: usize,
}

/// A record's words, in bytes from its beginning.
mod at {
    /// The turn (odd while registered) in the upper half, how many posted descriptors use the region in the lower.
    pub const TURN: usize = 0;
    pub const ADDRESS: usize = 8;
    pub const LENGTH: usize = 16;
    pub const NIC: usize = 24;
    pub const PTAG: usize = 32;
    /// Bit 0: peers may write; bit 1: they may read.
    pub const RIGHTS: usize = 40;
    pub const RECORD: usize = 64;
}

const INDEX_BITS: u32 = REGIONS.trailing_zeros();
const TURN_ONE: u64 = 1 << 32;

impl Regions {
    /// An empty table; fails without memory or descriptors.
    pub fn new() -> Result<Regions, sys::Errno> {
        let (table, memfd) = Map::create(c"via-regions", TABLE)?;
        let free = Mutex::new(Free { given_back: Vec::new(), used: 0, bytes: 0 });
        Ok(Regions { table, memfd, free })
    }

    /// The table, for peers.
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// `VipRegisterMem`: makes `length` bytes from `address` on a region of `nic`, and returns its handle, which is not 0.
    /// `InvalidParameter` for no bytes, or some beyond the end of addresses; `ErrorResource` if not all of it is mapped, or there is no room.
    pub fn register(
        &self,
        nic: *mut c_void,
        address: usize,
        length: usize,
        attributes: Attributes,
    ) -> Result<u32, Return> {
        if length == 0 || address == 0 || address.checked_add(length).is_none() {
            return Err(Return::InvalidParameter);
        }
        if length > BYTES || !sys::is_mapped(address as *const u8, length) {
            return Err(Return::ErrorResource);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if length > BYTES - free.bytes {
            return Err(Return::ErrorResource);
        }
        let index = match free.given_back.pop() {
            Some(index) => index,
            None if (free.used as usize) < REGIONS => {
                free.used += 1;
                free.used - 1
            }
            None => return Err(Return::ErrorResource),
        };
        free.bytes += length;
        let record = index as usize * at::RECORD;
        self.table.set_word(record + at::ADDRESS, address as u64);
        self.table.set_word(record + at::LENGTH, length as u64);
        self.table.set_word(record + at::NIC, nic as u64);
        self.set(record, attributes);
        // Last: whoever sees the turn sees the rest.
        let turn = self.table.word(record + at::TURN) + TURN_ONE;
        self.table.set_word(record + at::TURN, turn);
        Ok(handle(index, turn))
    }

    /// `VipDeregisterMem`: the region's handle is worth nothing from now on. `InvalidParameter` if the region does not begin at
    /// `address`; `ErrorResource` while descriptors that use it are posted.
    pub fn deregister(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<(), Return> {
        let (record, turn) = self.record(nic, handle).ok_or(Return::InvalidParameter)?;
        if self.table.word(record + at::ADDRESS) != address as u64 {
            return Err(Return::InvalidParameter);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = turn >> 32 << 32;
        match self.table.replace_word(record + at::TURN, unused, unused + TURN_ONE) {
            Ok(()) => {}
            Err(now) if now >> 32 == turn >> 32 => return Err(Return::ErrorResource),
            Err(_) => return Err(Return::InvalidParameter),
        }
        free.bytes -= self.table.word(record + at::LENGTH) as usize;
        // A handle that comes back after 2^17 turns of one place could be taken for an old one: such a place is not given out again.
        if turn >> 32 < u64::from(u32::MAX >> INDEX_BITS) {
            free.given_back.push((record / at::RECORD) as u32);
        }
        Ok(())
    }

    /// Takes back all regions of a NIC handle that is being closed, used or not.
    pub fn close(&self, nic: *mut c_void) {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        for index in 0..used {
            let record = index as usize * at::RECORD;
            let turn = self.table.word(record + at::TURN) >> 32 << 32;
            if turn & TURN_ONE == 0 || self.table.word(record + at::NIC) != nic as u64 {
                continue;
            }
            while self.table.word(record + at::TURN) != turn {
                self.release(handle(index, turn));
            }
            let address = self.table.word(record + at::ADDRESS) as usize;
            let _ = self.deregister(nic, address, handle(index, turn));
        }
    }

    /// `VipQueryMem`: the attributes of the region that `address` lies in.
    pub fn query(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<Attributes, Return> {
        let (record, _) = self.inside(nic, address, handle)?;
        let rights = self.table.word(record + at::RIGHTS);
        Ok(Attributes {
            ptag: self.table.word(record + at::PTAG) as *mut c_void,
            rights: Rights { write: rights & 1 != 0, read: rights & 2 != 0 },
        })
    }

    /// `VipSetMemAttributes`: changes them, for what is posted or arrives from now on.
    pub fn set_attributes(
        &self,
        nic: *mut c_void,
        address: usize,
        handle: u32,
        to: Attributes,
    ) -> Result<(), Return> {
        let (record, _) = self.inside(nic, address, handle)?;
        self.set(record, to);
        Ok(())
    }

    /// Whether a region has this protection tag.
    pub fn any_with(&self, ptag: *mut c_void) -> bool {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        (0..used as usize).map(|index| index * at::RECORD).any(|record| {
            self.table.word(record + at::TURN) & TURN_ONE != 0
                && self.table.word(record + at::PTAG) == ptag as u64
        })
    }

    /// Whether a region has any of `length` bytes at `address`.
    pub fn any_in(&self, address: usize, length: usize) -> bool {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        (0..used as usize).map(|index| index * at::RECORD).any(|record| {
            let start = self.table.word(record + at::ADDRESS) as usize;
            let end = start.saturating_add(self.table.word(record + at::LENGTH) as usize);
            self.table.word(record + at::TURN) & TURN_ONE != 0 && start < address + length && address < end
        })
    }

    /// Whether all of `length` bytes at `address` lie in the region and `asker` may touch them; if so they are held until
    /// [`Regions::release`]. For each descriptor that is posted, and each buffer that it names.
    #[inline]
    pub fn hold(&self, asker: Asker, handle: u32, address: usize, length: usize) -> bool {
        let Some((record, mut turn)) = self.record(asker.nic, handle) else { return false };
        loop {
            match self.table.replace_word(record + at::TURN, turn, turn + 1) {
                Ok(()) => break,
                Err(now) if now >> 32 == turn >> 32 => turn = now,
                Err(_) => return false,
            }
        }
        // Only now can it not be deregistered.
        let may = has_tag(&self.table, record, asker) && lies_in(&self.table, record, address as u64, length);
        if !may {
            self.release(handle);
        }
        may
    }

    /// Whether the bytes lie in a region of that NIC handle.
    #[inline]
    pub fn covers(&self, nic: *mut c_void, handle: u32, address: usize, length: usize) -> bool {
        self.record(nic, handle)
            .is_some_and(|(record, _)| lies_in(&self.table, record, address as u64, length))
    }

    /// As [`Regions::hold`], but nothing is held: for what is over before the program's call returns.
    #[inline]
    pub fn may(&self, asker: Asker, handle: u32, address: usize, length: usize) -> bool {
        self.record(asker.nic, handle).is_some_and(|(record, _)| {
            has_tag(&self.table, record, asker) && lies_in(&self.table, record, address as u64, length)
        })
    }

    /// Gives back what [`Regions::hold`] has held.
    #[inline]
    pub fn release(&self, handle: u32) {
        let record = (handle as usize & (REGIONS - 1)) * at::RECORD;
        let mut turn = self.table.word(record + at::TURN);
        while let Err(now) = self.table.replace_word(record + at::TURN, turn, turn - 1) {
            turn = now;
        }
    }

    fn set(&self, record: usize, attributes: Attributes) {
        let rights = u64::from(attributes.rights.write) | u64::from(attributes.rights.read) << 1;
        self.table.set_word(record + at::PTAG, attributes.ptag as u64);
        self.table.set_word(record + at::RIGHTS, rights);
    }

    fn inside(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<(usize, u64), Return> {
        let (record, turn) = self.record(nic, handle).ok_or(Return::InvalidParameter)?;
        let start = self.table.word(record + at::ADDRESS);
        let length = self.table.word(record + at::LENGTH);
        let is_inside = (address as u64).checked_sub(start).is_some_and(|ahead| ahead < length);
        if is_inside { Ok((record, turn)) } else { Err(Return::InvalidParameter) }
    }

    #[inline]
    fn record(&self, nic: *mut c_void, handle: u32) -> Option<(usize, u64)> {
        record(&self.table, nic, handle)
    }
}

/// Bytes of a region table.
pub const TABLE: usize = REGIONS * at::RECORD;

/// Whether a peer's region table lets us write to (or read from) its memory by RDMA, over a connection to its Virtual Interface `asker`.
pub fn allows(table: &Map, asker: Asker, handle: u32, address: u64, length: usize, write: bool) -> bool {
    let Some((record, _)) = record(table, asker.nic, handle) else { return false };
    let right = if write { 1 } else { 2 };
    table.word(record + at::RIGHTS) & right != 0
        && has_tag(table, record, asker)
        && lies_in(table, record, address, length)
}

#[inline]
fn record(table: &Map, nic: *mut c_void, handle: u32) -> Option<(usize, u64)> {
    let record = (handle as usize & (REGIONS - 1)) * at::RECORD;
    let turn = table.word(record + at::TURN);
    let stands = turn & TURN_ONE != 0 && self::handle(record as u32 / at::RECORD as u32, turn) == handle;
    (stands && table.word(record + at::NIC) == nic as u64).then_some((record, turn))
}

#[inline]
fn has_tag(table: &Map, record: usize, asker: Asker) -> bool {
    asker.ptag.is_null() || table.word(record + at::PTAG) == asker.ptag as u64
}

#[inline]
fn lies_in(table: &Map, record: usize, address: u64, length: usize) -> bool {
    let (start, all) = (table.word(record + at::ADDRESS), table.word(record + at::LENGTH));
    address.checked_sub(start).is_some_and(|ahead| ahead <= all && length as u64 <= all - ahead)
}

impl Drop for Regions {
    fn drop(&mut self) {
        sys::close(self.memfd);
        // SAFETY: whoever uses the table borrows it from here.
        unsafe { self.table.unmap() };
    }
}

/// The turn is odd while the region stands: so no handle is 0.
fn handle(index: u32, turn: u64) -> u32 {
    ((turn >> 32) as u32) << INDEX_BITS | index
}

#[cfg(test)]
mod tests {
    use super::*;

    const NIC: *mut c_void = 0x1000 as *mut c_void;
    const OTHER: *mut c_void = 0x2000 as *mut c_void;
    const TAG: *mut c_void = 0x3000 as *mut c_void;

    fn tagged() -> Attributes {
        Attributes { ptag: TAG, rights: Rights { write: true, read: false } }
    }

    fn asks(ptag: *mut c_void) -> Asker {
        Asker { nic: NIC, ptag }
    }

    #[test]
    fn a_region_is_what_was_registered() {
        let regions = Regions::new().unwrap();
        let memory = vec![0u8; 10_000];
        let start = memory.as_ptr() as usize;
        let handle = regions.register(NIC, start, memory.len(), tagged()).unwrap();
        assert_ne!(handle, 0);
        assert_eq!(regions.query(NIC, start + 9_999, handle), Ok(tagged()));
        assert_eq!(regions.query(NIC, start + 10_000, handle), Err(Return::InvalidParameter));
        assert_eq!(regions.query(OTHER, start, handle), Err(Return::InvalidParameter));
        assert_eq!(regions.set_attributes(NIC, start, handle, Attributes::default()), Ok(()));
        assert_eq!(regions.query(NIC, start, handle), Ok(Attributes::default()));
        assert_eq!(regions.deregister(NIC, start + 1, handle), Err(Return::InvalidParameter));
        assert_eq!(regions.deregister(OTHER, start, handle), Err(Return::InvalidParameter));
        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
        assert_eq!(regions.deregister(NIC, start, handle), Err(Return::InvalidParameter));
        assert_ne!(regions.register(NIC, start, 1, tagged()), Ok(handle));
    }

    #[test]
    fn only_what_may_be_touched_is_held() {
        let regions = Regions::new().unwrap();
        let memory = vec![0u8; 10_000];
        let start = memory.as_ptr() as usize;
        let handle = regions.register(NIC, start, memory.len(), tagged()).unwrap();
        for (asker, address, length, may) in [
            (asks(TAG), start, 10_000, true),
            (asks(core::ptr::null_mut()), start, 10_000, true),
            (asks(TAG), start + 10_000, 0, true),
            (asks(TAG), start + 1, 10_000, false),
            (asks(TAG), start - 1, 1, false),
            (asks(TAG), start, usize::MAX, false),
            (asks(TAG), usize::MAX, 2, false),
            (asks(OTHER), start, 1, false),
            (Asker { nic: OTHER, ptag: TAG }, start, 1, false),
        ] {
            assert_eq!(regions.hold(asker, handle, address, length), may, "{asker:?} {address:x} {length}");
            if may {
                assert_eq!(regions.deregister(NIC, start, handle), Err(Return::ErrorResource));
                regions.release(handle);
            }
        }
        assert!(!regions.hold(asks(TAG), 0, start, 1));
        assert!(!regions.hold(asks(TAG), handle ^ 1, start, 1));
        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
        assert!(!regions.hold(asks(TAG), handle, start, 1));
    }

    #[test]
    fn what_cannot_be_registered() {
        let regions = Regions::new().unwrap();
        let memory = [0u8; 16];
        let start = memory.as_ptr() as usize;
        let wrong = Err(Return::InvalidParameter);
        assert_eq!(regions.register(NIC, 0, 16, tagged()), wrong);
        assert_eq!(regions.register(NIC, start, 0, tagged()), wrong);
        assert_eq!(regions.register(NIC, start, usize::MAX, tagged()), wrong);
        assert_eq!(regions.register(NIC, 4096, 16, tagged()), Err(Return::ErrorResource));
        assert_eq!(regions.register(NIC, start, BYTES + 1, tagged()), Err(Return::ErrorResource));
        for _ in 0..REGIONS {
            regions.register(NIC, start, 16, tagged()).unwrap();
        }
        assert_eq!(regions.register(NIC, start, 16, tagged()), Err(Return::ErrorResource));
        regions.close(OTHER);
        assert_eq!(regions.register(NIC, start, 16, tagged()), Err(Return::ErrorResource));
        regions.close(NIC);
        regions.register(NIC, start, 16, tagged()).unwrap();
    }

    #[test]
    fn what_is_held_stays_while_others_deregister() {
        let regions = Regions::new().unwrap();
        let memory = vec![0u8; 4096];
        let start = memory.as_ptr() as usize;
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..2_000 {
                        let handle = regions.register(NIC, start, 4096, tagged()).unwrap();
                        assert!(regions.hold(asks(TAG), handle, start, 64));
                        assert_eq!(regions.deregister(NIC, start, handle), Err(Return::ErrorResource));
                        regions.release(handle);
                        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
                        assert!(!regions.hold(asks(TAG), handle, start, 64));
                    }
                });
            }
        });
    }
}
