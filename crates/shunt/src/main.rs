//! The command `shunt`: starts programs under `libshunt.so`, shows what their connections do, says
//! what would keep them from being accelerated, and measures. This file only hands each subcommand
//! to its module.

mod agent;
mod cli;
mod container;
mod doctor;
mod ether;
mod generate;
mod help;
mod homes;
mod library;
mod path;
mod program;
mod python;
mod reason;
mod rules;
mod run;
mod settings;
mod stat;
mod whose;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::ArgMatches;
use clap::error::ErrorKind;

fn main() -> ExitCode {
    let matches = match cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return usage(&error),
    };
    match matches.subcommand() {
        Some(("run", matches)) => run::main(matches),
        Some(("stat", matches)) => stat::main(matches),
        Some(("doctor", matches)) => doctor::main(matches),
        Some(("bench", matches)) => bench::main(&passed_on(matches)),
        Some(("demo", matches)) => bench::demo(&passed_on(matches)),
        Some(("ether", matches)) => ether::main(matches),
        Some(("agent", matches)) => agent::main(matches),
        Some(("container", matches)) => container::main(matches),
        Some(("help", matches)) => match matches.get_one::<String>("topic").map(String::as_str) {
            Some("bench") => bench::main(&["--help".into()]),
            Some("demo") => bench::demo(&["--help".into()]),
            topic => match topic.and_then(python::module_of) {
                Some(module) => python::main(module, &["--help".into()]),
                None => help::main(topic),
            },
        },
        Some(("generate", matches)) => generate::main(matches),
        other => match other.and_then(|(name, matches)| Some((python::module_of(name)?, matches))) {
            Some((module, matches)) => python::main(module, &passed_on(matches)),
            None => unreachable!("clap asks for one of the subcommands above"),
        },
    }
}

/// The arguments of a subcommand that reads them itself.
fn passed_on(matches: &ArgMatches) -> Vec<OsString> {
    matches.get_many("args").unwrap_or_default().cloned().collect()
}

/// Prints what clap has to say. A wrong call of `shunt run` must not look like an exit status of
/// the program it did not start, so that one ends with 125.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print(); // nowhere left to complain to
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if std::env::args_os().nth(1).is_some_and(|first| first == "run") => ExitCode::from(run::FAILED),
        _ => ExitCode::from(2),
    }
}
