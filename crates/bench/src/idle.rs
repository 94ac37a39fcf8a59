//! `shunt bench idle`: one epoll server with many connections, of which only a few are active. Does
//! the crowd slow them down, and how much memory does each idle connection need?

use crate::error::{Error, Result, failed};
use crate::pairs::{self, Ends, Pair, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::usage;
use serde_json::Value;
use std::time::Duration;

const ACTIVE: usize = 50;
/// Beside connections a process has a few more descriptors.
const SPARE_DESCRIPTORS: usize = 200;
/// Two ends of an idle connection may hold this much.
const MOST_RESIDENT: f64 = 64.0 * 1024.0;
/// The active connections must keep this part of the rate they have alone.
const LEAST_KEPT: f64 = 0.9;

pub fn measure(session: &mut Session, wanted: usize) -> Result<()> {
    let room = descriptor_limit().saturating_sub(SPARE_DESCRIPTORS);
    let connections = wanted.min(room);
    if connections < wanted {
        progress(format_args!(
            "idle: only {connections} connections: no process may have more descriptors (ulimit -Hn)"
        ));
    }
    let row = format!("{connections} connections, {ACTIVE} active");
    let sides = session.sides(&[Side::Tcp, Side::Shunt, Side::Unix]);
    for round in 0..session.rounds.min(3) {
        progress(format_args!("idle: round {} of {}", round + 1, session.rounds.min(3)));
        for side in Side::turns(&sides, round) {
            let outcome = one(session, side, connections);
            let Some(found) = session.record(&format!("idle {}", side.title()), outcome)? else { continue };
            let place = Place { group: "idle", row: &row, side, round };
            let results = &mut session.results;
            results.add(&place, "alone", Unit::PerSecond, Target::NONE, found.alone);
            results.add(&place, "in the crowd", Unit::PerSecond, Target::NONE, found.crowd);
            results.add(&place, "kept", Unit::Share, Target::value(LEAST_KEPT), found.crowd / found.alone);
            let resident = Target::value(MOST_RESIDENT);
            results.add(&place, "PSS per idle connection", Unit::Bytes, resident, found.pss);
            results.add(&place, "RSS per idle connection", Unit::Bytes, Target::NONE, found.rss);
            results.add(
                &place,
                "all shared memory per idle connection",
                Unit::Bytes,
                Target::NONE,
                found.shmem,
            );
            if let Some(stat) = found.stat {
                results.notes.insert("shunt_stat_idle".into(), stat);
            }
        }
    }
    Ok(())
}

struct Found {
    alone: f64,
    crowd: f64,
    /// Bytes for each idle connection, both ends together.
    pss: f64,
    rss: f64,
    shmem: f64,
    /// Paths as `shunt stat` shows them.
    stat: Option<Value>,
}

fn one(session: &Session, side: Side, connections: usize) -> Result<Found> {
    // Long, as the rates of a program with many connections vary from second to second.
    let setting =
        Setting { side, ends: Ends::Both, cpus: session.cpus, seconds: session.duration * 3.0, options: &[] };
    let count = connections.to_string();
    let active = ACTIVE.to_string();
    let client = ["--connections", &count, "--active", &active, "--step"];
    let mut pair = pairs::start(session, "idle", setting, &[], &client)?;
    // Opening and touching a connection takes some milliseconds on a busy machine.
    let patience = pairs::patience(setting.seconds) + Duration::from_millis(10 * connections as u64);
    let alone = phase(&mut pair, patience)?;
    let before = residents(&pair)?;
    pair.client.say("")?;
    let crowd = phase(&mut pair, patience)?;
    let after = residents(&pair)?;
    let stat = if side == Side::Shunt { paths(&[pair.server.pid(), pair.client.pid()]) } else { None };
    pair.client.say("")?;
    pair.client.finish(Duration::from_secs(60))?;
    let idle = (connections - ACTIVE) as f64;
    let [pss, rss, shmem] = [0, 1, 2].map(|i| (after[i] - before[i]) / idle);
    Ok(Found {
        alone: number(&alone, "per_second")?,
        crowd: number(&crowd, "per_second")?,
        pss,
        rss,
        shmem,
        stat,
    })
}

fn phase(pair: &mut Pair, patience: Duration) -> Result<Value> {
    let line = pair.client.line(patience)?;
    pairs::parse(&line)
}

/// PSS, RSS of both, and the machine's shared memory.
fn residents(pair: &Pair) -> Result<[f64; 3]> {
    let (server, client) = (usage::memory(pair.server.pid())?, usage::memory(pair.client.pid())?);
    Ok([server.pss + client.pss, server.rss + client.rss, usage::machine_shmem()].map(|bytes| bytes as f64))
}

/// How many connections `shunt stat --json` shows on each path, and for which reasons, of these
/// processes. `None` where this executable is not the command, or prints nothing.
fn paths(pids: &[i32]) -> Option<Value> {
    let exe = std::env::current_exe().ok().filter(|e| e.file_name().is_some_and(|n| n == "shunt"))?;
    let output =
        crate::process::Launch::new(exe).args(["stat", "--json"]).run(Duration::from_secs(30)).ok()?;
    let stat: Value = serde_json::from_str(&output.lines.join("\n")).ok()?;
    Some(count_words(&stat, pids))
}

/// Counts the values of all members called tx, rx or reason of the processes' entries, wherever
/// they are: the layout of `shunt stat` may grow without this count going wrong.
fn count_words(stat: &Value, pids: &[i32]) -> Value {
    let mut counts = serde_json::Map::new();
    walk(stat, pids, false, &mut counts);
    Value::Object(counts)
}

fn walk(value: &Value, pids: &[i32], mut ours: bool, counts: &mut serde_json::Map<String, Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, pids, ours, counts)),
        Value::Object(members) => {
            if let Some(pid) = members.get("pid").and_then(Value::as_i64) {
                ours = pids.contains(&(pid as i32));
            }
            for (name, member) in members {
                let word =
                    member.as_str().filter(|_| ours && ["tx", "rx", "reason"].contains(&name.as_str()));
                if let Some(word) = word {
                    let key = format!("{name}: {word}");
                    let count = counts.get(&key).and_then(Value::as_u64).unwrap_or(0);
                    counts.insert(key, (count + 1).into());
                }
                walk(member, pids, ours, counts);
            }
        }
        _ => {}
    }
}

