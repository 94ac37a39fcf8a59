//! redis-server under redis-benchmark: GET and SET over 50 connections, one request under way on
//! each.

use super::app::{Address, App, Load, Rates, Run, Server, Workload, accepting_at, new_address};
use crate::error::{Error, Result};
use crate::find;
use crate::session::Session;

#[derive(Default)]
pub struct Redis {
    rates: Rates,
}

const FIRST_REQUESTS: f64 = 30_000.0;

impl App for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn workloads(&self) -> Vec<Workload> {
        vec![Workload { name: "GET", promise: Some(8.0) }, Workload { name: "SET", promise: Some(8.0) }]
    }

    fn has_unix(&self) -> bool {
        true
    }

    fn prepare(&mut self, _session: &Session) -> Result<()> {
        find::program("redis-server", "redis-server")?;
        find::program("redis-benchmark", "redis-tools").map(|_| ())
    }

    fn start(&self, session: &Session, run: &Run) -> Result<Server> {
        let at = new_address(session, run.side, "redis")?;
        let wire = session.wire(run.side);
        let launch = run.server(session, &find::program("redis-server", "redis-server")?);
        let launch = launch.directory(session.temp.path()).args(["--save", "", "--appendonly", "no"]);
        let launch = match &at {
            Address::Tcp(port) => {
                let address = wire.address.to_string();
                launch.args(["--protected-mode", "no", "--bind", &address, "--port", &port.to_string()])
            }
            Address::Unix(path) => launch.args(["--port", "0", "--unixsocket"]).args([path]),
        };
        accepting_at(launch.start()?, at, wire)
    }

    fn load(&mut self, session: &Session, run: &Run, server: &Server, workload: &str) -> Result<Load> {
        let rate = match self.rates.last(run, workload) {
            Some(rate) => rate,
            None => self.benchmark(session, run, server, workload, FIRST_REQUESTS)?.per_second,
        };
        let load = self.benchmark(session, run, server, workload, (rate * run.seconds).max(1000.0))?;
        self.rates.note(run, workload, load.per_second);
        Ok(load)
    }
}

impl Redis {
    fn benchmark(
        &self,
        session: &Session,
        run: &Run,
        server: &Server,
        workload: &str,
        n: f64,
    ) -> Result<Load> {
        let requests = n.round();
        let launch = run.client(session, &find::program("redis-benchmark", "redis-tools")?);
        let launch =
            launch.args(["-t", &workload.to_lowercase(), "-c", "50", "--csv", "-n", &requests.to_string()]);
        let launch = match &server.at {
            Address::Tcp(port) => {
                launch.args(["-h", &session.wire(run.side).address.to_string(), "-p", &port.to_string()])
            }
            Address::Unix(path) => launch.args(["-s"]).args([path]),
        };
        // A side that has become much slower needs longer for the same number of requests.
        let output = launch.run(run.patience() * 3)?;
        let load = output.lines.iter().find_map(|line| csv(line, workload)).ok_or_else(|| {
            Error::Failed(format!(
                "redis-benchmark said nothing about {workload}: {}",
                output.lines.join(" | ")
            ))
        })?;
        Ok(Load { requests, client_cpu_ns: output.cpu_ns, ..load })
    }
}

/// `"GET","61728.39","0.408","0.040","0.399","0.623","0.807","1.255"`: rate, then mean, least, p50,
/// p95, p99 and most in milliseconds.
fn csv(line: &str, workload: &str) -> Option<Load> {
    let fields: Vec<&str> = line.trim().split(',').map(|f| f.trim_matches('"')).collect();
    if fields.first() != Some(&workload) {
        return None;
    }
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    let milliseconds = |at: usize| number(at).map(|ms| ms * 1e6);
    Some(Load { per_second: number(1)?, p50: milliseconds(4), p99: milliseconds(6), ..Load::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_workload_is_read() {
        let line = r#""GET","61728.39","0.408","0.040","0.399","0.623","0.807","1.255""#;
        let load = csv(line, "GET").unwrap();
        assert_eq!(load.per_second, 61728.39);
        assert_eq!((load.p50, load.p99), (Some(399_000.0), Some(807_000.0)));
        assert_eq!(csv(line, "SET"), None);
        assert_eq!(csv(r#""test","rps","avg_latency_ms""#, "GET"), None);
    }
}
