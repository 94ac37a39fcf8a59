//! The parts of the paper's figures that are measured on this machine. The curves of both
//! transports come from the same programs as `shunt bench latency` and `throughput`. Figures 24, 26
//! and 28 come from the paper's four filters as they run: by sockets as in the paper, and in shared
//! memory, which this runtime uses by itself on one host. Two processors are not ten nodes: there
//! is one copy of each filter, in a process of its own, and none of them computes.

use super::buffers;
use super::running::{self, Running, Start};
use crate::error::{Error, Result};
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::stats;
use filters::StreamOptions;
use filters::sim::paper::{BlockTimes, IMAGE, ZOOM};
use filters::sim::{Point, Profile};
use std::time::Duration;

/// The table of the curves.
pub const CURVES: &str = "filters-curves";
pub const ONE_WAY: &str = "one way";
pub const BANDWIDTH: &str = "bandwidth";
/// Kernel TCP, and Shunt, which stands for the paper's SocketVIA.
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
/// The promise: Shunt is as far ahead of TCP as SocketVIA was: 45 us over 9.1, and 763 Mb/s
/// over 510.
const SOONER: Target = Target { over_tcp: Some(4.9), ..Target::NONE };
const WIDER: Target = Target { over_tcp: Some(1.5), ..Target::NONE };
/// Blocks that filters are measured with.
pub const BLOCKS: [u64; 5] = [1024, 4096, 16384, 65536, 262_144];
/// Parts of an image in figures 28 and 29.
pub const PARTS: [u64; 3] = [1, 8, 64];
/// How many of ten queries are complete ones: the average grows in a straight line in between.
pub const COMPLETE: [u64; 3] = [0, 5, 10];

/// The table of the pipeline.
pub const PIPELINE: &str = "filters-pipeline";
const STAGES: [&str; 4] = ["repository", "clip", "zoom", "visualization"];
/// The transports of its buffers: as [`SIDES`], and memory.
const WAYS: [Side; 3] = [Side::FiltersTcp, Side::FiltersShunt, Side::Filters];
const UPDATE: &str = "complete update";
const PARTIAL: &str = "partial update";
/// Small blocks, and the bytes of them.
const WARM_UP: [u64; 2] = [1024, 1 << 18];
/// Bytes under way on a stream at most, unless these are less than two buffers.
const UNDER_WAY: u64 = 64 << 20;

/// The filters that use this transport.
pub fn filters_of(side: Side) -> Side {
    if side == Side::Tcp { Side::FiltersTcp } else { Side::FiltersShunt }
}

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

/// The same for the simulation; `None` where this transport could not be measured.
pub fn profile(session: &Session, side: Side) -> Option<Profile> {
    let points = curve(session, side).into_iter().map(|(bytes, one_way, rate)| Point {
        bytes,
        one_way: one_way.round() as u64,
        gap: (bytes as f64 * 1e9 / rate).round() as u64,
    });
    let points: Vec<Point> = points.collect();
    (!points.is_empty()).then(|| Profile::measured(&format!("{}, this machine", side.title()), points))
}

/// Runs the pipeline over all transports, in turns.
pub fn pipeline(session: &mut Session) -> Result<()> {
    let sides = session.sides(&WAYS);
    for round in 0..session.rounds {
        progress(format_args!("filters: pipeline, round {} of {}", round + 1, session.rounds));
        for side in Side::turns(&sides, round) {
            for block in BLOCKS {
                let row = of_block(block);
                let outcome = block_of(session, side, block);
                let what = format!("{PIPELINE} {row} ({})", side.title());
                if let Some((update, partial)) = session.record(&what, outcome)? {
                    let place = Place { group: PIPELINE, row: &row, side, round };
                    session.results.add(&place, UPDATE, Unit::Time, Target::NONE, update);
                    session.results.add(&place, PARTIAL, Unit::Time, Target::NONE, partial);
                }
            }
            for parts in PARTS {
                let row = of_parts(parts);
                let outcome = queries_of(session, side, parts);
                let what = format!("{PIPELINE} {row} ({})", side.title());
                if let Some(averages) = session.record(&what, outcome)? {
                    let place = Place { group: PIPELINE, row: &row, side, round };
                    for (complete, average) in averages {
                        session.results.add(&place, &of_ten(complete), Unit::Time, Target::NONE, average);
                    }
                }
            }
        }
    }
    Ok(())
}

fn of_block(block: u64) -> String {
    format!("blocks of {} KB", block / 1024)
}

fn of_parts(parts: u64) -> String {
    if parts == 1 { "image in one part".into() } else { format!("image in {parts} parts") }
}

fn of_ten(complete: u64) -> String {
    format!("{complete} of 10 complete")
}

