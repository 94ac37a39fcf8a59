//! Figures 24 to 27: the time of one kind of query while the other is guaranteed. TCP needs large
//! blocks for many complete updates, and small ones for soon partial updates. Fast sockets are
//! asked twice: with the blocks that TCP has chosen, and with blocks of their own.

use super::parts::{Columns, distance, each, farthest, notes, panels, ratio, work};
use crate::figure::{CLAN, Claim, Figure, Hue, Mark, Panel, Row, SIMULATED, Scale, Series};
use crate::filters::column::{Column, Known};
use crate::results::Unit;
use filters::sim::paper::{self, BlockTimes, COMPUTATION};

/// The paper's demands: complete updates in a second, and times of partial ones.
const RATES: [f64; 9] = [2.0, 2.25, 2.5, 2.75, 3.0, 3.25, 3.5, 3.75, 4.0];
const LATENCIES: [f64; 10] = [1e5, 2e5, 3e5, 4e5, 5e5, 6e5, 7e5, 8e5, 9e5, 1e6];
/// The highest rate that TCP reaches in the paper.
const LAST: f64 = 3.25;

/// Figures 24 and 25.
pub fn of_rate(columns: &Columns, computing: bool) -> Figure {
    let value = |which: usize, of: fn(Option<&BlockTimes>) -> Option<f64>| {
        each(columns, |column| of(at_rate(column, computing, LAST)[which]))
    };
    let gain = |which: usize| {
        each(columns, |column| {
            let found = at_rate(column, computing, LAST);
            ratio(partial(found[0]), partial(found[which]))
        })
    };
    let block = |times: Option<&BlockTimes>| Some(times?.block as f64);
    let best = |which: usize| each(columns, |column| column.both[which].best_rate(computing));
    let perfect = each(columns, |column| {
        let tcp = &column.both[0];
        rate(tcp.with(computing, tcp.perfect?))
    });
    let is_known = |column: &Column| !column.both[0].blocks[usize::from(computing)].is_empty();
    let asked =
        each(columns, |column| is_known(column).then(|| LAST * column.asked.rate[usize::from(computing)]));
    let mut rows = vec![
        Row::new("complete updates asked for", "3.25 /s", Unit::PerSecond, asked),
        Row::new("block that TCP needs", "16 KB (5.2.2)", Unit::Bytes, value(0, block)),
        Row::new("block that fast sockets need", "2 KB (5.2.2)", Unit::Bytes, value(2, block)),
        Row::new("partial update, TCP", "", Unit::Time, value(0, partial)),
        Row::new("fast sockets, same blocks", "", Unit::Time, value(1, partial)),
        Row::new("fast sockets, repartitioned", "", Unit::Time, value(2, partial)),
    ];
    let highest = |name, claim, values| Row::new(name, claim, Unit::PerSecond, values);
    let (same, own);
    if computing {
        // The processor of the visualization, 1 / (18 ns x 16 MB).
        (same, own) = ("> 4", "> 12");
        rows.push(Row::new("gain, same blocks", same, Unit::Share, gain(1)).expect(1.24, 1.26, CLAN));
        rows.push(Row::new("gain, repartitioned", own, Unit::Share, gain(2)).expect(8.8, 8.9, CLAN));
        rows.push(highest("highest rate, TCP", "", best(0)).expect(3.45, 3.48, SIMULATED));
        rows.push(highest("highest rate, fast sockets", "3.25 /s", best(1)).expect(3.45, 3.48, SIMULATED));
    } else {
        (same, own) = ("> 3.5", "> 10");
        rows.push(Row::new("gain, same blocks", same, Unit::Share, gain(1)).expect(1.66, 1.68, CLAN));
        rows.push(Row::new("gain, repartitioned", own, Unit::Share, gain(2)).expect(9.0, 10.0, CLAN));
        rows.push(
            highest("highest rate, TCP, block of its perfect pipeline", "3.25 /s", perfect)
                .expect(3.25, 3.5, CLAN),
        );
        rows.push(highest("highest rate, TCP, any block", "", best(0)).expect(3.75, 4.0, CLAN));
        rows.push(highest("highest rate, fast sockets", "> 3.25 /s", best(1)));
    }
    rows.push(distance(columns, |known| blocks_distance(known, computing)));
    Figure {
        number: if computing { "25" } else { "24" },
        title: format!(
            "Figure {}: a partial update while complete ones are guaranteed, {}",
            if computing { 25 } else { 24 },
            work(computing)
        ),
        notes: notes(computing),
        rows,
        panels: panels(columns, |at, sim, ran| {
            let asked = sim.asked.rate[usize::from(computing)];
            let of = |column: &Column, which: usize| {
                let asked = column.asked.rate[usize::from(computing)];
                let found =
                    |rate: &f64| Some((rate * asked, partial(at_rate(column, computing, *rate)[which])?));
                RATES.iter().filter_map(found).collect::<Vec<_>>()
            };
            let mut claims = Vec::new();
            if let Some(tcp) = partial(at_rate(sim, computing, LAST)[0]) {
                claims.push(Claim::Across(
                    tcp / if computing { 4.0 } else { 3.5 },
                    format!("paper: {same} times less at {}", if at == 0 { "3.25" } else { "that rate" }),
                ));
                claims.push(Claim::Across(
                    tcp / if computing { 12.0 } else { 10.0 },
                    format!("paper: {own} times less, repartitioned"),
                ));
            }
            let last = if computing { "paper: both end at 3.25" } else { "paper: TCP ends at 3.25" };
            claims.push(Claim::Upright(
                LAST * asked,
                if at == 0 { last.into() } else { format!("{last} in 2003") },
            ));
            Panel {
                title: String::new(),
                x: Scale {
                    label: "complete updates per second that are guaranteed",
                    unit: Unit::PerSecond,
                    log: false,
                },
                y: Scale { label: "time of a partial update", unit: Unit::Time, log: true },
                series: three(sim, ran, of),
                claims,
            }
        }),
    }
}

