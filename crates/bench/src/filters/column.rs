//! One column of the tables: all that is known of both transports in 2003, or of both on this machine, simulated or measured.

use super::figure::How;
use super::measured;
use crate::bench::{Session, progress};
use crate::error::Result;
use crate::results::Side;
use filters::flow::Policy;
use filters::sim::Profile;
use filters::sim::paper::{self, BlockTimes, COMPUTATION, Way};

/// Parts of an image in figures 28 and 29.
pub const PARTS: [u64; 3] = [1, 8, 64];
/// How slow the slow node of figure 31 is.
pub const FACTORS: [u64; 10] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
/// The one of them for which a whole image is simulated.
pub const WHOLE: u64 = 4;

pub struct Column {
    pub how: How,
    /// TCP, and fast sockets.
    pub both: [Known; 2],
    pub asked: Asked,
}

/// What is known of a transport. What is not, is empty.
#[derive(Default)]
pub struct Known {
    pub transport: Option<Profile>,
    /// For each size of block, without and with computation.
    pub blocks: [Vec<BlockTimes>; 2],
    pub responses: Vec<Response>,
    /// The block of a perfect pipeline, and what is idle with it.
    pub perfect: Option<u64>,
    pub balances: Vec<Balance>,
    /// Processor time for an empty buffer, in nanoseconds.
    pub overhead: Option<f64>,
}

/// What figure 31 shows, in nanoseconds, by round-robin and on demand.
pub struct Balance {
    pub factor: u64,
    pub idle: [u64; 2],
    /// A whole image, where it was asked for.
    pub image: Option<[u64; 2]>,
}

/// Average response times, for no to ten complete updates of ten queries.
pub struct Response {
    pub computing: bool,
    pub way: Way,
    pub parts: u64,
    pub averages: Vec<u64>,
}

/// How many times as much is asked for as in the paper: today's machines are asked for what TCP can just about do on them, as those of 2003 were.
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
        let asked = Asked::as_hard(&both[0], &clan.both[0]);
        Column { how: How::Simulated, both, asked }
    }

    /// What filters that run on this machine do.
    pub fn measured(session: &mut Session, asked: Asked) -> Result<Column> {
        let [tcp, fast] = measured::SIDES;
        let both = [Known::measured(session, tcp)?, Known::measured(session, fast)?];
        Ok(Column { how: How::Measured, both, asked })
    }
}

impl Known {
    fn simulated(transport: Option<Profile>) -> Known {
        let Some(transport) = transport else { return Known::default() };
        let mut responses = Vec::new();
        for (computing, way) in
            [(false, Way::OneHop), (false, Way::TenNodes), (true, Way::OneHop), (true, Way::TenNodes)]
        {
            let per_byte = if computing { COMPUTATION } else { 0 };
            responses.extend(PARTS.map(|parts| {
                let average = |complete| paper::response(&transport, per_byte, way, parts, complete);
                Response { computing, way, parts, averages: (0..=10).map(average).collect() }
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

    fn measured(session: &mut Session, side: Side) -> Result<Known> {
        let mut known = Known { transport: measured::profile(session, side), ..Known::default() };
        if session.sides(&[side]).is_empty() {
            return Ok(known);
        }
        for block in measured::BLOCKS {
            known.blocks[0].extend(measured::block_times(session, side, block)?);
        }
        for parts in PARTS {
            let mut averages = Vec::new();
            for complete in 0..=10 {
                averages.extend(measured::response(session, side, parts, complete)?);
            }
            if averages.len() == 11 {
                known.responses.push(Response { computing: false, way: Way::TenNodes, parts, averages });
            }
        }
        known.overhead = measured::overhead(session, side)?;
        Ok(known)
    }

    /// Complete updates in a second with the best block.
    pub fn best_rate(&self, computing: bool) -> Option<f64> {
        self.blocks[usize::from(computing)].iter().map(BlockTimes::rate).reduce(f64::max)
    }

    /// With exactly this block.
    pub fn with(&self, computing: bool, block: u64) -> Option<&BlockTimes> {
        self.blocks[usize::from(computing)].iter().find(|times| times.block == block)
    }

    pub fn response(&self, computing: bool, way: Way, parts: u64) -> Option<&[u64]> {
        let is_it = |r: &&Response| (r.computing, r.way, r.parts) == (computing, way, parts);
        self.responses.iter().find(is_it).map(|response| response.averages.as_slice())
    }

    pub fn balance(&self, factor: u64) -> Option<&Balance> {
        self.balances.iter().find(|balance| balance.factor == factor)
    }
}

impl Asked {
    fn as_hard(here: &Known, clan: &Known) -> Asked {
        let ratio = |here: Option<f64>, clan: Option<f64>| match (here, clan) {
            (Some(here), Some(clan)) => here / clan,
            _ => 1.0,
        };
        let rate = |computing| ratio(here.best_rate(computing), clan.best_rate(computing));
        let latency = |known: &Known| Some(known.transport.as_ref()?.alone(0) as f64);
        let all = |known: &Known, computing| Some(known.response(computing, Way::OneHop, 64)?[10] as f64);
        let response = |computing| ratio(all(here, computing), all(clan, computing));
        Asked {
            rate: [rate(false), rate(true)],
            latency: ratio(latency(here), latency(clan)),
            response: [response(false), response(true)],
        }
    }
}
