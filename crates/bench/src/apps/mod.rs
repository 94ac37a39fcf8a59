//! Real servers under their usual load tools. Each file here is about one: how to start it in a
//! temporary directory on a free port, how to load it, and how to read the output of the tool.

mod app;
mod memcached;
mod nginx;
mod postgres;
pub mod redis;

pub use app::{Address, App, Run, Server, accepting_at, free_port, is_root, measured_load};

use crate::error::Result;
use crate::host::Cpus;
use crate::pairs::Ends;
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};

pub fn by_name(name: &str) -> Option<Box<dyn App>> {
    match name {
        "redis" => Some(Box::<redis::Redis>::default()),
        "memcached" => Some(Box::new(memcached::Memcached)),
        "nginx" => Some(Box::<nginx::Nginx>::default()),
        "postgres" => Some(Box::<postgres::Postgres>::default()),
        _ => None,
    }
}

/// What is promised of applications for which the kernel chooses the processors. Kernel TCP gains
/// by that, too: it then wakes a process where the one that woke it runs, or where nothing runs.
const NEVER_SLOWER: f64 = 0.98;

/// `shunt bench apps`: every application quiet, one processor for each end if not unpinned.
pub fn measure(session: &mut Session, names: &[String]) -> Result<()> {
    for name in names {
        let Some(mut app) = by_name(name) else { continue };
        let prepared = app.prepare(session);
        if session.record(name, prepared)?.is_none() {
            continue;
        }
        let mut sides = session.sides_and_beside(&[Side::Tcp, Side::Shunt, Side::Unix]);
        sides.retain(|s| *s != Side::Unix || app.has_unix());
        for round in 0..session.rounds {
            progress(format_args!("apps: {name}, round {} of {}", round + 1, session.rounds));
            for side in Side::turns(&sides, round) {
                let run = Run { side, ends: Ends::Both, cpus: session.cpus, seconds: session.duration * 2.0 };
                turn(session, app.as_mut(), &run, round)?;
            }
        }
    }
    Ok(())
}

fn turn(session: &mut Session, app: &mut dyn App, run: &Run, round: usize) -> Result<()> {
    let name = app.name();
    let started = app.start(session, run);
    let what = format!("{name} ({})", run.side.title());
    let Some(mut server) = session.record(&what, started)? else { return Ok(()) };
    for workload in app.workloads() {
        let outcome = measured_load(session, app, run, &mut server, workload.name);
        let what = format!("{name} {} ({})", workload.name, run.side.title());
        let Some((load, server_cpu)) = session.record(&what, outcome)? else { continue };
        let row = format!("{name} {}", workload.name);
        let place = Place { group: "apps", row: &row, side: run.side, round };
        let promise = workload.promise.map(|times| if run.cpus == Cpus::ANY { NEVER_SLOWER } else { times });
        let promise = promise.map_or(Target::NONE, Target::over_tcp);
        let results = &mut session.results;
        results.add(&place, "requests", Unit::PerSecond, promise, load.per_second);
        if let (Some(p50), Some(p99)) = (load.p50, load.p99) {
            results.add(&place, "p50", Unit::Time, Target::NONE, p50);
            results.add(&place, "p99", Unit::Time, Target::over_tcp(1.0), p99);
        }
        let each = |ns: u64| ns as f64 / load.requests;
        let all = each(server_cpu + load.client_cpu_ns);
        results.add(&place, "server cpu", Unit::CpuPerRequest, Target::NONE, each(server_cpu));
        results.add(&place, "both cpu", Unit::CpuPerRequest, Target::over_tcp(1.0), all);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_application_of_the_command_line_exists() {
        for name in crate::cli::APPS {
            assert_eq!(by_name(name).unwrap().name(), name);
        }
    }
}
