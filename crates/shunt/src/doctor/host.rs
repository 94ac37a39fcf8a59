//! What this host, and this login, offer: memory, descriptors, CPUs, limits, the container, the
//! library.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use options::Options;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::Resource;

use super::check::Check;
use crate::library;

/// What /dev/shm should have left for the board. Rings are not there: they are in memory files.
const ROOM: u64 = 8 << 20;
/// What a memory file may need.
const LARGEST_FILE: u64 = 256 << 20;

pub fn checks() -> Vec<Check> {
    vec![
        library(),
        memfd(),
        shm(),
        cpus(),
        descriptors(),
        address_space(),
        file_size(),
        memlock(),
        container(),
    ]
}

fn library() -> Check {
    const NAME: &str = "library";
    let named = std::env::var_os("SHUNT_LIB");
    let path = match library::find(named.as_deref()) {
        Ok(path) => path,
        Err(error) => return Check::fail(NAME, error, "install libshunt.so, or set SHUNT_LIB to it"),
    };
    let (shown, own) = (path.display(), env!("CARGO_PKG_VERSION"));
    match library::version(&path) {
        Err(error) => Check::fail(NAME, format!("{shown} {error}"), "install the one built for this machine"),
        Ok(Some(version)) if version == own => Check::ok(NAME, format!("{shown}, version {version}")),
        Ok(version) => {
            let version = version.unwrap_or("unknown".into());
            let found = format!("{shown} has version {version}, this command {own}");
            Check::warn(NAME, found, "install both from one build; ends of different versions stay on TCP")
        }
    }
}

fn memfd() -> Check {
    const NAME: &str = "memory files";
    let made = rustix::fs::memfd_create("shunt:doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|fd| {
            rustix::fs::ftruncate(&fd, 1 << 20)?;
            rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        });
    match made {
        Ok(()) => Check::ok(NAME, "memfd_create() and its seals work"),
        Err(error) => Check::fail(
            NAME,
            format!("memfd_create() or sealing does not work: {error}"),
            "allow memfd_create in the seccomp filter, and memory in the memory cgroup",
        ),
    }
}

fn shm() -> Check {
    const NAME: &str = "/dev/shm";
    let fs = match rustix::fs::statvfs(NAME) {
        Ok(fs) => fs,
        Err(error) => {
            return Check::fail(NAME, error.to_string(), "mount a tmpfs there, or set SHUNT_BOARD elsewhere");
        }
    };
    if rustix::fs::access(NAME, rustix::fs::Access::WRITE_OK).is_err() {
        return Check::fail(
            NAME,
            "you may not write there",
            "chmod 1777 /dev/shm, or set SHUNT_BOARD elsewhere",
        );
    }
    let free = fs.f_bavail * fs.f_frsize;
    let found = format!("writable, {} free", crate::run::size(free));
    match free {
        0..1_000_000 => Check::fail(NAME, found, "remove what fills it, or mount it larger (--shm-size)"),
        n if n < ROOM => Check::warn(NAME, found, "remove what fills it, or mount it larger (--shm-size)"),
        _ => Check::ok(NAME, found),
    }
}

fn cpus() -> Check {
    const NAME: &str = "CPUs";
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => Check::warn(
            NAME,
            "1 usable: calls never spin, they sleep at once",
            "give programs that talk to each other two CPUs for the lowest latency",
        ),
        n => Check::ok(NAME, format!("{n} usable: calls may spin before they sleep")),
    }
}

fn descriptors() -> Check {
    const NAME: &str = "open files";
    let limit = rustix::process::getrlimit(Resource::Nofile).current;
    let todo = "raise it: ulimit -n, LimitNOFILE= of systemd";
    match limit {
        Some(n) if n < 64 => Check::fail(NAME, format!("at most {n} descriptors"), todo),
        Some(n) if n < 512 => {
            Check::warn(NAME, format!("at most {n} descriptors; each peer costs a few"), todo)
        }
        Some(n) => Check::ok(NAME, format!("at most {n} descriptors")),
        None => Check::ok(NAME, "no limit of descriptors"),
    }
}

fn address_space() -> Check {
    const NAME: &str = "address space";
    match rustix::process::getrlimit(Resource::As).current {
        None => Check::ok(NAME, "no limit"),
        Some(n) => Check::warn(
            NAME,
            format!("limited to {} (RLIMIT_AS)", crate::run::size(n)),
            "lift it (ulimit -v unlimited): under it fewer connections, or none, leave TCP",
        ),
    }
}

fn file_size() -> Check {
    const NAME: &str = "file size";
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(n) if n < LARGEST_FILE => Check::warn(
            NAME,
            format!("limited to {} (RLIMIT_FSIZE), which holds for memory files too", crate::run::size(n)),
            "lift it (ulimit -f unlimited), or connections stay on TCP",
        ),
        _ => Check::ok(NAME, "no limit that matters"),
    }
}

fn memlock() -> Check {
    Check::ok("locked memory", "not used on one host: RLIMIT_MEMLOCK does not matter")
}

fn container() -> Check {
    const NAME: &str = "container";
    const TODO: &str = "to reach programs outside, share the host's board with them (docker run --device shunt.dev/shunt=on)";
    if let Some(kind) = container_kind() {
        let there = |path: &std::ffi::CStr| std::path::Path::new(&*path.to_string_lossy()).exists();
        if there(Options::HOST_BOARD) {
            let meets = match there(Options::HOST_MEETING) {
                true => "its board and its meeting place",
                false => "its board; without a meeting place connections between networks stay on tcp",
            };
            return Check::ok(NAME, format!("in {kind}, with the host: {meets}"));
        }
        let found = format!(
            "in {kind}: programs in it find each other, and those outside only if they share a board with it"
        );
        return Check::warn(NAME, found, TODO);
    }
    let mut apart = Vec::new();
    if differs("ns/net") == Some(true) {
        apart.push("a network namespace");
    }
    if differs("root/dev/shm") == Some(true) {
        apart.push("a /dev/shm");
    }
    match apart.is_empty() {
        true => Check::ok(NAME, "none noticed"),
        false => {
            let found = format!(
                "{} of its own: programs outside of it do not find those inside",
                apart.join(" and ")
            );
            Check::warn(NAME, found, TODO)
        }
    }
}

fn container_kind() -> Option<String> {
    let exists = |path: &&str| fs::exists(path).unwrap_or(false);
    if exists(&"/.dockerenv") {
        return Some("a Docker container".into());
    }
    if exists(&"/run/.containerenv") {
        return Some("a Podman container".into());
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some("a Kubernetes pod".into());
    }
    let named = std::env::var("container").ok().or_else(|| fs::read_to_string("/run/systemd/container").ok());
    named.map(|kind| format!("a container ({})", kind.trim().escape_debug()))
}

/// Whether this entry under `/proc/PID` is another for us than for process 1; `None` if we may not
/// know.
fn differs(entry: &str) -> Option<bool> {
    let of =
        |process: &str| fs::metadata(format!("/proc/{process}/{entry}")).map(|meta| (meta.dev(), meta.ino()));
    Some(of("self").ok()? != of("1").ok()?)
}
