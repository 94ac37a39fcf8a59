//! `shunt doctor`: tries what Shunt needs, on this host and of one program or process. Each check
//! says what it found and, where that is in the way, what to do. This file gathers and prints; the
//! checks are in the files beside it.

mod board;
mod check;
mod cluster;
mod containers;
mod diag;
mod host;
mod kernel;
mod process;
mod program;
mod rules;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ArgMatches;
use serde::Serialize;

use check::{Check, Status};

#[derive(Serialize)]
struct Report {
    version: &'static str,
    ok: bool,
    checks: Vec<Check>,
}

pub fn main(matches: &ArgMatches) -> ExitCode {
    if let Some(mut asked) = matches.get_many::<OsString>("rules") {
        let (program, address) = asked.next().zip(asked.next()).expect("clap wants two");
        return rules::main(program, address, matches.get_flag("json"));
    }
    let mut checks = host::checks();
    checks.extend(kernel::checks());
    checks.extend(board::checks());
    checks.push(rules::check());
    checks.extend(cluster::checks());
    if matches.get_flag("container") {
        checks.extend(containers::checks());
    }
    if let Some(name) = matches.get_one::<OsString>("program") {
        checks.extend(program::checks(name));
    }
    if let Some(&pid) = matches.get_one::<u32>("pid") {
        checks.extend(process::checks(pid));
    }
    let ok = checks.iter().all(|check| check.status != Status::Fail);
    let report = Report { version: env!("CARGO_PKG_VERSION"), ok, checks };
    let text = if matches.get_flag("json") {
        serde_json::to_string_pretty(&report).expect("strings and booleans only") + "\n"
    } else {
        as_text(&report)
    };
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes()); // a closed pipe; the exit status tells all the same
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn as_text(report: &Report) -> String {
    let mut text = String::new();
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in &report.checks {
        let status = match check.status {
            Status::Ok => "ok  ",
            Status::Warn => "warn",
            Status::Fail => "FAIL",
        };
        text += &format!("{status}  {:<width$}  {}\n", check.name, check.found);
        if let Some(todo) = &check.todo {
            text += &format!("      {:<width$}  -> {todo}\n", "");
        }
    }
    let count = |status| report.checks.iter().filter(|check| check.status == status).count();
    text += &match (count(Status::Fail), count(Status::Warn)) {
        (0, 0) => "\nNothing is in the way.\n".to_string(),
        (0, n) => format!("\nNothing is in the way; {n} to know about.\n"),
        (n, _) => format!("\n{n} in the way.\n"),
    };
    text
}
