//! The options as the library will read them: from an environment, and from the configuration files
//! that it leads to. What is wrong in them is said here, where someone is looking, and not only in
//! the library's log.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt as _;

use options::{Options, Problem, RuleSource};

use crate::path::path_of;
use crate::rules::Rules;

/// What holds in an environment.
pub struct Settings {
    pub options: Options,
    /// What is wrong with the options, but for the rules.
    pub problems: Vec<String>,
    /// The rules, or what is wrong with them: then every connection stays on TCP.
    pub rules: Result<Rules, Vec<String>>,
}

/// Reads what holds in this environment.
pub fn read(env: impl Iterator<Item = (OsString, OsString)>) -> Settings {
    let env: Vec<Vec<u8>> =
        env.map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')).collect();
    let entries = || env.iter().map(Vec::as_slice);
    let mut problems = Vec::new();
    let paths = options::config_files(entries());
    let files = paths.map(|path| {
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
    let mut wrong_rules = Vec::new();
    let options =
        options::from_environ(entries(), &[&files[0], &files[1]], &mut |problem| match problem.name {
            b"SHUNT_RULES" | b"rules" => wrong_rules.push(problem.to_string()),
            _ => problems.push(problem.to_string()),
        });
    // The strongest of the files that sets them.
    let sets_rules = |content: &Vec<u8>| {
        options::from_environ(std::iter::empty(), &[content], &mut |_| ()).rules != RuleSource::Usual
    };
    let set_by = match files.iter().rposition(sets_rules).and_then(|i| paths[i]) {
        Some(path) if !entries().any(|entry| entry.starts_with(b"SHUNT_RULES=")) => format!("{path}: rules"),
        _ => "SHUNT_RULES".to_string(),
    };
    let rules = Rules::find(&options, entries(), set_by);
    // What is wrong with a setting that a stronger one overrides is not in the way.
    let (problems, rules) = match rules {
        Err(wrong) => (problems, Err([wrong_rules, wrong].concat())),
        Ok(rules) => ([problems, wrong_rules].concat(), Ok(rules)),
    };
    Settings { options, problems, rules }
}