/// Figures 26 and 27.
pub fn of_latency(columns: &Columns, computing: bool) -> Figure {
    let is_known = |column: &Column| !column.both[0].blocks[usize::from(computing)].is_empty();
    let value = |which: usize, limit: f64| {
        // No block is fast enough: that is a rate of 0.
        each(columns, |column| {
            is_known(column).then(|| rate(at_latency(column, computing, limit)[which]).unwrap_or(0.0))
        })
    };
    let gain = |which: usize, limit: f64| {
        each(columns, |column| {
            let found = at_latency(column, computing, limit);
            ratio(rate(found[which]), rate(found[0]))
        })
    };
    let limit = |limit: f64| each(columns, |column| is_known(column).then_some(limit * column.asked.latency));
    let of_best = each(columns, |column| {
        ratio(rate(at_latency(column, computing, 1e5)[2]), column.both[1].best_rate(computing))
    });
    let mut rows = Vec::new();
    for (asked, claim) in [(1e5, "100 us"), (2e5, ""), (1e6, "")] {
        rows.push(Row::new("partial update within", claim, Unit::Time, limit(asked)));
        let drops_out = asked == 1e5 && !computing;
        let tcp = Row::new(
            "complete updates, TCP",
            if drops_out { "drops out" } else { "" },
            Unit::PerSecond,
            value(0, asked),
        );
        rows.push(if asked == 1e5 { tcp.expect(0.0, 0.0, CLAN) } else { tcp });
        rows.push(Row::new("fast sockets, repartitioned", "", Unit::PerSecond, value(2, asked)));
        if drops_out {
            rows.push(
                Row::new("of their best rate", "close to 1", Unit::Share, of_best).expect(0.69, 0.71, CLAN),
            );
        }
    }
    let bounds = if computing { [(3.6, 3.7), (5.3, 5.4)] } else { [(3.0, 3.1), (4.4, 4.7)] };
    let claims = if computing { ["", "up to 4"] } else { ["> 6", "> 8"] };
    for (which, name) in [(1, "gain at twice the first, same blocks"), (2, "gain there, repartitioned")] {
        let (low, high) = bounds[which - 1];
        rows.push(Row::new(name, claims[which - 1], Unit::Share, gain(which, 2e5)).expect(low, high, CLAN));
    }
    let last = Row::new(
        "gain at the last, repartitioned",
        if computing { "very close" } else { "" },
        Unit::Share,
        gain(2, 1e6),
    );
    rows.push(if computing { last.expect(1.1, 1.25, CLAN) } else { last });
    rows.push(distance(columns, |known| blocks_distance(known, computing)));
    Figure {
        number: if computing { "27" } else { "26" },
        title: format!(
            "Figure {}: complete updates while the time of a partial one is guaranteed, {}",
            if computing { 27 } else { 26 },
            work(computing)
        ),
        notes: notes(computing),
        rows,
        panels: panels(columns, |at, sim, ran| {
            let asked = sim.asked.latency;
            let of = |column: &Column, which: usize| {
                let asked = column.asked.latency;
                let found =
                    |limit: &f64| Some((limit * asked, rate(at_latency(column, computing, *limit)[which])?));
                LATENCIES.iter().filter_map(found).collect::<Vec<_>>()
            };
            let mut claims = Vec::new();
            if computing {
                claims.push(Claim::Across(
                    1e9 / (COMPUTATION * paper::IMAGE) as f64,
                    "18 ns/B allow 3.47".into(),
                ));
            } else {
                let where_ = if at == 0 { "100 us" } else { "100 us in 2003" };
                claims.push(Claim::Upright(1e5 * asked, format!("paper: TCP drops out at {where_}")));
            }
            Panel {
                title: String::new(),
                x: Scale {
                    label: "time of a partial update that is guaranteed",
                    unit: Unit::Time,
                    log: false,
                },
                y: Scale { label: "complete updates per second", unit: Unit::PerSecond, log: false },
                series: three(sim, ran, of),
                claims,
            }
        }),
    }
}

