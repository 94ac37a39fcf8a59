//! One column of the tables: all values of both transports in 2003, or of both on this machine,
//! simulated or measured.

use super::measured::{self, PARTS};
use crate::figure::How;
use crate::results::Side;
use crate::session::{Session, progress};
use filters::flow::Policy;
use filters::sim::Profile;
use filters::sim::paper::{self, BlockTimes, COMPUTATION, Extent};

/// The slowness of the slow node of figure 31.
pub const FACTORS: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
/// The one of them for which a whole image is simulated.
pub const WHOLE: u64 = 4;

pub struct Column {
    pub how: How,
    /// TCP, and fast sockets.
    pub both: [Known; 2],
    pub asked: Asked,
}

/// The values of a transport. Those that are not known are empty.
#[derive(Default)]
pub struct Known {
    pub transport: Option<Profile>,
    /// For each size of block, without and with computation.
    pub blocks: [Vec<BlockTimes>; 2],
    pub responses: Vec<Response>,
    /// The block of a perfect pipeline, and the idle time with it.
    pub perfect: Option<u64>,
    pub balances: Vec<Balance>,
    /// Processor time for a buffer of 8 bytes, in nanoseconds.
    pub overhead: Option<f64>,
}

/// The values of figure 31, in nanoseconds, by round-robin and on demand.
pub struct Balance {
    pub factor: u64,
    pub idle: [u64; 2],
    /// A whole image, where it was asked for.
    pub image: Option<[u64; 2]>,
}

/// Average response times to ten queries: how many of them are complete updates, and nanoseconds.
/// Simulated for none to ten.
pub struct Response {
    pub computing: bool,
    pub extent: Extent,
    pub parts: u64,
    pub averages: Vec<(u64, u64)>,
}

/// How many times the paper's demands are made here: today's machines are asked for what TCP can
/// just about do on them, as those of 2003 were.
#[derive(Clone, Copy)]
pub struct Asked {
    /// Updates in a second, without and with computation.
    pub rate: [f64; 2],
    /// Time of a partial update.
    pub latency: f64,
    /// Response time, without and with computation.
    pub response: [f64; 2],
}

impl Column {
    /// With the paper's constants.
    pub fn clan() -> Column {
        let asked = Asked { rate: [1.0; 2], latency: 1.0, response: [1.0; 2] };
        let both = [paper::clan_tcp(), paper::clan_socketvia()].map(|t| Known::simulated(Some(t)));
        Column { how: How::Simulated, both, asked }
    }

    /// With the curves that were measured here.
    pub fn here(session: &Session, clan: &Column) -> Column {
        progress(format_args!("filters: simulating this machine"));
        let both = measured::SIDES.map(|side| Known::simulated(measured::profile(session, side)));
        let asked = Asked::as_hard(&both[0], &clan.both[0], Extent::OneHop);
        Column { how: How::Simulated, both, asked }
    }

    /// Values of filters that run on this machine.
    pub fn measured(session: &Session, clan: &Column) -> Column {
        let both = measured::SIDES.map(|side| Known::measured(session, side));
        let asked = Asked::as_hard(&both[0], &clan.both[0], Extent::TenNodes);
        Column { how: How::Measured, both, asked }
    }
}

impl Known {
    fn simulated(transport: Option<Profile>) -> Known {
        let Some(transport) = transport else { return Known::default() };
        let mut responses = Vec::new();
        for (computing, extent) in [
            (false, Extent::OneHop),
            (false, Extent::TenNodes),
            (true, Extent::OneHop),
            (true, Extent::TenNodes),
        ] {
            let per_byte = if computing { COMPUTATION } else { 0 };
            responses.extend(PARTS.map(|parts| {
                let average = |complete| {
                    (complete as u64, paper::response(&transport, per_byte, extent, parts, complete))
                };
                Response { computing, extent, parts, averages: (0..=10).map(average).collect() }
            }));
        }
        let perfect = paper::perfect_block(&transport);
        let balances = FACTORS.map(|factor| {
            let policies = [Policy::RoundRobin, Policy::DemandDriven];
            let idle = policies.each_ref().map(|p| paper::idle(&transport, p, perfect, factor * 1000));
            let image =
                || policies.each_ref().map(|p| paper::shared_image(&transport, p, perfect, factor * 1000));
            Balance { factor, idle, image: (factor == WHOLE).then(image) }
        });
        Known {
            blocks: [0, COMPUTATION].map(|per_byte| paper::curve(&transport, per_byte)),
            responses,
            perfect: Some(perfect),
            balances: balances.into(),
            transport: Some(transport),
            overhead: None,
        }
    }

    fn measured(session: &Session, side: Side) -> Known {
        let mut known = Known { transport: measured::profile(session, side), ..Known::default() };
        known.blocks[0]
            .extend(measured::BLOCKS.iter().filter_map(|&block| measured::block_times(session, side, block)));
        for parts in PARTS {
            let average = |complete| Some((complete, measured::response(session, side, parts, complete)?));
            let averages: Vec<_> = measured::COMPLETE.into_iter().filter_map(average).collect();
            if !averages.is_empty() {
                known.responses.push(Response {
                    computing: false,
                    extent: Extent::TenNodes,
                    parts,
                    averages,
                });
            }
        }
        known.overhead = measured::overhead(session, side);
        known
    }

    /// Complete updates in a second with the best block.
    pub fn best_rate(&self, computing: bool) -> Option<f64> {
        self.blocks[usize::from(computing)].iter().map(BlockTimes::rate).reduce(f64::max)
    }

    /// With exactly this block.
    pub fn with(&self, computing: bool, block: u64) -> Option<&BlockTimes> {
        self.blocks[usize::from(computing)].iter().find(|times| times.block == block)
    }

    pub fn response(&self, computing: bool, extent: Extent, parts: u64) -> Option<&Response> {
        self.responses.iter().find(|r| (r.computing, r.extent, r.parts) == (computing, extent, parts))
    }

    /// How long an empty message takes.
    fn lone(&self) -> Option<f64> {
        Some(self.transport.as_ref()?.alone(0) as f64)
    }

    /// The soonest partial update, with any block.
    fn soonest(&self) -> Option<f64> {
        self.blocks[0].iter().map(|times| times.partial as f64).reduce(f64::min)
    }

    pub fn balance(&self, factor: u64) -> Option<&Balance> {
        self.balances.iter().find(|balance| balance.factor == factor)
    }
}

impl Response {
    /// The average with so many complete updates.
    pub fn at(&self, complete: u64) -> Option<u64> {
        self.averages.iter().find(|(of_ten, _)| *of_ten == complete).map(|(_, average)| *average)
    }
}

impl Asked {
    /// `way`: how far the blocks go whose response times are compared.
    fn as_hard(here: &Known, clan: &Known, extent: Extent) -> Asked {
        let ratio = |here: Option<f64>, clan: Option<f64>| match (here, clan) {
            (Some(here), Some(clan)) => here / clan,
            _ => 1.0,
        };
        let rate = |computing| ratio(here.best_rate(computing), clan.best_rate(computing));
        let latency = match extent {
            Extent::OneHop => ratio(here.lone(), clan.lone()),
            Extent::TenNodes => ratio(here.soonest(), clan.soonest()),
        };
        let all = |known: &Known, computing| Some(known.response(computing, extent, 64)?.at(10)? as f64);
        let response = |computing| ratio(all(here, computing), all(clan, computing));
        Asked { rate: [rate(false), rate(true)], latency, response: [response(false), response(true)] }
    }
}
