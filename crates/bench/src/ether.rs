//! `shunt bench ether`: TCP over Shunt's two Ethernets beside TCP over others, after section 4.1 of
//! "Low-latency Linux drivers for Ethernet over high-speed networks": latency and throughput
//! against message size, as NPtcp measures them (figures 10 and 11), and the use of the processors
//! meanwhile (figures 12 and 13). Also, as the SOVIA paper did with its LAN emulation, TCP over
//! ETHOM beside Shunt's sockets.

use crate::error::{Error, Result};
use crate::lan::Lan;
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use crate::{apps, ftp, rpc, usage};
use serde_json::Value;
use std::time::Instant;

/// The word for it, and its tables.
pub const GROUP: &str = "ether";
pub const CURVES: [(&str, u32); 3] = [("ether-1450", 1450), ("ether-8950", 8950), ("ether-65000", 65000)];
pub const SOCKETS: &str = "ether-sockets";

pub const NEEDS_ROOT: &str = "network namespaces and TAP devices need root";

/// Half a round trip; size over that, as NPtcp has it; messages one way.
pub const HALF: &str = "half round trip";
pub const NETPIPE: &str = "bandwidth";
pub const ONE_WAY: &str = "one way";
/// Busy time of a processor, and switches between threads in a second, of the whole machine while
/// messages go to and fro.
pub const BUSY: &str = "cpu";
pub const SWITCHES: &str = "switches";

const SIDES: [Side; 8] =
    [Side::Ethom, Side::Ethos, Side::Veth, Side::Vxlan, Side::Tinc, Side::Fastd, Side::Vde, Side::Socat];
/// Bytes of a message, and whether one-way messages of this size are measured, too.
const SIZES: [(&str, usize, bool); 9] = [
    ("1 B", 1, false),
    ("64 B", 64, true),
    ("256 B", 256, false),
    ("1 KB", 1024, true),
    ("4 KB", 4096, false),
    ("16 KB", 16384, true),
    ("64 KB", 65536, true),
    ("256 KB", 262_144, false),
    ("1 MB", 1_048_576, false),
];
/// The largest message that counts as small or medium.
const MEDIUM: usize = 16384;
/// The paper's claims, and the promise to be ahead of all others in user space.
const LATENCY: Target = ahead(&[
    (Side::Ethos, 1.0 / 0.7),
    (Side::Tinc, 1.0),
    (Side::Fastd, 1.0),
    (Side::Vde, 1.0),
    (Side::Socat, 1.0),
]);
const BANDWIDTH: Target =
    ahead(&[(Side::Ethos, 1.5), (Side::Tinc, 1.0), (Side::Fastd, 1.0), (Side::Vde, 1.0), (Side::Socat, 1.0)]);
const LARGE: Target = ahead(&[(Side::Tinc, 1.0), (Side::Fastd, 1.0), (Side::Vde, 1.0), (Side::Socat, 1.0)]);

const fn ahead(over: &'static [(Side, f64)]) -> Target {
    Target { over, ..Target::NONE }
}

/// The largest MTU of a side, if it has one: two were built for Ethernet's own 1,500 bytes (tinc
/// without its `--enable-jumbograms`, as Debian has it).
fn carries(side: Side, mtu: u32) -> bool {
    !matches!(side, Side::Tinc | Side::Vde) || mtu <= 1500
}

pub fn measure(session: &mut Session) -> Result<()> {
    let allowed = match apps::is_root() {
        true => Ok(()),
        false => Err(Error::Failed(NEEDS_ROOT.into())),
    };
    if session.record(GROUP, allowed)?.is_none() {
        return Ok(());
    }
    for round in 0..session.rounds {
        for (group, mtu) in CURVES {
            progress(format_args!("{group}: round {} of {}", round + 1, session.rounds));
            let sides: Vec<Side> = SIDES.into_iter().filter(|side| carries(*side, mtu)).collect();
            let joined = join(session, group, mtu, &sides)?;
            let outcome = curves(session, group, &joined, round);
            session.lan = None;
            outcome?;
        }
        progress(format_args!("{SOCKETS}: round {} of {}", round + 1, session.rounds));
        let joined = join(session, SOCKETS, 65000, &[Side::Ethom])?;
        let outcome = sockets(session, &joined, round);
        session.lan = None;
        outcome?;
    }
    Ok(())
}

