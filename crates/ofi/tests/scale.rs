//! docs/scale.md has the results of the simulation.

use std::path::Path;
use std::process::Command;

#[test]
fn the_tables_are_what_is_simulated() {
    let own = std::env::current_exe().expect("it runs");
    let example = own.parent().and_then(Path::parent).expect("target/PROFILE/deps").join("examples/scale");
    let output = Command::new(example).args(["10", "100"]).output().expect("cargo test builds examples");
    assert!(output.status.success());
    let events = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scale.md"))
        .expect("it is there");
    let rows = String::from_utf8(output.stdout).expect("it is text");
    assert_eq!(rows.lines().count(), 8, "{rows}");
    for row in rows.lines() {
        assert!(events.contains(row), "docs/scale.md lacks:\n{row}");
    }
}
