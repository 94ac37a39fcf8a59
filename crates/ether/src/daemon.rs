//! The daemon: reads the table, makes the nets that this host is on, and answers requests, until it
//! must end.

use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::control::{Listener, Request};
use crate::net::Net;
use crate::remote::Find;
use crate::running::Running;
use crate::stats::Report;
use crate::sys::{signal, signals, wait};
use crate::table::{Host, Table, Wrong};
use crate::{caps, dump, pcap};

/// Why a daemon did not start, or could not carry out a request.
#[derive(Debug)]
pub enum Failure {
    /// The table is wrong.
    Table(Wrong),
    /// The rest.
    Other(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Table(wrong) => wrong.fmt(f),
            Failure::Other(what) => f.write_str(what),
        }
    }
}

impl From<Wrong> for Failure {
    fn from(wrong: Wrong) -> Failure {
        Failure::Table(wrong)
    }
}

/// Runs until SIGTERM, SIGINT or `stop`, as `user` if that is named. `find` finds the settings of
/// links between ETHOM hosts of different machines.
pub fn run(path: &Path, called: Option<&str>, user: Option<&str>, find: Arc<Find>) -> Result<(), Failure> {
    let mut daemon = Daemon::new(path, called, find)?;
    if let Some(user) = user {
        caps::become_user(user, &daemon.table.directory)
            .map_err(|error| Failure::Other(format!("cannot become {user}: {error}")))?;
    }
    caps::keep_net_admin().map_err(failed(
        "the right to make interfaces, CAP_NET_ADMIN, is missing; run it as root, or by the systemd unit",
    ))?;
    let asked = signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map_err(failed("signals"))?;
    let listener = Listener::open(&daemon.table.directory, daemon.me)
        .map_err(|error| Failure::Other(error.to_string()))?;
    daemon.start_nets()?;
    notify("READY=1");
    eprintln!("shunt ether: host {} ({}) is ready", daemon.me, daemon.name);
    loop {
        let ready = wait(&[asked.as_raw_fd(), listener.fd()], None);
        if ready[0] {
            match signal(&asked) {
                Some(libc::SIGHUP) => match daemon.reload() {
                    Ok(()) => eprintln!("shunt ether: {} is read again", daemon.path.display()),
                    Err(failure) => eprintln!("shunt ether: {failure}; the table stays as it was"),
                },
                Some(_) => break,
                None => {}
            }
        }
        if ready[1]
            && let Some((request, stream)) = listener.request()
            && daemon.answer(request, stream)
        {
            break;
        }
    }
    notify("STOPPING=1");
    Ok(())
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure::Other(format!("{what}: {error}"))
}

/// The state of a daemon.
struct Daemon {
    path: PathBuf,
    table: Table,
    me: u16,
    name: String,
    nets: Vec<Running>,
    reloads: u64,
    find: Arc<Find>,
}

