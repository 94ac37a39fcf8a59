//! Resources that a running program uses: processor time of a process and all its descendants, and
//! memory.

use crate::error::{Result, failed};
use std::fs;

/// Nanoseconds of processor time of a process, its descendants and those of them that have been
/// reaped.
pub fn tree_cpu_ns(pid: i32) -> u64 {
    tree(pid).into_iter().filter_map(|p| fs::read_to_string(format!("/proc/{p}/stat")).ok()).fold(
        0,
        |sum, stat| {
            let [own_user, own_system, reaped_user, reaped_system] = stat_times(&stat).unwrap_or_default();
            sum + (own_user + own_system + reaped_user + reaped_system) * tick_ns()
        },
    )
}

/// utime, stime, cutime and cstime, in ticks. The command name before them may hold spaces and
/// parentheses.
fn stat_times(stat: &str) -> Option<[u64; 4]> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

/// The process and its descendants.
pub fn tree(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut at = 0;
    while at < all.len() {
        let parent = all[at];
        at += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for task in tasks.flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_ascii_whitespace().filter_map(|c| c.parse::<i32>().ok()));
        }
    }
    all
}

/// Nanoseconds of processor time of one process, exactly.
pub fn cpu_ns(pid: i32) -> Result<u64> {
    let mut clock = 0;
    // SAFETY: both calls write only to the variables given.
    let (error, time) = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        let mut error = libc::clock_getcpuclockid(pid, &mut clock);
        if error == 0 && libc::clock_gettime(clock, &mut time) < 0 {
            error = libc::ESRCH;
        }
        (error, time)
    };
    if error != 0 {
        let why = std::io::Error::from_raw_os_error(error);
        return Err(failed(format!("cannot read the processor time of {pid}"))(why));
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Resident memory of a process in bytes; shared pages count in full in `rss` and by their share in
/// `pss`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Memory {
    pub rss: u64,
    pub pss: u64,
}

pub fn memory(pid: i32) -> Result<Memory> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(failed(format!("cannot read {path}")))?;
    Ok(Memory { rss: kilobytes(&text, "Rss:") * 1024, pss: kilobytes(&text, "Pss:") * 1024 })
}

/// Activity of the whole machine since it started.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Machine {
    /// Nanoseconds of processors at work, for interrupts too.
    pub busy_ns: u64,
    /// Switches from one thread to another.
    pub switches: u64,
}

pub fn machine() -> Machine {
    machine_of(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn machine_of(stat: &str) -> Machine {
    let line = |name: &str| stat.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("");
    let times: Vec<u64> = line("cpu ").split_ascii_whitespace().map_while(|n| n.parse().ok()).collect();
    // user, nice, system, (idle, waiting for devices,) interrupts of both kinds
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|i| times.get(*i)).sum();
    Machine { busy_ns: busy * tick_ns(), switches: line("ctxt ").trim().parse().unwrap_or(0) }
}

/// Nanoseconds of a tick, the kernel's unit of these times.
fn tick_ns() -> u64 {
    // SAFETY: sysconf() has no requirements.
    1_000_000_000 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64
}

/// All shared memory of the machine, mapped or not, in bytes.
pub fn machine_shmem() -> u64 {
    kilobytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default(), "Shmem:") * 1024
}

fn kilobytes(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "77 (a) b (c) S 1 77 77 0 -1 4194560 1 2 3 4 11 12 13 14 20 0 1 0 5 6 7";
        assert_eq!(stat_times(stat), Some([11, 12, 13, 14]));
        assert_eq!(stat_times("nonsense"), None);
    }

    #[test]
    fn what_the_machine_did_is_read() {
        let stat = "cpu  1 2 3 1000 1000 4 5 1000 0 0\ncpu0 9 9 9 9\nctxt 77\n";
        assert_eq!(machine_of(stat), Machine { busy_ns: 15 * tick_ns(), switches: 77 });
        assert_eq!(machine_of(""), Machine::default());
    }

    #[test]
    fn memory_lines_are_read() {
        let text =
            "55-66 ---p 00000000 00:00 0 [rollup]\nRss:    2048 kB\nPss:     512 kB\nPss_Dirty: 1 kB\n";
        assert_eq!(
            (kilobytes(text, "Rss:"), kilobytes(text, "Pss:"), kilobytes(text, "Swap:")),
            (2048, 512, 0)
        );
    }

    #[test]
    fn this_process_uses_something() {
        let me = std::process::id() as i32;
        assert!(cpu_ns(me).unwrap() > 0);
        assert!(memory(me).unwrap().rss > 0);
        assert!(tree(me).contains(&me));
    }
}
