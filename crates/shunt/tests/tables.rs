//! What is made from the table of options: help, man pages, completions. Each option must be in all
//! of them.

mod util;

use util::{Bed, stdout};

#[test]
fn every_option_is_in_every_text() {
    let bed = Bed::new();
    let help = |args: &[&str]| stdout(&bed.shunt(args).output().unwrap());
    let dir = bed.path("out");
    for what in ["man", "completions"] {
        assert!(bed.shunt(&["generate", what]).arg(&dir).status().unwrap().success());
    }
    let file = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    let texts = [
        ("help options", help(&["help", "options"])),
        ("help run", help(&["help", "run"])),
        ("run --help", help(&["run", "--help"])),
        ("run -h", help(&["run", "-h"])),
        ("shunt-run.1", file("shunt-run.1").replace("\\-", "-").replace("\\fB", " ")),
        ("shunt.conf.5", file("shunt.conf.5").replace("\\-", "-").replace("\\fB", " ")),
        ("bash", file("shunt.bash")),
        ("zsh", file("_shunt")),
        ("fish", file("shunt.fish")),
    ];
    for (name, text) in &texts {
        for opt in options::TABLE {
            // A name without its neighbours: "log" is also in "log-level".
            let at = |i: usize| text.as_bytes().get(i).copied().unwrap_or(b' ');
            let word = |b: u8| b.is_ascii_alphanumeric();
            let found = text.match_indices(opt.name).any(|(i, _)| {
                let end = at(i + opt.name.len());
                !word(at(i.wrapping_sub(1))) && !word(end) && end != b'-'
            });
            let internal = format!("--{}", opt.name);
            match opt.is_public() {
                true => assert!(found, "{} is not in {name}", opt.name),
                false => assert!(!text.contains(&internal), "{} is in {name}", opt.name),
            }
        }
    }
}

#[test]
fn every_measurement_is_in_every_text() {
    let bed = Bed::new();
    let dir = bed.path("out");
    for what in ["man", "completions"] {
        assert!(bed.shunt(&["generate", what]).arg(&dir).status().unwrap().success());
    }
    let file = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    // Not fish: clap_complete makes no completions of plain words for it.
    let texts = [
        ("bench --help", stdout(&bed.shunt(&["bench", "--help"]).output().unwrap())),
        ("shunt-bench.1", file("shunt-bench.1").replace("\\-", "-")),
        ("bash", file("shunt.bash")),
        ("zsh", file("_shunt")),
    ];
    for (name, text) in &texts {
        for word in ["latency", "never-slower", "filters", "redis", "all"] {
            assert!(text.contains(word), "{word} is not in {name}");
        }
    }
}

#[test]
fn pages_are_sound() {
    let bed = Bed::new();
    let dir = bed.path("man");
    assert!(bed.shunt(&["generate", "man"]).arg(&dir).status().unwrap().success());
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let subcommands = [
        "agent",
        "bench",
        "container",
        "demo",
        "doctor",
        "ether",
        "filters",
        "help",
        "microscope",
        "run",
        "stat",
    ]
    .map(|name| format!("shunt-{name}.1"));
    let of_ether =
        ["check", "dump", "reload", "run", "stat", "stop"].map(|name| format!("shunt-ether-{name}.1"));
    let of_agent = ["new-key", "run", "status"].map(|name| format!("shunt-agent-{name}.1"));
    let mut expected: Vec<String> = subcommands.into_iter().chain(of_ether).chain(of_agent).collect();
    expected.extend(["shunt.1".into(), "shunt.conf.5".into(), "shunt.rules.5".into()]);
    expected.sort();
    assert_eq!(names, expected);
    for name in names {
        // groff complains on standard error about what it does not understand; not every machine
        // has it.
        if let Ok(output) = std::process::Command::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-z"])
            .arg(dir.join(&name))
            .output()
        {
            assert!(output.stderr.is_empty(), "{name}: {}", util::stderr(&output));
        }
    }
}

#[test]
fn every_topic_has_help() {
    let bed = Bed::new();
    for topic in ["run", "stat", "doctor", "options", "rules"] {
        let output = bed.shunt(&["help", topic]).output().unwrap();
        assert!(output.status.success() && stdout(&output).lines().count() > 5, "{topic}");
    }
    assert_eq!(bed.shunt(&["help", "nonsense"]).output().unwrap().status.code(), Some(2));
    assert_eq!(bed.shunt(&[]).output().unwrap().status.code(), Some(2));
    assert!(stdout(&bed.shunt(&["--version"]).output().unwrap()).starts_with("shunt "));
}