/// The values of figures 24 and 25 for one column, at one rate: TCP, fast sockets with the same
/// blocks, and with blocks of their own.
fn at_rate(column: &Column, computing: bool, rate: f64) -> [Option<&BlockTimes>; 3] {
    let rate = rate * column.asked.rate[usize::from(computing)];
    let [tcp, fast] = &column.both;
    let best = |known: &'_ Known| -> Option<usize> {
        let blocks = &known.blocks[usize::from(computing)];
        let best = paper::for_rate(blocks, rate)?;
        blocks.iter().position(|times| times.block == best.block)
    };
    same_and_own(tcp, fast, computing, best)
}

/// The same for figures 26 and 27.
fn at_latency(column: &Column, computing: bool, limit: f64) -> [Option<&BlockTimes>; 3] {
    let limit = (limit * column.asked.latency) as u64;
    let [tcp, fast] = &column.both;
    let best = |known: &'_ Known| -> Option<usize> {
        let blocks = &known.blocks[usize::from(computing)];
        let best = paper::for_latency(blocks, limit)?;
        blocks.iter().position(|times| times.block == best.block)
    };
    same_and_own(tcp, fast, computing, best)
}

fn same_and_own<'a>(
    tcp: &'a Known,
    fast: &'a Known,
    computing: bool,
    best: impl Fn(&Known) -> Option<usize>,
) -> [Option<&'a BlockTimes>; 3] {
    let at = |known: &'a Known| best(known).map(|place| &known.blocks[usize::from(computing)][place]);
    let own = at(tcp);
    [own, own.and_then(|times| fast.with(computing, times.block)), at(fast)]
}

fn partial(times: Option<&BlockTimes>) -> Option<f64> {
    Some(times?.partial as f64)
}

fn rate(times: Option<&BlockTimes>) -> Option<f64> {
    Some(times?.rate())
}

/// TCP, fast sockets with the same blocks and with their own, simulated and measured.
fn three(sim: &Column, ran: &Column, of: impl Fn(&Column, usize) -> Vec<(f64, f64)>) -> Vec<Series> {
    let names = [
        ("TCP", Hue::Tcp, Mark::Cross),
        ("fast sockets, same blocks", Hue::Same, Mark::Triangle),
        ("fast sockets, repartitioned", Hue::Fast, Mark::Circle),
    ];
    let mut series = Vec::new();
    for column in [sim, ran] {
        for (which, (name, hue, mark)) in names.into_iter().enumerate() {
            let points = of(column, which);
            if !points.is_empty() {
                series.push(Series { name: name.into(), hue, mark, how: column.how, points });
            }
        }
    }
    series
}

fn blocks_distance(known: &Known, computing: bool) -> Option<f64> {
    let transport = known.transport.as_ref()?;
    let per_byte = if computing { COMPUTATION } else { 0 };
    farthest(known.blocks[usize::from(computing)].iter().flat_map(|times| {
        let expected = paper::expected_block_times(transport, per_byte, times.block);
        [(times.update, expected.update), (times.partial, expected.partial)]
    }))
}
