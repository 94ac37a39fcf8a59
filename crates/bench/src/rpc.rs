//! `shunt bench rpc`: calls of an empty remote procedure whose argument is a string, after figure
//! 10 of the SOVIA paper. rpcgen makes server and client from a few lines, with the installed
//! libtirpc.

use crate::error::{Error, Result};
use crate::pairs::{self, Ends, Setting, number};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};

pub const GROUP: &str = "rpc";

/// The argument: none at all, or a string of so many characters.
const ARGUMENTS: [(&str, &str); 8] = [
    ("null", "0"),
    ("64 B", "64"),
    ("256 B", "256"),
    ("512 B", "512"),
    ("1 KB", "1024"),
    ("2 KB", "2048"),
    ("3 KB", "3072"),
    ("4 KB", "4096"),
];
/// The promise: a call without an argument takes at most a quarter of the time.
const PROMISE: Target = Target { over_tcp: Some(4.0), ..Target::NONE };

pub fn measure(session: &mut Session) -> Result<()> {
    let built = match session.libexec.join("rpc").is_file() {
        true => Ok(()),
        false => Err(Error::Failed(
            "rpcgen or libtirpc is not installed (apt-get install rpcsvc-proto libtirpc-dev, then `make programs`)"
                .into(),
        )),
    };
    if session.record(GROUP, built)?.is_none() {
        return Ok(());
    }
    let sides = session.sides(&[Side::Tcp, Side::Shunt, Side::Unix]);
    for round in 0..session.rounds {
        progress(format_args!("rpc: round {} of {}", round + 1, session.rounds));
        self::round(session, GROUP, &sides, &ARGUMENTS, round)?;
    }
    Ok(())
}

/// One call after the other, of each kind, by each side.
pub fn round(
    session: &mut Session,
    group: &str,
    sides: &[Side],
    arguments: &[(&str, &str)],
    round: usize,
) -> Result<()> {
    for (argument, size) in arguments {
        let row = if group == GROUP { argument.to_string() } else { format!("rpc {argument}") };
        for side in Side::turns(sides, round) {
            let seconds = session.duration;
            let setting = Setting { side, ends: Ends::Both, cpus: session.cpus, seconds, options: &[] };
            let result = pairs::run(session, "rpc", setting, &[], &["--size", size]);
            let what = format!("{group} {row} ({})", side.title());
            let Some(result) = session.record(&what, result)? else { continue };
            let place = Place { group, row: &row, side, round };
            let promise = if row == "null" { PROMISE } else { Target::NONE };
            session.results.add(&place, "p50", Unit::Time, promise, number(&result, "p50_ns")?);
            session.results.add(&place, "mean", Unit::Time, Target::NONE, number(&result, "mean_ns")?);
            session.results.add(&place, "p99", Unit::Time, Target::NONE, number(&result, "p99_ns")?);
        }
    }
    Ok(())
}
