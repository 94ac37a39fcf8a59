//! Reading the environment and files, and the messages about everything that is not understood.

use options::*;

/// Reads, and collects the messages.
fn read(env: &[&str], files: &[&str]) -> (Options, Vec<String>) {
    let mut problems = Vec::new();
    let files: Vec<&[u8]> = files.iter().map(|file| file.as_bytes()).collect();
    let options = from_environ(env.iter().map(|entry| entry.as_bytes()), &files, &mut |problem| {
        problems.push(problem.to_string());
    });
    (options, problems)
}

fn complaint(env: &str) -> String {
    let (options, problems) = read(&[env], &[]);
    assert_eq!(options, Options::DEFAULT, "{env} changed something");
    assert_eq!(problems.len(), 1, "{env}: {problems:?}");
    problems[0].clone()
}

#[test]
fn table_is_consistent() {
    for opt in TABLE {
        assert_eq!(opt.env, format!("SHUNT_{}", opt.name.to_uppercase().replace('-', "_")));
        assert!(find(opt.name).is_some());
        assert!(!opt.short.ends_with('.') && opt.long.ends_with('.'), "{}", opt.name);
        if !opt.default.is_empty() {
            let mut options = Options::DEFAULT;
            (opt.set)(&mut options, opt.kind.parse(opt.default.as_bytes()).unwrap());
            assert_eq!(options, Options::DEFAULT, "default of {}", opt.name);
        }
        if let Kind::Choice(choices) | Kind::ChoiceOrPath(choices) = opt.kind {
            for choice in choices {
                (opt.set)(&mut Options::DEFAULT.clone(), opt.kind.parse(choice.name.as_bytes()).unwrap());
            }
        }
    }
}

#[test]
fn nothing_set_is_the_default() {
    let (options, problems) =
        read(&["PATH=/bin", "HOME=/root", "noequals", "=odd", "SHUNTED=1", ""], &["", ""]);
    assert_eq!((options, problems.len()), (Options::DEFAULT, 0));
}

#[test]
fn variables_of_the_command_and_of_python_are_none_of_the_librarys() {
    let (options, problems) =
        read(&["SHUNT_PYTHON=/usr/bin/python3", "SHUNT_ETHER_HOST=2", "SHUNT_FILTERS_LOG=info"], &["", ""]);
    assert_eq!((options, problems), (Options::DEFAULT, Vec::<String>::new()));
}

#[test]
fn every_kind_is_read() {
    let (options, problems) = read(
        &[
            "SHUNT_PROFILE=latency",
            "SHUNT_PATH=tcp",
            "SHUNT_PROMOTE_AFTER=1000000",
            "SHUNT_PROMOTE_RATE=0",
            "SHUNT_SPIN_US=007",
            "SHUNT_BELLS=off",
            "SHUNT_GROW=0",
            "SHUNT_BOARD=/tmp/b",
            "SHUNT_LOG=/tmp/log",
            "SHUNT_LOG_LEVEL=debug",
            "SHUNT_REPORT=/proc/1/fd/3",
        ],
        &[],
    );
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!((options.profile, options.path), (Profile::Latency, PathMode::Tcp));
    assert_eq!(
        (options.promote_after, options.promote_rate, options.spin_us),
        (Some(1_000_000), Some(0), Some(7))
    );
    assert_eq!((options.bells, options.grow), (false, false));
    assert_eq!(options.board.as_c_str(), c"/tmp/b");
    assert_eq!(options.log, LogTarget::File(Text::new(b"/tmp/log").unwrap()));
    assert_eq!(options.log_level, LogLevel::Debug);
    assert_eq!(options.report.unwrap().as_bytes(), b"/proc/1/fd/3");
}

#[test]
fn spin_follows_the_profile_unless_set() {
    for (env, ns) in [
        ("SHUNT_PROFILE=safe", 0),
        ("SHUNT_PROFILE=balanced", 50_000),
        ("SHUNT_PROFILE=latency", 1_000_000),
        ("SHUNT_SPIN_US=3", 3_000),
        ("SHUNT_SPIN_US=auto", 50_000),
    ] {
        assert_eq!(read(&[env], &[]).0.spin_ns(), ns, "{env}");
    }
}

#[test]
fn environment_beats_user_beats_system() {
    let system = "profile = safe\npromote-after = 5\nspin-us = 9\n";
    let user = "promote-after = 6\nspin-us = 10";
    let (options, problems) = read(&["SHUNT_SPIN_US=11"], &[system, user]);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!((options.profile, options.promote_after, options.spin_us), (Profile::Safe, Some(6), Some(11)));
}

#[test]
fn a_bad_value_leaves_the_weaker_one() {
    let (options, problems) = read(&["SHUNT_PROMOTE_AFTER=lots"], &["promote-after = 6"]);
    assert_eq!((options.promote_after, problems.len()), (Some(6), 1));
}

#[test]
fn first_of_two_counts_as_for_getenv() {
    assert_eq!(read(&["SHUNT_SPIN_US=1", "SHUNT_SPIN_US=2"], &[]).0.spin_us, Some(1));
}

#[test]
fn files_allow_comments_spaces_and_foreign_line_ends() {
    let (options, problems) =
        read(&[], &["\u{feff}# all\r\n\r\n  spin-us=4 # note\r\n\tboard =\t/tmp/a#b \r\nspin-us = 5"]);
    assert!(problems.is_empty(), "{problems:?}");
    assert_eq!((options.spin_us, options.board.as_bytes()), (Some(5), &b"/tmp/a#b"[..]));
}

