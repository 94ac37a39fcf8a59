//! `shunt bench`: the order of the measurements, the use of their results, and the exit status.

use crate::cli::BenchOptions;
use crate::error::{self, Error, Result, failed};
use crate::host::{self, Cpus};
use crate::results::Results;
use crate::session::{Session, progress};
use crate::{
    apps, containers, ether, filters, find, footprint, ftp, idle, messages, never, ofi, plot, report, rpc,
    via,
};
use serde_json::{Value, json};
use std::process::ExitCode;

pub fn run(options: &BenchOptions) -> ExitCode {
    let mut session = match session(options) {
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
    if session.cpus == Cpus::ANY && !options.unpinned {
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

fn session(options: &BenchOptions) -> Result<Session> {
    let mut session = Session::new(options.rounds, options.duration)?;
    if options.unpinned {
        session.cpus = Cpus::ANY;
    }
    if let Some(library) = &options.beside {
        let found = library.canonicalize().map_err(failed(format!("--beside {}", library.display())))?;
        session.beside = Some(found);
    }
    Ok(session)
}

/// Groups that measure programs which many machines do not have.
const OPTIONAL: [&str; 5] = [ftp::GROUP, rpc::GROUP, ether::GROUP, ofi::GROUP, containers::GROUP];

fn exit_code(results: &Results, options: &BenchOptions, interrupted: bool, failed: bool) -> ExitCode {
    // A missing application matters only if the user asked for it by name.
    let optional = |(what, why): &(String, String)| {
        let app = !options.apps_by_name && options.apps.contains(what);
        let group = what
            .split([' ', '-'])
            .next()
            .is_some_and(|group| OPTIONAL.contains(&group) && !options.asked_for(group));
        // Contenders of filters: without one of them a promise cannot be checked.
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
        "options": {"what": options.what, "rounds": options.rounds, "duration": options.duration,
                    "unpinned": options.unpinned},
    });
    if let (Value::Object(into), Value::Object(from)) = (&mut document, results.to_json()) {
        into.extend(from);
    }
    document
}

fn group(session: &mut Session, what: &str, options: &BenchOptions) -> Result<()> {
    if !["apps", ftp::GROUP].contains(&what) {
        // All other groups need the measuring programs.
        session.libexec = find::libexec()?;
    }
    match what {
        "latency" => messages::latency(session),
        "asleep" => messages::asleep(session),
        "throughput" => messages::throughput(session),
        "apps" => apps::measure(session, &options.apps),
        ftp::GROUP => ftp::measure(session),
        rpc::GROUP => rpc::measure(session),
        via::GROUP => via::measure(session),
        ether::GROUP => ether::measure(session),
        containers::GROUP => containers::measure(session),
        ofi::GROUP => ofi::measure(session, &options.fabric),
        filters::GROUP => filters::measure(session, &options.filters),
        "never-slower" => never::measure(session, &options.apps),
        footprint::GROUP => footprint::measure(session),
        "idle" => idle::measure(session, options.connections),
        other => Err(Error::Failed(format!("nothing is called {other}"))),
    }
}
