//! The command `shunt`: starts programs under `libshunt.so`, shows what their connections do, says what would keep them
//! from being accelerated, and measures. This file only hands each subcommand to its module.

mod bench;
mod cli;
mod doctor;
mod generate;
mod help;
mod homes;
mod library;
mod program;
mod reason;
mod run;
mod stat;

use std::ffi::OsString;
use std::process::ExitCode;

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
        Some((name @ ("bench" | "demo"), matches)) => {
            let rest = matches.get_many::<OsString>("args").unwrap_or_default().cloned();
            let args: Vec<OsString> = std::iter::once(name.into()).chain(rest).collect();
            bench::main(&args)
        }
        Some(("help", matches)) => help::main(matches),
        Some(("generate", matches)) => generate::main(matches),
        _ => unreachable!("clap asks for one of the subcommands above"),
    }
}

/// Prints what clap has to say. A wrong call of `shunt run` must not look like an exit status of the program it did not
/// start, so that one ends with 125.
fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print(); // nowhere left to complain to
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ if std::env::args_os().nth(1).is_some_and(|first| first == "run") => ExitCode::from(run::FAILED),
        _ => ExitCode::from(2),
    }
}
