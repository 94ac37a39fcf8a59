//! PostgreSQL under `pgbench -S`: one SELECT by primary key for each transaction, over 8
//! connections. The database is made once in a temporary directory, by and for a user that is not
//! root.

use super::app::{Address, App, Load, Run, Server, Workload, free_port, unprivileged};
use crate::error::{Error, Result, failed};
use crate::find;
use crate::pairs::readable_copy;
use crate::process::{Launch, User};
use crate::results::Side;
use crate::session::Session;
use crate::stats;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Default)]
pub struct Postgres {
    user: Option<User>,
    directory: PathBuf,
    libraries: Vec<(Side, PathBuf)>,
}

/// pgbench's unit of data: 100,000 rows, 15 MB.
const SCALE: &str = "5";
const CLIENTS: &str = "8";

impl App for Postgres {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn workloads(&self) -> Vec<Workload> {
        vec![Workload { name: "SELECT", promise: Some(1.3) }]
    }

    fn has_unix(&self) -> bool {
        true
    }

    fn prepare(&mut self, session: &Session) -> Result<()> {
        find::program("postgres", "postgresql")?;
        let initdb = find::program("initdb", "postgresql")?;
        let pgbench = find::program("pgbench", "postgresql")?;
        self.user = unprivileged()?;
        self.directory = session.temp.path().join("postgres");
        let _ = std::fs::remove_dir_all(&self.directory); // an earlier group's; mostly there is none
        std::fs::create_dir_all(&self.directory).map_err(failed("cannot make a directory for PostgreSQL"))?;
        if let Some(user) = self.user {
            std::os::unix::fs::chown(&self.directory, Some(user.uid), Some(user.gid))
                .map_err(failed("cannot give PostgreSQL its directory"))?;
        }
        self.libraries = [Side::Shunt, Side::Beside]
            .into_iter()
            .filter_map(|side| Some((side, session.library_for(side)?)))
            .map(|(side, library)| Ok((side, readable_copy(library, &session.temp.path().join(side.key()))?)))
            .collect::<Result<_>>()?;
        let make = self.plain(initdb).args([
            "-A",
            "trust",
            "-U",
            "bench",
            "--no-sync",
            "-E",
            "UTF8",
            "--locale=C",
            "-D",
        ]);
        make.args([self.data()]).run(Duration::from_secs(120))?;
        let at = Run {
            side: Side::Tcp,
            ends: crate::pairs::Ends::Both,
            cpus: crate::host::Cpus::ANY,
            seconds: 1.0,
        };
        let server = self.start(session, &at)?;
        let fill = self.plain(pgbench).args(["-i", "-q", "-s", SCALE]).args(self.target(&server.at));
        fill.run(Duration::from_secs(300)).map(|_| ())
    }

    fn start(&self, session: &Session, run: &Run) -> Result<Server> {
        let port = free_port()?;
        let at = match run.side {
            Side::Unix => Address::Unix(self.directory.join(format!(".s.PGSQL.{port}"))),
            _ => Address::Tcp(port),
        };
        let directory = self.directory.to_string_lossy();
        let settings = [
            "listen_addresses=127.0.0.1".to_string(),
            format!("port={port}"),
            format!("unix_socket_directories={directory}"),
            "fsync=off".into(),
            "autovacuum=off".into(),
        ];
        let launch =
            run.server(session, &find::program("postgres", "postgresql")?).args(["-D"]).args([self.data()]);
        let launch = settings.iter().fold(launch, |launch, setting| launch.args(["-c", setting]));
        let library = self.library(run.side).filter(|_| run.ends.server());
        // SIGINT is PostgreSQL's fast shutdown; SIGTERM would wait for clients.
        let launch =
            launch.preload(library).user(self.user).directory(&self.directory).stop_with(libc::SIGINT);
        let process = launch.start()?;
        self.ready(Server { process, at })
    }

    fn load(&mut self, session: &Session, run: &Run, server: &Server, _workload: &str) -> Result<Load> {
        let prefix = self.directory.join("transactions");
        remove_logs(&prefix);
        let library = self.library(run.side).filter(|_| run.ends.client());
        let launch =
            run.client(session, &find::program("pgbench", "postgresql")?).preload(library).user(self.user);
        let launch =
            launch.args(["-S", "-n", "-c", CLIENTS, "-j", "1", "-T", &run.seconds.ceil().to_string()]);
        let launch = launch.args(["-l", "--sampling-rate=0.1", "--log-prefix"]).args([&prefix]);
        let launch = launch.args(self.target(&server.at)).directory(&self.directory);
        let output = launch.run(run.patience())?;
        let load = pgbench(&output.lines).ok_or_else(|| {
            Error::Failed(format!("pgbench was not understood: {}", output.lines.join(" | ")))
        })?;
        let mut times = logged_times(&prefix);
        times.sort_by(f64::total_cmp);
        let share = |at: f64| (!times.is_empty()).then(|| stats::share(&times, at));
        Ok(Load { p50: share(0.5), p99: share(0.99), client_cpu_ns: output.cpu_ns, ..load })
    }
}

