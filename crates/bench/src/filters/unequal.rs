//! Round-robin against demand-driven where one consumer is slower, really run: one producer and two
//! consumers, each in a process of its own, beside the simulation of the same set-up.
//!
//! A consumer *sleeps* through a piece of work, and a slow one sleeps f times as long. Consumers
//! that compute would need a processor each, and beside a producer the machine's two would be
//! shared among three. A sleep takes its time on a busy machine, too. Each sleep ends at a point in
//! time (a piece's beginning and its length), so late wake-ups do not add up.

use super::measured;
use super::running::{self, Running, Start};
use crate::error::{Error, Result};
use crate::figure::{Figure, How, Hue, Mark, Panel, Row, Scale, Series};
use crate::results::{Place, Side, Target, Unit};
use crate::session::{Session, progress};
use filters::flow::Policy;
use filters::sim::{self, Cost, Pace, Profile, Setup};
use filters::{Layout, Placement, StreamOptions};
use std::collections::BTreeMap;
use std::time::Duration;

pub const GROUP: &str = "filters-heterogeneity";
/// How many times as long one of the consumers takes.
const FACTORS: [u64; 4] = [1, 2, 4, 8];
const POLICIES: [(Side, Policy); 2] =
    [(Side::RoundRobin, Policy::RoundRobin), (Side::OnDemand, Policy::DemandDriven)];
const CONSUMERS: usize = 2;
/// Few, so that the beginning, when the slow one still has room, is soon over.
const CREDITS: usize = 4;
/// Nanoseconds that a piece takes the fast one.
const PIECE: u64 = 1_000_000;
const IDLE: &str = "idle, fast one, each piece";
const ALL: &str = "all pieces";
/// The allowed distance between measurement and simulation: this part of the value, or of a piece
/// where next to nothing is expected.
const TOLERANCE: f64 = 0.1;
/// The allowed distance of both policies at equal speeds.
const TIE: f64 = 0.05;
/// The column of measurements.
const MEASURED: &[usize] = &[2];

/// How long the fast consumer waits for a piece, and how long all pieces take, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Times {
    idle: f64,
    all: f64,
}

/// Runs both policies with all factors, in turns.
pub fn measure(session: &mut Session) -> Result<()> {
    let sides = POLICIES.each_ref().map(|(side, _)| *side);
    for round in 0..session.rounds {
        progress(format_args!("filters: unequal consumers, round {} of {}", round + 1, session.rounds));
        for factor in FACTORS {
            for side in Side::turns(&sides, round) {
                let outcome = run(session, side, factor);
                let row = row(factor);
                let what = format!("{GROUP} {row} ({})", side.title());
                if let Some(times) = session.record(&what, outcome)? {
                    let place = Place { group: GROUP, row: &row, side, round };
                    session.results.add(&place, IDLE, Unit::Time, Target::NONE, times.idle);
                    session.results.add(&place, ALL, Unit::Time, Target::NONE, times.all);
                }
            }
        }
    }
    Ok(())
}

fn row(factor: u64) -> String {
    if factor == 1 { "equal speeds".into() } else { format!("one {factor} times slower") }
}

/// So many that with round-robin and the slowest consumer they take four times as long as a
/// measurement.
fn pieces(session: &Session) -> u64 {
    (session.duration * 1e9 / PIECE as f64 / 4.0).clamp(60.0, 1000.0) as u64
}

fn layout(side: Side) -> Layout {
    let policy = POLICIES.iter().find(|(known, _)| *known == side).map(|(_, policy)| policy.clone());
    let policy = policy.unwrap_or(Policy::DemandDriven);
    let options = StreamOptions { policy, credits: CREDITS, buffer_size: 8, ..StreamOptions::default() };
    running::chain(&["dealer", "worker"], &options)
}

