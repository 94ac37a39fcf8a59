//! `shunt run`: puts `libshunt.so` in front of a program and starts it. What keeps the program from
//! being accelerated is said before it starts; what became of its connections, if that was asked
//! for, after it has ended.

mod exec;
mod report;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgMatches;
use options::TABLE;

use self::exec::Launch;
use self::report::Report;
pub use self::report::size;
use crate::agent;
use crate::library;
use crate::program::{self, NotRunnable};
use crate::settings;

/// The exit status for "shunt itself failed", as env(1), nice(1) and timeout(1) have it.
pub const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

pub fn main(matches: &ArgMatches) -> ExitCode {
    match run(matches) {
        Ok(status) | Err(status) => ExitCode::from(status),
    }
}

/// Returns the exit status, if this process still exists then.
fn run(matches: &ArgMatches) -> Result<u8, u8> {
    let (require, stats) = (matches.get_flag("require"), matches.get_flag("stats"));
    let args: Vec<&OsString> = matches.get_many("program").expect("clap requires it").collect();

    let path = std::env::var_os("PATH");
    let file = program::lookup(args[0], path.as_deref()).map_err(|error| not_runnable(args[0], &error))?;
    let mut env = Environment::current();
    for opt in TABLE.iter().filter(|opt| opt.is_public()) {
        if let Some(value) = matches.get_one::<OsString>(opt.name) {
            env.set(opt.env, value);
        }
    }
    let settings = settings::read(env.0.iter().cloned());
    for problem in &settings.problems {
        say(problem);
    }
    if let Err(wrong) = &settings.rules {
        for line in wrong {
            say(line);
        }
        let consequence = if require { "not started (--require)" } else { "every connection stays on TCP" };
        say(&format!("the rules are wrong: {consequence}. To do: correct them; `shunt help rules` says how"));
        if require {
            return Err(FAILED);
        }
    }
    agent::start_if_needed(&settings.options, &env.0);
    match library_for(&file, env.get("SHUNT_LIB"), require)? {
        Some((library, first)) => env.preload(&library, first.as_deref().map(OsStr::new)),
        None if require => return Err(FAILED),
        None => {}
    }
    let report = if require || stats {
        let report = Report::new().map_err(|error| {
            say(&format!("no memory for the counters of --stats and --require: {error}"));
            FAILED
        })?;
        env.set("SHUNT_REPORT", report.path().as_os_str());
        Some(report)
    } else {
        None
    };

    let launch = Launch::new(&file, &args, env.0).ok_or(FAILED)?;
    let Some(report) = report else {
        return Err(not_started(&file, &launch.exec()));
    };
    let status = launch.supervise().map_err(|error| not_started(&file, &error))?;
    let counters = report.read();
    let promoted = counters.as_ref().is_some_and(|counters| counters.promoted > 0);
    if stats {
        report::print_summary(counters.as_ref());
    }
    if require && !promoted {
        report::print_nothing_promoted(args[0], counters.as_ref());
        return Err(if status == 0 { FAILED } else { status });
    }
    Ok(status)
}

/// The library to preload, after saying what will not work. `None` if it must not be preloaded, or
/// is not there.
///
/// With it, what must come before it: the run-time library of AddressSanitizer ends a program in
/// which it is not the first.
fn library_for(
    file: &Path,
    named: Option<&OsStr>,
    require: bool,
) -> Result<Option<(PathBuf, Option<String>)>, u8> {
    let program = program::inspect(file);
    let first = program.needed.iter().find(|name| name.starts_with("libasan.so")).cloned();
    let mut tolerates = true;
    if let Some(obstacle) = program.obstacle {
        let consequence = if require { "not started (--require)" } else { "it runs plain" };
        let via = match program.scripts.first() {
            Some(script) => format!(" (which {} runs)", script.display()),
            None => String::new(),
        };
        let (file, why) = (program.file.display(), obstacle.why());
        say(&format!(
            "{file}{via} cannot be accelerated: it {why}; {consequence}. To do: {}",
            obstacle.advice()
        ));
        if require {
            return Err(FAILED);
        }
        tolerates = obstacle.tolerates_preload();
    }
    let found = library::find(named).and_then(|path| {
        library::version(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        match path.as_os_str().as_encoded_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
            true => Err(format!("{}: LD_PRELOAD allows no space or colon in a path", path.display())),
            false => Ok(path),
        }
    });
    match found {
        Ok(path) => Ok(tolerates.then_some((path, first))),
        Err(error) => {
            let consequence = if require { "not started (--require)" } else { "the program runs plain" };
            say(&format!("no library: {error}; {consequence}. To do: install it, or set SHUNT_LIB"));
            Ok(None)
        }
    }
}

fn not_runnable(name: &OsStr, error: &NotRunnable) -> u8 {
    match error {
        NotRunnable::NotFound if name.as_encoded_bytes().contains(&b'/') => {
            say(&format!("{}: there is no such file", name.to_string_lossy()));
            NOT_FOUND
        }
        NotRunnable::NotFound => {
            say(&format!(
                "{}: not found in PATH; give a path with a slash, or install it",
                name.to_string_lossy()
            ));
            NOT_FOUND
        }
        NotRunnable::NotExecutable(path, why) => {
            say(&format!("{}: cannot be executed: {why}", path.display()));
            NOT_EXECUTABLE
        }
    }
}

fn not_started(file: &Path, error: &std::io::Error) -> u8 {
    let missing = error.kind() == std::io::ErrorKind::NotFound;
    let why = match missing && file.exists() {
        true => "the interpreter or dynamic linker that it names is not there".to_string(),
        false => error.to_string(),
    };
    say(&format!("{}: cannot be executed: {why}", file.display()));
    if missing { NOT_FOUND } else { NOT_EXECUTABLE }
}

/// A message of `shunt run` itself, before or after the program.
fn say(message: &str) {
    eprintln!("shunt: {message}");
}

/// The environment of the program.
struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    fn current() -> Self {
        Environment(std::env::vars_os().collect())
    }

    fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_os_str())
    }

    fn set(&mut self, name: &str, value: &OsStr) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.into(), value.into()));
    }

    /// Puts the library before what is already preloaded, and `first` before that.
    fn preload(&mut self, library: &Path, first: Option<&OsStr>) {
        let mut all = first.unwrap_or_default().to_os_string();
        if first.is_some() {
            all.push(":");
        }
        all.push(library);
        if let Some(others) = self.get("LD_PRELOAD") {
            for other in others.as_encoded_bytes().split(|byte| matches!(byte, b' ' | b':')) {
                use std::os::unix::ffi::OsStrExt as _;
                let other = OsStr::from_bytes(other);
                if !other.is_empty() && other != library && Some(other) != first {
                    all.push(":");
                    all.push(other);
                }
            }
        }
        self.set("LD_PRELOAD", &all);
    }
}
