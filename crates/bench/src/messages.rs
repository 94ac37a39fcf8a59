//! `shunt bench latency` and `throughput`: messages to and fro, and one way.

use crate::error::Result;
use crate::host::Cpus;
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

/// The same between programs that never spin (`--profile safe`), each of whose ends sleeps each
/// time, on two processors and on one.
pub fn asleep(session: &mut Session) -> Result<()> {
    let forms: [(&str, &[&str], bool); 4] = [
        ("64 B blocking", &["--size", "64"], false),
        ("64 B poll", &["--size", "64", "--poll"], false),
        ("64 B blocking, one CPU", &["--size", "64"], true),
        ("64 B poll, one CPU", &["--size", "64", "--poll"], true),
    ];
    let limits = [Side::Futex, Side::Eventfd];
    let sides = session.sides_and_beside(&[Side::Tcp, Side::Shunt, Side::Unix, limits[0], limits[1]]);
    let caption = "Programs that never spin (--profile safe). The limit for them: memory that a futex or an eventfd wakes its reader for.";
    session.results.captions.push(("asleep".into(), caption.into()));
    for round in 0..session.rounds {
        progress(format_args!("asleep: round {} of {}", round + 1, session.rounds));
        for (row, args, one) in forms {
            let server = if one { session.cpus.client } else { session.cpus.server };
            let cpus = Cpus { server, ..session.cpus };
            let target = Target::over_tcp(if one { 2.22 } else { 1.54 });
            for side in Side::turns(&sides, round) {
                let result = if limits.contains(&side) {
                    pairs::raw(session, "latency", cpus, session.duration, &["--asleep", side.key()])
                } else {
                    let options = &[("SHUNT_PROFILE", "safe")];
                    let setting = Setting { cpus, options, ..setting(session, side) };
                    pairs::run(session, "pingpong", setting, args, &[])
                };
                let Some(result) = session.record(&format!("asleep {row} {}", side.title()), result)? else {
                    continue;
                };
                let place = Place { group: "asleep", row, side, round };
                for (name, key) in [("p50", "p50_ns"), ("p99", "p99_ns")] {
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
