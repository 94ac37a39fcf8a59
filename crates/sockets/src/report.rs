//! Counters that `shunt run --stats` and `--require` read: a page that the command made and named
//! in SHUNT_REPORT. Without it the counts go to a private page, so that counting costs no question.

use core::ffi::CStr;
use fabric::sync::{AtomicU64, Ordering};
use fabric::sys;

use crate::reason::Reason;

/// Where each count lies, in words.
pub mod at {
    pub const MAGIC: usize = 0;
    pub const TRACKED: usize = 1;
    pub const PROMOTED: usize = 2;
    pub const RING_OUT: usize = 3;
    pub const RING_IN: usize = 4;
    pub const WAKES: usize = 5;
    pub const DEMOTED: usize = 6;
    pub const PROCESSES: usize = 7;
    pub const REASONS: usize = 16;
}

/// First word of a page made for the report.
pub const MAGIC: u64 = 0x5348_5254_0000_0001;
const BYTES: usize = 4096;

static SPARE: [AtomicU64; BYTES / 8] = [const { AtomicU64::new(0) }; BYTES / 8];
static PAGE: AtomicU64 = AtomicU64::new(0);

/// Where a simulated process keeps its counts: it has no report.
#[cfg(sim)]
pub fn counts() -> *const u64 {
    SPARE.as_ptr().cast()
}

/// Opens the page that the command made.
pub fn open(path: &CStr) {
    let Ok(fd) = sys::open(path, libc::O_RDWR, 0) else { return };
    if sys::file_len(fd) == Ok(BYTES)
        && let Ok(at) = sys::mmap_shared(fd, BYTES)
    {
        // SAFETY: the mapping is BYTES long and page-aligned.
        if unsafe { &*(at as *const AtomicU64) }.load(Ordering::Relaxed) == MAGIC {
            PAGE.store(at as u64, Ordering::Release);
            add(at::PROCESSES, 1);
        } else {
            sys::munmap(at, BYTES);
        }
    }
    sys::close(fd);
}

/// Adds to a count.
pub fn add(index: usize, count: u64) {
    let page = PAGE.load(Ordering::Acquire);
    let cell = if page == 0 {
        &SPARE[index]
    } else {
        // SAFETY: PAGE is a mapping of BYTES that is never unmapped, and index is one of `at`.
        unsafe { &*(page as *const AtomicU64).add(index) }
    };
    cell.fetch_add(count, Ordering::Relaxed);
}

/// Counts a reason for tcp.
pub fn count_reason(reason: Reason) {
    add(at::REASONS + reason as usize, 1);
}
