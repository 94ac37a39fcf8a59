//! `shunt container`: puts Shunt into the containers that ask for it, by the way that all engines
//! have for devices, CDI (Container Device Interface): a JSON file that says what is mounted where.
//!
//! A container gets the library, a list of libraries to preload (`/etc/ld.so.preload`, which musl
//! and static programs do not read, but an LD_PRELOAD would take the place of the image's own), and
//! the board of the host. Only that file of the board is mounted, no folder: a container may write
//! lies to it, as any user of the host may, and cannot remove it or put another in its place. Those
//! that ask for another device get the folder as well where programs of several network namespaces
//! meet. It is made on demand only: who has it can try to be taken for the other end of a
//! connection (docs/security.md).

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ArgMatches;
use options::Options;
use serde_json::{Value, json};

use crate::library;

/// What a container is started with: `--device shunt.dev/shunt=on`; and one that is to meet those
/// of other network namespaces.
pub const DEVICE: &str = "shunt.dev/shunt=on";
pub const MEETING_DEVICE: &str = "shunt.dev/shunt=meeting";
pub const CDI: &str = "etc/cdi/shunt.json";
const PRELOAD: &str = "etc/shunt/ld.so.preload";
const AT_BOOT: &str = "etc/tmpfiles.d/shunt.conf";

/// Where containers have the library.
pub const INSIDE: &str = "/opt/shunt/libshunt.so";

pub fn main(matches: &ArgMatches) -> ExitCode {
    let root = matches.get_one::<PathBuf>("root").map_or(Path::new("/"), PathBuf::as_path);
    let meets = matches.get_flag("meeting");
    let done = if matches.get_flag("print") {
        named(matches, root).and_then(|library| print(&devices(&library, meets)))
    } else if matches.get_flag("remove") {
        remove(root).map(|files| {
            eprintln!("shunt container: removed {files} files; containers that run keep what they have");
        })
    } else {
        named(matches, root).and_then(|library| install(root, &devices(&library, meets), meets)).map(|()| {
            eprintln!(
                "shunt container: containers get Shunt by --device {DEVICE} (docker, podman, nerdctl), from now on"
            );
            if meets {
                eprintln!(
                    "shunt container: those that trust each other meet across networks by --device {MEETING_DEVICE}"
                );
            }
        })
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("shunt container: {why}");
            ExitCode::FAILURE
        }
    }
}

/// The library, where the host has it: a relative path, or one through a link, would mean another
/// file to the engine, or tomorrow.
fn named(matches: &ArgMatches, root: &Path) -> Result<PathBuf, String> {
    let found = library::find(matches.get_one::<PathBuf>("library").map(|path| path.as_os_str()))?;
    let library = fs::canonicalize(&found).map_err(|error| format!("{}: {error}", found.display()))?;
    library::version(&library).map_err(|why| format!("{} {why}", library.display()))?;
    // That of the image of a host is at its place when the image is the host.
    let root = fs::canonicalize(root).unwrap_or_else(|_| root.into());
    Ok(library.strip_prefix(root).map(|within| Path::new("/").join(within)).unwrap_or(library))
}

/// The CDI file (version 0.5.0 of the specification).
fn devices(library: &Path, meets: bool) -> Value {
    let mount = |from: &str, to: &str, access: &str| json!({ "hostPath": from, "containerPath": to, "options": [access, "bind", "nosuid", "nodev"] });
    let (board, meeting) = (board(), meeting());
    let preload = format!("/{PRELOAD}");
    let mut mounts = vec![
        mount(&library.to_string_lossy(), INSIDE, "ro"),
        mount(&preload, "/etc/ld.so.preload", "ro"),
        mount(&board, &board, "rw"),
    ];
    let device =
        |name: &str, mounts: &[Value]| json!({ "name": name, "containerEdits": { "mounts": mounts } });
    let mut devices = vec![device("on", &mounts)];
    if meets {
        let mut folder = mount(&meeting, &meeting, "rw");
        folder["options"].as_array_mut().into_iter().for_each(|options| options.push(json!("noexec")));
        mounts.push(folder);
        devices.push(device("meeting", &mounts));
    }
    json!({ "cdiVersion": "0.5.0", "kind": "shunt.dev/shunt", "devices": devices })
}

fn board() -> String {
    Options::HOST_BOARD.to_string_lossy().into_owned()
}

fn meeting() -> String {
    Options::HOST_MEETING.to_string_lossy().into_owned()
}

fn print(device: &Value) -> Result<(), String> {
    let text = format!("{device:#}\n");
    io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string())
}

fn install(root: &Path, devices: &Value, meets: bool) -> Result<(), String> {
    write(root, PRELOAD, &format!("{INSIDE}\n"))?;
    write(root, CDI, &format!("{devices:#}\n"))?;
    let board = board();
    let folder = Path::new(&board).parent().unwrap_or(Path::new("/")).display().to_string();
    let mut lines = format!(
        "# The board by which programs on this host and in its containers find each other (shunt container).\n\
         d {folder} 0755 root root -\nf {board} 0666 root root -\n"
    );
    if meets {
        lines += "# The folder where those meet that are in network namespaces of their own.\n";
        lines += &format!("d {} 1777 root root -\n", meeting());
    }
    write(root, AT_BOOT, &lines)?;
    // What tmpfiles does when the host starts.
    let board = root.join(board.trim_start_matches('/'));
    let made = || -> io::Result<()> {
        fs::create_dir_all(board.parent().unwrap_or(root))?;
        fs::OpenOptions::new().create(true).append(true).open(&board)?;
        fs::set_permissions(&board, fs::Permissions::from_mode(0o666))
    };
    made().map_err(|error| failed(&board, &error))?;
    if !meets {
        return remove_meeting(root);
    }
    let meeting = root.join(meeting().trim_start_matches('/'));
    let made = || -> io::Result<()> {
        fs::create_dir_all(&meeting)?;
        fs::set_permissions(&meeting, fs::Permissions::from_mode(0o1777))
    };
    made().map_err(|error| failed(&meeting, &error))
}

/// Writes a file beside its place first: whoever starts a container meanwhile sees the old one or
/// the new one.
fn write(root: &Path, path: &str, text: &str) -> Result<(), String> {
    let path = root.join(path);
    let made = || -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        let beside = path.with_extension("new");
        fs::write(&beside, text)?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o644))?;
        fs::rename(&beside, &path)
    };
    made().map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &io::Error) -> String {
    let hint = if error.kind() == io::ErrorKind::PermissionDenied { " (run it as root)" } else { "" };
    format!("{}: {error}{hint}", path.display())
}

/// How many files were there.
fn remove(root: &Path) -> Result<usize, String> {
    let mut files = 0;
    for path in [CDI, PRELOAD, AT_BOOT, board().trim_start_matches('/')] {
        let path = root.join(path);
        match fs::remove_file(&path) {
            Ok(()) => files += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, &error)),
        }
    }
    remove_meeting(root).map(|()| files)
}

/// With the sockets of programs that run, or were killed.
fn remove_meeting(root: &Path) -> Result<(), String> {
    let meeting = root.join(meeting().trim_start_matches('/'));
    match fs::remove_dir_all(&meeting) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&meeting, &error)),
        _ => Ok(()),
    }
}
