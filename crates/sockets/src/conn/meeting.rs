//! What a connection keeps of how its ends find each other between network namespaces.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};

/// By what an end finds its other end in another network namespace
/// ([`crate::rendezvous::meeting`]).
#[derive(Debug, Default)]
pub struct Meeting {
    /// Of the end that called connect(): in which milliseconds its SYN was sent, from and to, in
    /// the upper and lower half.
    pub connected: AtomicU64,
    /// The time stamp of the SYN, once the kernel has told it, and [`Meeting::TOLD`].
    pub stamp: AtomicU64,
    /// Where on the board it is posted by that and the client's port, and by that alone: byte
    /// offsets + 1.
    pub posted_at: [AtomicU64; 2],
    /// Its place among the proofs + 1, while one is under way.
    pub proof: AtomicU32,
    /// While it is, all calls are due for housekeeping; when for all of that, in ticks.
    pub due: AtomicU64,
    /// How many have been begun.
    pub tries: AtomicU32,
    /// How often the other end has been looked for.
    pub looks: AtomicU32,
    /// How many offers to the end that was proved have been refused.
    pub refused: AtomicU32,
}

impl Meeting {
    pub const TOLD: u64 = 1 << 32;

    pub(super) fn reset(&self) {
        zero!(self: connected stamp proof due tries looks refused);
        self.posted_at.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }
}
