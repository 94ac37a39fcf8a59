//! `shunt agent`: runs the agent of this host, asks it how it is, and makes keys. What an agent
//! does is in the crate `agent`. `shunt run` starts one where it is needed.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use agent::daemon::{self, Config};
use clap::ArgMatches;
use cluster::client::Client;
use options::Options;

use crate::settings;

/// How long an agent that `shunt run` has started stays when nobody needs it.
const IDLE_SECONDS: &str = "60";

pub fn main(matches: &ArgMatches) -> ExitCode {
    let (name, matches) = matches.subcommand().expect("clap asks for one");
    let done = match name {
        "run" => run(matches),
        "status" => status(matches.get_flag("json")),
        _ => cluster::key::make(matches.get_one::<PathBuf>("file").expect("clap requires it")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("shunt agent {name}: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(matches: &ArgMatches) -> Result<(), String> {
    let settings = settings::read(std::env::vars_os());
    for problem in &settings.problems {
        eprintln!("shunt agent: {problem}");
    }
    let options = settings.options;
    if options.cluster.is_empty() {
        return Err(
            "no networks: set SHUNT_CLUSTER, or `cluster` in /etc/shunt.conf, to those of the cluster".into(),
        );
    }
    let key = cluster::key::read(&cluster::key::file(&options)?)?;
    let idle = matches.get_one::<u64>("idle").map(|&seconds| Duration::from_secs(seconds));
    let config = Config { networks: options.cluster, key, port: options.agent_port, idle };
    daemon::run(config, || eprintln!("shunt agent: listens on port {}", options.agent_port))
}

/// The file with the key, if it is as it must be.
pub fn key() -> Result<PathBuf, String> {
    let path = cluster::key::file(&settings::read(std::env::vars_os()).options)?;
    cluster::key::read(&path).map(|_| path)
}

fn status(json: bool) -> Result<(), String> {
    let report = agent::status::ask().map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "no agent runs here; `shunt run` starts one where `cluster` is set, or run `shunt agent run`"
                .to_string()
        }
        _ => error.to_string(),
    })?;
    let text = match json {
        true => serde_json::to_string_pretty(&report).expect("names and numbers can be written") + "\n",
        false => report.to_string(),
    };
    // A closed pipe is whoever reads it having seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// Starts an agent for this user, if the programs that are about to start may want one and none is
/// there. It outlives them; nothing waits for it.
pub fn start_if_needed(options: &Options, env: &[(std::ffi::OsString, std::ffi::OsString)]) {
    if options.cluster.is_empty() || options.path == options::PathMode::Tcp || Client::connect().is_ok() {
        return;
    }
    let Ok(own) = std::env::current_exe() else { return };
    let mut command = Command::new(own);
    command.args(["agent", "run", "--idle", IDLE_SECONDS]).env_clear().envs(env.iter().cloned());
    command.env_remove("LD_PRELOAD").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid() and fork() may be called there; the child that goes on is nobody's, so
    // nobody has to wait for it.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            match libc::fork() {
                0 => Ok(()),
                _ => libc::_exit(0),
            }
        });
    }
    if let Ok(mut child) = command.spawn() {
        let _ = child.wait();
    }
}
