//! `shunt bench` and `shunt demo` run programs plain and under Shunt, side by side, and show the
//! difference.
//!
//! Every claim of this project is a ratio measured within one run. Kernel TCP, Shunt, UNIX sockets
//! and the raw-memory limit take turns, round after round, so that changes of the machine affect
//! all of them. The measured programs are ordinary ones: those of `bench/programs`, and real
//! servers with their usual load tools; filters run in processes of this program itself. This crate
//! only starts them, reads their output, and does the arithmetic.

mod apps;
mod bench;
mod bridge;
mod cli;
mod containers;
mod demo;
mod error;
mod ether;
mod figure;
mod filters;
mod find;
mod footprint;
mod ftp;
mod host;
mod idle;
mod lan;
mod messages;
mod never;
mod ofi;
mod pairs;
mod plot;
mod process;
mod report;
mod results;
mod rpc;
mod session;
mod signals;
mod stats;
mod temp;
mod unit;
mod usage;
mod via;
mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

/// All words that `shunt bench` knows, and what they mean.
pub use cli::words;

/// `shunt bench ARGS`.
pub fn main(args: &[OsString]) -> ExitCode {
    // Filters that are measured run in processes of this program.
    filters::serve_if_asked();
    if args.first().is_some_and(|word| word == ofi::exchange::WORD) {
        return ofi::exchange::main(&args[1..]);
    }
    match cli::parse_bench(args) {
        Ok(cli::Parsed::Help) => {
            print!("{}", cli::bench_help());
            ExitCode::SUCCESS
        }
        Ok(cli::Parsed::Run(options)) => bench::run(&options),
        Err(message) => usage_error("bench", &message),
    }
}

/// `shunt demo ARGS`.
pub fn demo(args: &[OsString]) -> ExitCode {
    match cli::parse_demo(args) {
        Ok(cli::Parsed::Help) => {
            print!("{}", cli::DEMO_HELP);
            ExitCode::SUCCESS
        }
        Ok(cli::Parsed::Run(options)) => demo::run(&options),
        Err(message) => usage_error("demo", &message),
    }
}

fn usage_error(command: &str, message: &str) -> ExitCode {
    eprintln!("shunt {command}: {message}\nTry `shunt {command} --help`.");
    ExitCode::from(2)
}
