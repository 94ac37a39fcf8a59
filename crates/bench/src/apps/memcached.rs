//! memcached with one thread, under memtier_benchmark where it is installed, else under memcslap, which Debian 12 has: it
//! tells no latencies, and makes each connection in a thread of its own.

use super::{Address, App, Load, Rates, Run, Server, Workload, accepting, is_root, new_address};
use crate::bench::Session;
use crate::error::{Error, Result, failed};
use crate::find;
use serde_json::Value;
use std::path::Path;

#[derive(Default)]
pub struct Memcached {
    rates: Rates,
}

/// Each thread of memcslap first makes this many.
const FIRST_REQUESTS: f64 = 2_000.0;
/// memcslap stores as many keys as it makes requests, before it begins.
const MOST_REQUESTS: f64 = 200_000.0;

impl App for Memcached {
    fn name(&self) -> &'static str {
        "memcached"
    }

    fn workloads(&self) -> Vec<Workload> {
        let named =
            |names: [(&'static str, Option<f64>); 2]| names.map(|(name, promise)| Workload { name, promise });
        match memtier() {
            // SET first, so that GET finds the keys.
            Ok(_) => named([("SET 50 connections", Some(5.0)), ("GET 50 connections", Some(5.0))]).into(),
            Err(_) => named([("GET 1 connection", Some(5.0)), ("GET 16 connections", None)]).into(),
        }
    }

    fn has_unix(&self) -> bool {
        true
    }

    fn prepare(&mut self, _session: &Session) -> Result<()> {
        find::program("memcached", "memcached")?;
        memtier().or_else(|_| memcslap()).map(|_| ())
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
            Err(_) => self.run_memcslap(session, run, server, workload),
        }
    }
}

fn memtier() -> Result<std::path::PathBuf> {
    find::program("memtier_benchmark", "memtier-benchmark")
}

fn memcslap() -> Result<std::path::PathBuf> {
    find::program("memcslap", "libmemcached-tools")
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

impl Memcached {
    fn run_memcslap(
        &mut self,
        session: &Session,
        run: &Run,
        server: &Server,
        workload: &str,
    ) -> Result<Load> {
        let threads = if workload.contains("16") { 16.0 } else { 1.0 };
        let rate = match self.rates.last(run, workload) {
            Some(rate) => rate,
            None => slap(session, run, server, threads, FIRST_REQUESTS)?.per_second,
        };
        let each = (rate * run.seconds / threads).clamp(FIRST_REQUESTS, MOST_REQUESTS).round();
        let load = slap(session, run, server, threads, each)?;
        self.rates.note(run, workload, load.per_second);
        Ok(load)
    }
}

fn slap(session: &Session, run: &Run, server: &Server, threads: f64, each: f64) -> Result<Load> {
    let at = match &server.at {
        Address::Tcp(port) => format!("127.0.0.1:{port}"),
        Address::Unix(path) => path.to_string_lossy().into_owned(),
    };
    let launch = run.client(session, &memcslap()?).args(["--test=get".into(), format!("--servers={at}")]);
    let launch = launch.args([format!("--concurrency={threads}"), format!("--execute-number={each}")]);
    let output = launch.run(run.patience() * 3)?;
    let seconds = output.lines.iter().find_map(|line| slap_seconds(line)).ok_or_else(|| {
        Error::Failed(format!("memcslap did not say how long it took: {}", output.lines.join(" | ")))
    })?;
    let requests = threads * each;
    // The keys that it stored first are requests too: the processor time is for both.
    let per_second = requests / seconds;
    Ok(Load { requests: requests + each, per_second, client_cpu_ns: output.cpu_ns, ..Load::default() })
}

/// `Time to get  160000 keys by   16 threads:   2.601 seconds.`
fn slap_seconds(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("Time to get")?;
    let (_, time) = rest.split_once("threads:")?;
    time.trim().strip_suffix("seconds.")?.trim().parse().ok().filter(|s| *s > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memcslap_tells_its_time() {
        let line = "Time to get          160000 keys by   16 threads:     2.601 seconds.";
        assert_eq!(slap_seconds(line), Some(2.601));
        assert_eq!(slap_seconds("Time to set 10 keys by 16 threads: 2.6 seconds."), None);
        assert_eq!(slap_seconds("Time total: 2.623 seconds."), None);
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