fn run(session: &Session, side: Side, factor: u64) -> Result<Times> {
    let start = Start { library: session.library.clone(), side, window: 1 };
    let group = Running::start(start, &layout(side), &[1, CONSUMERS])?;
    let pieces = pieces(session);
    let takes = Duration::from_nanos(pieces * PIECE * factor);
    let parts = group.run(running::bytes(&[pieces, PIECE, factor * 1000]), takes)?;
    let [began, ended] = ["dealer", "worker"].map(|filter| running::told(&parts, filter));
    let done: u64 = ended.iter().filter_map(|told| told.get(2)).sum();
    let fast = ended.iter().map(Vec::as_slice).find(|told| told.first() == Some(&1));
    match (began.first().map(Vec::as_slice), ended.iter().filter_map(|told| told.get(1)).max(), fast) {
        (Some(&[began]), Some(&ended), Some(&[_, _, _, idle])) if done == pieces => {
            Ok(Times { idle: idle as f64, all: (ended - began) as f64 })
        }
        _ => Err(Error::Failed(format!("{pieces} pieces were dealt out, but {done} done"))),
    }
}

/// The same in virtual time, with the consumers on nodes of their own. Their transport matters
/// little: it takes a thousandth of a piece.
fn simulate(transport: &Profile, pieces: u64, side: Side, factor: u64) -> Times {
    let layout = layout(side);
    let hosts: Vec<String> = (0..=CONSUMERS).map(|node| format!("node{node}")).collect();
    let mut placement = Placement::default();
    for (filter, hosts) in [("dealer", &hosts[..1]), ("worker", &hosts[1..])] {
        let place = filters::Place { copies: hosts.len(), hosts: hosts.to_vec(), processes: true };
        placement.0.insert(filter.into(), place);
    }
    let plan = filters::layout::Plan::new(&layout, &placement, &hosts).expect("the hosts are there");
    let outcome = sim::run(&Setup {
        plan,
        transport: transport.clone(),
        costs: vec![Cost::default(), Cost { per_byte: 0, fixed: PIECE }],
        slowness: BTreeMap::from([(hosts[1].clone(), factor * 1000)]),
        units: vec![sim::Unit { blocks: vec![8; pieces as usize], first: 0 }],
        pace: Pace::BackToBack,
    });
    let unit = outcome.units[0];
    Times { idle: outcome.copies[1][1].idle() as f64, all: (unit.answered - unit.began) as f64 }
}

fn measured(session: &Session, side: Side, factor: u64) -> Option<Times> {
    let metrics = session.results.group(GROUP);
    let of = |name: &str| {
        let metric = metrics.iter().find(|metric| metric.row == row(factor) && metric.name == name)?;
        Some(metric.summary(side)?.median)
    };
    Some(Times { idle: of(IDLE)?, all: of(ALL)? })
}

/// The simulated and the measured values, and whether they agree.
pub fn figure(session: &Session) -> Figure {
    let curve = measured::SIDES.iter().rev().find_map(|side| measured::profile(session, *side));
    let transport = curve.unwrap_or_else(|| Profile::linear("a microsecond", 1000, 1000, 8_000_000_000));
    let pieces = pieces(session);
    compare(pieces, |side, factor| {
        (simulate(&transport, pieces, side, factor), measured(session, side, factor))
    })
}

