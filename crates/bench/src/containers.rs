//! `shunt bench containers`: between two network namespaces on a bridge, as containers have them,
//! beside the same on one host.

use crate::apps::{self, Run, measured_load};
use crate::bridge::Bridge;
use crate::error::{Error, Result};
use crate::ether::NEEDS_ROOT;
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};

/// The word for it, and its table.
pub const GROUP: &str = "containers";

const SIDES: [Side; 4] = [Side::Tcp, Side::Shunt, Side::HostTcp, Side::HostShunt];
/// What the same on one host keeps.
const AS_ON_ONE_HOST: &[(Side, f64)] = &[(Side::HostShunt, 0.9)];
const REQUESTS: Target = Target { over_tcp: Some(10.0), over: AS_ON_ONE_HOST, ..Target::NONE };
/// A million round trips a second.
const ROUND_TRIP: Target = Target { value: Some(1000.0), over: AS_ON_ONE_HOST, ..Target::NONE };

/// Longer than other applications: the tool makes its connections anew for each load, and for
/// some tenths of a second they prove that they belong together.
const TIMES: f64 = 8.0;

pub fn measure(session: &mut Session) -> Result<()> {
    let made = match apps::is_root() {
        true => Bridge::new(session.temp.path()),
        false => Err(Error::Failed(NEEDS_ROOT.into())),
    };
    session.bridge = session.record(GROUP, made)?;
    if session.bridge.is_none() {
        return Ok(());
    }
    let caption =
        "kernel TCP, Shunt: between two containers on a bridge, with a meeting place (docs/containers.md).";
    session.results.captions.push((GROUP.into(), caption.into()));
    let outcome = rounds(session);
    session.bridge = None;
    outcome
}

fn rounds(session: &mut Session) -> Result<()> {
    let sides = session.sides(&SIDES);
    for round in 0..session.rounds {
        progress(format_args!("{GROUP}: round {} of {}", round + 1, session.rounds));
        for side in Side::turns(&sides, round) {
            round_trips(session, side, round)?;
        }
        for side in Side::turns(&sides, round) {
            redis(session, side, round)?;
        }
    }
    Ok(())
}

fn round_trips(session: &mut Session, side: Side, round: usize) -> Result<()> {
    let (cpus, seconds) = (session.cpus, session.duration);
    let setting = Setting { side, ends: Ends::Both, cpus, seconds, options: &[] };
    let result = pairs::run(session, "pingpong", setting, &["--size", "64"], &[]);
    let what = format!("{GROUP} 64 B ({})", side.title());
    let Some(result) = session.record(&what, result)? else { return Ok(()) };
    let place = Place { group: GROUP, row: "64 B round trip", side, round };
    session.results.add(&place, "p50", Unit::Time, ROUND_TRIP, number(&result, "p50_ns")?);
    Ok(())
}

fn redis(session: &mut Session, side: Side, round: usize) -> Result<()> {
    let mut app = apps::redis::Redis::default();
    let seconds = session.duration * TIMES;
    let run = Run { side, ends: Ends::Both, cpus: session.cpus, seconds };
    let started = apps::App::prepare(&mut app, session).and_then(|()| apps::App::start(&app, session, &run));
    let what = format!("{GROUP} redis ({})", side.title());
    let Some(mut server) = session.record(&what, started)? else { return Ok(()) };
    for workload in ["GET", "SET"] {
        let outcome = measured_load(session, &mut app, &run, &mut server, workload);
        let row = format!("redis {workload}");
        let Some((load, _)) = session.record(&format!("{GROUP} {row} ({})", side.title()), outcome)? else {
            continue;
        };
        let place = Place { group: GROUP, row: &row, side, round };
        session.results.add(&place, "requests", Unit::PerSecond, REQUESTS, load.per_second);
    }
    Ok(())
}
