//! The experiments of "Impact of High Performance Sockets on Data Intensive Applications", section
//! 5.2, in virtual time, and beside each its expected value: a closed form, with which the tests
//! and `shunt bench filters --check` compare the simulation.
//!
//! The application is a viewer of images of 16 MB: three copies of a repository, of two filters
//! after it, and one visualization, on ten nodes. A *complete update* fetches all blocks of the
//! image, a *partial* one a single block. T(n) is the time of a block of n bytes from node to node,
//! G(n) the gap it keeps between two (see [`Profile`]; with the paper's constants both are the
//! same), C(n) its computation (nothing, or 18 ns for each byte in each filter but the repository),
//! N how many blocks there are.
//!
//! Assumptions that the paper does not state: the image is 16,000,000 bytes (then 18 ns/B allow
//! 3.47 updates in a second, and TCP's 3.25 need 16 KB); blocks are powers of two; a partial update
//! finds the pipeline idle ("the latency for a partial update using TCP would be the latency for
//! this message chunk").

use std::collections::BTreeMap;

use super::{Cost, Pace, Profile, Setup, Unit, run};
use crate::flow::Policy;
use crate::layout::{Layout, Place, Placement, Plan, StreamOptions};

/// Bytes of an image.
pub const IMAGE: u64 = 16_000_000;
/// Nanoseconds of computation for each byte, where there is any.
pub const COMPUTATION: u64 = 18;
/// Copies of each filter but the visualization.
pub const COPIES: usize = 3;
/// From the repository to the visualization.
pub const HOPS: u64 = 3;
/// Blocks that are tried: 256 bytes to 1 MB.
pub const BLOCKS: std::ops::RangeInclusive<u32> = 8..=20;
/// Blocks of a zoom query.
pub const ZOOM: u64 = 4;
/// The blocks that made a perfect pipeline in 2003, with TCP and with SocketVIA.
pub const PERFECT: [u64; 2] = [16384, 2048];

/// TCP on cLAN in the paper: 45 us and 510 Mb/s.
pub fn clan_tcp() -> Profile {
    Profile::linear("TCP, cLAN 2003", 45_000, 45_000, 510_000_000)
}

/// SocketVIA: 9.1 us and 763 Mb/s.
pub fn clan_socketvia() -> Profile {
    Profile::linear("SocketVIA, cLAN 2003", 9_100, 9_100, 763_000_000)
}

/// The times of both kinds of query for a size of block, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockTimes {
    /// Bytes of a block.
    pub block: u64,
    /// From one complete update to the next, if they follow each other.
    pub update: u64,
    /// From asking for a partial update until it is on the screen.
    pub partial: u64,
}

impl BlockTimes {
    /// Complete updates in a second.
    pub fn rate(&self) -> f64 {
        1e9 / self.update as f64
    }
}

/// Figures 24 to 27: both kinds of query for one size of block, simulated.
pub fn block_times(transport: &Profile, per_byte: u64, block: u64) -> BlockTimes {
    let plan = ten_nodes(Policy::RoundRobin);
    // Blocks of the next image overtake the last ones of this one: if there are few blocks, the
    // mean is over more images.
    let images = 2 + (block / 65536) as usize;
    let images = vec![Unit::cut(IMAGE, block); images];
    let whole = run(&pipeline(&plan, transport, per_byte, images, Pace::BackToBack)).units;
    let after_first = whole[whole.len() - 1].answered - whole[0].answered;
    // One from each copy of the repository.
    let one = |first| Unit { blocks: vec![block], first };
    let units: Vec<Unit> = (0..COPIES).map(one).collect();
    let parts = run(&pipeline(&plan, transport, per_byte, units, Pace::OneByOne));
    let sum: u64 = parts.units.iter().map(|unit| unit.answered - unit.began).sum();
    BlockTimes { block, update: after_first / (whole.len() as u64 - 1), partial: sum / COPIES as u64 }
}

/// The same for all sizes, from the least to the greatest.
pub fn curve(transport: &Profile, per_byte: u64) -> Vec<BlockTimes> {
    BLOCKS.map(|power| block_times(transport, per_byte, 1 << power)).collect()
}

