//! What both ways of a byte stream ([`crate::ring`] and [`crate::sovia`]) are told of their connection with each step.

use fabric::sync::{AtomicU64, Ordering};

/// What a direction needs of its connection.
pub struct Ends<'a, M> {
    /// Own segment.
    pub mine: M,
    /// The peer's.
    pub theirs: M,
    /// What both directions share.
    pub exchange: &'a Exchange,
    /// Where the write position is, in the reader's segment.
    pub front: usize,
    /// Where the read position is, in the writer's segment.
    pub back: usize,
}

/// What the two directions of a connection tell each other, in each end's own memory. Counts of messages, which only grow.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Exchange {
    /// Taken out of those that came.
    pub(crate) taken: AtomicU64,
    /// Acknowledged of them.
    pub(crate) told: AtomicU64,
    /// Acknowledged by the peer, with its data.
    pub(crate) acknowledged: AtomicU64,
}

impl Exchange {
    /// As new, for another connection.
    pub fn reset(&self) {
        for count in [&self.taken, &self.told, &self.acknowledged] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
