//! The outcome of a simulation: the times of each unit of work and each copy.

use crate::layout::CopyId;

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// For each unit of work.
    pub units: Vec<UnitTimes>,
    /// For each filter, for each of its copies.
    pub copies: Vec<Vec<CopyTimes>>,
    /// When the last thing happened.
    pub ended: u64,
}

/// The times of a unit of work, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitTimes {
    /// The first copy of a filter without inputs began it.
    pub began: u64,
    /// A filter without outputs was done with its last buffer: the answer is on the screen.
    pub answered: u64,
    /// All copies of all filters without outputs know that it has ended.
    pub ended: u64,
}

/// The times of a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyTimes {
    /// When it started on each buffer, and when it was done with it.
    pub spans: Vec<(u64, u64)>,
    /// The most buffers that it had unacknowledged at one copy of a consumer at once.
    pub most_unacknowledged: u64,
}

impl CopyTimes {
    /// How long it waited for one of its buffers, on average: from when it was done with one until
    /// it began the next, over the second half of them, when the beginning no longer matters.
    pub fn idle(&self) -> u64 {
        let half = &self.spans[self.spans.len() / 2..];
        let waits: u64 = half.windows(2).map(|pair| pair[1].0 - pair[0].1).sum();
        waits.checked_div(half.len().saturating_sub(1) as u64).unwrap_or(0)
    }
}

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When, in nanoseconds.
    pub at: u64,
    /// At which copy.
    pub copy: CopyId,
    /// The unit of work.
    pub unit: usize,
    /// The event.
    pub what: What,
}

/// The events. A buffer keeps the number of the block that it was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It started on a buffer.
    Started(u64),
    /// It was done with it.
    Done(u64),
    /// It sent a buffer to this copy.
    Sent(u64, CopyId),
    /// A buffer arrived.
    Arrived(u64),
    /// It learned that this copy has started on so many of its buffers.
    Acknowledged(CopyId, u64),
    /// It was done with the unit.
    Ended,
}
