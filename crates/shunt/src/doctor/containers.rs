//! `shunt doctor --container`: whether containers of this host get what `shunt container` is for.

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};

use options::Options;
use serde_json::Value;

use super::check::Check;
use crate::{container, library};

/// Those that read the file by themselves, or may be told to: the command, and the first release
/// that does.
const ENGINES: [(&str, (u32, u32)); 4] =
    [("docker", (25, 0)), ("podman", (4, 1)), ("containerd", (1, 7)), ("crio", (1, 23))];

pub fn checks() -> Vec<Check> {
    let device = fs::read_to_string(Path::new("/").join(container::CDI)).ok();
    let Some(device) = device.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
        return vec![Check::fail(
            "container device",
            format!("/{} is not there, or is no CDI file: no container gets Shunt", container::CDI),
            "sudo shunt container",
        )];
    };
    let meets = devices(&device).any(|device| device["name"] == "meeting");
    let mut checks = vec![files(&device), board()];
    if meets {
        checks.extend([folder(), keeps_descriptors_out(), time_stamps()]);
    } else {
        checks.push(Check::ok(
            "container meeting",
            "there is none: containers with networks of their own stay on TCP with each other (shunt container --meeting)",
        ));
    }
    let engines = ENGINES.iter().filter_map(|&(name, since)| engine(name, since)).collect::<Vec<_>>();
    if engines.is_empty() {
        checks.push(Check::warn(
            "container engine",
            "none of docker, podman, containerd and crio is in PATH",
            "nothing, if another engine reads CDI files",
        ));
    }
    checks.extend(engines);
    checks
}

fn devices(file: &Value) -> impl Iterator<Item = &Value> {
    file["devices"].as_array().into_iter().flatten()
}

/// Whether all that the device mounts is there.
fn files(file: &Value) -> Check {
    const NAME: &str = "container device";
    let mounts = devices(file).flat_map(|device| device["containerEdits"]["mounts"].as_array()).flatten();
    let mut missing: Vec<&str> = mounts
        .filter_map(|mount| mount["hostPath"].as_str())
        .filter(|path| !Path::new(path).exists())
        .collect();
    missing.sort_unstable();
    missing.dedup();
    if !missing.is_empty() {
        let found = format!("it mounts what is not there: {}", missing.join(", "));
        return Check::fail(
            NAME,
            found,
            "sudo shunt container, again; containers that ask for it do not start",
        );
    }
    let libraries = devices(file)
        .flat_map(|device| device["containerEdits"]["mounts"].as_array())
        .flatten()
        .filter(|mount| mount["containerPath"] == container::INSIDE)
        .filter_map(|mount| mount["hostPath"].as_str());
    let own = env!("CARGO_PKG_VERSION");
    for path in libraries {
        match library::version(Path::new(path)) {
            Ok(Some(version)) if version == own => {}
            Ok(version) => {
                let other = version.unwrap_or("another version".into());
                let found = format!("it mounts {path}, of {other}; this is {own}");
                return Check::warn(NAME, found, "sudo shunt container, and start containers again");
            }
            Err(why) => {
                return Check::fail(NAME, format!("it mounts {path}, which {why}"), "sudo shunt container");
            }
        }
    }
    let names: Vec<&str> = devices(file).filter_map(|device| device["name"].as_str()).collect();
    Check::ok(NAME, format!("containers get Shunt by --device shunt.dev/shunt={}", names.join(" or =")))
}

fn board() -> Check {
    const NAME: &str = "container board";
    let path = Options::HOST_BOARD.to_string_lossy();
    match fs::symlink_metadata(&*path) {
        Ok(meta) if meta.is_file() && meta.permissions().mode() & 0o777 == 0o666 => {
            Check::ok(NAME, format!("{path} is there, for all users"))
        }
        Ok(_) => {
            Check::fail(NAME, format!("{path} is no file that all users may write"), "sudo shunt container")
        }
        Err(error) => Check::fail(NAME, format!("{path}: {error}"), "sudo shunt container"),
    }
}

