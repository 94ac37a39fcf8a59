//! The place of the crate `bench` until that is there. To use the crate, delete this file and its `mod` line in main.rs.

use std::ffi::OsString;
use std::process::ExitCode;

/// `shunt bench ARGS`.
pub fn main(_args: &[OsString]) -> ExitCode {
    eprintln!("shunt bench: not in this build");
    ExitCode::FAILURE
}

/// `shunt demo ARGS`.
pub fn demo(_args: &[OsString]) -> ExitCode {
    eprintln!("shunt demo: not in this build");
    ExitCode::FAILURE
}
