//! `shunt bench never-slower`: where Shunt cannot win it must not lose: on a busy machine, with one
//! end only, with connections too short to be worth it, with rare requests, and with none at all.
//! Each cell is a ratio to plain TCP.

use crate::apps::{self, App, Run};
use crate::error::Result;
use crate::host::Cpus;
use crate::idle;
use crate::pairs::{self, Ends, Setting, number};
use crate::report::NEVER_SLOWER;
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use serde_json::Value;

pub const GROUP: &str = "never-slower";

/// A measuring program, its arguments, and the parts of its result that count.
struct Probe {
    row: &'static str,
    program: &'static str,
    args: &'static [&'static str],
}

const PROBES: [Probe; 5] = [
    Probe { row: "round trips blocking", program: "pingpong", args: &["--size", "64"] },
    Probe { row: "round trips epoll", program: "pingpong", args: &["--size", "64", "--epoll"] },
    Probe { row: "64 B one way", program: "stream", args: &["--size", "64"] },
    Probe { row: "64 KB one way", program: "stream", args: &["--size", "65536"] },
    SHORT,
];

const SHORT: Probe = Probe { row: "short connections", program: "shortconn", args: &[] };

/// The circumstances.
#[derive(Clone, Copy)]
struct Condition {
    name: &'static str,
    ends: Ends,
    busy: bool,
}

const CONDITIONS: [Condition; 3] = [
    Condition { name: "busy machine", ends: Ends::Both, busy: true },
    Condition { name: "server only", ends: Ends::ServerOnly, busy: false },
    Condition { name: "client only", ends: Ends::ClientOnly, busy: false },
];

const QUIET: Condition = Condition { name: "quiet", ends: Ends::Both, busy: false };

/// Busy processes for each processor.
const BUSY_EACH: usize = 4;
const IDLE_SECONDS: f64 = 5.0;
/// The most processor time of an idle program, in percent of a processor: reading the clock of a
/// sleeping process may show that much.
const IDLE_PERCENT: f64 = 0.1;

