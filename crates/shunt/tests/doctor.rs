//! `shunt doctor` and `shunt stat`: their output, for people and for programs, and their exit status.

mod util;

use std::process::Stdio;

use serde_json::Value;
use util::{Bed, stderr, stdout};

fn json(bed: &Bed, args: &[&str]) -> (Option<i32>, Value) {
    let output = bed.shunt(args).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let found = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
    found.unwrap_or_else(|| panic!("no check {name} in {report:#}"))
}

#[test]
fn this_host_is_looked_at() {
    let bed = Bed::new();
    let (code, report) = json(&bed, &["doctor", "--json", "/bin/true"]);
    for name in ["library", "memory files", "eventfd", "UNIX sockets", "sock_diag", "program", "options"] {
        assert_eq!(find(&report, name)["status"], "ok", "{:#}", find(&report, name));
    }
    for name in
        ["/dev/shm", "CPUs", "open files", "address space", "container", "seccomp", "io_uring", "board"]
    {
        find(&report, name);
    }
    for check in report["checks"].as_array().unwrap() {
        assert_eq!(check["status"] == "ok", check.get("todo").is_none(), "{check:#}");
    }
    assert_eq!(code == Some(0), report["ok"] == true);
    let text = stdout(&bed.shunt(&["doctor"]).output().unwrap());
    assert!(text.contains("sock_diag       a loopback connection was found"), "{text}");
}

#[test]
fn limits_and_mistakes_are_seen() {
    let bed = Bed::new();
    let limited =
        format!("ulimit -n 40; ulimit -v 4000000; exec {} doctor --json", env!("CARGO_BIN_EXE_shunt"));
    let output = std::process::Command::new("sh")
        .args(["-c", &limited])
        .envs([("SHUNT_LIB", "/nonexistent"), ("SHUNT_BOARD", "/dev/null"), ("SHUNT_BORD", "x")])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (name, status) in [
        ("open files", "fail"),
        ("address space", "warn"),
        ("library", "fail"),
        ("board", "fail"),
        ("options", "warn"),
    ] {
        assert_eq!(find(&report, name)["status"], status, "{:#}", find(&report, name));
    }
    assert_eq!(output.status.code(), Some(1));
    let board = bed.path("board");
    std::fs::write(&board, "").unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    std::fs::set_permissions(&board, mode).unwrap();
    let output = bed.shunt(&["doctor"]).env("SHUNT_BOARD", &board).output().unwrap();
    assert!(stdout(&output).contains("has mode 600"), "{}", stdout(&output));
}

#[test]
fn another_version_is_a_warning() {
    let bed = Bed::new();
    let mut bytes = std::fs::read(bed.library()).unwrap();
    let own = format!("{}\0", env!("CARGO_PKG_VERSION")).into_bytes();
    for at in 0..bytes.len() - own.len() {
        if bytes[at..].starts_with(&own) {
            bytes[at] = b'9';
        }
    }
    std::fs::write(bed.library(), bytes).unwrap();
    let (_, report) = json(&bed, &["doctor", "--json"]);
    assert_eq!(find(&report, "library")["status"], "warn", "{report:#}");
}

#[test]
fn unknown_programs_and_processes_fail() {
    let bed = Bed::new();
    let (code, report) = json(&bed, &["doctor", "--json", "no-such-program"]);
    assert_eq!((code, &find(&report, "program")["status"]), (Some(1), &Value::from("fail")));
    let (code, report) = json(&bed, &["doctor", "--json", "--pid", "4194305"]);
    assert_eq!((code, &find(&report, "process")["status"]), (Some(1), &Value::from("fail")));
    for wrong in
        [&["doctor", "--pid", "0"][..], &["doctor", "--pid", "x"], &["doctor", "a", "b"], &["stat", "x"]]
    {
        assert_eq!(bed.shunt(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_process_with_the_library_is_told_from_one_without() {
    let bed = Bed::new();
    for (args, status) in [(&["run", "sleep", "60"][..], "warn"), (&["stat", "--watch=60"], "fail")] {
        let mut child = bed.shunt(args).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().to_string();
        let expected = if args[0] == "run" { "sleep" } else { "shunt" };
        let comm = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let mapped = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains("libc.so");
        while !(comm().trim() == expected && mapped()) && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let (_, report) = json(&bed, &["doctor", "--json", "--pid", &pid]);
        child.kill().unwrap();
        child.wait().unwrap();
        // The stand-in makes no home, which is worth a warning.
        assert_eq!(find(&report, "process")["status"], status, "{:#}", find(&report, "process"));
    }
}

#[test]
fn stat_says_when_there_is_nothing_to_show() {
    let bed = Bed::new();
    let (code, all) = json(&bed, &["stat", "--json"]);
    assert!(code == Some(0) && all["processes"].is_array());
    let mut plain = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let output = bed.shunt(&["stat", &plain.id().to_string()]).output().unwrap();
    plain.kill().unwrap();
    plain.wait().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("does not run under Shunt"), "{}", stderr(&output));
    let output = bed.shunt(&["stat", "4194305"]).output().unwrap();
    assert!(stderr(&output).contains("there is no such process"), "{}", stderr(&output));
}

/// This process shows a home, one of zeros, as another program might by mistake or on purpose.
#[test]
fn a_process_with_a_home_is_listed() {
    let bed = Bed::new();
    let home = rustix::fs::memfd_create("shunt:home", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&home, 5000).unwrap();
    let own = std::process::id();
    let (code, report) = json(&bed, &["stat", "--json", &own.to_string()]);
    assert_eq!((code, &report["processes"][0]["pid"]), (Some(0), &Value::from(own)));
    assert_eq!(report["processes"].as_array().unwrap().len(), 1);
    let table = stdout(&bed.shunt(&["stat"]).output().unwrap());
    assert!(table.lines().any(|line| line.trim_start().starts_with(&own.to_string())), "{table}");
}