impl Postgres {
    fn library(&self, side: Side) -> Option<&Path> {
        self.libraries.iter().find(|(of, _)| *of == side).map(|(_, copy)| copy.as_path())
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// One of PostgreSQL's own tools, not measured.
    fn plain(&self, program: PathBuf) -> Launch {
        Launch::new(program).user(self.user).directory(&self.directory)
    }

    /// How pgbench finds the server.
    fn target(&self, at: &Address) -> Vec<String> {
        let (host, port) = match at {
            Address::Tcp(port) => ("127.0.0.1".to_string(), port.to_string()),
            Address::Unix(path) => {
                let port = path.extension().unwrap_or_default().to_string_lossy().into_owned();
                (self.directory.to_string_lossy().into_owned(), port)
            }
        };
        ["-U", "bench", "-h", &host, "-p", &port, "postgres"].map(String::from).to_vec()
    }

    /// PostgreSQL accepts connections before it admits clients.
    fn ready(&self, mut server: Server) -> Result<Server> {
        let probe = find::program("pg_isready", "postgresql")?;
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let mut args = self.target(&server.at);
            let database = args.pop().unwrap_or_default();
            let asked =
                self.plain(probe.clone()).args(args).args(["-d", &database]).run(Duration::from_secs(10));
            match asked {
                Ok(_) => return Ok(server),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(_) if !server.process.is_running() => {
                    return Err(server.process.failure("ended instead of serving"));
                }
                Err(_) if Instant::now() > end => {
                    return Err(server.process.failure("does not become ready"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

fn pgbench(lines: &[String]) -> Option<Load> {
    let after = |prefix: &str| lines.iter().find_map(|l| l.strip_prefix(prefix)).map(str::trim);
    let first = |text: &str| text.split([' ', '/']).next()?.parse::<f64>().ok();
    let requests = first(after("number of transactions actually processed:")?)?;
    let failed = after("number of failed transactions:").and_then(first).unwrap_or(0.0);
    if failed > 0.0 {
        return None;
    }
    Some(Load { requests, per_second: first(after("tps =")?)?, ..Load::default() })
}

/// The third column of pgbench's logs is a transaction's time in microseconds; here in nanoseconds.
fn logged_times(prefix: &Path) -> Vec<f64> {
    let texts = logs(prefix).into_iter().filter_map(|path| std::fs::read_to_string(path).ok());
    texts.flat_map(|text| text.lines().filter_map(logged_time).collect::<Vec<_>>()).collect()
}

fn logged_time(line: &str) -> Option<f64> {
    Some(line.split(' ').nth(2)?.parse::<f64>().ok()? * 1000.0)
}

fn remove_logs(prefix: &Path) {
    for path in logs(prefix) {
        let _ = std::fs::remove_file(path); // one that stays is from an earlier turn, which only blurs the p99
    }
}

fn logs(prefix: &Path) -> Vec<PathBuf> {
    let (Some(directory), Some(name)) = (prefix.parent(), prefix.file_name()) else { return Vec::new() };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let ours = entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(name.as_encoded_bytes()));
    ours.map(|e| e.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(String::from).collect()
    }

    #[test]
    fn the_output_of_pgbench_is_read() {
        let text = "number of transactions actually processed: 40155\nnumber of failed transactions: 0 (0.000%)\n\
                    latency average = 0.398 ms\ntps = 20088.117154 (without initial connection time)";
        let load = pgbench(&lines(text)).unwrap();
        assert_eq!((load.requests, load.per_second), (40155.0, 20088.117154));
        assert_eq!(pgbench(&lines("tps = 1.0")), None);
    }

    #[test]
    fn failed_transactions_are_no_result() {
        let text = "number of transactions actually processed: 5\nnumber of failed transactions: 1 (20%)\ntps = 1 (x)";
        assert_eq!(pgbench(&lines(text)), None);
    }

    #[test]
    fn a_line_of_the_log_has_the_time_third() {
        assert_eq!(logged_time("0 199 2241 0 1175850568 995598"), Some(2_241_000.0));
    }
}
