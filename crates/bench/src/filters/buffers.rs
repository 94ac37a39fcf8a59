//! The cost of a buffer between two processes of one host: with filters, ZeroMQ, Dask, Ray, and
//! Shunt's own byte stream. All are measured as `meter.rs` says, in turns. Programs in Rust and C
//! are compared with one another, and those in Python with one another.
//!
//! *Overhead per buffer* is the time from one buffer to the next in a steady stream, for payloads
//! of 8 bytes and of 16 KB that the producer writes and the consumer reads. The consumer does
//! nothing else, so all time that is not memory's is overhead. The programs are not pinned to
//! processors, as some have several threads.

use super::running::{self, Running, Start};
use crate::error::{Error, Result};
use crate::find;
use crate::host::Cpus;
use crate::pairs::{self, Ends, Setting, number};
use crate::process::Launch;
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use filters::StreamOptions;
use serde_json::Value;
use std::time::Duration;

/// Those in Rust and C.
pub const NATIVE: &str = "filters-overhead";
/// Those in Python.
pub const PYTHON: &str = "filters-overhead-python";
pub const A_BUFFER: &str = "a buffer";
/// Processor time of both processes.
pub const PROCESSORS: &str = "processors";
const BYTES: &str = "bytes";
const SIZES: [(&str, u64); 3] = [("8 B", 8), ("16 KB", 16384), ("1 MB", 1 << 20)];
const NATIVE_SIDES: [Side; 6] =
    [Side::Filters, Side::FiltersShunt, Side::FiltersTcp, Side::Shunt, Side::ZmqTcp, Side::ZmqIpc];
/// Each with its name in `buffers.py`.
const PYTHON_SIDES: [(Side, &str); 8] = [
    (Side::Filters, "filters"),
    (Side::FiltersShunt, "filters-shunt"),
    (Side::FiltersTcp, "filters-tcp"),
    (Side::Shunt, "stream"),
    (Side::ZmqTcp, "zmq-tcp"),
    (Side::ZmqIpc, "zmq-ipc"),
    (Side::Dask, "dask"),
    (Side::Ray, "ray"),
];
/// The promises: how much lower the overhead is than that of others, and the part of the byte
/// stream's rate that filters keep.
const LOWER: Target = Target { over: &[(Side::ZmqTcp, 3.0), (Side::ZmqIpc, 3.0)], ..Target::NONE };
const LOWER_IN_PYTHON: Target = Target {
    over: &[(Side::ZmqTcp, 3.0), (Side::ZmqIpc, 3.0), (Side::Dask, 3.0), (Side::Ray, 3.0)],
    ..Target::NONE
};
const KEPT: Target = Target { over: &[(Side::Shunt, 0.8)], ..Target::NONE };
/// Seconds before a measurement begins.
const WARM_UP: f64 = 0.1;
/// Seconds that Ray and Dask may take to start, on a busy machine.
const TO_BEGIN: f64 = 120.0;

/// Time for a buffer in nanoseconds, and processor time for it, where that is known.
struct Cost {
    time: f64,
    processors: Option<f64>,
}

pub fn measure(session: &mut Session) -> Result<()> {
    let native = session.sides(&NATIVE_SIDES);
    let python = session.sides(&PYTHON_SIDES.map(|(side, _)| side));
    for round in 0..session.rounds {
        progress(format_args!("filters: buffers, round {} of {}", round + 1, session.rounds));
        for (row, size) in SIZES {
            for side in Side::turns(&native, round) {
                let outcome = one(session, side, size);
                add(session, &Place { group: NATIVE, row, side, round }, size, outcome)?;
            }
        }
        // Some of these take seconds to start, so each stays for all sizes.
        for side in Side::turns(&python, round) {
            let place = |row| Place { group: PYTHON, row, side, round };
            match in_python(session, side) {
                Ok(costs) => {
                    for ((row, size), cost) in SIZES.into_iter().zip(costs) {
                        add(session, &place(row), size, Ok(cost))?;
                    }
                }
                Err(error) => add(session, &place(""), 0, Err(error))?,
            }
        }
    }
    Ok(())
}

/// Records the result of one measurement.
fn add(session: &mut Session, place: &Place, size: u64, outcome: Result<Cost>) -> Result<()> {
    let group = if place.group == PYTHON { PYTHON } else { NATIVE };
    if matches!(outcome, Err(Error::Absent { .. })) && !session.results.absent.contains(&(group, place.side))
    {
        session.results.absent.push((group, place.side));
    }
    let Some(cost) = session.record(&format!("{group} {}", place.side.title()), outcome)? else {
        return Ok(());
    };
    let results = &mut session.results;
    let lower = match () {
        // A megabyte costs what memory costs, whoever passes it on.
        () if size >= 1 << 20 => Target::NONE,
        () if group == PYTHON => LOWER_IN_PYTHON,
        () => LOWER,
    };
    results.add(place, A_BUFFER, Unit::Time, lower, cost.time);
    if size > 8 {
        results.add(place, BYTES, Unit::BytesPerSecond, KEPT, size as f64 * 1e9 / cost.time);
    }
    if let Some(processors) = cost.processors.filter(|_| size == 8) {
        results.add(place, PROCESSORS, Unit::CpuPerRequest, Target::NONE, processors);
    }
    Ok(())
}