impl Daemon {
    fn new(path: &Path, called: Option<&str>, find: Arc<Find>) -> Result<Daemon, Failure> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let table = Table::read(&path)?;
        let me = own_host(&table, &path, called)?;
        let (id, name) = (me.id, me.name.clone());
        Ok(Daemon { path, me: id, name, table, nets: Vec::new(), reloads: 0, find })
    }

    /// Starts the nets of the table that this host is on and that do not run.
    fn start_nets(&mut self) -> Result<(), Failure> {
        for net in &self.table.nets {
            let on = self.table.members(&net.name).any(|(host, _)| host.id == self.me);
            if on && !self.nets.iter().any(|running| running.net.settings.name == net.name) {
                let started = Running::start(net.clone(), self.me, &self.table, &self.find);
                self.nets.push(started.map_err(|error| {
                    Failure::Other(format!("net {} (interface {}): {error}", net.name, net.interface))
                })?);
            }
        }
        Ok(())
    }

    /// Reads the table again. Nets whose own settings have changed are made anew; of the others
    /// only the peers change. If the table is wrong, nothing changes.
    fn reload(&mut self) -> Result<(), Failure> {
        let new = Table::read(&self.path)?;
        if new.host(&self.me.to_string()).is_none() {
            return Err(Failure::Other(format!(
                "{}: host {}, which we are, is not there",
                self.path.display(),
                self.me
            )));
        }
        if new.directory != self.table.directory {
            return Err(Failure::Other(
                "the directory cannot change while we run; stop and start all hosts".into(),
            ));
        }
        let me = self.me;
        let own = |table: &Table, net: &str| {
            table.members(net).find(|(host, _)| host.id == me).map(|(_, address)| address)
        };
        self.nets.retain(|running| {
            let settings = &running.net.settings;
            new.nets.contains(settings) && own(&new, &settings.name) == own(&self.table, &settings.name)
        });
        for running in &self.nets {
            running.net.set_table(&new);
        }
        self.table = new;
        self.reloads += 1;
        self.start_nets()
    }

    /// Answers a request. True if the daemon must end.
    fn answer(&mut self, request: Request, mut stream: UnixStream) -> bool {
        let ends = request == Request::Stop;
        let answer = match request {
            Request::Stat => match serde_json::to_string(&self.report()) {
                Ok(text) => format!("ok\n{text}\n"),
                Err(error) => format!("error: {error}\n"),
            },
            Request::Reload => match self.reload() {
                Ok(()) => "ok\n".into(),
                Err(failure) => format!("error: {failure}\n"),
            },
            Request::Stop => "ok\n".into(),
            Request::Dump { net, snap } => match self.dump(net.as_deref(), snap, &stream) {
                Ok(()) => return false,
                Err(what) => format!("error: {what}\n"),
            },
        };
        let _ = stream.write_all(answer.as_bytes()); // whoever asked is gone
        ends
    }

    /// Starts to send the frames of a net, or of all, in a thread that ends when the client closes.
    fn dump(&self, which: Option<&str>, snap: usize, stream: &UnixStream) -> Result<(), String> {
        let nets: Vec<&Net> = self.nets.iter().map(|running| &*running.net).collect();
        let nets: Vec<&Net> =
            nets.into_iter().filter(|net| which.is_none_or(|which| which == net.settings.name)).collect();
        if nets.is_empty() {
            return Err(format!("there is no net {} here", which.unwrap_or_default()));
        }
        let names: Vec<&str> = nets.iter().map(|net| net.tap.name()).collect();
        let mut head = b"ok\n".to_vec();
        head.extend(pcap::head(&names, snap as u32));
        let mut stream = stream.try_clone().map_err(|error| error.to_string())?;
        let (to, from) = dump::channel();
        for (i, net) in nets.iter().enumerate() {
            net.readers.add(i as u32, snap, to.clone());
        }
        let send = move || {
            let _ = stream.set_write_timeout(None);
            let mut out = head;
            // Frames that wait go together.
            while stream.write_all(&out).is_ok() {
                out.clear();
                let Ok(first) = from.recv() else { return };
                for passed in std::iter::once(first).chain(from.try_iter().take(64)) {
                    pcap::packet(
                        &mut out,
                        passed.interface,
                        passed.nanos,
                        passed.inbound,
                        &passed.bytes,
                        passed.whole,
                    );
                }
            }
        };
        std::thread::Builder::new()
            .name("dump".into())
            .spawn(send)
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn report(&self) -> Report {
        Report {
            pid: std::process::id(),
            host: self.me,
            name: self.name.clone(),
            table: self.path.display().to_string(),
            reloads: self.reloads,
            nets: self.nets.iter().map(|running| running.net.report()).collect(),
        }
    }
}

/// The host that this machine is: as the user named it, or by its host name if the table says so.
fn own_host<'a>(table: &'a Table, path: &Path, called: Option<&str>) -> Result<&'a Host, Failure> {
    let known: Vec<String> = table.hosts.iter().map(|host| format!("{} ({})", host.id, host.name)).collect();
    let known = known.join(", ");
    if let Some(called) = called {
        let what =
            || Failure::Other(format!("{}: there is no host {called}; there are {known}", path.display()));
        return table.host(called).ok_or_else(what);
    }
    if !table.host_by_name {
        return Err(Failure::Other(format!(
            "which host is this? Say --host ID, or SHUNT_ETHER_HOST=ID, or host_by_name = true in {}; there are {known}",
            path.display()
        )));
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    let what = || {
        Failure::Other(format!(
            "{}: no host has this machine's name, {name}; there are {known}",
            path.display()
        ))
    };
    table.hosts.iter().find(|host| host.name == name).ok_or_else(what)
}

/// Notifies systemd, if it has started us.
fn notify(state: &str) {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::SocketAddr;
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let path = path.as_encoded_bytes();
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(std::ffi::OsStr::new(&*String::from_utf8_lossy(path))),
    };
    if let (Ok(socket), Ok(address)) = (UnixDatagram::unbound(), address) {
        let _ = socket.send_to_addr(state.as_bytes(), &address);
    }
}