/// From one complete update to the next while they follow each other, and how long a partial one
/// takes, in nanoseconds.
fn block_of(session: &Session, side: Side, block: u64) -> Result<(f64, f64)> {
    let group = start(session, side, block)?;
    let whole = running::bytes(&[block, IMAGE]);
    group.warm_up(&running::bytes(&WARM_UP))?;
    let first = answer(&group.run(whole.clone(), Duration::ZERO)?, IMAGE)?;
    // As many as fit into the time; the others are counted from the first.
    let count = (session.duration * 5e8 / (first.1 - first.0) as f64).clamp(3.0, 100.0) as usize;
    let units: Vec<_> = (0..count).map(|_| group.append(whole.clone())).collect();
    let mut ends = Vec::new();
    for unit in &units {
        ends.push(answer(&running::wait(unit, Duration::from_secs_f64(session.duration))?, IMAGE)?.1);
    }
    let update = (ends[count - 1] - ends[0]) as f64 / (count - 1) as f64;
    let partial = running::bytes(&[block, block]);
    let count = (session.duration * 100.0).clamp(10.0, 100.0) as usize;
    let mut times = Vec::new();
    for _ in 0..count {
        let (began, ended) = answer(&group.run(partial.clone(), Duration::ZERO)?, block)?;
        times.push((ended - began) as f64);
    }
    group.check_way()?;
    let partial = stats::summary(times).map_or(0.0, |times| times.median);
    Ok((update, partial))
}

/// The average response to ten queries, one after the other, some of them complete ones.
fn queries_of(session: &Session, side: Side, parts: u64) -> Result<Vec<(u64, f64)>> {
    let block = IMAGE / parts;
    let group = start(session, side, block)?;
    let query = |is_complete: bool| {
        let bytes = if is_complete { block * parts } else { block * parts.min(ZOOM) };
        let (began, ended) = answer(&group.run(running::bytes(&[block, bytes]), Duration::ZERO)?, bytes)?;
        Ok((ended - began) as f64)
    };
    group.warm_up(&running::bytes(&WARM_UP))?;
    query(true)?;
    let mut averages = Vec::new();
    for complete in COMPLETE {
        // As the simulation spreads them.
        let times = (0..10).map(|nth| query((nth + 1) * complete / 10 > nth * complete / 10));
        averages.push((complete, times.sum::<Result<f64>>()? / 10.0));
    }
    group.check_way()?;
    Ok(averages)
}

fn start(session: &Session, side: Side, block: u64) -> Result<Running> {
    let credits = (UNDER_WAY / block).clamp(2, StreamOptions::default().credits as u64) as usize;
    let options = StreamOptions { buffer_size: block as usize, credits, ..StreamOptions::default() };
    let layout = running::chain(&STAGES, &options);
    let start = Start { library: session.library.clone(), side, window: 4 };
    Running::start(start, &layout, &[1; STAGES.len()])
}

/// When the repository began, and when the visualization had received so many bytes.
fn answer(parts: &[filters::Part], bytes: u64) -> Result<(u64, u64)> {
    let [began, ended] = ["repository", "visualization"].map(|filter| running::told(parts, filter));
    match (began.first().map(Vec::as_slice), ended.first().map(Vec::as_slice)) {
        (Some(&[began]), Some(&[ended, got])) if got == bytes => Ok((began, ended)),
        _ => Err(Error::Failed(format!("{bytes} bytes did not come as they should: {ended:?}"))),
    }
}

/// Figures 24 and 26: complete and partial updates of the running pipeline, without computation,
/// with one size of block.
pub fn block_times(session: &Session, side: Side, block: u64) -> Option<BlockTimes> {
    let of = |name| median(session, side, &of_block(block), name);
    Some(BlockTimes { block, update: of(UPDATE)?, partial: of(PARTIAL)? })
}

/// Figure 28: the average response time in nanoseconds to ten queries, `complete` of them complete
/// updates, of an image in so many parts.
pub fn response(session: &Session, side: Side, parts: u64, complete: u64) -> Option<u64> {
    median(session, side, &of_parts(parts), &of_ten(complete))
}

fn median(session: &Session, side: Side, row: &str, name: &str) -> Option<u64> {
    let metrics = session.results.group(PIPELINE);
    let metric = metrics.iter().find(|metric| metric.row == row && metric.name == name)?;
    Some(metric.summary(filters_of(side))?.median.round() as u64)
}

/// The cost of a buffer beside its bytes: processor time of producer and consumer for one of 8
/// bytes, in nanoseconds.
pub fn overhead(session: &Session, side: Side) -> Option<f64> {
    buffers::overhead(session, filters_of(side))
}
