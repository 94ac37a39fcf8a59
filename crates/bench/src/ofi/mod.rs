//! `shunt bench ofi`: a stream over a link of libfabric beside libfabric's own tests (fi_pingpong;
//! remote writes and messages, as fabtests measure them), kernel TCP and UNIX sockets. On one host,
//! over the tcp provider, or between two: then servers are started there by words that are put
//! before their commands, as `ssh HOST`.

pub mod exchange;

use crate::error::{Error, Result, failed};
use crate::pairs::{self, Ends, Setting, number};
use crate::process::{Launch, Output};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::{cli::FabricOptions, find};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

/// The word for it, and its tables.
pub const GROUP: &str = "ofi";
pub const LATENCY: &str = "ofi-latency";
pub const BANDWIDTH: &str = "ofi-bandwidth";

const SIDES: [Side; 6] =
    [Side::Ofi, Side::FiPingpong, Side::FiWrites, Side::FiMessages, Side::Tcp, Side::Unix];
/// Bytes of a message, and the promise: to take at most 1.3 times as long as libfabric's own, where
/// bandwidth does not decide.
const MESSAGES: [(&str, usize, Target); 5] = [
    ("64 B", 64, LATE),
    ("256 B", 256, Target::NONE),
    ("1 KB", 1024, Target::NONE),
    ("4 KB", 4096, Target::NONE),
    ("64 KB", 65536, Target::NONE),
];
/// fi_pingpong reports only the mean, which a busy machine spoils for all.
const LATE: Target = Target { over: &[(Side::FiPingpong, 1.0 / 1.3)], ..Target::NONE };
const LATE_P50: Target =
    Target { over: &[(Side::FiWrites, 1.0 / 1.3), (Side::FiMessages, 1.0 / 1.3)], ..Target::NONE };
/// Bytes of a write to the stream, and the promise: nine tenths of the rate of fi_pingpong.
const WRITES: [(&str, usize, Target); 4] = [
    ("4 KB", 4096, Target::NONE),
    ("64 KB", 65536, FAST),
    ("256 KB", 262_144, FAST),
    ("1 MB", 1_048_576, FAST),
];
const FAST: Target = Target { over: &[(Side::FiPingpong, 0.9), (Side::FiWrites, 0.9)], ..Target::NONE };
/// The size that is also written without a copy at either end, as libfabric does.
const IN_PLACE: (&str, usize) = ("64 KB, in place", 65536);

/// The domains of both ends, and the arguments for their programs.
struct Fabric {
    provider: String,
    /// Of the server and of the client.
    domains: [String; 2],
    /// How long fi_pingpong takes for a size, in nanoseconds: it needs a count.
    known: HashMap<usize, f64>,
}

pub fn measure(session: &mut Session, options: &FabricOptions) -> Result<()> {
    session.fabric = Some(options.clone());
    let outcome = rounds(session, options);
    session.fabric = None;
    outcome
}

fn rounds(session: &mut Session, options: &FabricOptions) -> Result<()> {
    let found = Fabric::find(session, options);
    let Some(mut fabric) = session.record(GROUP, found)? else { return Ok(()) };
    let mut sides = SIDES.to_vec();
    sides.retain(|side| *side != Side::Unix || options.remote.is_empty());
    for (side, there) in [(Side::FiPingpong, pingpong().map(drop)), (Side::FiWrites, built(session))] {
        if session.record(&format!("{GROUP} {}", side.title()), there)?.is_none() {
            sides.retain(|other| *other != side && (side, *other) != (Side::FiWrites, Side::FiMessages));
        }
    }
    for round in 0..session.rounds {
        progress(format_args!("ofi: round {} of {}", round + 1, session.rounds));
        for (row, size, promise) in MESSAGES {
            for side in Side::turns(&sides, round) {
                fabric.latency(session, &Place { group: LATENCY, row, side, round }, size, promise)?;
            }
        }
        for (row, size, promise) in WRITES {
            for side in Side::turns(&sides, round) {
                fabric.bandwidth(session, &Place { group: BANDWIDTH, row, side, round }, size, promise)?;
            }
        }
        let (row, size) = IN_PLACE;
        let alike = |side: &Side| !matches!(side, Side::Tcp | Side::Unix);
        for side in Side::turns(&sides, round).into_iter().filter(alike) {
            fabric.bandwidth(session, &Place { group: BANDWIDTH, row, side, round }, size, Target::NONE)?;
        }
    }
    Ok(())
}

