//! The input of a simulation: the group, its nodes, its costs and its work.

use std::collections::BTreeMap;

use super::profile::Profile;
use crate::layout::Plan;

/// The input.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Filters, streams, and the host of each copy. A host is a node; its processes do not matter
    /// here.
    pub plan: Plan,
    /// The transport between nodes.
    pub transport: Profile,
    /// For each filter, in the layout's order.
    pub costs: Vec<Cost>,
    /// Hosts that are not as fast as the others: how many thousandths of the time they take. 2000
    /// is half as fast.
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

/// A unit of work: the bytes of the blocks that filters without inputs make of it. The copies of
/// such a filter take them in turn, as if the data were spread over their disks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unit {
    /// Bytes of each block.
    pub blocks: Vec<u64>,
    /// The copy that has the first of them.
    pub first: usize,
}

impl Unit {
    /// So many bytes in blocks of this size; the last one has the rest.
    pub fn cut(bytes: u64, block: u64) -> Unit {
        let mut blocks = vec![block; (bytes / block) as usize];
        blocks.extend((!bytes.is_multiple_of(block)).then_some(bytes % block));
        Unit { blocks, first: 0 }
    }
}

/// When a unit of work begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each copy goes on with the next one as soon as it is done with one: this asks for the rate.
    BackToBack,
    /// When the one before has ended everywhere: this asks for the time of each.
    OneByOne,
}