/// How many descriptors a process may have: the hard limit, which the measuring program raises
/// itself to.
fn descriptor_limit() -> usize {
    // SAFETY: getrlimit writes to the local only.
    let (result, limit) = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        (libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), limit)
    };
    if result < 0 { 1024 } else { usize::try_from(limit.rlim_max).unwrap_or(usize::MAX) }
}

/// Processor time that idle accelerated programs use, in percent of one processor: with open
/// connections and no byte.
pub fn idle_cpu(session: &Session, side: Side, seconds: f64) -> Result<f64> {
    let setting = Setting { side, ends: Ends::Both, cpus: session.cpus, seconds: 0.2, options: &[] };
    let client = ["--connections", "50", "--active", "50", "--step"];
    let mut pair = pairs::start(session, "idle", setting, &[], &client)?;
    phase(&mut pair, Duration::from_secs(30))?;
    // The moment after traffic may still spin; the program is idle after that.
    std::thread::sleep(Duration::from_millis(300));
    let used =
        |pair: &Pair| Ok::<u64, Error>(usage::cpu_ns(pair.server.pid())? + usage::cpu_ns(pair.client.pid())?);
    let before = used(&pair)?;
    std::thread::sleep(Duration::from_secs_f64(seconds));
    crate::signals::check()?;
    let after = used(&pair).map_err(failed("an idle program ended"))?;
    Ok((after - before) as f64 / (seconds * 1e9) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_of_our_processes_are_counted() {
        let stat = json!({"processes": [
            {"pid": 1, "comm": "idle", "connections": [
                {"fd": 4, "tx": "ring 16K", "rx": "tcp", "reason": "splice or tee"},
                {"fd": 5, "tx": "ring 16K", "rx": "ring 16K", "bytes_in": 3},
            ]},
            {"pid": 2, "connections": [{"tx": "tcp", "rx": "tcp"}]},
        ]});
        let counts = json!({"tx: ring 16K": 2, "rx: tcp": 1, "rx: ring 16K": 1, "reason: splice or tee": 1});
        assert_eq!(count_words(&stat, &[1]), counts);
    }
}
