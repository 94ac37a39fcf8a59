//! Whether a running process is accelerated, and what limits it, from what `/proc` shows of it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use options::Options;

use super::board;
use super::check::Check;
use super::kernel::status_field;
use crate::homes::ConnStat;
use crate::{homes, library, settings, whose};

const NAME: &str = "process";

pub fn checks(pid: u32) -> Vec<Check> {
    let maps = match fs::read_to_string(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return vec![Check::fail(NAME, format!("{pid} is not yours to look into"), "try as root")];
        }
        Err(_) => return vec![Check::fail(NAME, format!("there is no process {pid}"), "check the number")],
    };
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let who = format!("{pid} ({})", comm.trim_end().escape_debug());
    let mut checks = vec![mapped(pid, &who, &maps)];
    checks.push(match status_field(&pid.to_string(), "Seccomp").as_deref() {
        Some("2") => Check::warn(
            "process seccomp",
            format!("{who} has a filter of system calls"),
            "see that it allows memfd_create, eventfd2, mmap, UNIX sockets and AF_NETLINK; else it stays on TCP",
        ),
        Some("1") => Check::fail("process seccomp", format!("{who} is in strict mode"), "nothing"),
        _ => Check::ok("process seccomp", "no filter"),
    });
    if maps.contains("liburing.so") || holds_ring(pid) {
        checks.push(Check::warn(
            "process io_uring",
            format!("{who} uses io_uring"),
            "if it uses it for sockets, all of them stay on TCP; switch that off in its configuration, if it can",
        ));
    }
    checks.extend(shared(pid, &who));
    checks.extend(sleepers(pid, &who));
    checks
}

/// What a process in other namespaces, as in a container, shares with programs here.
fn shared(pid: u32, who: &str) -> Vec<Check> {
    let namespace = |of: &str, kind| fs::read_link(format!("/proc/{of}/ns/{kind}")).ok();
    let other = |kind| namespace("self", kind) != namespace(&pid.to_string(), kind);
    let (mounts, network) = (other("mnt"), other("net"));
    let mut checks = Vec::new();
    if network {
        let whose = whose::container(pid).map_or(String::new(), |name| format!(" ({name})"));
        let its = format!("{who} has a network namespace that is not ours{whose}");
        let place = |of: &str| identity(options_of(of)?.meeting.as_bytes(), of);
        checks.push(match (place(&pid.to_string()), place("self")) {
            (Some(its_place), Some(own)) if its_place == own => {
                Check::ok("process network", format!("{its}, and the meeting place of programs here"))
            }
            (Some(_), _) => Check::warn(
                "process network",
                format!("{its}, and a meeting place that is not that of programs here"),
                "its connections to programs that have the same meeting place move to memory; all others stay on TCP",
            ),
            (None, _) => Check::warn(
                "process network",
                format!("{its}, and no meeting place"),
                "its connections to programs in that namespace move to memory; for others start both containers with \
                 --device shunt.dev/shunt=meeting, if they trust each other (see `shunt container --help`)",
            ),
        });
    }
    if mounts || network {
        let file = |of: &str| {
            board_of(of).and_then(|path| fs::metadata(path).ok()).map(|meta| (meta.dev(), meta.ino()))
        };
        checks.push(match file(&pid.to_string()) {
            Some(its) if file("self") == Some(its) => Check::ok("process board", "the same as that of programs here"),
            _ => Check::warn(
                "process board",
                format!("{who} and programs here have no board in common, so they do not find each other"),
                "start its container with --device shunt.dev/shunt=on (see `shunt container`), or give it this /dev/shm",
            ),
        });
    }
    checks
}

/// Where we find the file that a process uses as the board.
fn board_of(of: &str) -> Option<PathBuf> {
    Some(board::place(&options_of(of)?, Path::new(&format!("/proc/{of}/root"))))
}

/// The options of a process, by its environment, and by configuration files where we have them.
fn options_of(of: &str) -> Option<Options> {
    let environ = fs::read(format!("/proc/{of}/environ")).ok()?;
    let entries = environ.split(|&byte| byte == 0).filter_map(|entry| {
        let at = entry.iter().position(|&byte| byte == b'=')?;
        Some((OsStr::from_bytes(&entry[..at]).into(), OsStr::from_bytes(&entry[at + 1..]).into()))
    });
    Some(settings::read(entries).options)
}

/// What a path leads to for a process.
fn identity(path: &[u8], of: &str) -> Option<(u64, u64)> {
    let root = PathBuf::from(format!("/proc/{of}/root"));
    let within = root.join(OsStr::from_bytes(path.strip_prefix(b"/")?));
    fs::metadata(within).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether all threads sleep although bytes wait in memory: a second look tells a sleeper who is
/// owed a wake-up from one who is about to read.
fn sleepers(pid: u32, who: &str) -> Option<Check> {
    let waiting = || -> Vec<ConnStat> {
        let found = homes::read_homes().unwrap_or_default();
        let own = found.into_iter().filter(|process| process.pid == pid);
        own.flat_map(|process| process.connections)
            .filter(|conn| conn.unread.is_some_and(|unread| unread > 0))
            .collect()
    };
    let before = waiting();
    if before.is_empty() || !asleep(pid) {
        return None;
    }
    std::thread::sleep(Duration::from_secs(1));
    let still: Vec<String> = waiting()
        .iter()
        .filter(|now| before.iter().any(|then| (then.fd, then.bytes_in) == (now.fd, now.bytes_in)))
        .map(|conn| {
            format!("{} of descriptor {}", crate::run::size(conn.unread.unwrap_or(0)), conn.fd.unwrap_or(-1))
        })
        .collect();
    if still.is_empty() || !asleep(pid) {
        return None;
    }
    Some(Check::warn(
        "process sleepers",
        format!("{who} sleeps, and has not read for a second what waits in memory: {}", still.join(", ")),
        "a program may leave bytes unread; if this one hangs, report a bug with what `shunt stat --json`, /proc/PID/task/*/stack and \
         this say, and start it with --path tcp until then",
    ))
}

/// Whether no thread of the process runs.
fn asleep(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let states = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    let letter = |stat: &str| stat.rsplit(')').next()?.trim_start().chars().next();
    states.filter_map(|stat| letter(&stat)).all(|state| state == 'S')
}

fn mapped(pid: u32, who: &str, maps: &str) -> Check {
    let file_name =
        |path: &str| path.rsplit('/').next().map(|name| name.trim_end_matches(" (deleted)") == library::NAME);
    let path = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|&p| file_name(p) == Some(true)));
    match (path, homes::find_homes(pid).first()) {
        (Some(path), Some(_)) => Check::ok(NAME, format!("{who} runs under Shunt, with {path}")),
        (Some(path), None) => Check::warn(
            NAME,
            format!("{who} has {path}, but has not made a home yet"),
            "nothing, if it has no TCP connection yet; else start it with SHUNT_LOG=/some/file",
        ),
        (None, _) => {
            let todo = match environ_has_preload(pid) {
                Some(true) => "LD_PRELOAD names it, but it did not get in: give its program to shunt doctor",
                _ => "start it with shunt run",
            };
            Check::fail(NAME, format!("{who} does not have {}", library::NAME), todo)
        }
    }
}

fn environ_has_preload(pid: u32) -> Option<bool> {
    let environ = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environ.split(|&byte| byte == 0);
    Some(entries.any(|entry| {
        entry.starts_with(b"LD_PRELOAD=") && String::from_utf8_lossy(entry).contains(library::NAME)
    }))
}

fn holds_ring(pid: u32) -> bool {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|to| to.as_os_str() == "anon_inode:[io_uring]")
}
