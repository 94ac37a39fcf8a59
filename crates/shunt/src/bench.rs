//! The door to the crate `bench`, which does what `shunt bench` and `shunt demo` promise.

use std::ffi::OsString;
use std::process::ExitCode;

/// `args` begins with the name of the subcommand, `bench` or `demo`.
pub fn main(args: &[OsString]) -> ExitCode {
    // To become `::bench::main(args)` with that crate.
    eprintln!("shunt {}: not in this build", args[0].display());
    ExitCode::FAILURE
}
