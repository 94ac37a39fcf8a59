//! The provider for one host: segments are sealed memfds that both processes map. A put is a copy,
//! a word is an atomic.
//!
//! Rule F2: a memfd is sealed against shrinking and growing before it is passed on. One that was
//! received is refused unless it has those seals, the expected size and ordinary pages. Otherwise
//! its owner could truncate it, or leave us without a huge page, and so kill us with SIGBUS.

use crate::mem::Mapped;
use crate::sync::AtomicU64;
use crate::sys::{self, Errno};

/// A mapped segment: both a [`Local`](crate::Local) and a [`Remote`](crate::Remote) view, as the
/// memory is the same. It is never unmapped while copies of it are in use: the owner of a link
/// unmaps it when no connection is on the link.
#[derive(Debug, Clone, Copy)]
pub struct Map {
    base: *mut u8,
    len: usize,
}

// SAFETY: a Map is an address; all accesses through it are atomic or of bytes that the ring
// protocol hands over.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// A map of nothing.
    pub const NONE: Map = Map { base: core::ptr::null_mut(), len: 0 };

    /// Makes a segment of `len` bytes, zeroed and sparse; returns it with its memfd.
    pub fn create(name: &core::ffi::CStr, len: usize) -> Result<(Map, i32), Errno> {
        Map::create_part(name, len, len)
    }

    /// Makes a segment of `len` bytes and maps the first `mapped` of them.
    pub fn create_part(name: &core::ffi::CStr, len: usize, mapped: usize) -> Result<(Map, i32), Errno> {
        let fd = sys::memfd_create(name)?;
        let made = sys::ftruncate(fd, len)
            .and_then(|()| sys::fcntl(fd, libc::F_ADD_SEALS, SEALS as usize))
            .and_then(|_| sys::mmap_shared(fd, mapped));
        match made {
            Ok(base) => Ok((Map { base, len: mapped }, fd)),
            Err(errno) => {
                sys::close(fd);
                Err(errno)
            }
        }
    }

    /// Maps a peer's segment from its memfd, after checking seals and size.
    pub fn open(fd: i32, len: usize) -> Result<Map, Errno> {
        Map::open_part(fd, len, len)
    }

    /// Maps the first `mapped` bytes of a peer's segment that has `len`.
    pub fn open_part(fd: i32, len: usize, mapped: usize) -> Result<Map, Errno> {
        let seals = sys::fcntl(fd, libc::F_GET_SEALS, 0)?;
        if seals & SEALS != SEALS || sys::file_len(fd)? != len || !sys::is_tmpfs(fd) {
            return Err(Errno::EINVAL);
        }
        Ok(Map { base: sys::mmap_shared(fd, mapped)?, len: mapped })
    }

    /// Whether a descriptor is of a memfd that is sealed as segments are. No file of a file system
    /// is.
    pub fn is_segment(fd: i32) -> bool {
        sys::fcntl(fd, libc::F_GET_SEALS, 0).is_ok_and(|seals| seals & SEALS == SEALS)
    }

    /// A view of memory that was mapped elsewhere: by a provider between hosts.
    ///
    /// # Safety
    /// It stays mapped, for reading and writing, as long as copies of the map are in use.
    pub unsafe fn of(base: *mut u8, len: usize) -> Map {
        Map { base, len }
    }

    /// The address of the mapping.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Unmaps.
    ///
    /// # Safety
    /// No copy of the map may be used afterwards.
    pub unsafe fn unmap(self) {
        if !self.base.is_null() {
            sys::munmap(self.base, self.len);
        }
    }

    /// Replaces the mapped memory by memory that nobody else has. The first `kept` bytes and the
    /// `parts` keep their contents, all else becomes zero. Threads that use the memory go on as
    /// before.
    ///
    /// # Safety
    /// No thread depends any more on what other processes write there.
    pub unsafe fn unshare(&self, kept: usize, parts: impl Iterator<Item = core::ops::Range<usize>> + Clone) {
        if self.base.is_null() {
            return;
        }
        let parts = parts.filter(|part| part.end <= self.len);
        let bytes = parts.clone().map(|part| part.len()).sum::<usize>();
        let copy = if bytes == 0 { Err(Errno::ENOENT) } else { sys::mmap_private(bytes) };
        let each = |each: &mut dyn FnMut(*mut u8, *mut u8, usize)| {
            let Ok(mut at) = copy else { return };
            for part in parts.clone() {
                each(self.base.wrapping_add(part.start), at, part.len());
                at = at.wrapping_add(part.len());
            }
        };
        // SAFETY: the parts lie in the mapping, whose length that is, and the copy has room for all
        // of them.
        unsafe {
            each(&mut |here, copy, len| core::ptr::copy_nonoverlapping(here, copy, len));
            sys::make_own(self.base, self.len, kept.min(self.len));
            each(&mut |here, copy, len| core::ptr::copy_nonoverlapping(copy, here, len));
        }
        if let Ok(copy) = copy {
            sys::munmap(copy, bytes);
        }
    }

    /// Gives pages of the segment back to the kernel; they read as zero afterwards.
    pub fn discard(&self, offset: usize, len: usize) {
        if offset + len <= self.len {
            sys::madvise(self.base.wrapping_add(offset), len, libc::MADV_REMOVE);
        }
    }
}

/// A mapping that nobody else has seen: unmapped when it is dropped.
#[derive(Debug)]
pub struct Unseen(Map);

impl Unseen {
    /// One that was just made; nobody uses a copy of it.
    pub fn new(map: Map) -> Unseen {
        Unseen(map)
    }

    /// The mapping, which lasts no longer than this.
    pub fn map(&self) -> &Map {
        &self.0
    }

    /// Leaves it mapped.
    pub fn keep(self) -> Map {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        // SAFETY: nobody else has seen the mapping.
        unsafe { self.0.unmap() };
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Mapped for Map {
    #[inline(always)]
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.len));
        // SAFETY: aligned and inside the mapping, which outlives self's users; shared memory is
        // only accessed atomically here.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }
    #[inline(always)]
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the source is inside the mapping; the caller vouches for `to`. A hostile peer may
        // change the bytes while we copy: they are plain bytes, and any value is valid.
        unsafe { core::ptr::copy_nonoverlapping(self.base.add(offset), to, len) };
    }
    #[inline(always)]
    unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: the target is inside the mapping; the caller vouches for `from`.
        unsafe { core::ptr::copy_nonoverlapping(from, self.base.add(offset), len) };
    }
}
