//! Memory: mmap(2) and its like. All processes share one address space here, so memory of one is
//! where the others can see it; but each mapping has its place, in a part of the address space that
//! each kernel reserves for itself, the same one in each run. A memfd is a real one, and a mapping
//! of it is real memory: whoever unmaps it and goes on using it gets a real fault. Nothing else of
//! the real kernel shows.
//!
//! After a fork both processes have what was mapped, at the same place. It is unmapped when both
//! have unmapped it; what one of them puts there in its stead the other one would see, so that is
//! counted as unknown.

use std::collections::{BTreeMap, BTreeSet};

use syscalls::Errno;

pub(super) const PAGE: usize = 4096;
/// Where kernels reserve, and how much.
const FIRST: usize = 0x1000_0000_0000;
const SIZE: usize = 1 << 40;
pub(super) const NOWHERE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// The reserved part, and what is mapped there.
pub(super) struct Memory {
    pub(super) base: usize,
    pub(super) next: usize,
    pub(super) maps: BTreeMap<usize, Mapping>,
}

#[derive(Clone)]
pub(super) struct Mapping {
    pub(super) len: usize,
    /// The file, if there is one, and where in it; whether it is shared.
    pub(super) inode: Option<u64>,
    pub(super) offset: usize,
    pub(super) shared: bool,
    pub(super) holders: BTreeSet<u32>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        let places = (0..64).map(|number| FIRST + number * SIZE);
        let reserve = |at: usize, flags| {
            // SAFETY: maps memory where there was none.
            unsafe { libc::mmap(at as *mut _, SIZE, libc::PROT_NONE, NOWHERE | flags, -1, 0) as usize }
        };
        let base = places.into_iter().find(|&at| reserve(at, libc::MAP_FIXED_NOREPLACE) == at);
        let base = base.unwrap_or_else(|| reserve(0, 0));
        assert!(base as isize != -1, "address space to reserve");
        Memory { base, next: base, maps: BTreeMap::new() }
    }

    /// A place for so many bytes, with a page behind it that nobody may touch.
    pub(super) fn place(&mut self, len: usize) -> Result<usize, Errno> {
        let at = self.next;
        let end = at.checked_add(len + PAGE).filter(|&end| end <= self.base + SIZE).ok_or(Errno::ENOMEM)?;
        self.next = end;
        Ok(at)
    }

    pub(super) fn is_within(&self, at: usize) -> bool {
        (self.base..self.base + SIZE).contains(&at)
    }

    /// The mapping that an address lies in, with where it begins.
    pub(super) fn at(&self, at: usize) -> Option<(usize, &Mapping)> {
        let (&start, found) = self.maps.range(..=at).next_back()?;
        (at < start + found.len).then_some((start, found))
    }

    /// Whether a process may use these bytes. Its own ones, outside, it may.
    pub(super) fn is_mapped(&self, pid: u32, at: usize, len: usize) -> bool {
        let (mut at, end) = (at, at + len);
        while at < end {
            if !self.is_within(at) {
                return at >= PAGE;
            }
            match self.at(at) {
                Some((start, found)) if found.holders.contains(&pid) => at = start + found.len,
                _ => return false,
            }
        }
        true
    }

    /// Cuts mappings in two at an address.
    pub(super) fn split(&mut self, at: usize) -> Option<u64> {
        let (start, found) = self.at(at).filter(|&(start, _)| start != at)?;
        let (mut first, mut second) = (found.clone(), found.clone());
        first.len = at - start;
        second.len -= first.len;
        second.offset += first.len;
        let inode = first.inode;
        self.maps.insert(start, first);
        self.maps.insert(at, second);
        inode
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; the kernel whose programs used it is gone.
        unsafe { libc::munmap(self.base as *mut _, SIZE) };
    }
}
