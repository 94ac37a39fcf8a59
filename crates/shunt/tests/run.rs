//! `shunt run` on programs that can be accelerated: what the program finds, what the caller gets
//! back.

mod util;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use util::{Bed, stderr, stdout, undo_ignored};

#[test]
fn the_program_takes_the_place_of_the_command() {
    let bed = Bed::new();
    let child = bed.shunt(&["run", "--", "sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    assert_eq!(stdout(&child.wait_with_output().unwrap()).trim(), pid);
}

#[test]
fn nothing_is_added_to_what_the_program_prints() {
    let bed = Bed::new();
    let output = bed.shunt(&["run", "echo", "-n", "--stats"]).output().unwrap();
    assert_eq!((stdout(&output), stderr(&output)), ("--stats".into(), String::new()));
}

#[test]
fn the_library_goes_before_what_is_preloaded() {
    let bed = Bed::new();
    let other = bed.path("other.so");
    std::fs::copy(bed.library(), &other).unwrap();
    let library = bed.library().canonicalize().unwrap();
    let (library, other) = (library.to_str().unwrap(), other.to_str().unwrap());
    for (before, after) in [
        (String::new(), library.to_string()),
        (other.to_string(), format!("{library}:{other}")),
        (format!("{other} {library}"), format!("{library}:{other}")),
    ] {
        let output =
            bed.shunt(&["run", "sh", "-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", &before).output().unwrap();
        assert_eq!(stdout(&output).trim(), after, "before: {before:?}");
    }
}

#[test]
fn flags_become_environment_and_win() {
    let bed = Bed::new();
    let script = "echo $SHUNT_SPIN_US,$SHUNT_PROFILE,$SHUNT_BELLS,$SHUNT_BOARD,$SHUNT_LOG,$SHUNT_REPORT";
    let output = bed
        .shunt(&[
            "run",
            "--spin-us=9",
            "--profile",
            "safe",
            "--bells=off",
            "--board",
            "b",
            "--log=./l",
            "--",
            "sh",
        ])
        .args(["-c", script])
        .env("SHUNT_SPIN_US", "8")
        .current_dir("/tmp")
        .output()
        .unwrap();
    assert_eq!(stdout(&output).trim(), "9,safe,off,/tmp/b,/tmp/l,");
    assert_eq!(stderr(&output), "");
}

#[test]
fn wrong_flags_end_with_125() {
    let bed = Bed::new();
    for (flag, said) in [
        ("--spin-us=100001", "must be auto, or 0 to 100000 microseconds"),
        ("--profile=fast", "[possible values: safe, balanced, latency]"),
        ("--promote-after=-1", "must be auto, or 0 to 1000000 socket calls"),
        ("--log=file", "must be none, stderr, syslog or the absolute path of a file"),
        ("--rules=use tcp * * *:80; use udp", "rule 2: expected shunt or tcp; got \"udp\""),
        ("--report=/x", "unexpected argument"),
        ("--nonsense", "unexpected argument"),
        ("--require", "required arguments were not provided"),
    ] {
        let args: &[&str] = if flag == "--require" { &["run", flag] } else { &["run", flag, "true"] };
        let output = bed.shunt(args).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{flag}");
        assert!(stderr(&output).contains(said), "{flag}: {}", stderr(&output));
    }
}

#[test]
fn a_file_of_rules_may_be_named_from_where_one_is() {
    let bed = Bed::new();
    let dir = bed.path("").canonicalize().unwrap();
    for (flag, file) in [("--rules=my.rules", "my.rules"), ("--rules=./my own", "my own")] {
        std::fs::write(dir.join(file), "use tcp * * *:*").unwrap();
        let mut command = bed.shunt(&["run", flag, "sh", "-c", "echo \"$SHUNT_RULES\""]);
        let output = command.current_dir(&dir).output().unwrap();
        assert_eq!(stdout(&output), format!("{}\n", dir.join(file).display()));
        assert_eq!(stderr(&output), "");
    }
}

#[test]
fn wrong_rules_are_said_and_do_not_pass_require() {
    let bed = Bed::new();
    let file = bed.path("my.rules");
    std::fs::write(&file, "use tcp * * *:80\n\nuse udp * * *:80 # no\nuse tcp * * *:x\n").unwrap();
    let (file, folder) = (file.to_str().unwrap(), bed.path("").display().to_string());
    let lines = format!(
        "shunt: {file}:3: expected shunt or tcp; got \"udp\"\n\
         shunt: {file}:4: expected a port from 1 to 65535, two of them such as 80-90, or *, behind the :; got \"*:x\"\n"
    );
    for (value, said) in [
        (file, lines.as_str()),
        ("/nonexistent", "shunt: /nonexistent: the rules cannot be read: No such file or directory"),
        (&folder, ": the rules cannot be read: Is a directory"),
        ("use tcp", "shunt: SHUNT_RULES: rule 1: expected client, server or *; got nothing more\n"),
        ("my.rules", "shunt: SHUNT_RULES=my.rules: must be rules, with ; between them, or"),
    ] {
        let output = bed.shunt(&["run", "echo", "started"]).env("SHUNT_RULES", value).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "started\n".into()), "{value}");
        assert!(stderr(&output).contains(said), "{value}: {}", stderr(&output));
        assert!(stderr(&output).contains("the rules are wrong: every connection stays on TCP"), "{value}");

        let output =
            bed.shunt(&["run", "--require", "echo", "started"]).env("SHUNT_RULES", value).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(125), String::new()), "{value}");
        assert!(stderr(&output).contains(said), "{value}: {}", stderr(&output));
        assert!(stderr(&output).contains("the rules are wrong: not started (--require)"), "{value}");
    }
}

