//! `shunt bench`: the session that measurements run in, latency and throughput, and the order of everything.

use crate::cli::{BenchOptions, FabricOptions};
use crate::error::{self, Error, Result};
use crate::ether::{self, Lan};
use crate::host::{self, Cpus};
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Results, Side, Target, Unit};
use crate::temp::TempDir;
use crate::{apps, filters, find, footprint, ftp, idle, never, ofi, plot, report, rpc, signals, via};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What all measurements of a run share.
pub struct Session {
    pub library: Option<PathBuf>,
    pub libexec: PathBuf,
    pub temp: TempDir,
    pub cpus: Cpus,
    pub rounds: usize,
    pub duration: f64,
    pub results: Results,
    /// Ethernets between two namespaces, while these are measured.
    pub lan: Option<Lan>,
    /// What is between the hosts, or stands for it, while that is measured.
    pub far: Option<FabricOptions>,
}

/// Where the ends of a connection are: the address of the server, and the network namespaces if not this one.
pub struct Wire {
    pub address: Ipv4Addr,
    pub server: Option<PathBuf>,
    pub client: Option<PathBuf>,
    /// Words before the server's program, where it is on another host.
    pub before: Vec<String>,
}

impl Wire {
    pub const LOOPBACK: Wire =
        Wire { address: Ipv4Addr::LOCALHOST, server: None, client: None, before: Vec::new() };
}

impl Session {
    pub fn new(rounds: usize, duration: f64) -> Result<Session> {
        signals::catch();
        let mut results = Results::default();
        let library = find::library();
        if library.is_none() {
            results.skip("Shunt", find::NO_LIBRARY);
        }
        let libexec = find::libexec().unwrap_or_default();
        Ok(Session {
            library,
            libexec,
            temp: TempDir::new()?,
            cpus: Cpus::choose(),
            rounds,
            duration,
            results,
            lan: None,
            far: None,
        })
    }

    /// The library to put in front of this side's programs.
    pub fn library_for(&self, side: Side) -> Option<&Path> {
        self.library.as_deref().filter(|_| side.is_accelerated())
    }

    /// Loopback, unless the side is an Ethernet or another host is measured.
    pub fn wire(&self, side: Side) -> Wire {
        if let Some(far) = self.far.as_ref().filter(|_| side != Side::Unix) {
            return Wire { address: far.at, before: far.remote.clone(), ..Wire::LOOPBACK };
        }
        let wire = self.lan.as_ref().and_then(|lan| lan.wire(side));
        wire.unwrap_or(Wire::LOOPBACK)
    }

    /// Without the library there is no Shunt to measure; all else still is.
    pub fn sides(&self, wanted: &[Side]) -> Vec<Side> {
        wanted.iter().copied().filter(|s| !s.is_accelerated() || self.library.is_some()).collect()
    }

    /// Takes what one measurement gave, or notes why there is nothing. Only an interruption ends the run.
    pub fn record<T>(&mut self, what: &str, outcome: Result<T>) -> Result<Option<T>> {
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(error) => {
                eprintln!("  {what}: {error}");
                self.results.skip(what, error);
                Ok(None)
            }
        }
    }
}

/// Progress goes to stderr: stdout is for results.
pub fn progress(text: std::fmt::Arguments) {
    eprintln!("{text}");
}