/// The expected value of [`block_times`]. A partial update crosses three hops, one after the other:
/// 3 (T + C). Complete updates are bounded by the visualization, to which all comes: its interface
/// takes N G, its processor N C; the slower of both decides.
pub fn expected_block_times(transport: &Profile, per_byte: u64, block: u64) -> BlockTimes {
    let blocks = Unit::cut(IMAGE, block).blocks;
    let gaps: u64 = blocks.iter().map(|&bytes| transport.gap(bytes)).sum();
    BlockTimes {
        block,
        update: gaps.max(per_byte * IMAGE),
        partial: HOPS * (transport.alone(block) + per_byte * block),
    }
}

/// Figures 24 and 25: the block that guarantees so many complete updates, with the soonest partial
/// ones; `None` if no block does.
pub fn for_rate(curve: &[BlockTimes], rate: f64) -> Option<&BlockTimes> {
    curve.iter().filter(|times| times.rate() >= rate).min_by_key(|times| times.partial)
}

/// Figures 26 and 27: the block with which partial updates take at most so long, with the most
/// complete ones.
pub fn for_latency(curve: &[BlockTimes], limit: u64) -> Option<&BlockTimes> {
    curve.iter().filter(|times| times.partial <= limit).min_by_key(|times| times.update)
}

/// How far the blocks of figures 28 and 29 go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// From the repository straight to the visualization. The paper's crossings follow from this
    /// one.
    OneHop,
    /// Through the whole pipeline.
    TenNodes,
}

/// Figures 28 and 29: the average response time to ten queries, `complete` of which are complete
/// updates and the others zoom queries, of an image that is cut into so many parts. Each query
/// waits for the one before.
pub fn response(transport: &Profile, per_byte: u64, extent: Extent, parts: u64, complete: usize) -> u64 {
    const QUERIES: usize = 10;
    let (all, zoom) = queries(parts);
    // Spread evenly: a query is a complete one where the number of those that are due grows.
    let is_complete = |query: usize| (query + 1) * complete / QUERIES > query * complete / QUERIES;
    let units = (0..QUERIES).map(|query| if is_complete(query) { all.clone() } else { zoom.clone() });
    let plan = match extent {
        Extent::OneHop => one_hop(1, Policy::RoundRobin),
        Extent::TenNodes => ten_nodes(Policy::RoundRobin),
    };
    let outcome = run(&pipeline(&plan, transport, per_byte, units.collect(), Pace::OneByOne));
    let sum: u64 = outcome.units.iter().map(|unit| unit.answered - unit.began).sum();
    sum / QUERIES as u64
}

/// The expected value of [`response`]. The first block takes H (T + C) over H hops, and each
/// further one, of k, the slower of G and C at the visualization: H (T + C) + (k - 1) max(G, C).
pub fn expected_response(
    transport: &Profile,
    per_byte: u64,
    extent: Extent,
    parts: u64,
    complete: usize,
) -> u64 {
    let hops = if extent == Extent::OneHop { 1 } else { HOPS };
    let (all, zoom) = queries(parts);
    let [all, zoom] = [all, zoom].map(|unit| {
        let bytes = unit.blocks[0];
        let computing = per_byte * bytes;
        let more = unit.blocks.len() as u64 - 1;
        hops * (transport.alone(bytes) + computing) + more * transport.gap(bytes).max(computing)
    });
    (all * complete as u64 + zoom * (10 - complete as u64)) / 10
}

/// Figures 28 and 29: the fraction of complete updates at which the average response takes `limit`.
/// It follows from the averages without complete updates and with nothing else, as it grows in a
/// straight line in between.
pub fn crossing(none: u64, all: u64, limit: u64) -> Option<f64> {
    let (none, all, limit) = (none as f64, all as f64, limit as f64);
    (none <= limit && limit <= all && none < all).then(|| (limit - none) / (all - none))
}

/// Figure 31: three copies of the repository share their blocks among three nodes, one of which
/// takes `slowness` thousandths of the time of the others. How long a fast node waits for a block,
/// on average over both, in nanoseconds, when the repository has run out of credits at the slow
/// one.
pub fn idle(transport: &Profile, policy: &Policy, block: u64, slowness: u64) -> u64 {
    // The second half of these counts, when the credits at the slow node are long used up, unless
    // it is faster than 1.3.
    let unit = Unit { blocks: vec![block; COPIES * 1000], first: 0 };
    let copies = run(&shared(transport, policy, slowness, unit)).copies;
    (copies[1][1].idle() + copies[1][2].idle()) / 2
}

