//! `shunt bench ftp`: the two files of table I of the SOVIA paper, fetched from and stored on an
//! unmodified vsftpd by lftp and by the classic ftp client, all on a tmpfs. Beside them, as the
//! file system's own limit, a copy of the same file on the same tmpfs.
//!
//! The client reports the rate of a transfer. Each transfer has a data connection of its own, and
//! writes a new file.

use crate::apps::{Address, Run, Server, accepting_at, free_port};
use crate::error::{Error, Result, failed};
use crate::find;
use crate::pairs::Ends;
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::stats;
use crate::temp::TempDir;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Instant;

pub const GROUP: &str = "ftp";

/// Name and bytes of each file.
const FILES: [(&str, u64); 2] = [("19 MB", 19_090_223), ("146 MB", 145_864_380)];
/// The promise: one and a half times kernel TCP, or the rate of the file system itself.
const PROMISE: Target = Target { over_tcp: Some(1.5), or_of_copy: Some(0.9), ..Target::NONE };
/// Transfers of a second together have about so many bytes.
const BYTES_PER_SECOND: f64 = 300e6;
const MOST_TRANSFERS: usize = 8;
/// Bytes that a program reads and writes at a time.
const PIECE: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq)]
enum Client {
    Lftp,
    Tnftp,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Get,
    Put,
}

/// One row of the table.
#[derive(Clone, Copy)]
struct Row {
    client: Client,
    direction: Direction,
    file: &'static str,
    bytes: u64,
    transfers: usize,
}

impl Row {
    fn name(&self) -> String {
        let direction = if self.direction == Direction::Get { "get" } else { "put" };
        format!("{} {direction} {}", self.client.name(), self.file)
    }
}

pub fn measure(session: &mut Session) -> Result<()> {
    let field = field(session, GROUP, &[Client::Lftp, Client::Tnftp], &[Side::Tcp, Side::Shunt])?;
    let Some(field) = field else { return Ok(()) };
    for round in 0..session.rounds {
        progress(format_args!("ftp: round {} of {}", round + 1, session.rounds));
        field.round(session, GROUP, round)?;
    }
    Ok(())
}

/// One round by one client, in a table of another group.
pub fn beside(session: &mut Session, group: &str, sides: &[Side], round: usize) -> Result<()> {
    match field(session, group, &[Client::Lftp], sides)? {
        Some(field) => field.round(session, group, round),
        None => Ok(()),
    }
}

/// Files, their transfers, and a server for each side. All servers stay: an unused one costs
/// nothing, and the turns follow each other more closely.
struct Field {
    place: TempDir,
    rows: Vec<Row>,
    servers: Vec<(Side, Server)>,
}

fn field(session: &mut Session, group: &str, clients: &[Client], sides: &[Side]) -> Result<Option<Field>> {
    let prepared = prepare(session);
    let Some(place) = session.record(group, prepared)? else { return Ok(None) };
    let mut rows = Vec::new();
    for client in clients {
        let found = client.program();
        if session.record(&format!("{group} with {}", client.name()), found)?.is_some() {
            for direction in [Direction::Get, Direction::Put] {
                rows.extend(FILES.map(|(file, bytes)| {
                    let transfers = transfers(session.duration, bytes);
                    Row { client: *client, direction, file, bytes, transfers }
                }));
            }
        }
    }
    let mut servers = Vec::new();
    for side in session.sides(sides) {
        let started = start(session, place.path(), &run(session, side));
        if let Some(server) = session.record(&format!("{group} ({})", side.title()), started)? {
            servers.push((side, server));
        }
    }
    Ok(Some(Field { place, rows, servers }))
}

impl Field {
    /// Every row by every side once, and a copy of the file.
    fn round(&self, session: &mut Session, group: &str, round: usize) -> Result<()> {
        let mut sides: Vec<Side> = self.servers.iter().map(|(side, _)| *side).collect();
        sides.push(Side::Copy);
        let place = self.place.path();
        // The promise belongs to its own table, and is judged there.
        let promise = if group == GROUP { PROMISE } else { Target::NONE };
        for row in &self.rows {
            for side in Side::turns(&sides, round) {
                let server = self.servers.iter().find(|(of, _)| *of == side).map(|(_, server)| server);
                let rate = match server {
                    Some(server) => transfer(session, place, &run(session, side), server, row),
                    None => copy(place, row),
                };
                let name = row.name();
                let Some(rate) = session.record(&format!("{name} ({})", side.title()), rate)? else {
                    continue;
                };
                let at = Place { group, row: &name, side, round };
                session.results.add(&at, "rate", Unit::BytesPerSecond, promise, rate);
            }
        }
        Ok(())
    }
}

fn run(session: &Session, side: Side) -> Run {
    Run { side, ends: Ends::Both, cpus: session.cpus, seconds: session.duration }
}

/// How often a file is transferred in one session.
fn transfers(seconds: f64, bytes: u64) -> usize {
    ((seconds * BYTES_PER_SECOND / bytes as f64).round() as usize).clamp(1, MOST_TRANSFERS)
}

