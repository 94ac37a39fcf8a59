//! Registered memory and protection tags: the memory that a Virtual Interface may access, here and
//! at its peer (specification, section 2.3).
//!
//! A region's handle names a record in the NIC's *region table*, 64 bytes of a shared segment:
//! peers read it before they reach into our memory for RDMA, as an adapter reads the translation
//! table of its host. Only the owner writes there.
//!
//! Nothing is pinned, as that is not needed on one host. The guarantees of registering are kept all
//! the same: a region with posted descriptors in it cannot be deregistered ([`Regions::hold`]
//! counts them), and an address that is not mapped cannot be registered.

use core::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use fabric::shm::Map;
use fabric::sync::{AtomicU64, Ordering};
use fabric::sys;

use crate::abi::Return;

/// Regions of a process.
pub const REGIONS: usize = 16384;
/// Bytes that a process may register in one region, and in all. No real limit, as nothing is
/// pinned: all addresses that there are.
pub const BYTES: usize = 1 << 46;

/// The rights of peers to a region by RDMA.
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
    /// The rights of peers.
    pub rights: Rights,
}

impl Default for Attributes {
    /// The attributes of a region that was registered without any.
    fn default() -> Attributes {
        Attributes { ptag: core::ptr::null_mut(), rights: Rights { write: false, read: false } }
    }
}

/// The NIC handle and the protection tag of a Virtual Interface that accesses memory. A null tag
/// may access every region of that NIC handle: programs make their Virtual Interfaces without a tag
/// and register their memory with one.
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
    table: Table,
    memfd: i32,
    free: Mutex<Free>,
}

struct Free {
    given_back: Vec<u32>,
    used: u32,
    bytes: usize,
}

/// A region table: the process's own, or a peer's.
#[derive(Debug, Clone, Copy)]
pub struct Table(Map);

/// A region's record: a line of memory.
#[repr(C, align(64))]
struct Record {
    /// The turn (odd while registered) in the upper half, the number of posted descriptors that use
    /// the region in the lower.
    turn: AtomicU64,
    address: AtomicU64,
    length: AtomicU64,
    nic: AtomicU64,
    ptag: AtomicU64,
    /// Bit 0: peers may write; bit 1: they may read.
    rights: AtomicU64,
}

/// A registered region, as it was when it was looked up.
#[derive(Debug, Clone, Copy)]
pub struct Region {
    start: u64,
    length: u64,
}

impl Region {
    /// Whether all of `length` bytes at `address` lie in it.
    #[inline(always)]
    pub fn covers(&self, address: u64, length: usize) -> bool {
        address
            .checked_sub(self.start)
            .is_some_and(|ahead| ahead <= self.length && length as u64 <= self.length - ahead)
    }

    /// How many of its bytes are at and behind an address, if that lies in it or at its end.
    pub fn behind(&self, address: u64) -> Option<usize> {
        let ahead = address.checked_sub(self.start)?;
        self.length.checked_sub(ahead).map(|left| left as usize)
    }
}

const INDEX_BITS: u32 = REGIONS.trailing_zeros();
const TURN_ONE: u64 = 1 << 32;

impl Regions {
    /// An empty table; fails without memory or descriptors.
    pub fn new() -> Result<Regions, sys::Errno> {
        let (map, memfd) = Map::create(c"via-regions", TABLE)?;
        let free = Mutex::new(Free { given_back: Vec::new(), used: 0, bytes: 0 });
        Ok(Regions { table: Table(map), memfd, free })
    }

