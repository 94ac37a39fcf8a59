//! The rules: whether they are understood, and which of them decides about a program and an
//! address.

use std::ffi::OsStr;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

use options::rules::program_name;
use options::{PathMode, Role};
use serde::Serialize;

use super::check::Check;
use crate::program;
use crate::rules::Rules;
use crate::settings::{self, Settings};

const NAME: &str = "rules";
const TODO: &str =
    "correct them (`shunt help rules` has the language); until then every connection stays on TCP";

pub fn check() -> Check {
    match settings::read(std::env::vars_os()).rules {
        Err(wrong) => Check::fail(NAME, wrong.join("; "), TODO),
        Ok(rules) => match (rules.origin(), rules.iter().count()) {
            (None, _) => Check::ok(NAME, "none: every connection may use memory"),
            (Some(origin), 1) => Check::ok(NAME, format!("{origin}: 1 rule")),
            (Some(origin), n) => Check::ok(NAME, format!("{origin}: {n} rules")),
        },
    }
}

/// What the rules say of a program and an address.
#[derive(Serialize)]
struct Answer {
    /// The name by which rules know the program.
    program: String,
    address: SocketAddr,
    /// If it connects to the address.
    client: Decision,
    /// If it accepts connections there.
    server: Decision,
}

#[derive(Serialize)]
struct Decision {
    /// `shunt` or `tcp`.
    path: &'static str,
    /// Where it says so; none, if it is the default.
    place: Option<String>,
    rule: Option<String>,
}

/// `shunt doctor --rules PROGRAM ADDR`.
pub fn main(program: &OsStr, address: &OsStr, json: bool) -> ExitCode {
    let Some(address) = address.to_str().and_then(|text| text.parse::<SocketAddr>().ok()) else {
        let address = address.to_string_lossy();
        eprintln!("shunt doctor: {address}: must be ADDR:PORT, such as 127.0.0.1:6379 or [::1]:80");
        return ExitCode::from(2);
    };
    let settings = settings::read(std::env::vars_os());
    let Settings { rules: Ok(rules), .. } = &settings else {
        for wrong in settings.rules.err().unwrap_or_default() {
            eprintln!("shunt doctor: {wrong}");
        }
        eprintln!("shunt doctor: the rules are wrong: every connection stays on TCP");
        return ExitCode::FAILURE;
    };
    let (name, script) = called(program);
    let decide = |role| match settings.options.path {
        PathMode::Tcp => Decision { path: "tcp", place: Some("path = tcp".into()), rule: None },
        PathMode::Auto => decision(rules, role, &name, address),
    };
    let answer = Answer {
        program: String::from_utf8_lossy(&name).into_owned(),
        address,
        client: decide(Role::Client),
        server: decide(Role::Server),
    };
    let text = match json {
        true => serde_json::to_string_pretty(&answer).expect("strings only") + "\n",
        false => as_text(&answer, script.then_some(program)),
    };
    let _ = std::io::stdout().write_all(text.as_bytes()); // a closed pipe
    ExitCode::SUCCESS
}

fn as_text(answer: &Answer, script: Option<&OsStr>) -> String {
    let Answer { program, address, client, server } = answer;
    let mut text = String::new();
    if let Some(script) = script {
        text += &format!("{} is a script; its name is that of what runs it: {program}\n", script.display());
    }
    for (does, decision) in [("connecting to", client), ("accepting at", server)] {
        let why = match (&decision.place, &decision.rule) {
            (Some(place), Some(rule)) => format!("{place}: {rule}"),
            (Some(place), None) => place.clone(),
            (None, _) => "no rule matches".to_string(),
        };
        text += &format!("{program}, {does} {address}: {}\n    {why}\n", decision.path);
    }
    text
}

fn decision(rules: &Rules, role: Role, program: &[u8], at: SocketAddr) -> Decision {
    let Some(rule) = rules.first(role, program, at) else {
        return Decision { path: "shunt", place: None, rule: None };
    };
    let path = match rule.ends.path {
        PathMode::Auto => "shunt",
        PathMode::Tcp => "tcp",
    };
    let text = String::from_utf8_lossy(rule.text).into_owned();
    Decision { path, place: Some(rules.place(rule.number)), rule: Some(text) }
}

/// The name by which rules know a program, and whether that is the name of what runs it.
fn called(program: &OsStr) -> (Vec<u8>, bool) {
    let path = std::env::var_os("PATH");
    let found = program::lookup(program, path.as_deref()).map(|file| program::inspect(&file));
    match found {
        Ok(found) if !found.scripts.is_empty() => {
            (program_name(found.file.as_os_str().as_bytes()).to_vec(), true)
        }
        // It need not be there: rules may be for programs of another machine or container.
        _ => (program_name(program.as_bytes()).to_vec(), false),
    }
}