fn compare(pieces: u64, both: impl Fn(Side, u64) -> (Times, Option<Times>)) -> Figure {
    let piece = PIECE as f64;
    let [robin, demand] = POLICIES.each_ref().map(|(side, _)| *side);
    let mut rows = Vec::new();
    for factor in FACTORS {
        let name = row(factor);
        for side in [robin, demand] {
            let (simulated, ran) = both(side, factor);
            let near = |value: f64| (value * (1.0 - TOLERANCE), value * (1.0 + TOLERANCE));
            // Where the fast one is not expected to wait, a tenth of the wait is nothing.
            let little = simulated.idle < TOLERANCE * piece;
            let idle = if little { (0.0, simulated.idle + TOLERANCE * piece) } else { near(simulated.idle) };
            for (what, simulated, ran, (low, high)) in [
                ("idle", simulated.idle, ran.map(|ran| ran.idle), idle),
                (ALL, simulated.all, ran.map(|ran| ran.all), near(simulated.all)),
            ] {
                let name = format!("{name}, {}: {what}", side.title());
                let row = Row::new(name, "", Unit::Time, [None, Some(simulated), ran]);
                rows.push(row.expect(low, high, MEASURED));
            }
        }
        let of_both = |value: fn(Times, Times) -> f64| {
            let ((robin, ran_robin), (demand, ran_demand)) = (both(robin, factor), both(demand, factor));
            [None, Some(value(robin, demand)), ran_robin.zip(ran_demand).map(|(r, d)| value(r, d))]
        };
        if factor == 1 {
            let values = of_both(|robin, demand| robin.all / demand.all);
            let row = Row::new(format!("{name}: round-robin over on demand"), "", Unit::Share, values);
            rows.push(row.expect(1.0 - TIE, 1.0 + TIE, MEASURED));
        } else {
            let values = of_both(|robin, demand| 100.0 * (1.0 - demand.idle / robin.idle));
            let (predicted, points) = (values[1].unwrap_or(0.0), TOLERANCE * 100.0);
            let row = Row::new(format!("{name}: idle time that on demand saves"), "", Unit::Percent, values);
            rows.push(row.expect(predicted - points, predicted + points, MEASURED));
        }
    }
    let panel = |title: &str, label, value: fn(Times) -> f64| {
        let mut series = Vec::new();
        for how in [How::Simulated, How::Measured] {
            for (side, hue, mark) in [(robin, Hue::Tcp, Mark::Circle), (demand, Hue::Fast, Mark::Triangle)] {
                let point = |&factor: &u64| {
                    let (simulated, ran) = both(side, factor);
                    let times = if how == How::Simulated { Some(simulated) } else { ran };
                    Some((factor as f64, value(times?)))
                };
                let points: Vec<_> = FACTORS.iter().filter_map(point).collect();
                if !points.is_empty() {
                    series.push(Series { name: side.title().into(), hue, mark, how, points });
                }
            }
        }
        Panel {
            title: title.into(),
            x: Scale { label: "how many times slower one is", unit: Unit::Share, log: false },
            y: Scale { label, unit: Unit::Time, log: false },
            series,
            claims: Vec::new(),
        }
    };
    Figure {
        number: "heterogeneity",
        title: "One consumer of two is slower: round-robin and on demand, simulated and really run".into(),
        notes: vec![
            format!(
                "{pieces} pieces of {}, {CREDITS} credits, three processes. A piece is slept through, f times as long by the slow one.",
                Unit::Time.show(piece)
            ),
            "Idle: what the fast one waits for each piece, over the second half of its pieces.".into(),
        ],
        rows,
        panels: vec![
            panel("the fast one waits", "idle time for each piece", |times| times.idle),
            panel("until all is done", "time", |times| times.all),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transport() -> Profile {
        Profile::linear("a microsecond", 1000, 1000, 8_000_000_000)
    }

    #[test]
    fn the_simulation_says_what_follows() {
        let piece = PIECE as f64;
        for factor in FACTORS {
            let robin = simulate(&transport(), 400, Side::RoundRobin, factor);
            let demand = simulate(&transport(), 400, Side::OnDemand, factor);
            let slow = (factor - 1) as f64 * piece;
            assert!((robin.idle - slow).abs() < 0.01 * piece, "{factor}: {robin:?}");
            assert!(
                (robin.all - 200.0 * factor as f64 * piece).abs() < 0.01 * robin.all,
                "{factor}: {robin:?}"
            );
            assert!(demand.idle < 0.01 * piece, "{factor}: {demand:?}");
            assert!(demand.all <= robin.all * 1.01, "{factor}: {demand:?}");
        }
    }

    #[test]
    fn what_is_not_as_predicted_is_missed() {
        let with = |idle: f64| {
            compare(400, |side, factor| {
                let times = simulate(&transport(), 400, side, factor);
                let idle = if side == Side::OnDemand { times.idle + idle } else { times.idle };
                (times, Some(Times { idle, all: times.all * 1.02 }))
            })
        };
        let missed = |figure: &Figure| figure.rows.iter().filter(|row| row.verdict() == Some(false)).count();
        assert_eq!(missed(&with(0.05 * PIECE as f64)), 0);
        assert!(missed(&with(0.5 * PIECE as f64)) > 0);
        assert!(with(0.0).panels.iter().all(|panel| panel.series.len() == 4));
        let nothing = compare(400, |side, factor| (simulate(&transport(), 400, side, factor), None));
        assert_eq!(nothing.rows.iter().filter_map(Row::verdict).count(), 0);
    }
}