/// Two hosts, joined by all of these sides that work here.
fn join(session: &mut Session, group: &str, mtu: u32, sides: &[Side]) -> Result<Vec<Side>> {
    let made = Lan::new(mtu);
    let Some(mut lan) = session.record(group, made)? else { return Ok(Vec::new()) };
    let mut joined = Vec::new();
    for side in sides {
        let outcome = lan.join(session.temp.path(), *side);
        if session.record(&format!("{group} {}", side.title()), outcome)?.is_some() {
            joined.push(*side);
        }
    }
    session.lan = Some(lan);
    Ok(joined)
}

fn curves(session: &mut Session, group: &str, sides: &[Side], round: usize) -> Result<()> {
    for (row, size, one_way) in SIZES {
        let (latency, bandwidth) = match size <= MEDIUM {
            true => (LATENCY, BANDWIDTH),
            false => (LARGE, LARGE),
        };
        let words = ["--size", &size.to_string()];
        for side in Side::turns(sides, round) {
            let place = Place { group, row, side, round };
            let before = (Instant::now(), usage::machine());
            let result = run(session, "pingpong", side, &words, &[]);
            let (seconds, after) = (before.0.elapsed().as_secs_f64(), usage::machine());
            let what = format!("{group} {row} ({})", side.title());
            let Some(result) = session.record(&what, result)? else { continue };
            let half = number(&result, "p50_ns")? / 2.0;
            let busy = (after.busy_ns - before.1.busy_ns) as f64 / (seconds * 1e9) * 100.0;
            let switches = (after.switches - before.1.switches) as f64 / seconds;
            let results = &mut session.results;
            results.add(&place, HALF, Unit::Time, latency, half);
            results.add(&place, NETPIPE, Unit::BytesPerSecond, bandwidth, size as f64 / half * 1e9);
            results.add(&place, BUSY, Unit::CpuPercent, Target::NONE, busy);
            results.add(&place, SWITCHES, Unit::Events, Target::NONE, switches);
        }
        for side in Side::turns(sides, round).into_iter().filter(|_| one_way) {
            let place = Place { group, row, side, round };
            let result = run(session, "stream", side, &words, &[]);
            let what = format!("{group} {row}, {ONE_WAY} ({})", side.title());
            let Some(result) = session.record(&what, result)? else { continue };
            let rate = number(&result, "bytes_per_second")?;
            session.results.add(&place, ONE_WAY, Unit::BytesPerSecond, LARGE, rate);
        }
    }
    Ok(())
}

/// TCP over ETHOM beside Shunt's sockets, and kernel TCP by loopback: messages, remote procedures,
/// files.
fn sockets(session: &mut Session, joined: &[Side], round: usize) -> Result<()> {
    let mut sides = session.sides(&[Side::Shunt, Side::Tcp]);
    sides.extend(joined);
    for (name, size) in
        [("4 B", "4"), ("64 B", "64"), ("1 KB", "1024"), ("16 KB", "16384"), ("64 KB", "65536")]
    {
        let row = format!("ping-pong {name}");
        for side in Side::turns(&sides, round) {
            let result = run(session, "pingpong", side, &["--size", size], &[]);
            let what = format!("{SOCKETS} {row} ({})", side.title());
            let Some(result) = session.record(&what, result)? else { continue };
            let place = Place { group: SOCKETS, row: &row, side, round };
            let half = number(&result, "p50_ns")? / 2.0;
            session.results.add(&place, HALF, Unit::Time, Target::NONE, half);
        }
    }
    rpc::round(session, SOCKETS, &sides, &[("null", "0"), ("1 KB", "1024"), ("4 KB", "4096")], round)?;
    ftp::beside(session, SOCKETS, &sides, round)
}

/// One side's turn.
fn run(session: &Session, program: &str, side: Side, both: &[&str], client: &[&str]) -> Result<Value> {
    let (cpus, seconds) = (session.cpus, session.duration);
    let setting = Setting { side, ends: Ends::Both, cpus, seconds, options: &[] };
    pairs::run(session, program, setting, both, client)
}
