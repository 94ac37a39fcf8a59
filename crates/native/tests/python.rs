//! Streams in a process that knows nothing of Shunt and has loaded them by dlopen(): Python, which
//! uses its own sockets, subprocesses, forks, threads and signals beside them (python.py).

use std::path::{Path, PathBuf};
use std::process::Command;

use sockets::report::at;

use two::*;

mod two;

fn python(role: &str, with: &[(&str, &str)]) -> Player {
    // Cargo builds examples for tests only where it builds all of them.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--locked",
        "--package",
        "native",
        "--example",
        "extension",
        "--target-dir",
    ]);
    assert!(build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    let extension = target.join("debug/examples/libextension.so");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/python.py");
    let mut command = Command::new("python3");
    // Only `load` gets the path of the library: nothing else names it.
    command.arg(script).arg(extension).arg(library()).args(role.split(' '));
    Player::spawn(&mut command, &[with, &[("SHUNT_LIB", "")]].concat())
}

#[test]
fn python_has_streams_and_does_not_notice() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("not checked: there is no python3");
        return;
    }
    let report = Scratch::report("python");
    let with = [("SHUNT_REPORT", report.text())];
    let server = python("serve", &with);
    let mut client = python(&format!("client {}", server.next()), &with);
    let loaded = format!("{} is loaded for these sockets", library().display());
    assert_eq!([server.next(), client.next()], [loaded.clone(), loaded]);
    assert_eq!([server.next(), client.next()], ["promoted", "promoted"]);
    assert_eq!(server.next(), "ok");
    client.go_on();
    assert_eq!(client.next(), "ok");
    client.ends_well();
    server.ends_well();
    // Two ends of the parent's stream, and two of the stream that a forked child made; Python's own
    // sockets do not count.
    assert_eq!((report.count(at::TRACKED), report.count(at::PROMOTED)), (4, 4));
}
