//! Memory that peers map: the *arena*. Memory of `malloc` is private, and only the kernel reaches
//! it for another process; that costs 2 us for 64 KB, more than the copy itself. So a program may
//! ask the library for its buffers (`VipAllocateMem`): they lie in one sealed memfd, which peers
//! map when they connect, and into which they copy as into memory of their own, once, and without a
//! call.
//!
//! It is address space until it is used. Pieces are whole pages, found by looking for the first
//! gap: programs allocate their buffers once.

use core::ffi::c_void;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fabric::shm::Map;
use fabric::sys;

use crate::abi::Return;
use crate::process::PerProcess;

/// Bytes of an arena, where the address space is unlimited.
const BYTES: usize = 16 << 30;
const PAGE: usize = 4096;

/// The arena of this process.
#[derive(Debug)]
pub struct Arena {
    map: Map,
    memfd: i32,
    /// By where they begin, in bytes from the arena's beginning.
    pieces: Mutex<BTreeMap<usize, Piece>>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Whole pages.
    bytes: usize,
    /// The NIC handle that allocated it, as a number.
    nic: usize,
}

impl Arena {
    /// An empty arena. Fails without memory or descriptors.
    pub fn new() -> Result<Arena, sys::Errno> {
        // A part of a limited address space, so that the program's own allocations do not fail
        // because of the library.
        let bytes =
            BYTES.min((sys::address_space_limit() / 32) as usize).min(sys::file_size_limit() as usize);
        let (map, memfd) = Map::create(c"via-arena", (bytes & !(PAGE - 1)).max(PAGE))?;
        Ok(Arena { map, memfd, pieces: Mutex::default() })
    }

    /// For peers.
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// Its address in this process, and its bytes.
    pub fn place(&self) -> [u64; 2] {
        [self.map.base() as u64, self.map.len() as u64]
    }

    /// `VipAllocateMem`: `length` bytes, zeroed, from the beginning of a page on.
    /// `InvalidParameter` for none, `ErrorResource` if there is no such gap.
    pub fn allocate(&self, nic: *mut c_void, length: usize) -> Result<*mut c_void, Return> {
        if length == 0 {
            return Err(Return::InvalidParameter);
        }
        let bytes = length.checked_next_multiple_of(PAGE).ok_or(Return::ErrorResource)?;
        let mut pieces = self.pieces();
        let mut start = 0;
        for (&at, piece) in pieces.iter() {
            if at - start >= bytes {
                break;
            }
            start = at + piece.bytes;
        }
        if bytes > self.map.len() - start {
            return Err(Return::ErrorResource);
        }
        pieces.insert(start, Piece { bytes, nic: nic.addr() });
        Ok(self.map.base().wrapping_add(start).cast())
    }

    /// `VipFreeMem`: gives back what was allocated at `address`. `InvalidParameter` if nothing was,
    /// `ErrorResource` if `is_used` is true for its addresses.
    pub fn free(
        &self,
        nic: *mut c_void,
        address: usize,
        is_used: impl FnOnce(usize, usize) -> bool,
    ) -> Result<(), Return> {
        let mut pieces = self.pieces();
        let start = address.wrapping_sub(self.map.base().addr());
        let piece =
            pieces.get(&start).filter(|piece| piece.nic == nic.addr()).ok_or(Return::InvalidParameter)?;
        if is_used(address, piece.bytes) {
            return Err(Return::ErrorResource);
        }
        self.map.discard(start, piece.bytes);
        pieces.remove(&start);
        Ok(())
    }

    /// Gives back all that was allocated by a NIC handle that is being closed.
    pub fn close(&self, nic: *mut c_void) {
        self.pieces().retain(|&start, piece| {
            let stays = piece.nic != nic.addr();
            if !stays {
                self.map.discard(start, piece.bytes);
            }
            stays
        });
    }

    fn pieces(&self) -> MutexGuard<'_, BTreeMap<usize, Piece>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        sys::close(self.memfd);
        // SAFETY: all users of the memory borrow it from here.
        unsafe { self.map.unmap() };
    }
}

/// A peer's arena, as a connection has it.
#[derive(Debug, Clone)]
pub struct Theirs {
    map: Map,
    /// Its address in the peer's process, as the peer claims.
    base: u64,
    _kept: Arc<Mapped>,
}

/// A mapping that all connections with one process share.
#[derive(Debug)]
struct Mapped(Map);

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: all users of the mapping keep this.
        unsafe { self.0.unmap() };
    }
}

/// Mappings by device and inode: no other file has the memfd's as long as it is mapped.
type Mappings = HashMap<(u64, u64), Weak<Mapped>>;
static MAPPINGS: PerProcess<Mutex<Option<Mappings>>> = PerProcess::new(Mutex::new(None));

/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { MAPPINGS.renew(Mutex::new(None)) };
}

