//! The machine of a run: which processors to use, and its description beside the numbers.

use serde_json::{Value, json};
use std::fs;

/// The processor of the measured server and that of its client.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cpus {
    pub server: Option<usize>,
    pub client: Option<usize>,
}

impl Cpus {
    pub const ANY: Cpus = Cpus { server: None, client: None };

    /// Two processors that are not threads of one core, where there are such; `ANY` where there is
    /// only one processor.
    pub fn choose() -> Cpus {
        let allowed = allowed();
        let Some(&server) = allowed.first() else { return Cpus::ANY };
        let siblings = siblings(server);
        let other_core = allowed.iter().find(|c| **c != server && !siblings.contains(c));
        match other_core.or(allowed.get(1)) {
            Some(&client) => Cpus { server: Some(server), client: Some(client) },
            None => Cpus::ANY,
        }
    }
}

/// The processors this process may run on.
fn allowed() -> Vec<usize> {
    // SAFETY: the set is as large as its size says, and all zeroes is a valid set.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) < 0 {
            return Vec::new();
        }
        set
    };
    // SAFETY: the indices are below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

fn siblings(cpu: usize) -> Vec<usize> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    cpu_list(&fs::read_to_string(path).unwrap_or_default())
}

/// "0-2,5" as numbers.
fn cpu_list(text: &str) -> Vec<usize> {
    let ranges = text.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// The description of the machine for readers of the raw numbers.
pub fn describe(cpus: Cpus) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_string();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split(": ").nth(1));
    let release = read("/etc/os-release");
    let system = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME="));
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    json!({
        "unix_time": since.map_or(0, |d| d.as_secs()),
        "cpu": model.unwrap_or("unknown"),
        "cpus": allowed().len(),
        "server_cpu": cpus.server,
        "client_cpu": cpus.client,
        "kernel": read("/proc/sys/kernel/osrelease"),
        "system": system.unwrap_or("unknown").trim_matches('"'),
        "load_before": read("/proc/loadavg"),
    })
}

/// The load of other work on the machine, in processors. `None` where it is quiet enough to
/// measure.
pub fn noise() -> Option<f64> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    let minute: f64 = load.split(' ').next()?.parse().ok()?;
    (minute > 0.5).then_some(minute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors() {
        assert_eq!(cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(cpu_list("3"), [3]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn two_different_processors_or_none() {
        let cpus = Cpus::choose();
        assert!(cpus == Cpus::ANY || (cpus.server != cpus.client && cpus.client.is_some()));
    }
}