#[test]
fn what_is_wrong_in_environment_and_file_is_said() {
    let bed = Bed::new();
    let file = bed.path("shunt.conf");
    std::fs::write(&file, "spin-us = 1\nspins = 2\n").unwrap();
    let config = format!("--config={}", file.display());
    let output = bed.shunt(&["run", &config, "true"]).env("SHUNT_PROFIL", "safe").output().unwrap();
    let said = stderr(&output);
    assert!(
        said.contains("shunt: SHUNT_PROFIL: there is no such option; did you mean SHUNT_PROFILE?"),
        "{said}"
    );
    assert!(said.contains("shunt.conf:2: spins: there is no such option; did you mean spin-us?"), "{said}");
    assert_eq!((output.status.code(), said.lines().count()), (Some(0), 2));

    let output = bed.shunt(&["run", "--config=/nonexistent", "true"]).output().unwrap();
    assert!(
        stderr(&output).contains("/nonexistent: the configuration file cannot be read"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn exit_statuses_come_back() {
    let bed = Bed::new();
    for stats in [&["run"][..], &["run", "--stats"]] {
        for (script, code) in [("exit 0", 0), ("exit 3", 3), ("exit 255", 255)] {
            let output = bed.shunt(stats).args(["--", "sh", "-c", script]).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{stats:?} {script}");
        }
    }
    let killed = bed.shunt(&["run", "--stats", "--", "sh", "-c", "kill -9 $$"]).output().unwrap();
    assert_eq!(killed.status.code(), Some(128 + 9));
}

#[test]
fn stats_are_printed_at_the_end() {
    let bed = Bed::new();
    let output = bed.shunt(&["run", "--stats", "true"]).env("FAKE", "pptp").output().unwrap();
    assert_eq!(
        stderr(&output),
        "shunt: 3 of 4 connections moved to memory, 0 went back to TCP (1 process accelerated)\n\
         shunt: 0 B sent and 0 B received by memory, 0 wake-ups sent\n\
         shunt: reasons for TCP: switched off (path = tcp) (1)\n"
    );
}

#[test]
fn require_fails_only_if_nothing_moved() {
    let bed = Bed::new();
    let run = |fake: &str, script: &str| {
        bed.shunt(&["run", "--require", "--", "sh", "-c", script]).env("FAKE", fake).output().unwrap()
    };
    let moved = run("tp", "exit 0");
    assert_eq!((moved.status.code(), stderr(&moved)), (Some(0), String::new()));
    let stayed = run("tt", "exit 0");
    assert_eq!(stayed.status.code(), Some(125));
    assert_eq!(
        stderr(&stayed),
        "shunt: sh: nothing moved to memory (--require): 2 connections stayed on TCP; reasons: switched off (path = tcp) (2)\n"
    );
    let none = run("", "exit 4");
    assert_eq!(none.status.code(), Some(4), "the program's own failure is not hidden");
    assert!(stderr(&none).contains("there was no TCP connection"));
}

#[test]
fn children_are_counted_as_well() {
    let bed = Bed::new();
    let output = bed
        .shunt(&["run", "--stats", "--", "sh", "-c", "true; /bin/true; /bin/true; exit 0"])
        .output()
        .unwrap();
    assert!(stderr(&output).contains("(3 processes accelerated)"), "{}", stderr(&output));
}

#[test]
fn signals_reach_the_program() {
    let bed = Bed::new();
    for (name, number) in
        [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR1", 10), ("USR2", 12), ("WINCH", 28)]
    {
        let script =
            format!("trap 'echo got {name}; exit 6' {name}; echo ready; while :; do sleep 0.01; done");
        // A shell cannot trap what was ignored when it began, as under nohup.
        let unignored = format!("--default-signal={name}");
        let mut child = bed
            .shunt(&["run", "--stats", "--", "env", &unignored, "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill(child.id(), number);
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(6), "{name}");
    }
}

#[test]
fn a_stopped_program_does_not_stop_its_parent_without_a_terminal() {
    let bed = Bed::new();
    let script = "kill -STOP $$; exit 5";
    let mut child =
        bed.shunt(&["run", "--stats", "--", "sh", "-c", script]).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let stopped = loop {
        let pid = std::fs::read_to_string(&children).unwrap().trim().to_string();
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if state.contains(") T ") {
            break pid;
        }
        assert!(Instant::now() < deadline, "never stopped");
        std::thread::sleep(Duration::from_millis(10));
    };
    kill(child.id(), 18); // SIGCONT is passed on
    assert_eq!(child.wait().unwrap().code(), Some(5), "{stopped}");
}

/// ^C goes to the whole group: passed on as well, it would reach the program twice, and many take
/// the second for "at once".
#[test]
fn an_interrupt_from_the_terminal_reaches_the_program_once() {
    let bed = Bed::new();
    let program = bed.script(
        "count",
        "#!/bin/sh\nn=0; trap 'n=$((n+1))' INT; echo ready\nfor i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; done; echo end $n\n",
    );
    let under_a_terminal =
        format!("exec {} run --stats -- {}", env!("CARGO_BIN_EXE_shunt"), program.display());
    let mut script = std::process::Command::new("script");
    undo_ignored(&mut script);
    let Ok(mut child) = script
        .args(["-qfc", &under_a_terminal, "/dev/null"])
        .env("SHUNT_LIB", bed.library())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
    else {
        return eprintln!("skipped: script(1), which lends a terminal, is not installed");
    };
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.by_ref().any(|line| line.contains("ready")));
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"\x03").unwrap();
    let end = lines.find(|line| line.contains("end ")).unwrap();
    assert!(end.trim().ends_with("end 1"), "{end}"); // the terminal's echo of ^C comes before
    drop(keys);
    child.wait().unwrap();
}

#[test]
fn signals_are_found_as_they_were() {
    let bed = Bed::new();
    let show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    // The outer shell ignores two signals, which the program must inherit; SIGPIPE it must not find
    // ignored.
    let under = |prefix: &str| {
        let script = format!("trap '' HUP USR2; exec {prefix} \"$@\"");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, "sh"]).args(show).env("SHUNT_LIB", bed.library());
        // Rust's own runtime ignores SIGPIPE in this test, and resets it in its children.
        stdout(&command.output().unwrap())
    };
    let plain = under("");
    assert!(plain.contains("SigIgn"));
    let shunt = env!("CARGO_BIN_EXE_shunt");
    assert_eq!(under(&format!("{shunt} run --")), plain);
    assert_eq!(under(&format!("{shunt} run --stats --")), plain);
}

fn kill(pid: u32, signal: i32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::from_named_raw(signal).unwrap()).unwrap();
}
