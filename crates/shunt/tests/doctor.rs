//! `shunt doctor` and `shunt stat`: their output, for people and for programs, and their exit
//! status.

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
    for name in
        ["library", "memory files", "eventfd", "UNIX sockets", "sock_diag", "program", "options", "rules"]
    {
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
fn the_rule_that_decides_is_named() {
    let bed = Bed::new();
    let file = bed.path("my.rules");
    std::fs::write(&file, "# mine\nuse tcp client redis-* 127.0.0.0/8:6379 # why\nuse shunt server * *:*\n")
        .unwrap();
    let script = bed.script("mine", "#!/bin/sh\n");
    let ask = |program: &str, address: &str, env: (&str, &str)| {
        let output = bed.shunt(&["doctor", "--rules", program, address]).env(env.0, env.1).output().unwrap();
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
        stdout(&output)
    };
    let file = file.to_str().unwrap();
    assert_eq!(
        ask("/usr/bin/redis-cli", "127.0.0.1:6379", ("SHUNT_RULES", file)),
        format!(
            "redis-cli, connecting to 127.0.0.1:6379: tcp\n    {file}:2: use tcp client redis-* 127.0.0.0/8:6379\n\
             redis-cli, accepting at 127.0.0.1:6379: shunt\n    {file}:3: use shunt server * *:*\n"
        )
    );
    assert_eq!(
        ask("x", "[::1]:80", ("SHUNT_RULES", "/dev/null")),
        "x, connecting to [::1]:80: shunt\n    no rule matches\nx, accepting at [::1]:80: shunt\n    no rule matches\n"
    );
    let said = ask(script.to_str().unwrap(), "[::1]:80", ("SHUNT_RULES", "use tcp client sh [::1]:80"));
    assert!(said.contains("mine is a script; its name is that of what runs it: sh\n"), "{said}");
    assert!(
        said.contains("connecting to [::1]:80: tcp\n    SHUNT_RULES: rule 1: use tcp client sh [::1]:80\n"),
        "{said}"
    );
    let said = ask("x", "[::1]:80", ("SHUNT_PATH", "tcp"));
    assert!(said.contains("accepting at [::1]:80: tcp\n    path = tcp\n"), "{said}");

    let output = bed
        .shunt(&["doctor", "--json", "--rules", "redis-cli", "127.0.0.1:6379"])
        .env("SHUNT_RULES", file)
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&answer["client"]["path"], &answer["client"]["place"]),
        (&"tcp".into(), &format!("{file}:2").into())
    );
}

/// The option's values first, each by its strength, and then the files beside the configuration
/// files.
#[test]
fn one_set_of_rules_counts() {
    let bed = Bed::new();
    let home = bed.path("home/.config");
    std::fs::create_dir_all(&home).unwrap();
    let decides = |rules: Option<&str>| {
        let mut command = bed.shunt(&["doctor", "--rules", "x", "127.0.0.1:80"]);
        command.env("HOME", bed.path("home")).env_remove("SHUNT_CONFIG").env_remove("XDG_CONFIG_HOME");
        if let Some(rules) = rules {
            command.env("SHUNT_RULES", rules);
        }
        let said = stdout(&command.output().unwrap());
        said.lines().nth(1).unwrap().trim().replace(bed.path("home").to_str().unwrap(), "~")
    };
    std::fs::write(home.join("shunt.rules"), "\nuse tcp * * *:*\n").unwrap();
    assert_eq!(decides(None), "~/.config/shunt.rules:2: use tcp * * *:*");
    std::fs::write(home.join("shunt.conf"), "rules = use shunt * x *:1; use tcp * x *:*\n").unwrap();
    assert_eq!(decides(None), "~/.config/shunt.conf: rules: rule 2: use tcp * x *:*");
    assert_eq!(decides(Some("use tcp * * *:80")), "SHUNT_RULES: rule 1: use tcp * * *:80");
    assert_eq!(decides(Some("/dev/null")), "no rule matches");
}

#[test]
fn wrong_rules_fail() {
    let bed = Bed::new();
    let output =
        bed.shunt(&["doctor", "--json"]).env("SHUNT_RULES", "use tcp * * *:80; use").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(find(&report, "rules")["status"], "fail", "{report:#}");
    assert_eq!(
        find(&report, "rules")["found"],
        "SHUNT_RULES: rule 2: expected shunt or tcp; got nothing more"
    );
    assert_eq!(output.status.code(), Some(1));
    let output =
        bed.shunt(&["doctor", "--rules", "x", "[::1]:80"]).env("SHUNT_RULES", "use udp *").output().unwrap();
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), String::new()));
    assert!(stderr(&output).contains("rule 1: expected shunt or tcp; got \"udp\""), "{}", stderr(&output));
    for wrong in [&["x"][..], &["x", "localhost:80"], &["x", "::1"], &["x", "[::1]:80", "y"]] {
        let output = bed.shunt(&["doctor", "--rules"]).args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
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