/// A directory on a tmpfs with the files in `pub`, and places for those that are stored (`in`) and
/// fetched (`out`).
fn prepare(session: &Session) -> Result<TempDir> {
    find::program("vsftpd", "vsftpd")?;
    let files: u64 = FILES.iter().map(|(_, bytes)| bytes).sum();
    let most = FILES.iter().map(|(_, bytes)| bytes * transfers(session.duration, *bytes) as u64).max();
    let place = TempDir::in_memory(files + most.unwrap_or(0))?;
    for name in ["pub", "in", "out"] {
        std::fs::create_dir(place.path().join(name)).map_err(failed("cannot make a directory"))?;
    }
    for (file, bytes) in FILES {
        write_file(&source(place.path(), file), bytes).map_err(failed("cannot write the file to send"))?;
    }
    Ok(place)
}

fn source(place: &Path, file: &str) -> PathBuf {
    // Without spaces, for the clients' command lines.
    place.join("pub").join(file.replace(' ', ""))
}

/// Bytes that differ from place to place, so that a lost, doubled or misplaced piece shows.
fn write_file(path: &Path, bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut left = bytes as usize;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        for word in piece.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        let count = left.min(PIECE);
        file.write_all(&piece[..count])?;
        left -= count;
    }
    Ok(())
}

/// vsftpd for anonymous users, as the user of this process: it forks for each session, but changes
/// neither user nor root directory.
fn start(session: &Session, place: &Path, run: &Run) -> Result<Server> {
    let port = free_port()?;
    let config = session.temp.path().join(format!("vsftpd-{port}.conf"));
    let wire = session.wire(run.side);
    std::fs::write(&config, configuration(place, wire.address, port))
        .map_err(failed("cannot configure vsftpd"))?;
    let launch = run.server(session, &find::program("vsftpd", "vsftpd")?).args([&config]);
    accepting_at(launch.start()?, Address::Tcp(port), wire)
}

/// Transfers as vsftpd's defaults have them: files are sent with sendfile().
fn configuration(place: &Path, address: Ipv4Addr, port: u16) -> String {
    format!(
        "listen=YES
background=NO
listen_address={address}
listen_port={port}
run_as_launching_user=YES
anonymous_enable=YES
no_anon_password=YES
anon_root={}
anon_world_readable_only=NO
write_enable=YES
anon_upload_enable=YES
anon_umask=022
xferlog_enable=NO
",
        place.display()
    )
}

impl Client {
    fn name(self) -> &'static str {
        match self {
            Client::Lftp => "lftp",
            Client::Tnftp => "ftp",
        }
    }

    /// The classic client, by the name that only it has.
    fn program(self) -> Result<PathBuf> {
        match self {
            Client::Lftp => find::program("lftp", "lftp"),
            Client::Tnftp => find::program("tnftp", "tnftp"),
        }
    }
}

/// One session with all transfers of a row, each into a new file; gives the median of the rates, in
/// bytes a second.
fn transfer(session: &Session, place: &Path, run: &Run, server: &Server, row: &Row) -> Result<f64> {
    let Address::Tcp(port) = server.at else {
        return Err(Error::Failed("FTP knows no UNIX sockets".into()));
    };
    let address = session.wire(run.side).address;
    let from = source(place, row.file);
    let directory = place.join(if row.direction == Direction::Get { "out" } else { "in" });
    let made: Vec<PathBuf> = (0..row.transfers).map(|n| directory.join(n.to_string())).collect();
    let launch = run.client(session, &row.client.program()?).env("HOME", session.temp.path());
    let launch = launch.directory(place);
    let log = session.temp.path().join("lftp.log");
    let name = from.file_name().unwrap_or_default().to_string_lossy();
    // Both clients run in the directory that the server serves.
    let command = |n: usize| match row.direction {
        Direction::Get => match row.client {
            Client::Lftp => format!("get pub/{name} -o out/{n}"),
            Client::Tnftp => format!("get pub/{name} out/{n}"),
        },
        Direction::Put => match row.client {
            Client::Lftp => format!("put pub/{name} -o in/{n}"),
            Client::Tnftp => format!("put pub/{name} in/{n}"),
        },
    };
    let commands: Vec<String> = (0..row.transfers).map(command).collect();
    let patience = run.patience() * 3;
    let lines = match row.client {
        Client::Lftp => {
            let _ = std::fs::remove_file(&log); // of the session before; mostly there is one
            let script = format!(
                "set ftp:ssl-allow no; set xfer:log yes; set xfer:log-file {}; set xfer:use-temp-file no; \
                 open -u anonymous,x -p {port} {address}; {}",
                log.display(),
                commands.join("; ")
            );
            launch.args(["--norc", "-c", &script]).run(patience)?;
            let text = std::fs::read_to_string(&log).map_err(failed("lftp left no log"))?;
            text.lines().map(String::from).collect()
        }
        Client::Tnftp => {
            let mut process = launch.args(["-n", "-v"]).start()?;
            for line in [&format!("open {address} {port}"), "user anonymous x", "binary"] {
                process.say(line)?;
            }
            for line in &commands {
                process.say(line)?;
            }
            process.say("bye")?;
            process.finish(patience)?.lines
        }
    };
    let outcome = rates(&lines, row).and_then(|rates| same(&from, &made).map(|()| rates));
    for file in &made {
        let _ = std::fs::remove_file(file); // one that is not there has been told of above
    }
    stats::summary(outcome?).map(|s| s.median).ok_or_else(|| Error::Failed("nothing was transferred".into()))
}