#[test]
fn bad_environment_is_reported() {
    assert_eq!(complaint("SHUNT_PROFILE=fast"), "SHUNT_PROFILE=fast: must be safe, balanced or latency");
    assert_eq!(
        complaint("SHUNT_PROFIL=safe"),
        "SHUNT_PROFIL: there is no such option; did you mean SHUNT_PROFILE?"
    );
    assert_eq!(complaint("SHUNT_WHATEVER=1"), "SHUNT_WHATEVER: there is no such option");
    assert_eq!(complaint("SHUNT_=1"), "SHUNT_: there is no such option");
    assert_eq!(complaint("SHUNT_BELLS=maybe"), "SHUNT_BELLS=maybe: must be on or off");
    assert_eq!(complaint("SHUNT_BELLS="), "SHUNT_BELLS: has no value; must be on or off");
    assert_eq!(complaint("SHUNT_BOARD=board"), "SHUNT_BOARD=board: must be an absolute path");
    assert_eq!(
        complaint("SHUNT_LOG=file"),
        "SHUNT_LOG=file: must be none, stderr, syslog or the absolute path of a file"
    );
    for number in ["-1", "+1", "1000001", "99999999999999999999999", "1e3", " 2", "0x10", "never"] {
        let said = complaint(&format!("SHUNT_PROMOTE_AFTER={number}"));
        assert!(said.ends_with(": must be auto, or 0 to 1000000 socket calls"), "{said}");
    }
    assert!(complaint("SHUNT_SPIN_US=100001").ends_with("must be auto, or 0 to 100000 microseconds"));
}

#[test]
fn long_and_ugly_values_are_shown_tamed() {
    let long = format!("SHUNT_BOARD=/{}", "x".repeat(255));
    assert!(complaint(&long).ends_with("the path is longer than 255 bytes"));
    assert_eq!(read(&[&long[..long.len() - 1]], &[]).1, Vec::<String>::new());
    assert_eq!(complaint("SHUNT_PATH=a\nb\u{1b}[2J"), "SHUNT_PATH=a\\nb\\u{1b}[2J: must be auto or tcp");
    let mut said = String::new();
    from_environ([&b"SHUNT_X\xff\xfe=1"[..]].into_iter(), &[], &mut |problem| said = problem.to_string());
    assert_eq!(said, "SHUNT_X\\xff\\xfe: there is no such option");
    assert!(complaint(&format!("SHUNT_{}=1", "Y".repeat(5000))).len() < 400);
}

#[test]
fn bad_files_are_reported_with_their_line() {
    let bad = "spin-us = x\nspin = 3\nnonsense\n= 4\nspin-us =\nconfig = /a\nreport = /b\n[section]";
    let (options, problems) = read(&["HOME=/home/me"], &["", bad]);
    assert_eq!(options, Options::DEFAULT);
    let file = "/home/me/.config/shunt.conf";
    assert_eq!(
        problems,
        [
            format!("{file}:1: spin-us=x: must be auto, or 0 to 100000 microseconds"),
            format!("{file}:2: spin: there is no such option; did you mean spin-us?"),
            format!("{file}:3: \"nonsense\": must be `name = value` or a # comment"),
            format!("{file}:4: \"\": must be `name = value` or a # comment"),
            format!("{file}:5: spin-us: has no value; must be auto, or 0 to 100000 microseconds"),
            format!("{file}:6: config: cannot be set in a file, only in the environment or by flag"),
            format!("{file}:7: report: cannot be set in a file, only in the environment or by flag"),
            format!("{file}:8: \"[section]\": must be `name = value` or a # comment"),
        ]
    );
    assert!(read(&[], &["", "", "x"]).1[0].starts_with("configuration file, line 1: "));
}

#[test]
fn the_files_to_read_follow_the_environment() {
    let files = |env: &[&str]| {
        config_files(env.iter().map(|entry| entry.as_bytes())).map(|path| path.map(|path| path.to_string()))
    };
    let system = || Some("/etc/shunt.conf".to_string());
    assert_eq!(files(&[]), [system(), None]);
    assert_eq!(files(&["HOME=/h"]), [system(), Some("/h/.config/shunt.conf".into())]);
    assert_eq!(files(&["HOME=/h", "XDG_CONFIG_HOME=/x"]), [system(), Some("/x/shunt.conf".into())]);
    assert_eq!(files(&["HOME=h", "XDG_CONFIG_HOME="]), [system(), None]);
    assert_eq!(files(&["HOME=/h", "SHUNT_CONFIG=/c"]), [Some("/c".into()), None]);
    assert_eq!(files(&["HOME=/h", "SHUNT_CONFIG=c"]), [None, None]);
    let path = Text::new(b"/c").unwrap();
    assert_eq!(
        Problem::unreadable(&path, 2).to_string(),
        "/c: the configuration file cannot be read (error 2)"
    );
}

/// Every prefix and every single-byte change of a valid file is read without panic, and gives at
/// least one result.
#[test]
fn no_input_breaks_the_parser() {
    let sound = b"# c\nprofile = safe\nspin-us = 12\nboard = /tmp/x # y\n".to_vec();
    for at in 0..sound.len() {
        for byte in [0, b'\n', b'=', b'#', b' ', 0xff, b'9'] {
            let mut changed = sound.clone();
            changed[at] = byte;
            from_environ(core::iter::empty(), &[&changed, &changed[..at]], &mut |problem| {
                let _ = problem.to_string();
            });
            from_environ([&changed[at..]].into_iter(), &[], &mut |_| ());
        }
    }
}
