//! Rings of io_uring in this process: what is submitted to one that nobody knows is not followed.

use fabric::sync::{AtomicU32, Ordering};

use crate::proc;
use crate::process::{bar, is_guest};
use crate::reason::Reason;

/// Bars promotion if the process has an io_uring already: one that was made by code that makes its
/// system calls itself. Looked for once, before the first connection is posted; a program that has
/// one makes it early. No matter to a guest, whose connections nobody gives to a ring.
pub fn look_for_rings() {
    if is_guest() || LOOKED_FOR_RINGS.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    proc::each_descriptor("self", |fd| {
        let known = RINGS.iter().any(|ring| ring.load(Ordering::Relaxed) == fd as u32 + 1);
        let is_ring =
            fd < RING_NUMBERS && !known && proc::target("self", fd, &mut [0; 32]) == b"anon_inode:[io_uring]";
        if is_ring {
            bar(Reason::IoUring);
        }
        is_ring || fd >= RING_NUMBERS
    });
}

/// A ring of which is known what is submitted to it. False if there are too many.
pub fn look_after_ring(fd: i32) -> bool {
    let free = |ring: &AtomicU32| {
        ring.compare_exchange(0, fd as u32 + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    RINGS.iter().any(free)
}

/// One of those has ended.
pub fn ring_ended(fd: i32) {
    for ring in &RINGS {
        let _ = ring.compare_exchange(fd as u32 + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The numbers of rings that are looked after, +1.
static RINGS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

static LOOKED_FOR_RINGS: AtomicU32 = AtomicU32::new(0);

/// Rings have low numbers.
const RING_NUMBERS: i32 = 1024;