impl Theirs {
    /// Maps a peer's arena, unless that was done before. None if it is malformed, or there is no
    /// room for it.
    pub fn open(memfd: OwnedFd, [base, bytes]: [u64; 2]) -> Option<Theirs> {
        let file = File::from(memfd);
        let metadata = file.metadata().ok()?;
        let mut mappings = MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner);
        let mappings = mappings.get_or_insert_with(HashMap::new);
        mappings.retain(|_, kept| kept.strong_count() > 0);
        let key = (metadata.dev(), metadata.ino());
        let kept = match mappings.get(&key).and_then(Weak::upgrade) {
            Some(kept) => kept,
            None => {
                let map = Map::open(file.as_raw_fd(), usize::try_from(bytes).ok()?).ok()?;
                let kept = Arc::new(Mapped(map));
                mappings.insert(key, Arc::downgrade(&kept));
                kept
            }
        };
        Some(Theirs { map: kept.0, base, _kept: kept })
    }

    /// Where in [`Theirs::map`] the peer's `length` bytes at `address` are, if all of them are
    /// there.
    #[inline]
    pub fn offset(&self, address: u64, length: usize) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        (offset <= self.map.len() && length <= self.map.len() - offset).then_some(offset)
    }

    /// Its memory.
    #[inline]
    pub fn map(&self) -> &Map {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::BorrowedFd;

    const NIC: *mut c_void = 0x1000 as *mut c_void;
    const OTHER: *mut c_void = 0x2000 as *mut c_void;

    fn theirs(arena: &Arena) -> Theirs {
        // SAFETY: the arena keeps it open.
        let memfd = unsafe { BorrowedFd::borrow_raw(arena.memfd()) };
        Theirs::open(memfd.try_clone_to_owned().unwrap(), arena.place()).unwrap()
    }

    #[test]
    fn pieces_do_not_overlap_and_gaps_are_used_again() {
        let arena = Arena::new().unwrap();
        let [a, b, c] = [1, PAGE + 1, PAGE].map(|length| arena.allocate(NIC, length).unwrap().addr());
        assert_eq!([b - a, c - b], [PAGE, 2 * PAGE]);
        assert_eq!(arena.free(NIC, b, |_, _| false), Ok(()));
        assert_eq!(arena.free(NIC, b, |_, _| false), Err(Return::InvalidParameter));
        assert_eq!(arena.allocate(NIC, 3 * PAGE).unwrap().addr(), c + PAGE);
        assert_eq!(arena.allocate(NIC, 2 * PAGE).unwrap().addr(), b);
        assert_eq!(arena.allocate(NIC, 0), Err(Return::InvalidParameter));
        assert_eq!(arena.allocate(NIC, usize::MAX), Err(Return::ErrorResource));
        assert_eq!(arena.allocate(NIC, BYTES), Err(Return::ErrorResource));
    }

    #[test]
    fn what_is_freed_was_allocated_is_unused_and_reads_as_zero() {
        let arena = Arena::new().unwrap();
        let piece = arena.allocate(NIC, 2 * PAGE).unwrap();
        // SAFETY: so many bytes are there.
        unsafe { piece.cast::<u8>().write_bytes(7, 2 * PAGE) };
        let start = piece.addr();
        for wrong in [0, start + 1, start + PAGE, start - PAGE] {
            assert_eq!(arena.free(NIC, wrong, |_, _| false), Err(Return::InvalidParameter));
        }
        assert_eq!(arena.free(OTHER, start, |_, _| false), Err(Return::InvalidParameter));
        let used = |at, bytes| (at, bytes) == (start, 2 * PAGE);
        assert_eq!(arena.free(NIC, start, used), Err(Return::ErrorResource));
        arena.close(OTHER);
        // SAFETY: as above; it is allocated still.
        assert_eq!(unsafe { piece.cast::<u8>().add(PAGE).read() }, 7);
        arena.close(NIC);
        assert_eq!(arena.allocate(OTHER, 1).unwrap().addr(), start);
        // SAFETY: as above.
        assert_eq!(unsafe { piece.cast::<u8>().add(PAGE).read() }, 0);
    }

    #[test]
    fn a_peer_has_one_mapping_and_sees_what_lies_in_it() {
        let arena = Arena::new().unwrap();
        let [base, bytes] = arena.place();
        let piece = arena.allocate(NIC, PAGE).unwrap();
        let (one, two) = (theirs(&arena), theirs(&arena));
        assert_eq!(one.map().base(), two.map().base());
        let mapped = one.map().base();
        assert_eq!(one.offset(piece as u64, PAGE), Some(0));
        assert_eq!(one.offset(base + bytes, 0), Some(bytes as usize));
        for (address, length) in
            [(base - 1, 1), (base + bytes, 1), (base + 1, bytes as usize), (0, 1), (u64::MAX, 2)]
        {
            assert_eq!(one.offset(address, length), None);
        }
        // SAFETY: the mapping has a page.
        unsafe { mapped.write(5) };
        // SAFETY: so has the piece.
        assert_eq!(unsafe { piece.cast::<u8>().read() }, 5);
        drop((one, two));
        assert_eq!(
            MAPPINGS
                .lock()
                .unwrap()
                .as_ref()
                .unwrap()
                .values()
                .filter(|kept| kept.strong_count() > 0)
                .count(),
            0
        );
    }
}