/// Debian's package of libfabric's own programs.
fn pingpong() -> Result<std::path::PathBuf> {
    find::program("fi_pingpong", "libfabric-bin")
}

fn built(session: &Session) -> Result<()> {
    let missing =
        || Error::Missing { program: "what libfabric is built".into(), package: "libfabric-dev".into() };
    session.libexec.join("libfabric").is_file().then_some(()).ok_or_else(missing)
}

impl Fabric {
    /// Asks both ends for their domains.
    fn find(session: &mut Session, options: &FabricOptions) -> Result<Fabric> {
        let command = find::command()?;
        let at = options.at.to_string();
        let ask = |before: &[String], role: &str| -> Result<Value> {
            let words = ["bench", exchange::WORD, role, "--provider", &options.provider, "--host", &at];
            let output = Launch::new(&command).args(words).behind(before).run(Duration::from_secs(30));
            match output {
                Ok(Output { lines, .. }) => pairs::parse(lines.last().map_or("", |line| line)),
                Err(Error::Failed(why)) if why.contains("install libfabric") => {
                    Err(Error::Missing { program: "libfabric".into(), package: "libfabric1".into() })
                }
                Err(other) => Err(other),
            }
        };
        let ends = [ask(&options.remote, "find")?, ask(&[], "find-to")?];
        let text = |end: &Value, name: &str| end[name].as_str().unwrap_or_default().to_string();
        let [server, client] = &ends;
        let domains = ends.each_ref().map(|end| text(end, "domain"));
        let place = match options.remote.is_empty() {
            true => "both ends on this host".to_string(),
            false => format!("to {}", options.at),
        };
        let library = text(server, "libfabric");
        let caption =
            format!("by {} on {}, libfabric {library}, {place}", text(server, "provider"), domains[0]);
        session.results.captions.push((GROUP.into(), caption));
        session.results.notes.insert(GROUP.into(), json!({"server": server, "client": client, "at": at}));
        Ok(Fabric { provider: options.provider.clone(), domains, known: HashMap::new() })
    }

    /// Half a round trip. fi_pingpong reports only the mean.
    fn latency(&mut self, session: &mut Session, place: &Place, size: usize, promise: Target) -> Result<()> {
        let result = match place.side {
            Side::FiPingpong => self.pingpong(session, size).map(|ns| json!({"mean_ns": ns * 2.0})),
            _ => self.run(session, place.side, "latency", size, false),
        };
        let what = format!("{LATENCY} {} ({})", place.row, place.side.title());
        let Some(result) = session.record(&what, result)? else { return Ok(()) };
        for (name, key) in [("mean", "mean_ns"), ("p50", "p50_ns"), ("p99", "p99_ns")] {
            let promise = match name {
                "mean" => promise,
                "p50" if promise != Target::NONE => LATE_P50,
                _ => Target::NONE,
            };
            if place.side != Side::FiPingpong || name == "mean" {
                session.results.add(place, name, Unit::Time, promise, number(&result, key)? / 2.0);
            }
        }
        Ok(())
    }

    /// One way. fi_pingpong's rate follows from messages to and fro: size over half a round trip.
    fn bandwidth(
        &mut self,
        session: &mut Session,
        place: &Place,
        size: usize,
        promise: Target,
    ) -> Result<()> {
        let result = match place.side {
            Side::FiPingpong => {
                self.pingpong(session, size).map(|ns| json!({"bytes_per_second": size as f64 / ns * 1e9}))
            }
            _ => self.run(session, place.side, "bandwidth", size, place.row == IN_PLACE.0),
        };
        let what = format!("{BANDWIDTH} {} ({})", place.row, place.side.title());
        let Some(result) = session.record(&what, result)? else { return Ok(()) };
        let rate = number(&result, "bytes_per_second")?;
        session.results.add(place, "bytes", Unit::BytesPerSecond, promise, rate);
        Ok(())
    }

