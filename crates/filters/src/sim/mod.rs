//! Filter groups in virtual time: what a group of the same layout, on the same nodes, with the same policies and credits would do over a given
//! transport. It is for what the machine at hand cannot run: ten nodes, slow nodes, networks of 2003.
//!
//! It decides nothing itself: which copy gets a buffer, and when a producer must wait, is [`crate::flow::Flow`]'s answer here as in the runtime.
//! What is modelled is time:
//!
//! * a copy works on one buffer at a time, for a fixed time and a time for each byte ([`Cost`]), both times how slow its node is;
//! * it passes on a buffer of the same size on each stream that it writes, and takes no other buffer before it has got rid of these;
//! * buffers are stored and forwarded: nobody starts on a buffer that has not wholly arrived;
//! * a node has one interface, which sends and receives at once, and a message keeps it as its transport says ([`Profile`]). Copies on one node
//!   hand buffers over in no time;
//! * a copy acknowledges a buffer when it starts on it, and a producer that waits goes on as soon as it knows (where memory is shared the runtime
//!   wakes it only when a quarter of its credits is back, or nothing is left for the consumer);
//! * the end of a unit of work is told by each copy to each copy of the next filter, after all buffers. A copy is done with a unit when all have
//!   told it, and works on no later unit before;
//! * acknowledgements and ends take the time of an empty message, and no room on the interfaces: they are a few bytes that ride along with others;
//! * copies have a processor each: nothing else slows them down.
//!
//! All times are whole nanoseconds. What happens at the same time happens in the order in which it was decided, and nothing depends on hashes,
//! addresses or the clock: the same setup gives the same trace, always.
//!
//! Read in this order: `profile.rs` (transports), this file (what goes in and comes out), `engine.rs` (the events), `paper.rs` (the experiments).

mod engine;
pub mod paper;
mod profile;

use std::collections::BTreeMap;

use crate::layout::{CopyId, Plan};

pub use profile::{Point, Profile};

/// What goes in.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Filters, streams, and which copy is on which host. A host is a node; which processes it has does not matter here.
    pub plan: Plan,
    /// What joins the nodes.
    pub transport: Profile,
    /// For each filter, in the layout's order.
    pub costs: Vec<Cost>,
    /// Hosts that are not as fast as the others: how many thousandths of the time they take. 2000 is half as fast.
    pub slowness: BTreeMap<String, u64>,
    /// The units of work, one after the other.
    pub units: Vec<Unit>,
    /// When a unit begins.
    pub pace: Pace,
}

/// How long a filter works on a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Nanoseconds for each byte.
    pub per_byte: u64,
    /// Nanoseconds.
    pub fixed: u64,
}

/// A unit of work: the bytes of the blocks that filters without inputs make of it. The copies of such a filter have them in turn, as if the
/// data were spread over their disks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    /// Bytes of each block.
    pub blocks: Vec<u64>,
    /// The copy that has the first of them.
    pub first: usize,
}

impl Unit {
    /// So many bytes in blocks of this size; the last one holds what is left.
    pub fn cut(bytes: u64, block: u64) -> Unit {
        let mut blocks = vec![block; (bytes / block) as usize];
        blocks.extend((!bytes.is_multiple_of(block)).then_some(bytes % block));
        Unit { blocks, first: 0 }
    }
}

/// When a unit of work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each copy goes on with the next one as soon as it is done with one: what is asked is how many there are in a second.
    BackToBack,
    /// When the one before has ended everywhere: what is asked is how long each takes.
    OneByOne,
}

/// What comes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// For each unit of work.
    pub units: Vec<UnitTimes>,
    /// For each filter, for each of its copies.
    pub copies: Vec<Vec<CopyTimes>>,
    /// When the last thing happened.
    pub ended: u64,
}

/// When a unit of work was where, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitTimes {
    /// The first copy of a filter without inputs began it.
    pub began: u64,
    /// A filter without outputs was done with its last buffer: what was asked for is on the screen.
    pub answered: u64,
    /// All copies of all filters without outputs know that it has ended.
    pub ended: u64,
}

/// What a copy did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyTimes {
    /// When it started on each buffer, and when it was done with it.
    pub spans: Vec<(u64, u64)>,
    /// The most buffers that it had unacknowledged at one copy of a consumer at once.
    pub most_unacknowledged: u64,
}

impl CopyTimes {
    /// How long it waited for the last of its buffers, on average: from when it was done with one until it began the next, over the second half of
    /// them, when the beginning is forgotten.
    pub fn idle(&self) -> u64 {
        let half = &self.spans[self.spans.len() / 2..];
        let waits: u64 = half.windows(2).map(|pair| pair[1].0 - pair[0].1).sum();
        waits.checked_div(half.len().saturating_sub(1) as u64).unwrap_or(0)
    }
}

/// Something that happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When, in nanoseconds.
    pub at: u64,
    /// At which copy.
    pub copy: CopyId,
    /// The unit of work.
    pub unit: usize,
    /// What.
    pub what: What,
}

/// What can happen. A buffer keeps the number of the block that it was made of.
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

/// Runs it to the end.
pub fn run(setup: &Setup) -> Outcome {
    engine::run(setup, &mut |_| ())
}

/// The same, and tells of each step.
pub fn trace(setup: &Setup) -> (Outcome, Vec<Step>) {
    let mut steps = Vec::new();
    let outcome = engine::run(setup, &mut |step| steps.push(step));
    (outcome, steps)
}
