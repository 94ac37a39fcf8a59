//! Reading the state of running programs: each process under Shunt keeps its connections in a home, a memory file that is
//! found, and read, through `/proc/PID/fd`. Nothing is attached to the process, and nothing in a home is trusted.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::stat::{ConnStat, ProcessStat};

/// What the descriptor of a home points to, as `/proc` shows it.
const LINK: &str = "/memfd:shunt:home";

/// Why nothing can be read at all.
#[derive(Debug)]
pub struct Error(io::Error);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/proc cannot be read: {}", self.0)
    }
}

/// All processes that run under Shunt and that we may look into, by pid.
pub fn read_homes() -> Result<Vec<ProcessStat>, Error> {
    let mut found = Vec::new();
    // After fork() several processes hold one home: its connections are shown with the first, usually the parent.
    let mut holders = BTreeMap::new();
    for pid in pids(Path::new("/proc")).map_err(Error)? {
        let homes = find_homes(pid);
        if homes.is_empty() {
            continue;
        }
        let (mut own, mut shared_with) = (Vec::new(), None);
        for home in homes {
            let Ok(meta) = fs::metadata(&home) else { continue };
            match *holders.entry((meta.dev(), meta.ino())).or_insert(pid) {
                holder if holder == pid => own.extend(connections(&home)),
                holder => shared_with = Some(holder),
            }
        }
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        found.push(ProcessStat { pid, comm: comm.trim_end().to_string(), shared_with, connections: own });
    }
    Ok(found)
}

/// The paths through which the homes that a process holds can be opened: its own, and those it inherited. Empty if it has
/// none, or if we may not look.
pub fn find_homes(pid: u32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let is_home = |path: &PathBuf| {
        fs::read_link(path)
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(LINK.as_bytes()))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_home).collect()
}

/// The connections in a home. To come with the layout of homes.
fn connections(_home: &Path) -> Vec<ConnStat> {
    Vec::new()
}

fn pids(proc: &Path) -> io::Result<Vec<u32>> {
    let names = fs::read_dir(proc)?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut pids: Vec<u32> = names.collect();
    pids.sort_unstable();
    Ok(pids)
}