/// Name, unit and value.
type Found = (&'static str, Unit, f64);

pub fn measure(session: &mut Session, names: &[String]) -> Result<()> {
    let mut applications: Vec<Box<dyn App>> = Vec::new();
    for mut app in names.iter().filter_map(|name| apps::by_name(name)) {
        let prepared = app.prepare(session);
        if session.record(app.name(), prepared)?.is_some() {
            applications.push(app);
        }
    }
    for round in 0..session.rounds {
        for condition in CONDITIONS {
            progress(format_args!(
                "never-slower: {}, round {} of {}",
                condition.name,
                round + 1,
                session.rounds
            ));
            let count = std::thread::available_parallelism().map_or(2, usize::from) * BUSY_EACH;
            let _busy = if condition.busy { pairs::busy(session, count)? } else { Vec::new() };
            for probe in &PROBES {
                let row = format!("{}: {}", condition.name, probe.row);
                cell(session, &row, round, |session, side| run_probe(session, side, condition, probe))?;
            }
            for app in &mut applications {
                let workloads: Vec<&str> = app.workloads().iter().map(|w| w.name).collect();
                run_app(session, app.as_mut(), condition, round, &workloads)?;
            }
        }
        progress(format_args!("never-slower: short and rare, round {} of {}", round + 1, session.rounds));
        cell(session, "quiet: short connections", round, |session, side| {
            run_probe(session, side, QUIET, &SHORT)
        })?;
        for app in applications.iter_mut().filter(|app| app.name() == "nginx") {
            run_app(session, app.as_mut(), QUIET, round, &["close"])?;
        }
        cell(session, "quiet: 100 requests a second", round, rare)?;
    }
    for round in 0..session.rounds.min(2) {
        progress(format_args!("never-slower: idle, round {}", round + 1));
        for side in session.sides(&[Side::Tcp, Side::Shunt]) {
            let used = idle::idle_cpu(session, side, IDLE_SECONDS);
            let Some(percent) = session.record("idle processor time", used)? else { continue };
            let place = Place { group: GROUP, row: "idle: 50 open connections", side, round };
            let bound = Target::value(IDLE_PERCENT);
            session.results.add(&place, "cpu of both ends", Unit::CpuPercent, bound, percent);
        }
    }
    Ok(())
}

/// One cell, TCP and Shunt in turns.
fn cell(
    session: &mut Session,
    row: &str,
    round: usize,
    run: impl Fn(&Session, Side) -> Result<Vec<Found>>,
) -> Result<()> {
    for side in Side::turns(&session.sides(&[Side::Tcp, Side::Shunt]), round) {
        let outcome = run(session, side);
        let found = session.record(&format!("{row} ({})", side.title()), outcome)?;
        let place = Place { group: GROUP, row, side, round };
        for (name, unit, value) in found.unwrap_or_default() {
            session.results.add(&place, name, unit, Target::over_tcp(NEVER_SLOWER), value);
        }
    }
    Ok(())
}

fn setting(session: &Session, side: Side, condition: Condition) -> Setting {
    // On a busy machine time slices are long: measure over more of them, and let the kernel place
    // the programs.
    let (cpus, times) = if condition.busy { (Cpus::ANY, 2.0) } else { (session.cpus, 1.0) };
    Setting { side, ends: condition.ends, cpus, seconds: session.duration * times, options: &[] }
}

fn run_probe(session: &Session, side: Side, condition: Condition, probe: &Probe) -> Result<Vec<Found>> {
    let setting = setting(session, side, condition);
    let result = pairs::run(session, probe.program, setting, probe.args, &[])?;
    Ok(match probe.program {
        "stream" => vec![("messages", Unit::PerSecond, number(&result, "messages_per_second")?)],
        "shortconn" => vec![("connections", Unit::PerSecond, number(&result, "per_second")?)],
        _ => vec![("round trips", Unit::PerSecond, number(&result, "count")? / number(&result, "seconds")?)],
    })
}

/// One connection with a request every 10 ms: nearly all of the time is the wake-up, and waiting
/// must not cost processor time.
fn rare(session: &Session, side: Side) -> Result<Vec<Found>> {
    let setting = Setting { seconds: session.duration.max(1.0) * 2.0, ..setting(session, side, QUIET) };
    let result = pairs::run(session, "pingpong", setting, &["--size", "64"], &["--interval-us", "10000"])?;
    let cpu = number(&result, "cpu_ns")? + server_share(&result)?;
    Ok(vec![
        ("p50", Unit::Time, number(&result, "p50_ns")?),
        ("cpu", Unit::CpuPerRequest, cpu / number(&result, "count")?),
    ])
}

/// The server counts from its start, the client from the end of its warm-up: the part of the
/// server's time that belongs to the measured time.
fn server_share(result: &Value) -> Result<f64> {
    const WARM_UP: f64 = 0.2;
    let seconds = number(result, "seconds")?;
    Ok(number(result, "server_cpu_ns")? * seconds / (seconds + WARM_UP))
}

fn run_app(
    session: &mut Session,
    app: &mut dyn App,
    condition: Condition,
    round: usize,
    workloads: &[&str],
) -> Result<()> {
    for side in Side::turns(&session.sides(&[Side::Tcp, Side::Shunt]), round) {
        let Setting { ends, cpus, seconds, .. } = setting(session, side, condition);
        let run = Run { side, ends, cpus, seconds };
        let what = format!("{}: {} ({})", condition.name, app.name(), side.title());
        let started = app.start(session, &run);
        let Some(mut server) = session.record(&what, started)? else { continue };
        for workload in workloads {
            let outcome = apps::measured_load(session, app, &run, &mut server, workload);
            let Some((load, _)) = session.record(&format!("{what} {workload}"), outcome)? else {
                continue;
            };
            let row = format!("{}: {} {workload}", condition.name, app.name());
            let place = Place { group: GROUP, row: &row, side, round };
            let target = Target::over_tcp(NEVER_SLOWER);
            session.results.add(&place, "requests", Unit::PerSecond, target, load.per_second);
        }
    }
    Ok(())
}
