//! `shunt bench via`: VIPL beside raw memory, and beside sockets, after the measurements of "VIA
//! over the CLAN network": latency (table 1), bandwidth (figure 6), and one completion queue with
//! many Virtual Interfaces (figure 7); and sockets over it, as the SOVIA paper measures them, with
//! one optimisation after the other (figure 9).

use crate::error::{Error, Result};
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use serde_json::Value;
use std::ops::RangeInclusive;

/// The word for it, and its tables.
pub const GROUP: &str = "via";
pub const LATENCY: &str = "via-latency";
pub const BANDWIDTH: &str = "via-bandwidth";
pub const LOAD: &str = "via-load";
pub const STEPS: &str = "via-steps";

/// Bytes of a message. Sockets cannot send empty ones.
const SIZES: [(&str, usize); 10] = [
    ("0 B", 0),
    ("4 B", 4),
    ("40 B", 40),
    ("64 B", 64),
    ("256 B", 256),
    ("1 KB", 1024),
    ("4 KB", 4096),
    ("16 KB", 16384),
    ("64 KB", 65536),
    ("256 KB", 262_144),
];
/// The promises. Half a round trip of 4 bytes takes at most three times the raw one. 64 KB go at 85
/// % of the raw rate at least. 5 million messages of 64 bytes go in a second. Sockets add at most
/// half to the time, and keep 95 % of the rate.
const SMALL: Target = Target { of_raw: Some(1.0 / 3.0), kept_of_vipl: Some(1.0 / 1.5), ..Target::NONE };
const LARGE: Target = Target { of_raw: Some(0.85), kept_of_vipl: Some(0.95), ..Target::NONE };
const MANY: Target = Target { value: Some(5e6), ..Target::NONE };
/// Virtual Interfaces of one completion queue.
const VIS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// The promise: the last of them keeps this part of the rate of 4.
const FLAT: Target = Target { value: Some(0.95), ..Target::NONE };
const FEW: usize = 4;

pub fn measure(session: &mut Session) -> Result<()> {
    let built = match session.libexec.join("vipl").is_file() {
        true => Ok(()),
        false => Err(Error::Failed(
            "there is no vipl beside the other measuring programs: libvipl.so was not built (`make build`)"
                .into(),
        )),
    };
    if session.record(GROUP, built)?.is_none() {
        return Ok(());
    }
    for round in 0..session.rounds {
        progress(format_args!("via: round {} of {}", round + 1, session.rounds));
        latency(session, round)?;
        bandwidth(session, round)?;
        load(session, round)?;
        steps(session, round)?;
    }
    Ok(())
}

/// One side's turn.
fn run(session: &Session, side: Side, program: &str, words: &[&str], client: &[&str]) -> Result<Value> {
    let seconds = session.duration;
    pairs::run(
        session,
        program,
        Setting { side, ends: Ends::Both, cpus: session.cpus, seconds, options: &[] },
        words,
        client,
    )
}

/// Ways to send and to wait for a message, and the sizes for which they are measured: by the
/// processor and polled; by DMA; blocking; and blocking in a thread that handles messages and wakes
/// the program's, as SOVIA's first version did (section 3.1.2).
const WAYS: [(&str, &[&str], RangeInclusive<usize>); 4] = [
    ("", &[], 0..=usize::MAX),
    (", DMA", &["--pio", "0"], 4..=64),
    (", wait", &["--wait"], 4..=4),
    (", handler", &["--handler"], 4..=4),
];

