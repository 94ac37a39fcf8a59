//! memcached with one thread, under memtier_benchmark where it is installed, else under
//! libmemcached's memcaslap, which Debian 12 has. memcaslap reports latencies by powers of two.

use super::app::{Address, App, Load, Run, Server, Workload, accepting, is_root, new_address};
use crate::error::{Error, Result, failed};
use crate::find;
use crate::session::Session;
use serde_json::Value;
use std::path::Path;

pub struct Memcached;

/// The size of memcaslap's values, in bytes.
const VALUE: &str = "64";

impl App for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn workloads(&self) -> Vec<Workload> {
        let named = |name| Workload { name, promise: Some(5.0) };
        match memtier() {
            // SET first, so that GET finds the keys.
            Ok(_) => vec![named("SET 50 connections"), named("GET 50 connections")],
            Err(_) => vec![named("GET and SET 9:1 50 connections")],
        }
    }

    /// memcaslap knows hosts and ports only.
    fn has_unix(&self) -> bool {
        memtier().is_ok()
    }

    fn prepare(&mut self, _session: &Session) -> Result<()> {
        find::program("memcached", "memcached")?;
        memtier().or_else(|_| memcaslap()).map(|_| ())
    }

    fn start(&self, session: &Session, run: &Run) -> Result<Server> {
        let at = new_address(session, run.side, "memcached")?;
        let launch =
            run.server(session, &find::program("memcached", "memcached")?).args(["-t", "1", "-m", "1024"]);
        let launch = if is_root() { launch.args(["-u", "root"]) } else { launch };
        let launch = match &at {
            Address::Tcp(port) => launch.args(["-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]),
            Address::Unix(path) => launch.args(["-s"]).args([path]),
        };
        accepting(launch.start()?, at)
    }

    fn load(&mut self, session: &Session, run: &Run, server: &Server, workload: &str) -> Result<Load> {
        match memtier() {
            Ok(tool) => run_memtier(&tool, session, run, server, workload),
            Err(_) => run_memcaslap(session, run, server),
        }
    }
}

fn memtier() -> Result<std::path::PathBuf> {
    find::program("memtier_benchmark", "memtier-benchmark")
}

/// Debian's name for it, and libmemcached's own.
fn memcaslap() -> Result<std::path::PathBuf> {
    find::program("memcaslap", "libmemcached-tools")
        .or_else(|error| find::program("memaslap", "libmemcached-tools").map_err(|_| error))
}

fn run_memtier(tool: &Path, session: &Session, run: &Run, server: &Server, workload: &str) -> Result<Load> {
    let report = session.temp.path().join("memtier.json");
    let ratio = if workload.starts_with("SET") { "1:0" } else { "0:1" };
    let launch = run.client(session, tool);
    let launch = launch.args([
        "-P",
        "memcache_text",
        "-t",
        "1",
        "-c",
        "50",
        "--hide-histogram",
        "--key-maximum=10000",
        "--ratio",
        ratio,
    ]);
    let launch =
        launch.args(["--test-time", &run.seconds.ceil().to_string(), "--json-out-file"]).args([&report]);
    let launch = match &server.at {
        Address::Tcp(port) => launch.args(["-s", "127.0.0.1", "-p", &port.to_string()]),
        Address::Unix(path) => launch.args(["-S"]).args([path]),
    };
    let output = launch.run(run.patience())?;
    let text = std::fs::read_to_string(&report).map_err(failed("memtier_benchmark left no report"))?;
    let load = memtier_report(&text, run.seconds.ceil())
        .ok_or_else(|| Error::Failed("the report of memtier_benchmark was not understood".into()))?;
    Ok(Load { client_cpu_ns: output.cpu_ns, ..load })
}

fn memtier_report(text: &str, seconds: f64) -> Option<Load> {
    let report: Value = serde_json::from_str(text).ok()?;
    let totals = &report["ALL STATS"]["Totals"];
    let per_second = totals["Ops/sec"].as_f64()?;
    let milliseconds = |name: &str| totals["Percentile Latencies"][name].as_f64().map(|ms| ms * 1e6);
    let (p50, p99) = (milliseconds("p50.00"), milliseconds("p99.00"));
    Some(Load {
        requests: totals["Count"].as_f64().unwrap_or(per_second * seconds),
        per_second,
        p50,
        p99,
        ..Load::default()
    })
}

fn run_memcaslap(session: &Session, run: &Run, server: &Server) -> Result<Load> {
    let Address::Tcp(port) = &server.at else {
        return Err(Error::Failed("memcaslap knows no UNIX sockets".into()));
    };
    let seconds = format!("{}s", run.seconds.ceil());
    let launch = run.client(session, &memcaslap()?).args([&format!("--servers=127.0.0.1:{port}")]);
    // One period of statistics, as long as the whole run: latencies are reported only so.
    let launch = launch.args(["-T", "1", "-c", "50", "-X", VALUE, "-t", &seconds, "-S", &seconds]);
    let output = launch.run(run.patience())?;
    let load = memcaslap_report(&output.lines).ok_or_else(|| {
        Error::Failed(format!("memcaslap was not understood: {}", output.lines.join(" | ")))
    })?;
    Ok(Load { client_cpu_ns: output.cpu_ns, ..load })
}

/// The rate is in the last line, `Run time: 3.0s Ops: 1107653 TPS: 368416 Net_rate: 74.2M/s`; the
/// latencies are under the last `Total Statistics`, where `4: 667 25817 879598 165526` is how many
/// took from 16 us to 32, to 64, and so on.
fn memcaslap_report(lines: &[String]) -> Option<Load> {
    let last = lines.iter().rfind(|line| line.starts_with("Run time:"))?;
    let after = |name: &str| last.split_once(name)?.1.split_whitespace().next()?.parse::<f64>().ok();
    let total = lines.iter().rposition(|line| line.starts_with("Total Statistics"))?;
    let rows = lines[total..].iter().skip_while(|line| line.trim() != "Log2 Dist:").skip(1);
    let mut counts = Vec::new();
    for row in rows.map_while(|line| line.trim().split_once(':')) {
        let Ok(first) = row.0.parse::<usize>() else { break };
        counts.resize(first, 0.0);
        counts.extend(row.1.split_whitespace().map_while(|count| count.parse::<f64>().ok()));
    }
    let quantile = |part| quantile_of_powers(&counts, part).map(|microseconds| microseconds * 1000.0);
    Some(Load {
        requests: after("Ops:")?,
        per_second: after("TPS:")?,
        p50: quantile(0.5),
        p99: quantile(0.99),
        ..Load::default()
    })
}

/// A quantile of a histogram whose bucket n counts values between 2^n and 2^(n + 1), as if they
/// were evenly spread there.
fn quantile_of_powers(counts: &[f64], part: f64) -> Option<f64> {
    let mut left = counts.iter().sum::<f64>() * part;
    for (power, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
        if left <= *count {
            return Some((1.0 + left / count) * (power as f64).exp2());
        }
        left -= count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_memcaslap_is_read() {
        let text = "Get Statistics (90 events)\n   Log2 Dist:\n       4:       90\n\nTotal Statistics (104 events)\n   Min:         7\n   \
                    Log2 Dist:\n       0:        0        0        0        0\n       4:       50        0       50        4\n\n\
                    cmd_get: 90\n\nRun time: 3.0s Ops: 104 TPS: 35 Net_rate: 74.2M/s";
        let load = memcaslap_report(&text.lines().map(String::from).collect::<Vec<_>>()).unwrap();
        assert_eq!((load.requests, load.per_second), (104.0, 35.0));
        // The 52nd of 104 is the second of fifty between 64 and 128 us.
        assert_eq!(load.p50, Some(66_560.0));
        assert!((load.p99.unwrap() - 222_720.0).abs() < 1.0, "{:?}", load.p99);
        assert_eq!(memcaslap_report(&[]), None);
    }

    #[test]
    fn a_report_of_memtier_is_read() {
        let text = r#"{"ALL STATS": {"Totals": {"Count": 300, "Ops/sec": 100.5,
            "Percentile Latencies": {"p50.00": 0.5, "p99.00": 1.25}}}}"#;
        let load = memtier_report(text, 3.0).unwrap();
        assert_eq!((load.requests, load.per_second), (300.0, 100.5));
        assert_eq!((load.p50, load.p99), (Some(500_000.0), Some(1_250_000.0)));
        assert_eq!(memtier_report("{}", 3.0), None);
    }
}