pub fn run(options: &BenchOptions) -> ExitCode {
    let mut session = match Session::new(options.rounds, options.duration) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("shunt bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    let machine = host::describe(session.cpus);
    if let Some(load) = host::noise() {
        progress(format_args!("Note: this machine is not quiet (load {load:.1}); the spread will show it."));
    }
    if session.cpus == Cpus::ANY {
        progress(format_args!("Note: there is only one processor to use; server and client share it."));
    }
    let outcome = options.what.iter().try_for_each(|what| group(&mut session, what, options));
    let interrupted = matches!(outcome, Err(Error::Interrupted));
    if let Err(error) = &outcome {
        eprintln!("shunt bench: {error}");
    }
    let tables = report::tables(&session.results);
    if options.json {
        eprint!("{tables}");
        println!("{}", document(&session.results, machine, options));
    } else {
        print!("{tables}");
    }
    let plots = options.plot.as_ref().map(|dir| plot::draw_all(&session.results, dir));
    match &plots {
        Some(Ok(files)) => files.iter().for_each(|f| progress(format_args!("Plot: {}", f.display()))),
        Some(Err(error)) => eprintln!("shunt bench: {error}"),
        None => {}
    }
    exit_code(&session.results, options, interrupted, outcome.is_err() || matches!(plots, Some(Err(_))))
}

/// Groups that measure programs which not everybody has installed.
const OPTIONAL: [&str; 4] = [ftp::GROUP, rpc::GROUP, ether::GROUP, ofi::GROUP];

fn exit_code(results: &Results, options: &BenchOptions, interrupted: bool, failed: bool) -> ExitCode {
    // An application that is not installed matters only to those who asked for it.
    let optional = |(what, why): &(String, String)| {
        let app = !options.apps_by_name && options.apps.contains(what);
        let group = what
            .split([' ', '-'])
            .next()
            .is_some_and(|group| OPTIONAL.contains(&group) && !options.asked_for(group));
        // Those that filters are compared with: without one of them its promise cannot be checked.
        if why.contains(error::NOT_HERE) {
            return !options.check;
        }
        (app || group) && (why.contains("is not installed") || why == ether::NEEDS_ROOT)
    };
    let rows = results.figures.iter().flat_map(|figure| &figure.rows);
    let mut verdicts = results.metrics.iter().map(|m| m.verdict()).chain(rows.map(|row| row.verdict()));
    let missed = verdicts.any(|verdict| verdict == Some(false));
    match () {
        () if interrupted => ExitCode::from(130),
        () if failed || !results.not_run.iter().all(optional) => ExitCode::FAILURE,
        () if options.check && missed => ExitCode::from(3),
        () => ExitCode::SUCCESS,
    }
}

fn document(results: &Results, machine: Value, options: &BenchOptions) -> Value {
    let mut document = json!({
        "shunt": env!("CARGO_PKG_VERSION"),
        "machine": machine,
        "options": {"what": options.what, "rounds": options.rounds, "duration": options.duration},
    });
    if let (Value::Object(into), Value::Object(from)) = (&mut document, results.to_json()) {
        into.extend(from);
    }
    document
}

fn group(session: &mut Session, what: &str, options: &BenchOptions) -> Result<()> {
    if !["apps", ftp::GROUP].contains(&what) {
        // All else needs the measuring programs.
        session.libexec = find::libexec()?;
    }
    match what {
        "latency" => latency(session),
        "throughput" => throughput(session),
        "apps" => apps::measure(session, &options.apps),
        ftp::GROUP => ftp::measure(session),
        rpc::GROUP => rpc::measure(session),
        via::GROUP => via::measure(session),
        ether::GROUP => ether::measure(session),
        ofi::GROUP => ofi::measure(session, &options.fabric),
        filters::GROUP => filters::measure(session, &options.filters),
        "never-slower" => never::measure(session, &options.apps),
        footprint::GROUP => footprint::measure(session),
        "idle" => idle::measure(session, options.connections),
        other => Err(Error::Failed(format!("nothing is called {other}"))),
    }
}

/// Round trips of 64 bytes.
fn latency(session: &mut Session) -> Result<()> {
    let forms: [(&str, &[&str], Target); 2] = [
        ("64 B blocking", &["--size", "64"], Target::over_tcp(50.0).and_of_raw(1.0 / 3.0)),
        ("64 B epoll", &["--size", "64", "--epoll"], Target::over_tcp(30.0)),
    ];
    let sides = session.sides(&[Side::Tcp, Side::Shunt, Side::Unix, Side::Raw]);
    for round in 0..session.rounds {
        progress(format_args!("latency: round {} of {}", round + 1, session.rounds));
        for (row, args, target) in forms {
            for side in Side::turns(&sides, round) {
                let result = match side {
                    Side::Raw => pairs::raw(session, "latency", session.cpus, session.duration, &[]),
                    _ => pairs::run(session, "pingpong", setting(session, side), args, &[]),
                };
                let Some(result) = session.record(&format!("latency {row} {}", side.title()), result)? else {
                    continue;
                };
                let place = Place { group: "latency", row, side, round };
                for (name, key) in [("p50", "p50_ns"), ("p99", "p99_ns"), ("mean", "mean_ns")] {
                    let target = if name == "p50" { target } else { Target::NONE };
                    session.results.add(&place, name, Unit::Time, target, number(&result, key)?);
                }
            }
        }
    }
    Ok(())
}

/// Messages one way.
fn throughput(session: &mut Session) -> Result<()> {
    let large = Target::over_tcp(2.5).and_of_raw(0.8);
    let sizes = [
        ("64 B", "64", Target::over_tcp(20.0)),
        ("4 KB", "4096", Target::NONE),
        ("64 KB", "65536", large),
        ("1 MB", "1048576", large),
    ];
    let sides = session.sides(&[Side::Tcp, Side::Shunt, Side::Unix, Side::Raw]);
    for round in 0..session.rounds {
        progress(format_args!("throughput: round {} of {}", round + 1, session.rounds));
        for (row, size, target) in sizes {
            for side in Side::turns(&sides, round) {
                let args = ["--size", size];
                let result = match side {
                    Side::Raw => pairs::raw(session, "bandwidth", session.cpus, session.duration, &args),
                    _ => pairs::run(session, "stream", setting(session, side), &args, &[]),
                };
                let Some(result) = session.record(&format!("throughput {row} {}", side.title()), result)?
                else {
                    continue;
                };
                let place = Place { group: "throughput", row, side, round };
                let results = &mut session.results;
                let messages = number(&result, "messages_per_second")?;
                results.add(&place, "messages", Unit::PerSecond, target, messages);
                let bytes = number(&result, "bytes_per_second")?;
                results.add(&place, "bytes", Unit::BytesPerSecond, Target::NONE, bytes);
            }
        }
    }
    Ok(())
}

fn setting(session: &Session, side: Side) -> Setting {
    Setting { side, ends: Ends::Both, cpus: session.cpus, seconds: session.duration, options: &[] }
}