/// Half a round trip.
fn latency(session: &mut Session, round: usize) -> Result<()> {
    let sides = session.sides(&[Side::Via, Side::Sovia, Side::Raw, Side::Shunt, Side::Unix, Side::Tcp]);
    for (size_name, size) in SIZES {
        let bytes = size.to_string();
        for (how, options, sizes) in WAYS {
            if !sizes.contains(&size) {
                continue;
            }
            let row = format!("{size_name}{how}");
            for side in Side::turns(&sides, round) {
                // The others know no DMA, sockets may always sleep, and raw memory never does.
                if side != Side::Via && !how.is_empty() || size == 0 && !matches!(side, Side::Via | Side::Raw)
                {
                    continue;
                }
                let mut words = vec!["--measure", "latency", "--size", &bytes];
                words.extend(options);
                let result = match side {
                    Side::Raw => {
                        pairs::raw(session, "latency", session.cpus, session.duration, &["--payload", &bytes])
                    }
                    Side::Via => run(session, side, "vipl", &words, &[]),
                    _ => run(session, side, "pingpong", &["--size", &bytes], &[]),
                };
                let what = format!("{LATENCY} {row} ({})", side.title());
                let Some(result) = session.record(&what, result)? else { continue };
                let place = Place { group: LATENCY, row: &row, side, round };
                for (name, key) in [("p50", "p50_ns"), ("p99", "p99_ns")] {
                    let promise = if row == "4 B" && name == "p50" { SMALL } else { Target::NONE };
                    session.results.add(&place, name, Unit::Time, promise, number(&result, key)? / 2.0);
                }
            }
        }
    }
    Ok(())
}

/// Other variants. The receiver reads the bytes, for which its processor must fetch them. It has
/// its buffers of the library, so that the sender maps them. The sender has its bytes in memory
/// that is not registered, and copies them from there, or registers it for each message (SOVIA,
/// section 3.1.3; SocketVIA keeps it registered, section 3.3.2).
const MEMORY: [(&str, &[&str]); 6] = [
    ("", &[]),
    (", read", &["--touch"]),
    (", allocated", &["--allocate"]),
    (", allocated, read", &["--allocate", "--touch"]),
    (", copied", &["--memory", "copy"]),
    (", registered", &["--memory", "register"]),
];

/// One way. Four buffers are posted, as in the paper, or as many as hold 64 KB where that is more:
/// small messages are all overhead.
fn bandwidth(session: &mut Session, round: usize) -> Result<()> {
    let sides = session.sides(&[Side::Via, Side::Sovia, Side::Raw, Side::Shunt, Side::Unix, Side::Tcp]);
    for (size_name, size) in SIZES.into_iter().filter(|(_, size)| *size > 0) {
        let buffers = (65536 / size).clamp(4, 256).to_string();
        let bytes = size.to_string();
        for (how, options) in MEMORY {
            let row = format!("{size_name}{how}");
            for side in Side::turns(&sides, round) {
                let mut words = vec!["--size", &bytes];
                match side {
                    Side::Via => {
                        words.extend(["--buffers", &buffers]);
                        words.extend(options);
                    }
                    // Both ends map its buffers in any case.
                    Side::Raw if !options.contains(&"--memory") => {
                        words.extend(["--buffers", &buffers]);
                        words.extend(options.iter().filter(|option| **option != "--allocate"));
                    }
                    _ if how.is_empty() => {}
                    // Sockets copy once more in any case, and register nothing.
                    _ => continue,
                }
                let result = match side {
                    Side::Raw => pairs::raw(session, "put", session.cpus, session.duration, &words),
                    Side::Via => {
                        words.extend(["--measure", "bandwidth"]);
                        run(session, side, "vipl", &words, &[])
                    }
                    _ => run(session, side, "stream", &words, &[]),
                };
                let what = format!("{BANDWIDTH} {row} ({})", side.title());
                let Some(result) = session.record(&what, result)? else { continue };
                let place = Place { group: BANDWIDTH, row: &row, side, round };
                let large = if size_name == "64 KB" { LARGE } else { Target::NONE };
                let small = if row == "64 B" { MANY } else { Target::NONE };
                let (results, rate) = (&mut session.results, |name| number(&result, name));
                results.add(&place, "bytes", Unit::BytesPerSecond, large, rate("bytes_per_second")?);
                results.add(&place, "messages", Unit::PerSecond, small, rate("messages_per_second")?);
            }
        }
    }
    Ok(())
}

