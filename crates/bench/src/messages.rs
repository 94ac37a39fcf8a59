//! `shunt bench latency` and `throughput`: messages to and fro, and one way.

use crate::error::Result;
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};

/// Round trips of 64 bytes.
pub fn latency(session: &mut Session) -> Result<()> {
    let forms: [(&str, &[&str], Target); 2] = [
        ("64 B blocking", &["--size", "64"], Target::over_tcp(50.0).and_of_raw(1.0 / 3.0)),
        ("64 B epoll", &["--size", "64", "--epoll"], Target::over_tcp(30.0)),
    ];
    let sides = session.sides_and_beside(&[Side::Tcp, Side::Shunt, Side::Unix, Side::Raw]);
    for round in 0..session.rounds {
        progress(format_args!("latency: round {} of {}", round + 1, session.rounds));
        for (row, args, target) in forms {
            for side in Side::turns(&sides, round) {
                let result = match side {
                    Side::Raw => pairs::raw(session, "latency", session.cpus, session.duration, &[]),
                    _ => pairs::run(session, "pingpong", setting(session, side), args, &[]),
                };
                let Some(result) = session.record(&format!("latency {row} {}", side.title()), result)? else {
                    continue;
                };
                let place = Place { group: "latency", row, side, round };
                for (name, key) in [("p50", "p50_ns"), ("p99", "p99_ns"), ("mean", "mean_ns")] {
                    let target = if name == "p50" { target } else { Target::NONE };
                    session.results.add(&place, name, Unit::Time, target, number(&result, key)?);
                }
            }
        }
    }
    Ok(())
}

/// Messages one way.
pub fn throughput(session: &mut Session) -> Result<()> {
    let large = Target::over_tcp(2.5).and_of_raw(0.8);
    let sizes = [
        ("64 B", "64", Target::over_tcp(20.0)),
        ("4 KB", "4096", Target::NONE),
        ("64 KB", "65536", large),
        ("1 MB", "1048576", large),
    ];
    let sides = session.sides_and_beside(&[Side::Tcp, Side::Shunt, Side::Unix, Side::Raw]);
    for round in 0..session.rounds {
        progress(format_args!("throughput: round {} of {}", round + 1, session.rounds));
        for (row, size, target) in sizes {
            for side in Side::turns(&sides, round) {
                let args = ["--size", size];
                let result = match side {
                    Side::Raw => pairs::raw(session, "bandwidth", session.cpus, session.duration, &args),
                    _ => pairs::run(session, "stream", setting(session, side), &args, &[]),
                };
                let Some(result) = session.record(&format!("throughput {row} {}", side.title()), result)?
                else {
                    continue;
                };
                let place = Place { group: "throughput", row, side, round };
                let results = &mut session.results;
                let messages = number(&result, "messages_per_second")?;
                results.add(&place, "messages", Unit::PerSecond, target, messages);
                let bytes = number(&result, "bytes_per_second")?;
                results.add(&place, "bytes", Unit::BytesPerSecond, Target::NONE, bytes);
            }
        }
    }
    Ok(())
}

fn setting(session: &Session, side: Side) -> Setting {
    Setting { side, ends: Ends::Both, cpus: session.cpus, seconds: session.duration, options: &[] }
}
