//! Memory that the processes of a group share: segments with words that several write, and *pools*
//! of slots for the buffers of one producer copy, which it alone writes and its consumers map for
//! reading.
//!
//! Both are sealed memfds, sparse: a pool has addresses for far more slots than are ever used, and
//! memory only for those that were.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;

use fabric::shm::Map;
use fabric::sys::{self, Errno};

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.into_raw())
}

/// Words that several processes write.
#[derive(Debug)]
pub struct Segment {
    map: Map,
    /// The file to pass on, if this process made it.
    file: Option<OwnedFd>,
}

impl Segment {
    /// A new one of `len` bytes, all zero.
    pub fn create(len: usize) -> io::Result<Segment> {
        let (map, fd) = Map::create(c"shunt-filters", len).map_err(error)?;
        // SAFETY: the memfd was made for us.
        Ok(Segment { map, file: Some(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// A peer's, which must have `len` bytes.
    pub fn open(file: &OwnedFd, len: usize) -> io::Result<Segment> {
        Ok(Segment { map: Map::open(file.as_raw_fd(), len).map_err(error)?, file: None })
    }

    /// The memory.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The file, where this process made it.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let map = std::mem::replace(&mut self.map, Map::NONE);
        // SAFETY: all users of the map keep the segment.
        unsafe { map.unmap() };
    }
}

/// Bytes for the note beside a buffer, at the end of its slot.
pub const NOTE_MOST: usize = 192;
/// Addresses that a pool takes, unless [`Shape::slots_least`] needs more.
const POOL_BYTES: usize = 1 << 30;
const SLOTS_MOST: usize = 1 << 16;

/// The measures of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// The most bytes of a buffer.
    pub size: usize,
    /// Slots that there are addresses for.
    pub slots: usize,
}

impl Shape {
    /// For buffers of `size` bytes, if `least` can be under way at once.
    pub fn new(size: usize, least: usize) -> Shape {
        let mut shape = Shape { size, slots: 0 };
        shape.slots = (POOL_BYTES / shape.stride()).min(SLOTS_MOST).max(least);
        shape
    }

    /// From one slot to the next: the buffer, its note, whole lines.
    pub fn stride(&self) -> usize {
        (self.size + NOTE_MOST).next_multiple_of(64)
    }

    /// All slots, in bytes.
    pub fn bytes(&self) -> usize {
        self.stride() * self.slots
    }
}

/// Slots for buffers: the producer's mapping for writing, or a consumer's for reading.
#[derive(Debug)]
pub struct Pool {
    base: NonNull<u8>,
    shape: Shape,
    file: Option<OwnedFd>,
}

// SAFETY: a Pool is an address; entries and slot words decide who may use which slot when.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// A new pool, for writing.
    pub fn create(shape: Shape) -> io::Result<Pool> {
        let fd = sys::memfd_create(c"shunt-filters-pool").map_err(error)?;
        // SAFETY: the memfd was made for us.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        sys::ftruncate(fd, shape.bytes()).map_err(error)?;
        sys::fcntl(fd, libc::F_ADD_SEALS, SEALS as usize).map_err(error)?;
        let base = map(&file, shape.bytes(), libc::PROT_READ | libc::PROT_WRITE)?;
        Ok(Pool { base, shape, file: Some(file) })
    }

    /// A peer's pool, for reading. The seals are checked, as the peer could truncate it otherwise.
    pub fn open(file: &OwnedFd, shape: Shape) -> io::Result<Pool> {
        let fd = file.as_raw_fd();
        let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0).map_err(error)?;
        if seals & SEALS != SEALS || sys::file_len(fd).map_err(error)? != shape.bytes() || !sys::is_tmpfs(fd)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a pool of buffers that is not as was said",
            ));
        }
        Ok(Pool { base: map(file, shape.bytes(), libc::PROT_READ)?, shape, file: None })
    }

    /// The address of the slot's buffer; panics if there is no such slot.
    pub fn at(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < self.shape.slots);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(slot * self.shape.stride()) }
    }

    /// The address of its note.
    pub fn note_at(&self, slot: usize) -> NonNull<u8> {
        // SAFETY: inside the slot, which ends with room for the note.
        unsafe { self.at(slot).add(self.shape.size) }
    }

    /// The measures.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The file, where this process made it.
    pub fn file(&self) -> Option<&OwnedFd> {
        self.file.as_ref()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        sys::munmap(self.base.as_ptr(), self.shape.bytes());
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

fn map(file: &OwnedFd, len: usize, protection: i32) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping of a file that is ours to map, wherever the kernel wants it.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            protection,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(at.cast()).expect("the kernel maps nothing at zero that was not asked for"))
}
