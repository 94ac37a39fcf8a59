//! Memory: mappings, advice and protection, and copies between processes.

use core::ptr;
use syscalls::Errno;

use super::locking;
use super::process::filtered;

/// Copies from this process's memory into another's, as far as possible. Returns how many bytes.
///
/// # Safety
/// `local` must be valid for reads.
pub unsafe fn process_vm_writev(
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    call!(process_vm_writev, pid, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0)
}

/// Copies from another process's memory into this one's, likewise.
///
/// # Safety
/// `local` must be valid for writes.
pub unsafe fn process_vm_readv(
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    call!(process_vm_readv, pid, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0)
}

/// How much address space the process may have.
pub fn address_space_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_AS, 0, &raw mut limit);
    limit.rlim_cur
}

/// Maps a file shared, readable and writable, left out of core dumps.
pub fn mmap_shared(fd: i32, len: usize) -> Result<*mut u8, Errno> {
    mmap_shared_from(fd, 0, len)
}

/// As [`mmap_shared`], a part of the file, from the beginning of one of its pages on.
pub fn mmap_shared_from(fd: i32, offset: usize, len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let at = locking::map(len, flags, fd, offset)?;
    madvise(at, len, libc::MADV_DONTDUMP);
    Ok(at)
}

/// Private zeroed memory, sparse, left out of core dumps where it is much.
pub fn mmap_private(len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = locking::map(len, flags, -1, 0)?;
    if len >= SPARSE {
        madvise(at, len, libc::MADV_DONTDUMP);
    }
    Ok(at)
}

/// From this size on mappings most likely have holes.
const SPARSE: usize = 64 << 10;

/// Replaces `len` mapped bytes by memory of this process's own (and of its future children). The
/// first `kept` bytes keep their contents if there is memory for the copy, else they become zero,
/// as the rest.
///
/// # Safety
/// All `len` bytes are mapped there, from the beginning of a page on, and no thread depends on what
/// other processes write there.
pub unsafe fn make_own(at: *mut u8, len: usize, kept: usize) {
    let kept = kept.next_multiple_of(4096).min(len);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    let copy = match kept {
        0 => None,
        _ => mmap_common(kept).ok(),
    };
    let from = copy.map_or(0, |copy| {
        // SAFETY: `at` is mapped for `len` bytes, says the caller, and the copy for as many as are
        // kept.
        unsafe { ptr::copy_nonoverlapping(at, copy, kept) };
        kept
    });
    let rest = at.wrapping_add(from);
    if len > from {
        let _ = call!(mmap, rest, len - from, protection, flags | libc::MAP_FIXED, -1isize, 0);
    }
    if let Some(copy) = copy {
        let _ = call!(mremap, copy, kept, kept, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at);
    }
}

/// Unmaps.
pub fn munmap(at: *mut u8, len: usize) {
    locking::unmap(at.addr());
    let _ = call!(munmap, at, len);
}

/// Sets the protection of the pages that hold `len` bytes at an address.
pub fn mprotect(at: *mut u8, len: usize, protection: i32) -> Result<(), Errno> {
    let page = at.addr() & !4095;
    call!(mprotect, page, at.addr() + len - page, protection).map(drop)
}

/// Advice about memory.
pub fn madvise(at: *mut u8, len: usize, advice: i32) {
    let _ = call!(madvise, at, len, advice);
}

/// Whether all of `len` bytes from an address on is mapped. The pages need not be in memory.
pub fn is_mapped(at: *const u8, len: usize) -> bool {
    let mut page = at.addr() & !4095;
    let end = at.addr() + len;
    if filtered() {
        return call!(msync, page, end - page, libc::MS_ASYNC) != Err(Errno::ENOMEM);
    }
    // Only if that is allowed: valgrind takes the other question for a use of the memory.
    let mut resident = [0u8; 256];
    while page < end {
        let part = (end - page).min(resident.len() * 4096);
        if matches!(call!(mincore, page, part, resident.as_mut_ptr()), Err(Errno::ENOMEM)) {
            return false;
        }
        page += resident.len() * 4096;
    }
    true
}

/// Zeroed memory that is shared with children of fork().
pub fn mmap_common(len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    call!(mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1i32, 0).map(|at| at as *mut u8)
}
