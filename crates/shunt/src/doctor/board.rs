//! The options, and the board: the file by which the ends of connections find each other must be
//! one that both ends can write to.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use options::Options;
use rustix::fs::Access;

use super::check::Check;
use crate::path::path_of;
use crate::settings::{self, Settings};

const NAME: &str = "board";

pub fn checks() -> Vec<Check> {
    let Settings { options, problems, .. } = settings::read(std::env::vars_os());
    let settings = match problems.is_empty() {
        true => Check::ok("options", "every name and value is understood"),
        false => Check::warn(
            "options",
            problems.join("; "),
            "correct them; `shunt help options` lists what there is",
        ),
    };
    vec![settings, look_at(&place(&options, Path::new("/")))]
}

/// Where programs with these options have the board, seen from where `root` is their root.
pub fn place(options: &Options, root: &Path) -> PathBuf {
    let within = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let host = within(Path::new(OsStr::from_bytes(Options::HOST_BOARD.to_bytes())));
    if options.has_usual_board() && host.exists() { host } else { within(&path_of(&options.board)) }
}

fn look_at(path: &Path) -> Check {
    let shown = path.display();
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return not_there(path),
        Err(error) => return Check::fail(NAME, format!("{shown}: {error}"), "name another with SHUNT_BOARD"),
    };
    let kind = meta.file_type();
    if !kind.is_file() {
        let what = if kind.is_symlink() {
            "a symbolic link"
        } else if kind.is_dir() {
            "a directory"
        } else if kind.is_fifo() || kind.is_socket() {
            "a pipe or socket"
        } else {
            "a device"
        };
        return Check::fail(
            NAME,
            format!("{shown} is {what}, not a file"),
            "remove it, or name another with SHUNT_BOARD",
        );
    }
    if rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        let found = format!("{shown} belongs to uid {}, and you may not write to it", meta.uid());
        return Check::fail(NAME, found, "have its owner chmod it to 666, or name another with SHUNT_BOARD");
    }
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o666 != 0o666 {
        let found = format!("{shown} has mode {mode:03o}: other users' programs do not find yours");
        return Check::warn(NAME, found, "chmod it to 666, if they should; it holds hints, no data");
    }
    Check::ok(NAME, format!("{shown}, of uid {}, {}", meta.uid(), crate::run::size(meta.len())))
}

fn not_there(path: &Path) -> Check {
    let dir = path.parent().unwrap_or(Path::new("/"));
    match rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Check::ok(NAME, format!("{} is not there yet; the first program makes it", path.display())),
        Err(_) => Check::fail(
            NAME,
            format!("{} is not there, and you may not make it", path.display()),
            "name another with SHUNT_BOARD",
        ),
    }
}
