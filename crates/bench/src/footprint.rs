//! `shunt bench footprint`: the resources that a program needs more under Shunt than without:
//! descriptors, addresses, memory, threads, and the time of its start. Each has a budget.

use crate::error::{Result, failed};
use crate::pairs::{self, Ends, Pair, Setting};
use crate::process::Launch;
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::usage;
use std::fs;
use std::time::{Duration, Instant};

pub const GROUP: &str = "footprint";

/// Connections over which the cost of each further one is averaged.
const FURTHER: usize = 400;
/// A connection is idle after so long.
const IDLE: Duration = Duration::from_millis(1500);
/// Starts of one side in a round.
const STARTS: usize = 40;
const PATIENCE: Duration = Duration::from_secs(240);

const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

pub fn measure(session: &mut Session) -> Result<()> {
    if session.library.is_none() {
        return Ok(());
    }
    for round in 0..session.rounds {
        progress(format_args!("footprint: round {} of {}", round + 1, session.rounds));
        // Both sides in turns, so that changes of the machine affect both.
        let sides = Side::turns(&[Side::Tcp, Side::Shunt], round);
        let mut found = [None, None];
        for &side in &sides {
            let outcome = one(session, side);
            found[usize::from(side == Side::Shunt)] =
                session.record(&format!("footprint {}", side.title()), outcome)?;
        }
        let [Some(plain), Some(shunt)] = found else { continue };
        let starts = session.record("footprint starts", starts(session))?;
        let mut add = |row, name, unit, bound, value| {
            let place = Place { group: GROUP, row, side: Side::Shunt, round };
            session.results.add(&place, name, unit, Target::value(bound), value);
        };
        let one_end = [("descriptors", Unit::Count), ("addresses", Unit::Bytes), ("threads", Unit::Count)];
        for (row, with, without, bounds) in [
            ("no promoted connection", &shunt.none, &plain.none, [4.0, 4.0 * MIB, 0.0]),
            ("first promoted connection", &shunt.first, &shunt.none, [6.0, 32.0 * MIB, 0.0]),
        ] {
            let more = [
                with.descriptors - without.descriptors,
                with.addresses - without.addresses,
                with.threads - without.threads,
            ];
            for (((name, unit), bound), more) in one_end.into_iter().zip(bounds).zip(more) {
                add(row, name, unit, bound, more);
            }
        }
        let more = shunt.first.memory - shunt.quiet;
        add("first promoted connection", "memory of both ends", Unit::Bytes, 512.0 * KIB, more);
        let each = |found: &Found, then: &Size| (then.memory - found.first.memory) / FURTHER as f64;
        let more = each(&shunt, &shunt.used) - each(&plain, &plain.used);
        add("each further connection", "memory when used", Unit::Bytes, 64.0 * KIB, more);
        let more = each(&shunt, &shunt.idle) - each(&plain, &plain.idle);
        add("each further connection", "memory when idle", Unit::Bytes, 4.0 * KIB, more);
        if let Some(nanos) = starts {
            add("start of true", "time", Unit::Time, 1e6, nanos);
        }
    }
    Ok(())
}

/// The resources of a process; memory is that of both ends.
#[derive(Debug, Default)]
struct Size {
    descriptors: f64,
    addresses: f64,
    threads: f64,
    memory: f64,
}

struct Found {
    /// With one connection, which is not promoted, as its other end is plain.
    none: Size,
    /// The memory of both ends where both could have been promoted, and were not.
    quiet: f64,
    first: Size,
    used: Size,
    idle: Size,
}

fn one(session: &Session, side: Side) -> Result<Found> {
    let start = |connections: usize, ends: Ends, options| {
        let setting = Setting { side, ends, cpus: session.cpus, seconds: 0.2, options };
        let count = connections.to_string();
        let client = ["--connections", &count, "--active", "1", "--touch", "280", "--step"];
        let mut pair = pairs::start(session, "idle", setting, &[], &client)?;
        pair.client.line(PATIENCE)?;
        Ok::<Pair, crate::error::Error>(pair)
    };
    let none = of(&start(1, Ends::ServerOnly, &[])?)?;
    let quiet = of(&start(1, Ends::Both, &[("SHUNT_PROMOTE_AFTER", "1000000")])?)?.memory;
    let first = of(&start(1, Ends::Both, &[])?)?;
    let mut pair = start(1 + FURTHER, Ends::Both, &[])?;
    pair.client.say("")?;
    pair.client.line(PATIENCE)?;
    let used = of(&pair)?;
    std::thread::sleep(IDLE);
    let idle = of(&pair)?;
    Ok(Found { none, quiet, first, used, idle })
}

fn of(pair: &Pair) -> Result<Size> {
    size(pair.server.pid(), &[pair.server.pid(), pair.client.pid()])
}

/// Of process `pid`, with the memory of `all`.
fn size(pid: i32, all: &[i32]) -> Result<Size> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).map_err(failed(format!("cannot read {path}")))?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let path = format!("/proc/{pid}/fd");
    let descriptors = fs::read_dir(&path).map_err(failed(format!("cannot read {path}")))?.count() as f64;
    let memory =
        all.iter().map(|&pid| usage::memory(pid).map(|memory| memory.pss as f64)).sum::<Result<f64>>()?;
    Ok(Size { descriptors, addresses: field("VmSize:") * KIB, threads: field("Threads:"), memory })
}

/// How much longer `true` takes with the library, in nanoseconds: the difference of the medians of
/// starts in turns.
fn starts(session: &Session) -> Result<f64> {
    let mut times = [Vec::new(), Vec::new()];
    for start in 0..STARTS {
        for side in Side::turns(&[Side::Tcp, Side::Shunt], start) {
            let began = Instant::now();
            Launch::new("true").preload(session.library_for(side)).run(PATIENCE)?;
            times[usize::from(side == Side::Shunt)].push(began.elapsed().as_nanos() as f64);
        }
    }
    let [plain, shunt] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    Ok(shunt - plain)
}
