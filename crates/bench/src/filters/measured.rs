//! What is measured on this machine, one function for each measurement. The curves of both transports come from the same programs as `shunt bench latency`
//! and `throughput`. What needs filters that run gives `None` as long as the runtime is not part of this: the tables then say so.

use crate::bench::{Session, progress};
use crate::error::Result;
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use filters::sim::paper::BlockTimes;
use filters::sim::{Point, Profile};

/// The table of the curves.
pub const CURVES: &str = "filters-curves";
pub const ONE_WAY: &str = "one way";
pub const BANDWIDTH: &str = "bandwidth";
/// Kernel TCP, and what stands here for the paper's SocketVIA.
pub const SIDES: [Side; 2] = [Side::Tcp, Side::Shunt];
/// Bytes of a message.
const SIZES: [(&str, u64); 8] = [
    ("64 B", 64),
    ("256 B", 256),
    ("1 KB", 1024),
    ("4 KB", 4096),
    ("16 KB", 16384),
    ("64 KB", 65536),
    ("256 KB", 262_144),
    ("1 MB", 1_048_576),
];
/// Shunt is to be as far ahead of TCP as SocketVIA was: 45 us over 9.1, and 763 Mb/s over 510.
const SOONER: Target = Target { over_tcp: Some(4.9), ..Target::NONE };
const WIDER: Target = Target { over_tcp: Some(1.5), ..Target::NONE };
/// Blocks that filters are measured with.
pub const BLOCKS: [u64; 5] = [1024, 4096, 16384, 65536, 262_144];

/// Measures half a round trip and bytes one way of every size over both transports, in turns.
pub fn curves(session: &mut Session) -> Result<()> {
    let sides = session.sides(&SIDES);
    for round in 0..session.rounds {
        progress(format_args!("filters: curves, round {} of {}", round + 1, session.rounds));
        for (row, size) in SIZES {
            let bytes = size.to_string();
            for side in Side::turns(&sides, round) {
                let (cpus, seconds) = (session.cpus, session.duration);
                let setting = Setting { side, ends: Ends::Both, cpus, seconds, options: &[] };
                let place = Place { group: CURVES, row, side, round };
                let what = format!("{CURVES} {row} ({})", side.title());
                let words = ["--size", &bytes];
                let result = pairs::run(session, "pingpong", setting, &words, &[]);
                if let Some(result) = session.record(&what, result)? {
                    let half = number(&result, "p50_ns")? / 2.0;
                    let promise = if size == 64 { SOONER } else { Target::NONE };
                    session.results.add(&place, ONE_WAY, Unit::Time, promise, half);
                }
                let result = pairs::run(session, "stream", setting, &words, &[]);
                if let Some(result) = session.record(&what, result)? {
                    let rate = number(&result, "bytes_per_second")?;
                    let promise = if size == 1 << 20 { WIDER } else { Target::NONE };
                    session.results.add(&place, BANDWIDTH, Unit::BytesPerSecond, promise, rate);
                }
            }
        }
    }
    Ok(())
}

/// Size, one-way time in nanoseconds and bytes in a second: the medians of [`curves`].
pub fn curve(session: &Session, side: Side) -> Vec<(u64, f64, f64)> {
    let metrics = session.results.group(CURVES);
    let median = |row: &str, name: &str| {
        let metric = metrics.iter().find(|metric| metric.row == row && metric.name == name)?;
        Some(metric.summary(side)?.median)
    };
    let point = |(row, size)| Some((size, median(row, ONE_WAY)?, median(row, BANDWIDTH)?));
    SIZES.into_iter().filter_map(point).collect()
}

/// The same as the simulation wants it; `None` where this transport could not be measured.
pub fn profile(session: &Session, side: Side) -> Option<Profile> {
    let points = curve(session, side).into_iter().map(|(bytes, one_way, rate)| Point {
        bytes,
        one_way: one_way.round() as u64,
        gap: (bytes as f64 * 1e9 / rate).round() as u64,
    });
    let points: Vec<Point> = points.collect();
    (!points.is_empty()).then(|| Profile::measured(&format!("{}, this machine", side.title()), points))
}

/// Figures 24 and 26: complete and partial updates of the running pipeline, without computation, with one size of block.
pub fn block_times(_session: &mut Session, _side: Side, _block: u64) -> Result<Option<BlockTimes>> {
    Ok(None)
}

/// Figure 28: the average response time in nanoseconds to ten queries, `complete` of them complete updates, of an image in so many parts.
pub fn response(_session: &mut Session, _side: Side, _parts: u64, _complete: usize) -> Result<Option<u64>> {
    Ok(None)
}

/// What a buffer costs beside its bytes: processor time of producer and consumer for an empty one, in nanoseconds.
pub fn overhead(_session: &mut Session, _side: Side) -> Result<Option<f64>> {
    Ok(None)
}
