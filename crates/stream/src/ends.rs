//! The parts of a connection that both kinds of byte stream ([`crate::ring`] and [`crate::sovia`])
//! need at each step.

use fabric::sync::{AtomicU64, Ordering};

/// The parts of a connection that a direction uses.
pub struct Ends<'a, M> {
    /// Own segment.
    pub mine: M,
    /// The peer's.
    pub theirs: M,
    /// Shared by both directions.
    pub exchange: &'a Exchange,
    /// Offset of the write position, in the reader's segment.
    pub front: usize,
    /// Offset of the read position, in the writer's segment.
    pub back: usize,
}

/// Counts that the two directions of a connection pass to each other, in each end's own memory:
/// counts of messages, which only grow.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Exchange {
    /// Received messages that were taken out.
    pub(crate) taken: AtomicU64,
    /// Of those, messages that we have acknowledged.
    pub(crate) told: AtomicU64,
    /// Sent messages that the peer has acknowledged, with its data.
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
