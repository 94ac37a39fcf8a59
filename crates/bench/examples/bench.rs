//! `shunt bench` and `shunt demo` without the rest of the command:
//! `cargo run -p bench --example bench -- latency`.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first() {
        Some(word) if word == "demo" => bench::demo(&args[1..]),
        _ => bench::main(&args),
    }
}