fn one(session: &Session, side: Side, size: u64) -> Result<Cost> {
    match side {
        Side::Shunt => {
            let (cpus, seconds) = (Cpus::ANY, session.duration);
            let setting = Setting { side, ends: Ends::Both, cpus, seconds, options: &[] };
            let result =
                pairs::run(session, "stream", setting, &["--size", &size.to_string(), "--touch"], &[])?;
            Ok(Cost { time: 1e9 / number(&result, "messages_per_second")?, processors: None })
        }
        Side::ZmqTcp => zeromq(session, "tcp", size),
        Side::ZmqIpc => zeromq(session, "ipc", size),
        _ => by_filters(session, side, size),
    }
}

fn by_filters(session: &Session, side: Side, size: u64) -> Result<Cost> {
    let options = StreamOptions { buffer_size: size as usize, ..StreamOptions::default() };
    let layout = running::chain(&["source", "sink"], &options);
    let start = Start { library: session.library.clone(), side, window: 1 };
    let group = Running::start(start, &layout, &[1, 1])?;
    group.warm_up(&running::bytes(&[8, 0, 0]))?;
    let nanos = |seconds: f64| (seconds * 1e9) as u64;
    let params = running::bytes(&[size, nanos(WARM_UP), nanos(session.duration)]);
    let parts = group.run(params, Duration::from_secs_f64(WARM_UP + session.duration))?;
    group.check_way()?;
    let said = [running::told(&parts, "source"), running::told(&parts, "sink")];
    match (said[0].first().map(Vec::as_slice), said[1].first().map(Vec::as_slice)) {
        (Some(&[producer, sent]), Some(&[took, buffers, consumer, got])) if sent == got => Ok(Cost {
            time: took as f64 / buffers as f64,
            processors: Some((producer + consumer) as f64 / got as f64),
        }),
        _ => Err(Error::Failed(format!("source and sink do not agree: {said:?}"))),
    }
}

fn zeromq(session: &Session, way: &str, size: u64) -> Result<Cost> {
    let program = session.libexec.join("zmq");
    if !program.is_file() {
        let remedy = "apt-get install libzmq3-dev, then make -C bench/programs".into();
        return Err(Error::Absent { what: "the program that uses libzmq".into(), remedy });
    }
    let seconds = session.duration;
    let words = [way, "--size", &size.to_string(), "--seconds", &seconds.to_string()];
    let output = Launch::new(program).args(words).run(pairs::patience(seconds))?;
    Ok(Cost { time: time(&pairs::parse(output.lines.last().map_or("", |line| line))?)?, processors: None })
}

/// One for each size.
fn in_python(session: &Session, side: Side) -> Result<Vec<Cost>> {
    let name = PYTHON_SIDES.iter().find(|(known, _)| *known == side).map_or("", |(_, name)| name);
    let sizes = SIZES.map(|(_, size)| size.to_string()).join(",");
    let seconds = session.duration.to_string();
    let mut launch = Launch::new(find::bench_python()?)
        .args([session.libexec.join("buffers.py")])
        .args([name, "--sizes", &sizes, "--seconds", &seconds])
        .preload(session.library_for(side).filter(|_| side == Side::Shunt));
    if let Some(library) = &session.library {
        launch = launch.env("SHUNT_LIB", library);
        if side == Side::FiltersShunt {
            launch = launch.env(running::PROMOTE.0, running::PROMOTE.1);
        }
    }
    let patience = Duration::from_secs_f64(TO_BEGIN) + pairs::patience(session.duration * SIZES.len() as f64);
    let lines: Vec<Value> =
        launch.run(patience)?.lines.iter().map(|line| pairs::parse(line)).collect::<Result<_>>()?;
    if let Some(why) = lines.first().and_then(|line| line["absent"].as_str()) {
        let what = format!("what `buffers.py {name}` uses in Python ({why})");
        return Err(Error::Absent { what, remedy: "scripts/bootstrap.sh filters".into() });
    }
    lines.iter().map(|line| Ok(Cost { time: time(line)?, processors: None })).collect()
}

fn time(result: &Value) -> Result<f64> {
    number(result, "ns_per_buffer")
}

/// Processor time for a buffer of 8 bytes, in nanoseconds: the median of the rounds.
pub fn overhead(session: &Session, side: Side) -> Option<f64> {
    let metrics = session.results.group(NATIVE);
    let metric = metrics.iter().find(|metric| metric.row == SIZES[0].0 && metric.name == PROCESSORS)?;
    Some(metric.summary(side)?.median)
}
