//! Figure 31: how long fast nodes wait beside a slow one, by round-robin as the paper has it, and
//! demand-driven, which is our extension.

use super::parts::{BOTH, Columns, FAST, distance, each, farthest, panels, ratio};
use crate::figure::{CLAN, Claim, Figure, How, Hue, Mark, Panel, Row, SIMULATED, Scale, Series};
use crate::filters::column::{Column, FACTORS, Known, WHOLE};
use crate::results::Unit;
use filters::flow::Policy;
use filters::sim::paper;

/// Figure 31.
pub fn figure(columns: &Columns) -> Figure {
    const POLICIES: [&str; 2] = ["round-robin", "on demand (ours)"];
    let idle = |column: &Column, which: usize, policy: usize, factor| {
        Some(column.both[which].balance(factor)?.idle[policy] as f64)
    };
    let block = |column: &Column, which: usize| {
        column.both[which].balances.first()?;
        Some(column.both[which].perfect? as f64)
    };
    let blocks = ["16 KB", "2 KB"];
    let mut rows = Vec::new();
    for (which, name) in BOTH.into_iter().enumerate() {
        let row = Row::new(
            format!("block of the perfect pipeline, {name}"),
            blocks[which],
            Unit::Bytes,
            each(columns, |c| block(c, which)),
        );
        let exact = paper::PERFECT[which] as f64;
        rows.push(row.expect(exact, exact, CLAN));
    }
    for (policy, how) in POLICIES.into_iter().enumerate() {
        for (which, name) in BOTH.into_iter().enumerate() {
            for factor in [2, 4, 10] {
                let values = each(columns, |c| idle(c, which, policy, factor));
                rows.push(Row::new(
                    format!("idle for each block, {how}, factor {factor}, {name}"),
                    "",
                    Unit::Time,
                    values,
                ));
            }
        }
    }
    let over = |c: &Column| ratio(idle(c, 0, 0, 4), idle(c, 1, 0, 4));
    rows.push(
        Row::new("TCP over fast sockets, round-robin, factor 4", "8", Unit::Share, each(columns, over))
            .expect(7.9, 8.1, CLAN),
    );
    let of_blocks = |c: &Column| ratio(over(c), ratio(block(c, 0), block(c, 1)));
    rows.push(
        Row::new("of the ratio of the blocks", "", Unit::Share, each(columns, of_blocks))
            .expect(0.99, 1.01, SIMULATED),
    );
    for which in [0, 1] {
        let grows = |c: &Column| ratio(idle(c, which, 0, 4), idle(c, which, 0, 2));
        let name = format!("factor 4 over factor 2, round-robin, {}", BOTH[which]);
        rows.push(Row::new(name, "", Unit::Share, each(columns, grows)).expect(2.97, 3.03, SIMULATED));
    }
    for (which, name) in BOTH.into_iter().enumerate() {
        for (policy, how) in POLICIES.into_iter().enumerate() {
            let image = |c: &Column| Some(c.both[which].balance(WHOLE)?.image?[policy] as f64);
            rows.push(Row::new(
                format!("an image, {how}, factor {WHOLE}, {name}"),
                "",
                Unit::Time,
                each(columns, image),
            ));
        }
    }
    rows.push(distance(columns, idle_distance));
    Figure {
        number: "31",
        title: "Figure 31: what a fast node waits beside a slow one, for each block".into(),
        notes: vec![
            FAST.into(),
            "Demand-driven scheduling is described by the paper, and not measured: those rows are our extension.".into(),
            "There are no slow nodes on this machine: everything here is simulated.".into(),
        ],
        rows,
        panels: panels(columns, |_, sim, _| {
            let mut series = Vec::new();
            for (which, policy, name, hue, mark) in [
                (0, 0, "TCP, round-robin", Hue::Tcp, Mark::Circle),
                (1, 0, "fast sockets, round-robin", Hue::Fast, Mark::Circle),
                (0, 1, "TCP, on demand (ours)", Hue::TcpOnDemand, Mark::Triangle),
                (1, 1, "fast sockets, on demand (ours)", Hue::FastOnDemand, Mark::Cross),
            ] {
                let points = FACTORS.iter().filter_map(|&f| Some((f as f64, idle(sim, which, policy, f)?)));
                let points: Vec<_> = points.collect();
                if !points.is_empty() {
                    series.push(Series { name: name.into(), hue, mark, how: How::Simulated, points });
                }
            }
            let label = "8 times less than TCP, drawn for factor 10";
            let claims = idle(sim, 0, 0, 10).map(|tcp| Claim::Across(tcp / 8.0, label.into()));
            Panel {
                title: String::new(),
                x: Scale { label: "factor of heterogeneity", unit: Unit::Share, log: false },
                y: Scale { label: "idle time for each block", unit: Unit::Time, log: false },
                series,
                claims: claims.into_iter().collect(),
            }
        }),
    }
}

fn idle_distance(known: &Known) -> Option<f64> {
    let (transport, block) = (known.transport.as_ref()?, known.perfect?);
    farthest(known.balances.iter().flat_map(|balance| {
        [Policy::RoundRobin, Policy::DemandDriven].into_iter().zip(balance.idle).map(|(policy, idle)| {
            (idle, paper::expected_idle(transport, &policy, block, balance.factor * 1000))
        })
    }))
}
