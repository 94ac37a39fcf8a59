//! Subcommands that are Python's: finds a Python that has the package and lets it take the place of
//! this command. What they do, their arguments and their help are in `python/shunt`.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Names the Python to take, and then no other is looked for.
pub const VARIABLE: &str = "SHUNT_PYTHON";

/// Runs `python -m MODULE ARGS`; returns only if that cannot be.
pub fn main(module: &str, args: &[OsString]) -> ExitCode {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    let candidates = match &named {
        Some(name) => vec![PathBuf::from(name)],
        None => candidates(),
    };
    let Some(python) = candidates.iter().find(|python| has(python, module)) else {
        eprintln!("{}", missing(module, &candidates, named.is_some()));
        return ExitCode::FAILURE;
    };
    let error = python_command(python).args(["-m", module]).args(args).exec();
    eprintln!("shunt: {}: {error}", python.display());
    ExitCode::FAILURE
}

/// Not from the folder that we are in: it may have something of the same name.
fn python_command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg("-P");
    command
}

/// Whether this Python is there, is new enough and has the module.
fn has(python: &Path, module: &str) -> bool {
    let look = format!(
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None or importlib.util.find_spec('shunt._native') is None)"
    );
    let status = python_command(python)
        .args(["-c", &look])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// `python3` of PATH, then environments beside the command: where a package or `make install` may
/// put one, and the one that the command is in.
fn candidates() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    all.extend(std::env::split_paths(&path).map(|dir| dir.join("python3")).find(|python| python.is_file()));
    if let Some(dir) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
        all.push(dir.join("python3"));
        all.push(dir.join("venv/bin/python3"));
        if let Some(up) = dir.parent() {
            all.push(up.join("lib/shunt/venv/bin/python3"));
        }
    }
    all
}

fn missing(module: &str, candidates: &[PathBuf], named: bool) -> String {
    let shown: Vec<_> = candidates.iter().filter(|python| named || python.exists()).collect();
    let looked = match shown.as_slice() {
        [] => "there is no python3 in PATH".to_string(),
        [one] if !one.exists() => format!("{VARIABLE}={}: there is no such file", one.display()),
        all => {
            let listed: Vec<_> = all.iter().map(|python| python.display().to_string()).collect();
            let from = if named { format!(" (from {VARIABLE})") } else { String::new() };
            format!("{}{from} has no module {module}", listed.join(", nor "))
        }
    };
    let name = module.rsplit('.').next().unwrap_or(module);
    let extra = if module == "shunt.microscope" { "[microscope]" } else { "" };
    format!(
        "shunt {name}: {looked}. It is in Shunt's Python package (Python 3.11 or later, a Rust compiler). To do, in the folder of Shunt's source:\n\n  \
         python3 -m venv build/shunt-python\n  build/shunt-python/bin/pip install './python{extra}'\n  \
         export {VARIABLE}=$PWD/build/shunt-python/bin/python3\n"
    )
}

/// The module behind a subcommand.
pub fn module_of(subcommand: &str) -> Option<&'static str> {
    crate::cli::OF_PYTHON.iter().find(|of| OsStr::new(of.0) == subcommand).map(|of| of.1)
}
