//! What the tests of the command share: the command itself, a stand-in for the library, and small
//! programs of every kind that cannot be accelerated, made here so that they are real ones.
#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that is gone at the end of the test, with a stand-in for `libshunt.so` in it.
pub struct Bed {
    dir: tempfile::TempDir,
}

impl Bed {
    pub fn new() -> Bed {
        let bed = Bed { dir: tempfile::tempdir().unwrap() };
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/library.c");
        let version = format!("-DFAKE_VERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
        gcc(&["-shared", "-fPIC", &version, "-o"], &bed.library(), &source);
        bed
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn library(&self) -> PathBuf {
        self.path("libshunt.so")
    }

    /// The command, in an environment without options but for the library.
    pub fn shunt(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shunt"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("SHUNT_")) {
            command.env_remove(name);
        }
        command.env_remove("LD_PRELOAD").env("SHUNT_LIB", self.library()).env("SHUNT_CONFIG", "/dev/null");
        command.args(args);
        undo_ignored(&mut command);
        command
    }

    /// A program that ends with status 7, linked with `flags`.
    pub fn program(&self, name: &str, flags: &[&str]) -> PathBuf {
        let source = self.path("seven.c");
        fs::write(&source, "int main(void) { return 7; }\n").unwrap();
        let program = self.path(name);
        let flags: Vec<&str> = flags.iter().copied().chain(["-o"]).collect();
        gcc(&flags, &program, &source);
        program
    }

    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// Lets ^C and ^\\ end what the command starts. A shell that runs the tests in its background has
/// both signals ignored, and a script that is started so cannot trap them.
pub fn undo_ignored(command: &mut Command) {
    let undo = || {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: sigaction is plain data, for which zeroes are valid, and mean SIG_DFL.
            unsafe { libc::sigaction(signal, &std::mem::zeroed(), std::ptr::null_mut()) };
        }
        Ok(())
    };
    // SAFETY: it only calls what may be called after fork().
    unsafe { command.pre_exec(undo) };
}

fn gcc(flags: &[&str], output: &Path, source: &Path) {
    let status = Command::new("gcc").args(flags).arg(output).arg(source).status().expect("gcc is needed");
    assert!(status.success(), "gcc {flags:?}");
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