/// Requests of 64 bytes over many connections, one under way on each, to a server that polls one
/// completion queue (or epoll set).
fn load(session: &mut Session, round: usize) -> Result<()> {
    let sides = session.sides(&[Side::Via, Side::Sovia, Side::Shunt, Side::Unix, Side::Tcp]);
    for (name, wait) in [("polled", false), ("blocking", true)] {
        let mut few = None;
        for vis in VIS {
            let (row, count) = (format!("{vis} VIs"), vis.to_string());
            for side in Side::turns(&sides, round) {
                // Sockets have one way to wait.
                let result = match side {
                    Side::Via => {
                        let mut words = vec!["--measure", "load", "--vis", &count];
                        words.extend(wait.then_some("--wait"));
                        run(session, side, "vipl", &words, &[])
                    }
                    _ if wait => {
                        run(session, side, "idle", &[], &["--connections", &count, "--active", &count])
                    }
                    _ => continue,
                };
                let what = format!("{LOAD} {row}, {name} ({})", side.title());
                let Some(result) = session.record(&what, result)? else { continue };
                let place = Place { group: LOAD, row: &row, side, round };
                let key = if side == Side::Via { "requests_per_second" } else { "per_second" };
                let rate = number(&result, key)?;
                session.results.add(&place, name, Unit::PerSecond, Target::NONE, rate);
                if side == Side::Via && vis == FEW {
                    few = Some(rate);
                } else if side == Side::Via
                    && Some(vis) == VIS.last().copied()
                    && let Some(few) = few
                {
                    let row = format!("{vis} VIs of {FEW}");
                    let place = Place { group: LOAD, row: &row, side, round };
                    session.results.add(&place, name, Unit::Share, FLAT, rate / few);
                }
            }
        }
    }
    Ok(())
}

/// SOVIA's optimisations, one added after the other; and the receiver's use of the bytes of a
/// stream: it reads them after recv(), or where they lie (SocketVIA, section 5.1, Zero-Copy
/// SocketVIA).
const MANNERS: [(&str, Manner, &[&str]); 7] = [
    ("w = 1", manner("1", "0", "off", "off"), &[]),
    ("w = 32", manner("32", "0", "off", "off"), &[]),
    ("+ delayed acks", manner("32", "16", "off", "off"), &[]),
    ("+ piggybacked", manner("32", "16", "on", "off"), &[]),
    ("+ combined", manner("32", "16", "on", "on"), &[]),
    ("read", manner("32", "16", "on", "on"), &["--touch"]),
    ("read in place", manner("32", "16", "on", "on"), &["--lend"]),
];

/// Options of Shunt, by their variables.
type Manner = [(&'static str, &'static str); 4];

const fn manner(
    window: &'static str,
    delayed: &'static str,
    piggyback: &'static str,
    combine: &'static str,
) -> Manner {
    [
        ("SHUNT_VIA_WINDOW", window),
        ("SHUNT_VIA_DELAYED", delayed),
        ("SHUNT_VIA_PIGGYBACK", piggyback),
        ("SHUNT_VIA_COMBINE", combine),
    ]
}

/// Half a round trip of 4 bytes, and messages of three sizes one way, with TCP_NODELAY off.
fn steps(session: &mut Session, round: usize) -> Result<()> {
    if session.sides(&[Side::Sovia]).is_empty() {
        return Ok(());
    }
    for (row, options, receiver) in &MANNERS {
        let seconds = session.duration;
        let setting = Setting { side: Side::Sovia, ends: Ends::Both, cpus: session.cpus, seconds, options };
        let place = Place { group: STEPS, row, side: Side::Sovia, round };
        if receiver.is_empty() {
            let result = pairs::run(session, "pingpong", setting, &["--size", "4"], &[]);
            if let Some(result) = session.record(&format!("{STEPS} {row}, 4 B"), result)? {
                let half = number(&result, "p50_ns")? / 2.0;
                session.results.add(&place, "4 B", Unit::Time, Target::NONE, half);
            }
        }
        for (name, size) in [("64 B", "64"), ("2 KB", "2048"), ("64 KB", "65536")] {
            let words = [&["--size", size], *receiver].concat();
            let result = pairs::run(session, "stream", setting, &words, &[]);
            if let Some(result) = session.record(&format!("{STEPS} {row}, {name}"), result)? {
                let rate = number(&result, "bytes_per_second")?;
                session.results.add(&place, name, Unit::BytesPerSecond, Target::NONE, rate);
            }
        }
    }
    Ok(())
}
