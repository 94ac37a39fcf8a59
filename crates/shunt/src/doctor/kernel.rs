//! What the kernel allows: wake-ups, UNIX sockets, looking up who owns a connection, filters of
//! system calls, `/proc`.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::event::EventfdFlags;

use super::check::Check;
use super::diag;

pub fn checks() -> Vec<Check> {
    let mut checks = vec![eventfd(), unix_socket(), sock_diag(), seccomp(), io_uring()];
    checks.extend(proc_access());
    checks
}

fn eventfd() -> Check {
    const NAME: &str = "eventfd";
    match rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(_) => Check::ok(NAME, "works: sleeping peers are woken by it"),
        Err(error) => Check::warn(
            NAME,
            format!("eventfd() does not work: {error}"),
            "allow it in the seccomp filter; until then peers are woken through TCP, which is slower",
        ),
    }
}

fn unix_socket() -> Check {
    const NAME: &str = "UNIX sockets";
    let tried = || -> std::io::Result<()> {
        let name = format!("shunt-doctor-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name)?;
        let listener = UnixListener::bind_addr(&address)?;
        let mut near = UnixStream::connect_addr(&address)?;
        let (mut accepted, _) = listener.accept()?;
        near.write_all(b"x")?;
        accepted.read_exact(&mut [0])?;
        let peer = rustix::net::sockopt::socket_peercred(&accepted)?;
        match peer.pid.as_raw_nonzero().get() as u32 == std::process::id() {
            true => Ok(()),
            false => Err(std::io::Error::other("the kernel names another process as the peer")),
        }
    };
    match tried() {
        Ok(()) => Check::ok(NAME, "abstract names work, and the kernel names the peer"),
        Err(error) => Check::fail(
            NAME,
            format!("abstract UNIX sockets do not work: {error}"),
            "allow them in the seccomp filter, AppArmor profile or RestrictAddressFamilies=",
        ),
    }
}

fn sock_diag() -> Check {
    const NAME: &str = "sock_diag";
    const TODO: &str = "load the module tcp_diag (modprobe tcp_diag), and allow AF_NETLINK in the seccomp filter or \
                        RestrictAddressFamilies=: without it no peer can be proved";
    let tried = || -> std::io::Result<(diag::Found, u64, u32)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, _) = listener.accept()?;
        let found = diag::lookup(accepted.local_addr()?, accepted.peer_addr()?)?;
        let uid = rustix::process::geteuid().as_raw();
        let cookie = rustix::net::sockopt::socket_cookie(&accepted)?;
        drop(near);
        Ok((found, cookie, uid))
    };
    match tried() {
        Ok((found, cookie, uid)) if found.cookie == cookie && found.uid == uid => {
            Check::ok(NAME, "a loopback connection was found, with its cookie and owner")
        }
        Ok((found, cookie, uid)) => Check::fail(
            NAME,
            format!(
                "a connection was found with cookie {} and uid {}, not {cookie} and {uid}",
                found.cookie, found.uid
            ),
            "report this: the kernel's record is what a peer is proved by",
        ),
        Err(error) => Check::fail(NAME, format!("a connection could not be looked up: {error}"), TODO),
    }
}

fn seccomp() -> Check {
    const NAME: &str = "seccomp";
    match status_field("self", "Seccomp").as_deref() {
        Some("2") => Check::ok(
            NAME,
            "a filter is set (usual in containers); the calls that Shunt needs were tried, see the other lines",
        ),
        Some("1") => Check::fail(NAME, "strict mode", "nothing"),
        _ => Check::ok(NAME, "no filter"),
    }
}

/// A field of `/proc/PID/status`.
pub fn status_field(pid: &str, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().to_string())
}

fn io_uring() -> Check {
    const NAME: &str = "io_uring";
    match fs::read_to_string("/proc/sys/kernel/io_uring_disabled").as_deref().map(str::trim) {
        Ok("2") => Check::ok(NAME, "switched off on this host, so that no program can go past Shunt by it"),
        _ => Check::ok(NAME, "on: a program that uses it for its sockets stays on TCP, others do not mind"),
    }
}

/// What `shunt stat` can see.
fn proc_access() -> Vec<Check> {
    const NAME: &str = "/proc for stat";
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let options = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next() == Some("/proc")).then(|| fields.nth(1)).flatten()
    });
    let Some(options) = options else {
        return vec![Check::warn(
            NAME,
            "not mounted",
            "mount -t proc proc /proc; shunt stat sees nothing without",
        )];
    };
    let hidden = options
        .split(',')
        .any(|option| option.strip_prefix("hidepid=").is_some_and(|level| !matches!(level, "0" | "off")));
    let root = rustix::process::geteuid().is_root();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let yama = if scope.is_ok_and(|scope| scope.trim() != "0") { "; yama does not limit it" } else { "" };
    vec![match (root, hidden) {
        (true, _) => Check::ok(NAME, format!("as root, shunt stat sees every process{yama}")),
        (false, false) => {
            Check::ok(NAME, format!("shunt stat sees your processes, and as root all of them{yama}"))
        }
        (false, true) => Check::warn(
            NAME,
            "mounted with hidepid: shunt stat sees only your own processes",
            "run shunt stat as root to see all",
        ),
    }]
}
