//! The interface of applications: how one is started, loaded, and measured.

use crate::error::{Error, Result, failed};
use crate::host::Cpus;
use crate::pairs::{self, Ends};
use crate::process::{self, Launch, Process, User};
use crate::results::Side;
use crate::session::Session;
use crate::wire::Wire;
use crate::{signals, usage};
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// One application.
pub trait App {
    fn name(&self) -> &'static str;

    /// Its workloads, each with the project's promise over TCP.
    fn workloads(&self) -> Vec<Workload>;

    /// Whether server and load tool can connect over a UNIX socket.
    fn has_unix(&self) -> bool;

    /// Makes everything that outlives a server: data, configuration.
    fn prepare(&mut self, _session: &Session) -> Result<()> {
        Ok(())
    }

    /// Starts the server; returns when it accepts.
    fn start(&self, session: &Session, run: &Run) -> Result<Server>;

    /// Loads the server for about `run.seconds`.
    fn load(&mut self, session: &Session, run: &Run, server: &Server, workload: &str) -> Result<Load>;
}

pub struct Workload {
    pub name: &'static str,
    pub promise: Option<f64>,
}

/// The circumstances of one turn.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub side: Side,
    pub ends: Ends,
    pub cpus: Cpus,
    pub seconds: f64,
}

impl Run {
    pub fn server(&self, session: &Session, program: &Path) -> Launch {
        let library = session.library_for(self.side).filter(|_| self.ends.server());
        let Wire { server, meeting, .. } = session.wire(self.side);
        let launch = Launch::new(program).preload(library).cpu(self.cpus.server);
        launch.namespace(server.as_deref()).meeting(meeting.as_deref())
    }

    pub fn client(&self, session: &Session, program: &Path) -> Launch {
        let library = session.library_for(self.side).filter(|_| self.ends.client());
        let Wire { client, meeting, .. } = session.wire(self.side);
        let launch = Launch::new(program).preload(library).cpu(self.cpus.client);
        launch.namespace(client.as_deref()).meeting(meeting.as_deref())
    }

    pub fn patience(&self) -> Duration {
        pairs::patience(self.seconds)
    }
}

/// Requests a second of the last load, for tools that take a number of requests and not a time.
#[derive(Default)]
pub struct Rates(Vec<(String, f64)>);

impl Rates {
    pub fn last(&self, run: &Run, workload: &str) -> Option<f64> {
        let key = Rates::key(run, workload);
        self.0.iter().find(|(k, _)| *k == key).map(|(_, rate)| *rate)
    }

    pub fn note(&mut self, run: &Run, workload: &str, rate: f64) {
        let key = Rates::key(run, workload);
        self.0.retain(|(k, _)| *k != key);
        self.0.push((key, rate));
    }

    /// Pinned runs are on a quiet machine; a busy machine gives quite other rates.
    fn key(run: &Run, workload: &str) -> String {
        format!("{:?} {:?} {} {workload}", run.side, run.ends, run.cpus == Cpus::ANY)
    }
}

/// A server that accepts.
pub struct Server {
    pub process: Process,
    pub at: Address,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Address {
    Tcp(u16),
    Unix(PathBuf),
}

/// The result of a load tool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    pub requests: f64,
    pub per_second: f64,
    /// Nanoseconds, if the tool reports them.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub client_cpu_ns: u64,
}

/// A load, and the nanoseconds of processor time that the server's processes spent on it.
pub fn measured_load(
    session: &Session,
    app: &mut dyn App,
    run: &Run,
    server: &mut Server,
    workload: &str,
) -> Result<(Load, u64)> {
    let before = usage::tree_cpu_ns(server.process.pid());
    let load = app.load(session, run, server, workload)?;
    // Children that served one connection end a moment after it, and count once they have been
    // waited for.
    std::thread::sleep(Duration::from_millis(50));
    let spent = usage::tree_cpu_ns(server.process.pid()).saturating_sub(before);
    if !server.process.is_running() {
        return Err(server.process.failure("ended under load"));
    }
    if load.requests < 1.0 {
        return Err(Error::Failed("the load tool made no request".into()));
    }
    Ok((load, spent))
}

/// A port that is free now.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed("no free port"))?;
    Ok(listener.local_addr().map_err(failed("no free port"))?.port())
}

/// Waits until the server accepts connections.
pub fn accepting(process: Process, at: Address) -> Result<Server> {
    accepting_at(process, at, Wire::LOOPBACK)
}

/// The same for one that may be in a network namespace.
pub fn accepting_at(mut process: Process, at: Address, wire: Wire) -> Result<Server> {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        signals::check()?;
        let accepts = match &at {
            Address::Tcp(port) => connects(&wire, *port),
            Address::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
        };
        match () {
            () if accepts => return Ok(Server { process, at }),
            () if !process.is_running() => return Err(process.failure("ended instead of serving")),
            () if Instant::now() > end => return Err(process.failure("does not accept connections")),
            () => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a server accepts there. A thread asks beside the server, so this thread stays where it
/// is.
fn connects(wire: &Wire, port: u16) -> bool {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            if let Some(namespace) = &wire.server {
                process::enter(&File::open(namespace)?)?;
            }
            TcpStream::connect((wire.address, port))
        });
        asked.join().is_ok_and(|connected| connected.is_ok())
    })
}

/// An address for a server to be started: a free port, or a path in the temporary directory.
pub fn new_address(session: &Session, side: Side, name: &str) -> Result<Address> {
    match side {
        Side::Unix => {
            let path = session.temp.path().join(format!("{name}.sock"));
            let _ = std::fs::remove_file(&path); // from the round before; mostly there is none
            Ok(Address::Unix(path))
        }
        _ => free_port().map(Address::Tcp),
    }
}

/// A user who is not root, for programs that refuse to be root. `None` where this process is not
/// root anyway.
pub fn unprivileged() -> Result<Option<User>> {
    // SAFETY: geteuid() has no requirements.
    if unsafe { libc::geteuid() } != 0 {
        return Ok(None);
    }
    let accounts = std::fs::read_to_string("/etc/passwd").map_err(failed("cannot read /etc/passwd"))?;
    let user = ["postgres", "nobody"].iter().find_map(|name| account(&accounts, name));
    user.map(Some).ok_or_else(|| Error::Failed("there is no user `nobody` to run a server as".into()))
}

fn account(passwd: &str, name: &str) -> Option<User> {
    let line = passwd.lines().find(|l| l.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2);
    Some(User { uid: numbers.next()?.parse().ok()?, gid: numbers.next()?.parse().ok()? })
}

pub fn is_root() -> bool {
    // SAFETY: geteuid() has no requirements.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_their_whole_name() {
        let passwd = "nobody2:x:1:2::/:/bin/sh\nnobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin\n";
        assert_eq!(account(passwd, "nobody"), Some(User { uid: 65534, gid: 65533 }));
        assert_eq!(account(passwd, "no"), None);
    }
}
