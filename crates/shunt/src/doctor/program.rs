//! Whether a program can be accelerated, from its file alone.

use std::ffi::OsStr;

use super::check::Check;
use crate::program::{self, NotRunnable, Obstacle};

const NAME: &str = "program";

pub fn checks(name: &OsStr) -> Vec<Check> {
    let path = std::env::var_os("PATH");
    let file = match program::lookup(name, path.as_deref()) {
        Ok(file) => file,
        Err(NotRunnable::NotFound) => {
            return vec![Check::fail(
                NAME,
                format!("{} was not found", name.to_string_lossy()),
                "give its path, or install it",
            )];
        }
        Err(NotRunnable::NotExecutable(path, why)) => {
            let found = format!("{} cannot be executed: {why}", path.display());
            return vec![Check::fail(NAME, found, "make it executable")];
        }
    };
    let program = program::inspect(&file);
    let mut shown = program.file.display().to_string();
    if let Some(script) = program.scripts.first() {
        shown = format!("{shown} (which {} runs)", script.display());
    }
    let mut checks = vec![match &program.obstacle {
        None => Check::ok(NAME, format!("{shown} is dynamic, for glibc and this machine")),
        Some(unreadable @ Obstacle::Unreadable(_)) => {
            Check::warn(NAME, format!("{shown} {}", unreadable.why()), unreadable.advice())
        }
        Some(obstacle) => Check::fail(NAME, format!("{shown} {}", obstacle.why()), obstacle.advice()),
    }];
    if let Some(name) = program.needed.iter().find(|name| name.starts_with("liburing")) {
        checks.push(Check::warn(
            "program io_uring",
            format!("{shown} uses {name}"),
            "if it uses it for sockets, all of them stay on TCP; switch that off in its configuration, if it can",
        ));
    }
    checks
}