/// The rates that the client reported; all transfers must have been complete.
fn rates(lines: &[String], row: &Row) -> Result<Vec<f64>> {
    let rates: Vec<f64> = lines.iter().filter_map(|line| rate(line, row.bytes)).collect();
    match rates.len() == row.transfers {
        true => Ok(rates),
        false => Err(Error::Failed(format!(
            "{} of {} transfers were whole: {}",
            rates.len(),
            row.transfers,
            lines.iter().rev().take(4).rev().cloned().collect::<Vec<_>>().join(" | ")
        ))),
    }
}

/// `19090223 bytes received in 00:00 (723.66 MiB/s)`, as tnftp says it, or
/// `... 0-19090223 613.75 MiB/s`, from lftp's log.
fn rate(line: &str, bytes: u64) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [.., count, value, unit] = words[..] else { return None };
    let whole = line.starts_with(&format!("{bytes} bytes ")) || count == format!("0-{bytes}");
    let scale = match unit.trim_end_matches(')') {
        "B/s" => 1.0,
        "KiB/s" => 1024.0,
        "MiB/s" => 1024.0 * 1024.0,
        "GiB/s" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let value: f64 = value.trim_start_matches('(').parse().ok()?;
    whole.then_some(value * scale)
}

/// Checks that every transferred file equals the one that was sent, byte by byte.
fn same(from: &Path, made: &[PathBuf]) -> Result<()> {
    for path in made {
        let open =
            |path: &Path| File::open(path).map_err(failed(format!("{} was not transferred", path.display())));
        let (mut a, mut b) = (open(from)?, open(path)?);
        let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
        loop {
            let read = failed("cannot read a transferred file");
            let (n, m) = fill(&mut a, &mut left)
                .and_then(|n| fill(&mut b, &mut right).map(|m| (n, m)))
                .map_err(read)?;
            if left[..n] != right[..m] {
                return Err(Error::Failed(format!("{} differs from what was sent", path.display())));
            }
            if n == 0 {
                break;
            }
        }
    }
    Ok(())
}

fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read(&mut buffer[done..])? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// The file system's own limit: one program reads the file and writes a new one, as often as it is
/// transferred.
fn copy(place: &Path, row: &Row) -> Result<f64> {
    let (from, to) = (source(place, row.file), place.join("out/copy"));
    let one = || -> std::io::Result<f64> {
        let mut buffer = vec![0; PIECE];
        let began = Instant::now();
        let (mut from, mut to) = (File::open(&from)?, File::create(&to)?);
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            to.write_all(&buffer[..n])?;
        }
        drop(to);
        Ok(row.bytes as f64 / began.elapsed().as_secs_f64())
    };
    let mut rates = Vec::new();
    for _ in 0..row.transfers {
        rates.push(one().map_err(failed("cannot copy the file"))?);
        std::fs::remove_file(&to).map_err(failed("cannot remove the copy"))?;
    }
    stats::summary(rates).map(|s| s.median).ok_or_else(|| Error::Failed("nothing was copied".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_clients_say_is_read() {
        let tnftp = "19090223 bytes received in 00:00 (512.00 MiB/s)";
        assert_eq!(rate(tnftp, 19_090_223), Some(536_870_912.0));
        assert_eq!(rate("19090223 bytes sent in 00:00 (1.50 GiB/s)", 19_090_223), Some(1_610_612_736.0));
        let lftp =
            "2026-11-22 18:05:09 ftp://anonymous@127.0.0.1:2121/%2Fdev/a -> /dev/b 0-145864380 2.00 KiB/s";
        assert_eq!(rate(lftp, 145_864_380), Some(2048.0));
        assert_eq!(rate("150 Opening BINARY mode data connection for a (19090223 bytes).", 19_090_223), None);
    }

    #[test]
    fn a_transfer_that_is_not_whole_is_an_error() {
        let row = Row {
            client: Client::Tnftp,
            direction: Direction::Get,
            file: "19 MB",
            bytes: 19_090_223,
            transfers: 1,
        };
        let lines = vec!["19090000 bytes received in 00:00 (512.00 MiB/s)".to_string()];
        assert!(rates(&lines, &row).is_err());
    }

    #[test]
    fn files_are_compared_to_their_ends() {
        let temp = TempDir::new().unwrap();
        let (a, b) = (temp.path().join("a"), temp.path().join("b"));
        write_file(&a, 200_001).unwrap();
        write_file(&b, 200_001).unwrap();
        assert!(same(&a, std::slice::from_ref(&b)).is_ok());
        write_file(&b, 200_000).unwrap();
        assert!(same(&a, &[b]).is_err());
    }
}