    /// The table, for peers.
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// `VipRegisterMem`: makes `length` bytes from `address` on a region of `nic`, and returns its
    /// handle, which is not 0. `InvalidParameter` for no bytes, or some beyond the end of
    /// addresses; `ErrorResource` if not all of it is mapped, or there is no room.
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
        let record = self.table.at(index);
        record.address.store(address as u64, Ordering::Release);
        record.length.store(length as u64, Ordering::Release);
        record.nic.store(nic as u64, Ordering::Release);
        record.set(attributes);
        // Last: a thread that sees the turn sees the rest.
        let turn = record.turn.load(Ordering::Acquire) + TURN_ONE;
        record.turn.store(turn, Ordering::Release);
        Ok(handle(index, turn))
    }

    /// `VipDeregisterMem`: the region's handle is invalid from now on. `InvalidParameter` if the
    /// region does not begin at `address`; `ErrorResource` while descriptors that use it are
    /// posted.
    pub fn deregister(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<(), Return> {
        let (record, turn) = self.table.find(nic, handle).ok_or(Return::InvalidParameter)?;
        if record.address.load(Ordering::Acquire) != address as u64 {
            return Err(Return::InvalidParameter);
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let unused = turn >> 32 << 32;
        match record.replace_turn(unused, unused + TURN_ONE) {
            Ok(_) => {}
            Err(now) if now >> 32 == turn >> 32 => return Err(Return::ErrorResource),
            Err(_) => return Err(Return::InvalidParameter),
        }
        free.bytes -= record.length.load(Ordering::Acquire) as usize;
        // A handle that returns after 2^17 turns of one place could be taken for an old one: such a
        // place is not given out again.
        if turn >> 32 < u64::from(u32::MAX >> INDEX_BITS) {
            free.given_back.push(index(handle));
        }
        Ok(())
    }

    /// Takes back all regions of a NIC handle that is being closed, used or not.
    pub fn close(&self, nic: *mut c_void) {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        for index in 0..used {
            let record = self.table.at(index);
            let turn = record.turn.load(Ordering::Acquire) >> 32 << 32;
            if turn & TURN_ONE == 0 || record.nic.load(Ordering::Acquire) != nic as u64 {
                continue;
            }
            while record.turn.load(Ordering::Acquire) != turn {
                self.release(handle(index, turn));
            }
            let address = record.address.load(Ordering::Acquire) as usize;
            let _ = self.deregister(nic, address, handle(index, turn));
        }
    }

    /// `VipQueryMem`: the attributes of the region that `address` lies in.
    pub fn query(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<Attributes, Return> {
        let record = self.inside(nic, address, handle)?;
        let rights = record.rights.load(Ordering::Acquire);
        Ok(Attributes {
            ptag: record.ptag.load(Ordering::Acquire) as *mut c_void,
            rights: Rights { write: rights & 1 != 0, read: rights & 2 != 0 },
        })
    }

    /// `VipSetMemAttributes`: changes them, for descriptors and messages from now on.
    pub fn set_attributes(
        &self,
        nic: *mut c_void,
        address: usize,
        handle: u32,
        to: Attributes,
    ) -> Result<(), Return> {
        self.inside(nic, address, handle)?.set(to);
        Ok(())
    }

    /// Whether a region has this protection tag.
    pub fn any_with(&self, ptag: *mut c_void) -> bool {
        self.any(|record| record.ptag.load(Ordering::Acquire) == ptag as u64)
    }

    /// Whether a region has any of `length` bytes at `address`.
    pub fn any_in(&self, address: usize, length: usize) -> bool {
        self.any(|record| {
            let start = record.address.load(Ordering::Acquire) as usize;
            let end = start.saturating_add(record.length.load(Ordering::Acquire) as usize);
            start < address + length && address < end
        })
    }

    fn any(&self, is_it: impl Fn(&Record) -> bool) -> bool {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        (0..used)
            .map(|index| self.table.at(index))
            .any(|record| record.turn.load(Ordering::Acquire) & TURN_ONE != 0 && is_it(record))
    }

    /// The region, if it is registered and `asker` may access it. It is held until
    /// [`Regions::release`]. For each descriptor that stays posted, and each region that it names.
    #[inline(always)]
    pub fn hold(&self, asker: Asker, handle: u32) -> Option<Region> {
        let (record, mut turn) = self.table.find(asker.nic, handle)?;
        while let Err(now) = record.replace_turn(turn, turn + 1) {
            if now >> 32 != turn >> 32 {
                return None;
            }
            turn = now;
        }
        // Only from now on it cannot be deregistered.
        if !record.has_tag(asker) {
            self.release(handle);
            return None;
        }
        Some(record.region())
    }

    /// As [`Regions::hold`], but nothing is held: for operations that are over before the program's
    /// call returns.
    #[inline(always)]
    pub fn find(&self, asker: Asker, handle: u32) -> Option<Region> {
        let (record, _) = self.table.find(asker.nic, handle)?;
        record.has_tag(asker).then(|| record.region())
    }

    /// As [`Regions::hold`], for a peer on another host, if it may write to (or read from) that
    /// memory by RDMA.
    pub fn lend(&self, asker: Asker, handle: u32, address: u64, length: usize, write: bool) -> bool {
        if self.hold(asker, handle).is_none() {
            return false;
        }
        let may = self.table.allows(asker, handle, address, length, write);
        if !may {
            self.release(handle);
        }
        may
    }

    /// Gives back what [`Regions::hold`] holds.
    #[inline(always)]
    pub fn release(&self, handle: u32) {
        self.table.at(index(handle)).turn.fetch_sub(1, Ordering::AcqRel);
    }

    fn inside(&self, nic: *mut c_void, address: usize, handle: u32) -> Result<&Record, Return> {
        let (record, _) = self.table.find(nic, handle).ok_or(Return::InvalidParameter)?;
        if record.region().covers(address as u64, 1) { Ok(record) } else { Err(Return::InvalidParameter) }
    }
}

/// Bytes of a region table.
pub const TABLE: usize = REGIONS * size_of::<Record>();

impl Table {
    /// The table in such a segment, if there is one.
    pub fn of(map: Map) -> Option<Table> {
        (map.len() >= TABLE).then_some(Table(map))
    }

    /// Whether it allows this process, over a connection to its Virtual Interface `asker`, to write
    /// to (or read from) that memory by RDMA.
    pub fn allows(&self, asker: Asker, handle: u32, address: u64, length: usize, write: bool) -> bool {
        let Some((record, _)) = self.find(asker.nic, handle) else { return false };
        let right = if write { 1 } else { 2 };
        record.rights.load(Ordering::Acquire) & right != 0
            && record.has_tag(asker)
            && record.region().covers(address, length)
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// No copy of it may be used afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: the caller vouches for it.
        unsafe { self.0.unmap() };
    }

    #[inline(always)]
    fn at(&self, index: u32) -> &Record {
        let index = index as usize & (REGIONS - 1);
        // SAFETY: the map has as many records, is aligned to a page, and outlives self's users; it
        // is only accessed atomically.
        unsafe { &*self.0.base().cast::<Record>().add(index) }
    }

    /// The record for a handle of that NIC handle, if the region is registered, and its turn.
    #[inline(always)]
    fn find(&self, nic: *mut c_void, handle: u32) -> Option<(&Record, u64)> {
        let record = self.at(index(handle));
        let turn = record.turn.load(Ordering::Acquire);
        let stands = turn & TURN_ONE != 0 && self::handle(index(handle), turn) == handle;
        (stands && record.nic.load(Ordering::Acquire) == nic as u64).then_some((record, turn))
    }
}

impl Record {
    #[inline(always)]
    fn has_tag(&self, asker: Asker) -> bool {
        asker.ptag.is_null() || self.ptag.load(Ordering::Acquire) == asker.ptag as u64
    }

    #[inline(always)]
    fn region(&self) -> Region {
        Region { start: self.address.load(Ordering::Acquire), length: self.length.load(Ordering::Acquire) }
    }

    #[inline(always)]
    fn replace_turn(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.turn.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    fn set(&self, attributes: Attributes) {
        let rights = u64::from(attributes.rights.write) | u64::from(attributes.rights.read) << 1;
        self.ptag.store(attributes.ptag as u64, Ordering::Release);
        self.rights.store(rights, Ordering::Release);
    }
}

impl Drop for Regions {
    fn drop(&mut self) {
        sys::close(self.memfd);
        // SAFETY: all users of the table borrow it from here.
        unsafe { self.table.unmap() };
    }
}

/// The number of a handle's record.
#[inline(always)]
fn index(handle: u32) -> u32 {
    handle & (REGIONS as u32 - 1)
}

/// The turn is odd while the region is registered: so no handle is 0.
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
            let found =
                regions.find(asker, handle).is_some_and(|region| region.covers(address as u64, length));
            assert_eq!(found, may, "{asker:?} {address:x} {length}");
            if let Some(held) = regions.hold(asker, handle) {
                assert_eq!(held.covers(address as u64, length), may, "{asker:?} {address:x} {length}");
                assert_eq!(regions.deregister(NIC, start, handle), Err(Return::ErrorResource));
                regions.release(handle);
            }
        }
        for wrong in [0, handle ^ 1] {
            assert!(regions.hold(asks(TAG), wrong).is_none() && regions.find(asks(TAG), wrong).is_none());
        }
        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
        assert!(regions.hold(asks(TAG), handle).is_none() && regions.find(asks(TAG), handle).is_none());
    }

    #[test]
    fn what_peers_on_other_hosts_may_use_is_held_meanwhile() {
        let regions = Regions::new().unwrap();
        let memory = vec![0u8; 10_000];
        let start = memory.as_ptr() as usize;
        let handle = regions.register(NIC, start, memory.len(), tagged()).unwrap();
        let address = start as u64;
        assert!(!regions.lend(asks(TAG), handle, address, 10_000, false), "it may be written only");
        assert!(!regions.lend(asks(TAG), handle, address + 1, 10_000, true));
        assert!(!regions.lend(asks(NIC), handle, address, 1, true), "another tag");
        assert!(!regions.lend(asks(TAG), handle ^ 1, address, 1, true));
        assert!(regions.lend(asks(TAG), handle, address, 10_000, true));
        assert_eq!(regions.deregister(NIC, start, handle), Err(Return::ErrorResource));
        regions.release(handle);
        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
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
                        assert!(regions.hold(asks(TAG), handle).is_some());
                        assert_eq!(regions.deregister(NIC, start, handle), Err(Return::ErrorResource));
                        regions.release(handle);
                        assert_eq!(regions.deregister(NIC, start, handle), Ok(()));
                        assert!(regions.hold(asks(TAG), handle).is_none());
                    }
                });
            }
        });
    }
}
