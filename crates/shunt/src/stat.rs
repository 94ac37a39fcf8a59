//! `shunt stat`: the connections of running programs as a table or as JSON, once or again and
//! again. What there is to show comes from [`crate::homes`].

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgMatches;

use crate::homes::{ConnStat, ProcessStat, read_homes};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let pids: Vec<u32> = matches.get_many("pid").unwrap_or_default().copied().collect();
    let (json, watch) = (matches.get_flag("json"), matches.get_one::<f64>("watch").copied());
    loop {
        let mut processes = match read_homes() {
            Ok(processes) => processes,
            Err(error) => {
                eprintln!("shunt stat: {error}");
                return ExitCode::FAILURE;
            }
        };
        if !pids.is_empty() {
            processes.retain(|process| pids.contains(&process.pid));
        }
        let missing = pids.iter().find(|&&pid| !processes.iter().any(|process| process.pid == pid));
        let mut text = String::new();
        if watch.is_some() && !json && io::stdout().is_terminal() {
            text.push_str("\x1b[H\x1b[2J");
        }
        text.push_str(&if json { as_json(&processes, watch.is_none()) } else { as_table(&processes) });
        // A closed pipe (`| head`) is the usual end of --watch.
        let mut out = io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return ExitCode::SUCCESS;
        }
        match (watch, missing) {
            (Some(seconds), _) => std::thread::sleep(Duration::from_secs_f64(seconds)),
            (None, Some(pid)) => {
                eprintln!("shunt stat: {pid}: {}", why_missing(*pid));
                return ExitCode::FAILURE;
            }
            (None, None) => return ExitCode::SUCCESS,
        }
    }
}

fn why_missing(pid: u32) -> &'static str {
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(_) => "does not run under Shunt; `shunt doctor --pid` says more",
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            "is not yours to look into; try as root"
        }
        Err(_) => "there is no such process",
    }
}

fn as_json(processes: &[ProcessStat], pretty: bool) -> String {
    let document = serde_json::json!({ "processes": processes });
    if pretty { format!("{document:#}\n") } else { format!("{document}\n") }
}

fn as_table(processes: &[ProcessStat]) -> String {
    if processes.is_empty() {
        return "No process that you may look into runs under Shunt.\n".to_string();
    }
    let header = [
        "PID", "COMMAND", "FD", "LOCAL", "PEER", "TX", "RX", "IN", "OUT", "UNREAD", "WOKE", "SPUN", "SLEPT",
        "REASON",
    ];
    let mut rows = vec![header.map(String::from).to_vec()];
    let mut containers = vec![Some("CONTAINER".to_string())];
    for process in processes {
        rows.extend(process.connections.iter().map(|conn| row(process, conn)));
        if process.connections.is_empty() {
            let mut row = vec!["-".to_string(); header.len()];
            (row[0], row[1]) = (process.pid.to_string(), printable(&process.comm));
            row[13] = match process.shared_with {
                Some(pid) => format!("shares the connections of {pid}"),
                None => "no connections".to_string(),
            };
            rows.push(row);
        }
        containers.resize(rows.len(), process.container.clone());
    }
    let mut right = vec![0, 2, 7, 8, 9, 10, 11, 12];
    // Only where there are any.
    if containers.iter().flatten().count() > 1 {
        for (row, container) in rows.iter_mut().zip(containers) {
            row.insert(2, container.unwrap_or("-".into()));
        }
        right.iter_mut().filter(|at| **at >= 2).for_each(|at| *at += 1);
    }
    aligned(&rows, &right)
}

fn row(process: &ProcessStat, conn: &ConnStat) -> Vec<String> {
    let spins = conn.spins_won + conn.spins_lost;
    vec![
        process.pid.to_string(),
        printable(&process.comm),
        conn.fd.map_or("-".into(), |fd| fd.to_string()),
        address(conn.local),
        address(conn.peer),
        conn.tx.to_string(),
        conn.rx.to_string(),
        crate::run::size(conn.bytes_in),
        crate::run::size(conn.bytes_out),
        conn.unread.map_or("-".into(), crate::run::size),
        (conn.kicks + conn.bells + conn.hints).to_string(),
        if spins == 0 { "-".into() } else { format!("{}/{spins}", conn.spins_won) },
        conn.sleeps.to_string(),
        conn.reason.clone().unwrap_or_default(),
    ]
}

fn address(known: Option<SocketAddr>) -> String {
    known.map_or("-".into(), |address| address.to_string())
}

/// A process may call itself anything.
fn printable(comm: &str) -> String {
    comm.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Columns as wide as their widest cell, those that are named (numbers) to the right.
fn aligned(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widest = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let width: Vec<usize> = (0..columns).map(widest).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            let width = width[i];
            let _ = match right.contains(&i) {
                true => write!(line, "{cell:>width$}  "),
                false => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes() -> Vec<ProcessStat> {
        let conn = ConnStat {
            fd: Some(8),
            local: "127.0.0.1:6379".parse().ok(),
            peer: "127.0.0.1:40000".parse().ok(),
            tx: "ring 16K",
            rx: "tcp",
            reason: Some("peer is not under Shunt".into()),
            bytes_in: 1_500,
            bytes_out: 20,
            unread: Some(98),
            kicks: 1,
            bells: 2,
            hints: 0,
            spins_won: 4,
            spins_lost: 1,
            sleeps: 5,
        };
        let process = |pid, comm: &str, shared_with, connections| ProcessStat {
            pid,
            comm: comm.into(),
            container: None,
            shared_with,
            connections,
        };
        vec![process(7, "redis-server", None, vec![conn]), process(12345, "a\nb", Some(7), vec![])]
    }

    #[test]
    fn table_lines_up() {
        let table = as_table(&processes());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[1].starts_with(
                "    7  redis-server   8  127.0.0.1:6379  127.0.0.1:40000  ring 16K  tcp  1.5 KB"
            )
        );
        assert!(lines[1].ends_with("3   4/5      5  peer is not under Shunt"), "{table}");
        assert!(lines[2].starts_with("12345  a?b ") && lines[2].ends_with("shares the connections of 7"));
        assert_eq!(lines[0].find("REASON"), lines[1].find("peer is"));
        assert!(as_table(&[]).starts_with("No process"));
    }

    #[test]
    fn containers_have_a_column_where_there_are_any() {
        let mut processes = processes();
        assert!(!as_table(&processes).contains("CONTAINER"));
        processes[1].container = Some("0123456789ab".into());
        let table = as_table(&processes);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("  PID  COMMAND       CONTAINER     FD  LOCAL"), "{table}");
        assert!(lines[1].starts_with("    7  redis-server  -              8  127.0.0.1:6379"), "{table}");
        assert!(lines[2].starts_with("12345  a?b           0123456789ab   -  -"), "{table}");
        assert!(as_json(&processes, true).contains("\"container\": \"0123456789ab\""));
    }

    #[test]
    fn json_is_one_document() {
        for pretty in [true, false] {
            let text = as_json(&processes(), pretty);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["processes"][0]["connections"][0]["peer"], "127.0.0.1:40000");
            assert_eq!(value["processes"][1]["shared_with"], 7);
            assert_eq!(text.lines().count() == 1, !pretty);
        }
    }
}
