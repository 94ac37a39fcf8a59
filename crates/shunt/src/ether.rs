//! `shunt ether`: starts a daemon of the crate `ether`, or asks those that run. The daemon itself,
//! and what it answers, is there.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::ArgMatches;
use ether::control::{self, Request};
use ether::daemon::{self, Failure};
use ether::remote::Settings;
use ether::stats;
use ether::table::{DIRECTORY, Table};

use crate::settings;

/// The exit status that says that the table is wrong.
const WRONG_TABLE: u8 = 3;

pub fn main(matches: &ArgMatches) -> ExitCode {
    let (name, matches) = matches.subcommand().expect("clap asks for one");
    let done = match name {
        "run" => run(matches),
        "check" => check(table(matches)),
        "reload" => each(matches, |path| control::ask(path, &Request::Reload).map(drop)),
        "stop" => each(matches, |path| control::ask(path, &Request::Stop).map(drop)),
        "stat" => stat(matches),
        _ => dump(matches),
    };
    let Err(failure) = done else { return ExitCode::SUCCESS };
    eprintln!("shunt ether {name}: {failure}");
    match failure {
        Failure::Table(_) => ExitCode::from(WRONG_TABLE),
        Failure::Other(_) => ExitCode::FAILURE,
    }
}

fn table(matches: &ArgMatches) -> &Path {
    matches.get_one::<PathBuf>("table").expect("clap requires it")
}

fn run(matches: &ArgMatches) -> Result<(), Failure> {
    let from_env = std::env::var("SHUNT_ETHER_HOST").ok();
    let called = matches.get_one::<String>("host").cloned().or(from_env);
    let user = matches.get_one::<String>("user").map(String::as_str);
    daemon::run(table(matches), called.as_deref(), user, Arc::new(remote_settings))
}

/// By what ETHOM hosts of other machines are linked, as the options say.
fn remote_settings() -> Result<Settings, String> {
    let settings = settings::read(std::env::vars_os());
    // What is wrong with other options is nothing to us.
    let ours = ["SHUNT_FABRIC", "SHUNT_CLUSTER_KEY", "fabric=", "fabric:", "cluster-key=", "cluster-key:"];
    match settings.problems.into_iter().find(|problem| ours.iter().any(|name| problem.contains(name))) {
        Some(problem) => Err(problem),
        None => {
            let key = cluster::key::read(&crate::agent::key()?)?;
            Ok(Settings { provider: settings.options.fabric.provider(), key })
        }
    }
}

fn check(path: &Path) -> Result<(), Failure> {
    let table = Table::read(path)?;
    for net in &table.nets {
        let members = table.members(&net.name).map(|(host, address)| {
            let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
            format!("{} ({}){at}", host.id, host.name)
        });
        let members: Vec<String> = members.collect();
        let (driver, mtu) = (net.driver.name(), net.mtu);
        println!(
            "{}: {driver}, interface {}, MTU {mtu}; hosts {}",
            net.name,
            net.interface,
            members.join(", ")
        );
    }
    Ok(())
}

/// The sockets of the daemons that are meant.
fn daemons(matches: &ArgMatches) -> Result<Vec<PathBuf>, Failure> {
    let directory = matches.get_one::<PathBuf>("dir").cloned().unwrap_or_else(|| DIRECTORY.into());
    let none = |why: String| {
        Failure::Other(format!("no daemon in {}{why}; start one, or say --dir", directory.display()))
    };
    let paths = control::paths(&directory, matches.get_one("host").copied());
    match paths.map_err(|error| none(format!(": {error}")))? {
        paths if paths.is_empty() => Err(none(String::new())),
        paths => Ok(paths),
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("{}: {error}", path.display()))
}

/// Asks each daemon, also after one that fails; the first failure is told.
fn each(matches: &ArgMatches, ask: impl Fn(&Path) -> io::Result<()>) -> Result<(), Failure> {
    let mut done = Ok(());
    for path in daemons(matches)? {
        if let Err(error) = ask(&path) {
            let failure = failed(&path, &error);
            match done {
                Ok(()) => done = Err(failure),
                Err(_) => eprintln!("shunt ether: {failure}"),
            }
        }
    }
    done
}

fn stat(matches: &ArgMatches) -> Result<(), Failure> {
    let mut reports = Vec::new();
    for path in daemons(matches)? {
        match control::stat(&path) {
            Ok(report) => reports.push(report),
            // The socket of one that was killed.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                eprintln!("shunt ether stat: {}: its daemon is gone", path.display());
            }
            Err(error) => return Err(failed(&path, &error)),
        }
    }
    if reports.is_empty() {
        return Err(Failure::Other("no daemon answers".into()));
    }
    let text = if matches.get_flag("json") {
        serde_json::to_string_pretty(&reports).expect("names and numbers can be written") + "\n"
    } else if matches.get_flag("prometheus") {
        stats::prometheus(&reports)
    } else {
        stats::table(&reports)
    };
    // A closed pipe is whoever reads it having seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

fn dump(matches: &ArgMatches) -> Result<(), Failure> {
    let paths = daemons(matches)?;
    let [path] = &paths[..] else {
        return Err(Failure::Other("there are several daemons; say --host ID".into()));
    };
    let snap = *matches.get_one::<u32>("snap").expect("it has a default") as usize;
    let request = Request::Dump { net: matches.get_one::<String>("net").cloned(), snap };
    let mut from = control::ask(path, &request).map_err(|error| failed(path, &error))?;
    let mut out: Box<dyn Write> = match matches.get_one::<PathBuf>("write") {
        Some(file) => Box::new(File::create(file).map_err(|error| failed(file, &error))?),
        None => Box::new(io::stdout()),
    };
    let mut left = matches.get_one::<u64>("count").copied();
    // Block by block: whoever interrupts us leaves a file that can be read.
    let mut block = Vec::new();
    while left != Some(0) {
        let mut head = [0u8; 8];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(_) => return Ok(()), // the daemon has ended
        }
        let [kind, len] =
            [0, 4].map(|at| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")));
        block.clear();
        block.extend(head);
        block.resize((len as usize).clamp(8, 1 << 20), 0);
        from.read_exact(&mut block[8..]).map_err(|error| failed(path, &error))?;
        match out.write_all(&block).and_then(|()| out.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::Other(format!("cannot write: {error}"))),
        }
        if kind == 6
            && let Some(left) = &mut left
        {
            *left -= 1;
        }
    }
    Ok(())
}