    /// One side's turn, if its programs are ours.
    fn run(
        &self,
        session: &Session,
        side: Side,
        measure: &str,
        size: usize,
        in_place: bool,
    ) -> Result<Value> {
        let size = size.to_string();
        let fabric = ["--provider", &self.provider, "--measure", measure, "--size", &size];
        let how = |how| [&fabric[..], &["--how", how]].concat();
        let (program, words) = match side {
            Side::Ofi if in_place => (exchange::WORD, [&fabric[..], &["--in-place", "1"]].concat()),
            Side::Ofi => (exchange::WORD, fabric.to_vec()),
            Side::FiWrites => ("libfabric", how("write")),
            Side::FiMessages => ("libfabric", how("message")),
            _ if measure == "latency" => ("pingpong", vec!["--size", &size]),
            _ => ("stream", vec!["--size", &size]),
        };
        let (cpus, seconds) = (session.cpus, session.duration);
        pairs::run(
            session,
            program,
            Setting { side, ends: Ends::Both, cpus, seconds, options: &[] },
            &words,
            &[],
        )
    }

    /// Nanoseconds of half a round trip.
    fn pingpong(&mut self, session: &Session, size: usize) -> Result<f64> {
        let known = match self.known.get(&size) {
            Some(known) => *known,
            None => self.pingpongs(session, size, 100)?,
        };
        let count = (session.duration * 1e9 / 2.0 / known).clamp(100.0, 1e8) as usize;
        let found = self.pingpongs(session, size, count)?;
        self.known.insert(size, found);
        Ok(found)
    }

    /// That of libfabric 1.17 often fails to connect, or to end, over tcp.
    fn pingpongs(&self, session: &Session, size: usize, count: usize) -> Result<f64> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.pingpong_once(session, size, count) {
                Err(Error::Failed(_)) if attempts < 8 => {}
                outcome => return outcome,
            }
        }
    }

    fn pingpong_once(&self, session: &Session, size: usize, count: usize) -> Result<f64> {
        let program = pingpong()?;
        let wire = session.wire(Side::FiPingpong);
        // Both ends get the port by which they agree; it is free here, and likely so there.
        let free = TcpListener::bind((wire.address, 0)).or_else(|_| TcpListener::bind(("0.0.0.0", 0)));
        let port = free.and_then(|it| it.local_addr()).map_err(failed("no free port"))?.port().to_string();
        let (size_text, count_text) = (size.to_string(), count.to_string());
        let launch = |domain: &str| {
            let launch = Launch::new(&program).args(["-p", &self.provider, "-e", "msg", "-d", domain]);
            launch.args(["-S", &size_text, "-I", &count_text])
        };
        let [there, here] = &self.domains;
        let cpu = session.cpus.server.filter(|_| wire.before.is_empty());
        let mut server = launch(there).args(["-B", &port]).cpu(cpu).behind(&wire.before).start()?;
        let address = wire.address.to_string();
        let patience = Duration::from_secs_f64(session.duration * 6.0 + 4.0);
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let client = launch(here).args(["-P", &port, &address]).cpu(session.cpus.client);
            match client.run(patience) {
                Ok(output) => return half(output.lines.last().map_or("", |line| line), size),
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                // The server does not report when it listens.
                Err(Error::Failed(why)) if why.contains("failed to connect") && Instant::now() < end => {
                    if !server.is_running() {
                        return Err(server.failure("has ended early"));
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Nanoseconds of a line of fi_pingpong: `64 50k =50k 6.1m 0.31s 20.79 3.08 0.32`. Its last columns
/// are megabytes a second, microseconds, and millions in a second, with two decimals: the larger of
/// the first two is more precise.
fn half(line: &str, size: usize) -> Result<f64> {
    let columns: Vec<&str> = line.split_whitespace().collect();
    let wrong = || Error::Failed(format!("not what fi_pingpong prints: {line:?}"));
    let [.., rate, time, _] = columns[..] else { return Err(wrong()) };
    let (Ok(rate), Ok(time)) = (rate.parse::<f64>(), time.parse::<f64>()) else { return Err(wrong()) };
    let found = if rate > time { size as f64 / rate * 1e3 } else { time * 1e3 };
    if found > 0.0 { Ok(found) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fi_pingpong_prints() {
        let near = |line: &str, size, ns: f64| (half(line, size).unwrap() / ns - 1.0).abs() < 0.005;
        assert!(near(
            "64      50k     =50k     6.1m        0.31s     20.79       3.08       0.32",
            64,
            3078.0
        ));
        assert!(near(
            "64k     5k      =5k      625m        0.14s   4540.74      14.43       0.07",
            65536,
            14433.0
        ));
        assert!(near(
            "64      50k     =50k     6.1m        3.04s      2.10      30.41       0.03",
            64,
            30410.0
        ));
        for wrong in ["", "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec", "64 0.00 0.00 0.00"] {
            assert!(half(wrong, 64).is_err(), "{wrong}");
        }
    }
}
