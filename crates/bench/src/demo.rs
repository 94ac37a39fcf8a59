//! `shunt demo`: the first command that a newcomer tries. An unmodified redis-server under an
//! unmodified redis-benchmark, plain and under Shunt in turns, as a table with bars and as a
//! picture.

use crate::apps::{self, App, Run, redis::Redis};
use crate::cli::{DemoOptions, PLOT};
use crate::error::{Error, Result};
use crate::find;
use crate::host::Cpus;
use crate::pairs::Ends;
use crate::plot;
use crate::results::{Place, Results, Side, Target, Unit};
use crate::session::{Session, progress};
use std::fmt::Write;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const ROUNDS: usize = 3;
const BAR: usize = 40;
const GROUP: &str = "demo";

pub fn run(options: &DemoOptions) -> ExitCode {
    let outcome = place(&options.plot).and_then(|picture| {
        let mut session = Session::new(ROUNDS, options.duration)?;
        measure(&mut session)?;
        print!("{}", table(&session.results, session.cpus, has_utf8()));
        plot::demo(&session.results, title, &picture)?;
        println!("\nPlot: {}", picture.display());
        Ok(())
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("shunt demo: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The path of the plot; a directory gets it under its usual name. Checked before anything is
/// measured.
fn place(asked: &Path) -> Result<PathBuf> {
    let picture = if asked.is_dir() { asked.join(PLOT) } else { asked.to_path_buf() };
    let cannot =
        |error: io::Error| Error::Failed(format!("cannot write the plot {}: {error}", picture.display()));
    if let Some(parent) = picture.parent() {
        std::fs::create_dir_all(parent).map_err(cannot)?;
    }
    let there = picture.exists();
    OpenOptions::new().append(true).create(true).open(&picture).map_err(cannot)?;
    if !there {
        // Leave no file behind if measuring fails.
        std::fs::remove_file(&picture).map_err(cannot)?;
    }
    Ok(picture)
}

fn measure(session: &mut Session) -> Result<()> {
    if session.library.is_none() {
        return Err(Error::Failed(find::NO_LIBRARY.into()));
    }
    let mut app = Redis::default();
    app.prepare(session)?;
    let seconds = session.duration;
    let turns = ROUNDS * 2 * app.workloads().len();
    progress(format_args!(
        "redis-server and redis-benchmark, plain and under Shunt in turns: about {:.0} seconds",
        turns as f64 * (seconds + 0.3)
    ));
    for round in 0..ROUNDS {
        for side in Side::turns(&[Side::Tcp, Side::Shunt], round) {
            progress(format_args!("round {} of {ROUNDS}: {}", round + 1, title(side)));
            let run = Run { side, ends: Ends::Both, cpus: session.cpus, seconds };
            let mut server = app.start(session, &run)?;
            for workload in app.workloads() {
                let (load, _) = apps::measured_load(session, &mut app, &run, &mut server, workload.name)?;
                let place = Place { group: GROUP, row: workload.name, side, round };
                let results = &mut session.results;
                results.add(&place, "requests", Unit::PerSecond, Target::NONE, load.per_second);
                if let (Some(p50), Some(p99)) = (load.p50, load.p99) {
                    results.add(&place, "p50", Unit::Time, Target::NONE, p50);
                    results.add(&place, "p99", Unit::Time, Target::NONE, p99);
                }
            }
        }
    }
    Ok(())
}

fn title(side: Side) -> &'static str {
    if side == Side::Shunt { "with Shunt" } else { "plain TCP" }
}

fn table(results: &Results, cpus: Cpus, utf8: bool) -> String {
    let mut out = String::from("\nredis-benchmark, 50 connections, no pipelining");
    if let (Some(server), Some(client)) = (cpus.server, cpus.client) {
        let _ = write!(out, ", server on CPU {server}, client on CPU {client}");
    }
    let _ = writeln!(out, " (median of {ROUNDS} rounds)\n");
    let rates: Vec<_> = results.metrics.iter().filter(|m| m.name == "requests").collect();
    let medians =
        rates.iter().flat_map(|m| [Side::Tcp, Side::Shunt].map(|s| m.summary(s).map_or(0.0, |s| s.median)));
    let most = medians.fold(0.0, f64::max);
    for metric in rates {
        for side in [Side::Tcp, Side::Shunt] {
            let Some(rate) = metric.summary(side) else { continue };
            let name = if side == Side::Tcp { &metric.row } else { "" };
            let bar = bar(rate.median / most, utf8);
            let time = |what: &str| {
                let found = results.metrics.iter().find(|m| m.row == metric.row && m.name == what);
                found.and_then(|m| m.summary(side)).map_or("-".into(), |s| Unit::Time.show(s.median))
            };
            let _ = writeln!(
                out,
                "  {name:<4} {:<11} {:>9}  {bar}  p50 {:>7}  p99 {:>7}",
                title(side),
                Unit::PerSecond.show(rate.median),
                time("p50"),
                time("p99")
            );
        }
        if let Some(times) = metric.advantage(Side::Shunt, Side::Tcp) {
            let _ = writeln!(
                out,
                "  {:<4} {:<11} {:>7.1} x  ({:.1} to {:.1} in single rounds)\n",
                "", "", times.median, times.min, times.max
            );
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn bar(share: f64, utf8: bool) -> String {
    let length = ((share * BAR as f64).round() as usize).clamp(1, BAR);
    let full = if utf8 { "█" } else { "#" };
    full.repeat(length) + &" ".repeat(BAR - length)
}

/// Whether the terminal's locale has more than ASCII.
fn has_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(std::env::var_os).find(|v| !v.is_empty());
    set.is_some_and(|v| v.to_string_lossy().to_uppercase().replace('-', "").contains("UTF8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_share() {
        assert_eq!(bar(1.0, false).trim().len(), BAR);
        assert_eq!(bar(0.5, false).trim().len(), BAR / 2);
        assert_eq!(bar(0.001, false).trim(), "#");
        assert_eq!(bar(0.5, true).chars().count(), BAR);
    }

    #[test]
    fn the_table_compares() {
        let mut results = Results::default();
        for (side, rate) in [(Side::Tcp, 60e3), (Side::Shunt, 900e3)] {
            let place = Place { group: GROUP, row: "GET", side, round: 0 };
            results.add(&place, "requests", Unit::PerSecond, Target::NONE, rate);
        }
        let table = table(&results, Cpus::ANY, false);
        assert!(
            table.contains("60.0 k/s") && table.contains("900 k/s") && table.contains("15.0 x"),
            "{table}"
        );
    }

    #[test]
    fn a_directory_gets_the_plot_and_a_bad_place_is_told_first() {
        let dir = std::env::temp_dir().join(format!("shunt-demo-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        assert_eq!(place(&dir).unwrap(), dir.join(PLOT));
        assert_eq!(place(&dir.join("new/x.png")).unwrap(), dir.join("new/x.png"));
        assert!(!dir.join(PLOT).exists() && !dir.join("new/x.png").exists());
        assert!(place(Path::new("/proc/x.png")).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
