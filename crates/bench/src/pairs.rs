//! Runs a measuring program of `bench/programs` as a pair, server and client, and reads the JSON
//! lines they print.

use crate::error::{Error, Result, failed};
use crate::find;
use crate::host::Cpus;
use crate::ofi::exchange;
use crate::process::{Launch, Process};
use crate::results::Side;
use crate::session::Session;
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// The ends that run under Shunt in Shunt's turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ends {
    Both,
    ServerOnly,
    ClientOnly,
}

impl Ends {
    pub fn server(self) -> bool {
        self != Ends::ClientOnly
    }

    pub fn client(self) -> bool {
        self != Ends::ServerOnly
    }
}

/// How a pair runs.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub side: Side,
    pub ends: Ends,
    pub cpus: Cpus,
    pub seconds: f64,
    /// Options of the library: variables of the environment and values.
    pub options: &'static [(&'static str, &'static str)],
}

/// A running pair: the server accepts, the client has been started.
pub struct Pair {
    pub server: Process,
    pub client: Process,
}

/// Starts server and client; `both` goes to both, `client` to the client only.
pub fn start(
    session: &Session,
    program: &str,
    setting: Setting,
    both: &[&str],
    client: &[&str],
) -> Result<Pair> {
    // One of them is a part of the command.
    let (path, first) = match program {
        exchange::WORD => (find::command()?, vec!["bench", exchange::WORD]),
        _ => (session.libexec.join(program), vec![]),
    };
    let socket = session.temp.path().join(format!("{program}.sock"));
    let wire = session.wire(setting.side);
    let launch = |role: &str, accelerated: bool, cpu: Option<usize>| {
        let library = session.library_for(setting.side).filter(|_| accelerated);
        let (place, before) = match role {
            "server" => (&wire.server, &wire.before[..]),
            _ => (&wire.client, &[][..]),
        };
        let cpu = cpu.filter(|_| before.is_empty());
        let mut launch = Launch::new(&path).args(&first).args([role]).args(both).preload(library).cpu(cpu);
        launch = launch.behind(before);
        launch = launch.namespace(place.as_deref()).meeting(wire.meeting.as_deref());
        launch = launch.args(["--host", &wire.address.to_string()]);
        if setting.side == Side::Sovia {
            launch = launch.env("SHUNT_STREAM", "via");
        }
        for (name, value) in setting.options {
            launch = launch.env(name, value);
        }
        match cpu {
            Some(cpu) => launch.args(["--cpu", &cpu.to_string()]),
            None => launch,
        }
    };
    let at = match setting.side {
        Side::Unix => ["--unix".into(), socket.to_string_lossy().into_owned()],
        Side::Via => ["--via".into(), format!("shunt-bench-{}", std::process::id())],
        side if side.is_fabric() => ["--ofi".into(), "any".into()],
        _ => ["--tcp".into(), "0".to_string()],
    };
    let mut server = launch("server", setting.ends.server(), setting.cpus.server).args(&at).start()?;
    let ready = parse(&server.line(Duration::from_secs(20))?)?;
    let at = match &ready["ready"] {
        Value::String(name) => [at[0].clone(), name.clone()],
        port => ["--tcp".to_string(), port.to_string()],
    };
    let seconds = setting.seconds.to_string();
    let client = launch("client", setting.ends.client(), setting.cpus.client)
        .args(&at)
        .args(["--seconds", &seconds])
        .args(client)
        .start()?;
    Ok(Pair { server, client })
}

/// Runs a pair to its end. The client's last line is the result; `server_cpu_ns` is added to it
/// where the server reports it.
pub fn run(
    session: &Session,
    program: &str,
    setting: Setting,
    both: &[&str],
    client: &[&str],
) -> Result<Value> {
    let Pair { mut server, client } = start(session, program, setting, both, client)?;
    let patience = patience(setting.seconds);
    let output = client.finish(patience).map_err(|e| with_server(e, &mut server))?;
    let mut result = parse(output.lines.last().map_or("", |l| l))?;
    let server_cpu = crate::usage::cpu_ns(server.pid()).ok();
    // Servers of a single connection end with it; the others are ended here, by dropping them.
    let ends = !["shortconn", "idle"].contains(&program);
    if let Ok(line) = server.line(Duration::from_millis(if ends { 5000 } else { 0 })) {
        result["server_cpu_ns"] = parse(&line)?["cpu_ns"].clone();
    } else if let Some(cpu) = server_cpu {
        result["server_cpu_ns"] = cpu.into();
    }
    Ok(result)
}

/// The raw-memory limit, which forks its other end itself.
pub fn raw(session: &Session, mode: &str, cpus: Cpus, seconds: f64, more: &[&str]) -> Result<Value> {
    let mut launch =
        Launch::new(session.libexec.join("rawmem")).args([mode, "--seconds", &seconds.to_string()]);
    for (name, cpu) in [("--cpu", cpus.client), ("--peer-cpu", cpus.server)] {
        if let Some(cpu) = cpu {
            launch = launch.args([name, &cpu.to_string()]);
        }
    }
    let output = launch.args(more).run(patience(seconds))?;
    parse(output.lines.last().map_or("", |l| l))
}

/// Busy neighbours until dropped.
pub fn busy(session: &Session, count: usize) -> Result<Vec<Process>> {
    (0..count).map(|_| Launch::new(session.libexec.join("busy")).start()).collect()
}

/// How long something that takes `seconds` may take before it is called hung.
pub fn patience(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds * 4.0 + 20.0)
}

pub fn parse(line: &str) -> Result<Value> {
    serde_json::from_str(line).map_err(failed(format!("not the JSON that was expected: {line:?}")))
}

/// A number that the result must have.
pub fn number(result: &Value, name: &str) -> Result<f64> {
    result[name].as_f64().ok_or_else(|| Error::Failed(format!("{name} is missing in {result}")))
}

fn with_server(error: Error, server: &mut Process) -> Error {
    match error {
        Error::Failed(why) if !server.is_running() => {
            Error::Failed(format!("{why}; {}", server.failure("has ended as well")))
        }
        other => other,
    }
}

/// A copy of the library that other users can read, in a folder of this name.
pub fn readable_copy(library: &Path, into: &Path) -> Result<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let open_up = |path: &Path| {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(path, mode).map_err(failed("cannot open it up"))
    };
    std::fs::create_dir_all(into).map_err(failed("cannot make a directory for the library"))?;
    open_up(into)?;
    let copy = into.join("libshunt.so");
    std::fs::copy(library, &copy).map_err(failed(format!("cannot copy {}", library.display())))?;
    open_up(&copy)?;
    Ok(copy)
}