fn folder() -> Check {
    const NAME: &str = "container meeting";
    let path = Options::HOST_MEETING.to_string_lossy();
    match fs::symlink_metadata(&*path) {
        Ok(meta) if meta.is_dir() && meta.permissions().mode() & 0o7777 == 0o1777 => Check::ok(
            NAME,
            format!(
                "{path} is there: for containers, and users of this host, that are not each other's enemies"
            ),
        ),
        Ok(_) => {
            Check::fail(NAME, format!("{path} is no folder of mode 1777"), "sudo shunt container --meeting")
        }
        Err(error) => Check::fail(NAME, format!("{path}: {error}"), "sudo shunt container --meeting"),
    }
}

/// Without it a stranger could have a process close what he likes.
fn keeps_descriptors_out() -> Check {
    const NAME: &str = "container kernel";
    /// In `asm-generic/socket.h`.
    const SO_PASSRIGHTS: i32 = 83;
    let tried = UnixDatagram::unbound().is_ok_and(|socket| {
        let (off, len) = (0_i32, size_of::<i32>() as u32);
        // SAFETY: the value is an integer of that length, and lives as long as the call.
        unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PASSRIGHTS,
                (&raw const off).cast(),
                len,
            ) == 0
        }
    });
    match tried {
        true => Check::ok(NAME, "it can keep descriptors out of a socket (SO_PASSRIGHTS)"),
        false => Check::fail(
            NAME,
            "it cannot keep descriptors out of a socket (SO_PASSRIGHTS)",
            "Linux 6.16 or later; until then connections between networks stay on TCP",
        ),
    }
}

/// The ends of a connection know each other by the time stamp of the SYN.
fn time_stamps() -> Check {
    const NAME: &str = "container time stamps";
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
    match (read("tcp_timestamps").trim(), read("tcp_syncookies").trim()) {
        ("0", _) => Check::fail(
            NAME,
            "SYNs have none here (net.ipv4.tcp_timestamps=0), and containers take that over",
            "sysctl net.ipv4.tcp_timestamps=1, and start containers again",
        ),
        (_, "2") => Check::fail(
            NAME,
            "SYNs are answered by cookies, and forgotten (net.ipv4.tcp_syncookies=2)",
            "sysctl net.ipv4.tcp_syncookies=1",
        ),
        _ => Check::ok(NAME, "SYNs have them"),
    }
}

/// What an engine in PATH says of its version.
fn engine(name: &'static str, since: (u32, u32)) -> Option<Check> {
    const NAME: &str = "container engine";
    let said = Command::new(name).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let Some(version) = version_in(&text) else {
        return Some(Check::warn(
            NAME,
            format!("{name} does not say its version"),
            "see whether it reads CDI files",
        ));
    };
    let (major, minor) = since;
    let found = format!("{name} {}.{}", version.0, version.1);
    Some(if version >= since {
        Check::ok(NAME, format!("{found} reads CDI files"))
    } else {
        Check::fail(NAME, format!("{found} does not know CDI"), format!("{name} {major}.{minor} or later"))
    })
}

/// The first two numbers that a dot joins.
fn version_in(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_say_their_version_in_their_ways() {
        assert_eq!(version_in("Docker version 25.0.3, build 4debf41"), Some((25, 0)));
        assert_eq!(version_in("podman version 4.3.1"), Some((4, 3)));
        assert_eq!(version_in("containerd github.com/containerd/containerd 1.7.2 0cae528"), Some((1, 7)));
        assert_eq!(version_in("crio version 1.28.4"), Some((1, 28)));
        assert_eq!(version_in("none"), None);
    }

    #[test]
    fn what_a_device_mounts_must_be_there() {
        let file = |path: &str| {
            serde_json::json!({ "devices": [{ "name": "on", "containerEdits": {
                "mounts": [{ "hostPath": path, "containerPath": "/run/shunt/board" }] } }] })
        };
        assert_eq!(files(&file("/")).found, "containers get Shunt by --device shunt.dev/shunt=on");
        assert!(files(&file("/nowhere/at/all")).found.contains("/nowhere/at/all"));
    }
}
