//! The counters of one `shunt run`: 4096 bytes of memory that every process below it maps and adds
//! to, and what is said of them at the end.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};

use sockets::report::{MAGIC, at};

use crate::reason;

/// The size of the memory, an array of native 64-bit words.
const SIZE: usize = 4096;
/// These words count reasons, by their number.
const REASONS: std::ops::Range<usize> = at::REASONS..at::REASONS + 64;

/// The memory, kept alive until the end.
pub struct Report(File);

/// What was counted.
#[derive(Debug, PartialEq, Eq)]
pub struct Counters {
    pub connections: u64,
    pub promoted: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub wakeups: u64,
    pub demoted: u64,
    pub processes: u64,
    /// (number, count) of those that occurred.
    pub reasons: Vec<(usize, u64)>,
}

impl Report {
    pub fn new() -> io::Result<Report> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("shunt:report", flags)?);
        file.set_len(SIZE as u64)?;
        // A process that maps it must not be made to fault by another that shortens it.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        Ok(Report(file))
    }

    /// Where the library finds it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// What has been counted so far; `None` if the memory was overwritten.
    pub fn read(&self) -> Option<Counters> {
        let mut bytes = [0; SIZE];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().expect("chunks of 8 have 8 bytes")))
            .collect();
        let word = |i: usize| words[i];
        if word(at::MAGIC) != MAGIC {
            return None;
        }
        Some(Counters {
            connections: word(at::TRACKED),
            promoted: word(at::PROMOTED),
            bytes_sent: word(at::RING_OUT),
            bytes_received: word(at::RING_IN),
            wakeups: word(at::WAKES),
            demoted: word(at::DEMOTED),
            processes: word(at::PROCESSES),
            reasons: REASONS.map(|i| (i - REASONS.start, word(i))).filter(|&(_, n)| n > 0).collect(),
        })
    }
}

/// For `--stats`.
pub fn print_summary(counters: Option<&Counters>) {
    let Some(counters) = counters else {
        return eprintln!("shunt: the counters were overwritten");
    };
    let mut said = format!(
        "shunt: {} of {} connections moved to memory, {} went back to TCP ({} accelerated)\n",
        counters.promoted,
        counters.connections,
        counters.demoted,
        counted(counters.processes, "process", "processes"),
    );
    said += &format!(
        "shunt: {} sent and {} received by memory, {}\n",
        size(counters.bytes_sent),
        size(counters.bytes_received),
        counted(counters.wakeups, "wake-up sent", "wake-ups sent"),
    );
    if !counters.reasons.is_empty() {
        said += &format!("shunt: reasons for TCP: {}\n", reasons(counters));
    }
    // In one piece: the programs of one terminal may end at the same moment.
    let _ = io::stderr().write_all(said.as_bytes()); // nowhere left to complain to
}

/// For `--require`.
pub fn print_nothing_promoted(program: &OsStr, counters: Option<&Counters>) {
    let why = match counters {
        None => "the counters were overwritten".to_string(),
        Some(counters) if counters.processes == 0 => {
            "the library did not start in any process; see `shunt doctor` for the program".to_string()
        }
        Some(counters) if counters.connections == 0 => "there was no TCP connection".to_string(),
        Some(counters) => {
            let connections = counted(counters.connections, "connection", "connections");
            let reasons = match counters.reasons.is_empty() {
                true => "none counted; does the other end run under Shunt?".to_string(),
                false => reasons(counters),
            };
            format!("{connections} stayed on TCP; reasons: {reasons}")
        }
    };
    eprintln!("shunt: {}: nothing moved to memory (--require): {why}", program.to_string_lossy());
}

/// The reasons that occurred, the most frequent first.
fn reasons(counters: &Counters) -> String {
    let mut sorted = counters.reasons.clone();
    sorted.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let shown: Vec<String> =
        sorted.iter().map(|&(code, count)| format!("{} ({count})", reason::name(code))).collect();
    shown.join(", ")
}

fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A number of bytes, for people.
pub fn size(bytes: u64) -> String {
    let mut rest = bytes as f64;
    for unit in ["B", "KB", "MB", "GB", "TB"] {
        if rest < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{rest:.1} {unit}") };
        }
        rest /= 1000.0;
    }
    format!("{rest:.1} PB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_back() {
        let report = Report::new().unwrap();
        assert_eq!(report.read().unwrap().reasons, []);
        let seen = std::fs::OpenOptions::new().read(true).write(true).open(report.path()).unwrap();
        for (word, value) in [(1, 4u64), (2, 3), (7, 1), (16, 9), (79, 8)] {
            seen.write_all_at(&value.to_ne_bytes(), word * 8).unwrap();
        }
        let counters = report.read().unwrap();
        assert_eq!((counters.connections, counters.promoted, counters.processes), (4, 3, 1));
        assert_eq!(counters.reasons, [(0, 9), (63, 8)]);
        seen.set_len(8).unwrap_err();
        seen.write_all_at(&[0; 8], 0).unwrap();
        assert_eq!(report.read(), None);
    }

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 999, 1000, 1_550_000, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 KB", "1.6 MB", "18446.7 PB"]);
    }
}
