//! The example `zoom` as users run it: this program plays it, or a process of its group.

use std::process::Command;

#[path = "../examples/zoom.rs"]
mod example;

fn main() {
    let told = std::env::args().nth(1).is_some_and(|how| how == "threads" || how == "processes");
    if told || std::env::var_os(filters::TICKET).is_some() {
        return example::main();
    }
    for how in ["threads", "processes"] {
        let myself = std::env::current_exe().expect("this program has a path");
        let ran = Command::new(myself).arg(how).output().expect("it runs");
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let shown = format!("{said}\n{}", String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success(), "{shown}");
        let lines: Vec<&str> = said.lines().collect();
        // As python/examples/zoom.py: sum, head, three times three and three streams, units of
        // work.
        let sum: u64 = (0..1000).map(|tile| tile % 251 * 4096).sum();
        assert_eq!(lines[0], sum.to_string(), "{shown}");
        assert_eq!(lines.len(), 2 + 9 + 3 + 1, "{shown}");
        assert!(lines[1].starts_with("stream") && lines[14].starts_with("units of work: 1 done"), "{shown}");
        let way = if how == "threads" { "thread" } else { "memory" };
        assert!(lines[2..14].iter().all(|line| line.contains(way)), "{shown}");
        assert!(shown.contains("1000 partial results, 7 of 7 copies done"), "{shown}");
        println!("test the_example_runs_with_{how} ... ok");
    }
    println!("\ntest result: ok. 2 passed; 0 failed; 0 ignored;");
}
