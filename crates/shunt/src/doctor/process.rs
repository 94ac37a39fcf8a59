//! Whether a running process is accelerated, and what limits it, from what `/proc` shows of it.

use std::fs;

use super::Check;
use super::kernel::status_field;
use crate::{homes, library};

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
    checks
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
