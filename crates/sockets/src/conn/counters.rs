//! What is counted of a connection.

use fabric::sync::{AtomicU64, Ordering};

/// Counters that `shunt stat` shows.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Counters {
    pub ring_out: AtomicU64,
    pub ring_in: AtomicU64,
    /// How much of these is in the sums of `shunt run --stats`.
    pub told_out: AtomicU64,
    pub told_in: AtomicU64,
    /// Calls that have written some.
    pub writes: AtomicU64,
    pub kicks: AtomicU64,
    pub bells: AtomicU64,
    pub hints: AtomicU64,
    pub sleeps: AtomicU64,
    pub spins_won: AtomicU64,
    pub spins_lost: AtomicU64,
}

impl Counters {
    /// Some has been written, by who has the lock. The ring's writer is there now.
    #[inline(always)]
    pub(crate) fn wrote(&self, position: u64) {
        self.ring_out.store(position, Ordering::Relaxed);
        self.writes.store(self.writes.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The next bytes go by other rings, and are counted anew.
    pub(crate) fn forget_moved(&self) {
        for count in [&self.ring_out, &self.ring_in, &self.told_out, &self.told_in] {
            count.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn reset(&self) {
        // SAFETY: it has such words alone.
        let all = unsafe { &*core::ptr::from_ref(self).cast::<[AtomicU64; size_of::<Counters>() / 8]>() };
        all.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}
