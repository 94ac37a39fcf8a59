//! The options as the library will read them: from an environment, and from the configuration files that it leads to. What
//! is wrong in them is said here, where someone is looking, and not only in the library's log.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use options::{Options, Problem, Text};

/// The options that hold in this environment, and the complaints.
pub fn read(env: impl Iterator<Item = (OsString, OsString)>) -> (Options, Vec<String>) {
    let env: Vec<Vec<u8>> =
        env.map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')).collect();
    let entries = || env.iter().map(Vec::as_slice);
    let mut problems = Vec::new();
    let files = options::config_files(entries()).map(|path| {
        let Some(path) = path else { return Vec::new() };
        std::fs::read(path_of(&path)).unwrap_or_else(|error| {
            // Many a daemon runs with the HOME of another user, whose file it is not meant to see.
            let usual = [ErrorKind::NotFound, ErrorKind::NotADirectory, ErrorKind::PermissionDenied];
            let explicit = entries().any(|entry| entry.starts_with(b"SHUNT_CONFIG="));
            if explicit || !usual.contains(&error.kind()) {
                let errno = error.raw_os_error().unwrap_or(0);
                problems.push(Problem::unreadable(&path, errno).to_string());
            }
            Vec::new()
        })
    });
    let options = options::from_environ(entries(), &[&files[0], &files[1]], &mut |problem| {
        problems.push(problem.to_string());
    });
    (options, problems)
}

/// A path of the options, as std has them.
pub fn path_of(text: &Text) -> PathBuf {
    OsStr::from_bytes(text.as_bytes()).into()
}