/// How long a whole image takes these nodes, in nanoseconds.
pub fn shared_image(transport: &Profile, policy: &Policy, block: u64, slowness: u64) -> u64 {
    run(&shared(transport, policy, slowness, Unit::cut(IMAGE, block))).units[0].answered
}

/// The expected value of the idle time. By round-robin each node gets as many blocks as the slow
/// one, which needs f C for each: a fast one waits max(f C, G) - C. That is (f - 1) C, and so grows
/// with the size of the blocks, unless the network is slower than both. On demand it waits for the
/// network only.
pub fn expected_idle(transport: &Profile, policy: &Policy, block: u64, slowness: u64) -> u64 {
    let computing = COMPUTATION * block;
    let slow = if *policy == Policy::RoundRobin { computing * slowness / 1000 } else { computing };
    slow.max(transport.gap(block)) - computing
}

/// The block of a perfect pipeline: the smallest power of two whose transfer takes as long as its
/// computation, or 5 % longer at most. By this rule the paper's constants give the paper's blocks,
/// 16 KB (302 us for 295) and 2 KB (31 for 37).
pub fn perfect_block(transport: &Profile) -> u64 {
    let sizes = (6..=20).map(|power| 1u64 << power);
    let good = |size: &u64| transport.alone(*size) * 100 <= COMPUTATION * size * 105;
    sizes.clone().find(good).unwrap_or(1 << 20)
}

/// Figure 30.
fn shared(transport: &Profile, policy: &Policy, slowness: u64, unit: Unit) -> Setup {
    let plan = one_hop(COPIES, policy.clone());
    let mut setup = pipeline(&plan, transport, COMPUTATION, vec![unit], Pace::BackToBack);
    setup.slowness = BTreeMap::from([(host(1, 0), slowness)]);
    setup
}

/// A complete and a zoom query of an image that is cut into so many parts.
fn queries(parts: u64) -> (Unit, Unit) {
    let all = Unit { blocks: vec![IMAGE / parts; parts as usize], first: 0 };
    let zoom = Unit { blocks: vec![IMAGE / parts; parts.min(ZOOM) as usize], first: 0 };
    (all, zoom)
}

/// Computation in all filters but the first.
fn pipeline(plan: &Plan, transport: &Profile, per_byte: u64, units: Vec<Unit>, pace: Pace) -> Setup {
    let mut costs = vec![Cost { per_byte, fixed: 0 }; plan.layout.filters.len()];
    costs[0] = Cost::default();
    let slowness = BTreeMap::new();
    Setup { plan: plan.clone(), transport: transport.clone(), costs, slowness, units, pace }
}

/// Figure 23.
pub fn ten_nodes(policy: Policy) -> Plan {
    let stages = [("repository", COPIES), ("clip", COPIES), ("zoom", COPIES), ("visualization", 1)];
    plan(&stages, policy)
}

/// The repository and what is next to it.
fn one_hop(copies: usize, policy: Policy) -> Plan {
    plan(&[("repository", COPIES), ("visualization", copies)], policy)
}

/// A pipeline of these filters and so many copies of each, each copy on a node of its own.
fn plan(stages: &[(&str, usize)], policy: Policy) -> Plan {
    let mut layout = Layout::default();
    let mut placement = Placement::default();
    let mut hosts = Vec::new();
    for (stage, &(name, copies)) in stages.iter().enumerate() {
        layout.filter(name, Vec::new()).expect("these names are good, and differ");
        let own: Vec<String> = (0..copies).map(|rank| host(stage, rank)).collect();
        hosts.extend(own.iter().cloned());
        placement.0.insert(name.into(), Place { copies, hosts: own, processes: false });
        if stage > 0 {
            let options = StreamOptions { policy: policy.clone(), ..StreamOptions::default() };
            layout.stream(stages[stage - 1].0, name, options).expect("both filters are there");
        }
    }
    Plan::new(&layout, &placement, &hosts).expect("a pipeline can run, and its hosts are there")
}

fn host(stage: usize, rank: usize) -> String {
    format!("stage{stage}-{rank}")
}
