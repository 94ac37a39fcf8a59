//! Figures 28 and 29: the average response time to a mixture of zoom queries and complete ones, for
//! images that are cut into more or fewer parts.

use super::parts::{BOTH, Columns, distance, each, farthest, notes, panels, work};
use crate::figure::{CLAN, Claim, Figure, How, Hue, Mark, Panel, Row, Scale, Series};
use crate::filters::column::Known;
use crate::filters::measured::PARTS;
use crate::results::Unit;
use filters::sim::paper::{self, COMPUTATION, Extent};

/// The average response time that the paper asks for.
const RESPONSE: f64 = 150e6;

/// Figures 28 and 29.
pub fn figure(columns: &Columns, computing: bool) -> Figure {
    let crossing = |which: usize, extent: Extent| {
        each(columns, |column| {
            let averages = column.both[which].response(computing, extent, 64)?;
            paper::crossing(
                averages.at(0)?,
                averages.at(10)?,
                (RESPONSE * column.asked.response[usize::from(computing)]) as u64,
            )
        })
    };
    let whole = |which: usize| {
        each(columns, |column| {
            let extent = if column.how == How::Measured { Extent::TenNodes } else { Extent::OneHop };
            Some(column.both[which].response(computing, extent, 1)?.at(0)? as f64)
        })
    };
    let limit = each(columns, |column| {
        let is_known = column.both[0].responses.iter().any(|response| response.computing == computing);
        is_known.then(|| RESPONSE * column.asked.response[usize::from(computing)])
    });
    let expected = if computing { [(0.47, 0.48), (0.475, 0.485)] } else { [(0.555, 0.57), (0.875, 0.89)] };
    let through = if computing { [(0.405, 0.415), (0.42, 0.43)] } else { [(0.525, 0.535), (0.845, 0.855)] };
    let claims = if computing { ["", ""] } else { ["0.6", "0.9"] };
    let mut rows =
        vec![Row::new("average response within", if computing { "" } else { "150 ms" }, Unit::Time, limit)];
    for (which, name) in BOTH.into_iter().enumerate() {
        let row = Row::new(
            format!("complete queries then, 64 parts, {name}"),
            claims[which],
            Unit::Share,
            crossing(which, Extent::OneHop),
        );
        rows.push(row.expect(expected[which].0, expected[which].1, CLAN));
    }
    for (which, name) in BOTH.into_iter().enumerate() {
        let row = Row::new(
            format!("through all ten nodes, {name}"),
            "",
            Unit::Share,
            crossing(which, Extent::TenNodes),
        );
        rows.push(row.expect(through[which].0, through[which].1, CLAN));
    }
    for (which, name) in BOTH.into_iter().enumerate() {
        let constant = if computing { "" } else { "the same for all" };
        rows.push(Row::new(format!("image in one part, {name}"), constant, Unit::Time, whole(which)));
    }
    rows.push(distance(columns, |known| response_distance(known, computing)));
    Figure {
        number: if computing { "29" } else { "28" },
        title: format!(
            "Figure {}: average response time of a mixture of queries, {}",
            if computing { 29 } else { 28 },
            work(computing)
        ),
        notes: [
            "The paper's caption repeats that of figure 26 or 27; this is what its text says of it."
                .to_string(),
            "The last hop alone, from which the paper's crossings follow; then the whole pipeline.".into(),
        ]
        .into_iter()
        .chain(notes(computing))
        .collect(),
        rows,
        panels: panels(columns, |at, sim, ran| {
            let mut series = Vec::new();
            for (column, how) in [(sim, How::Simulated), (ran, How::Measured)] {
                let extent = if how == How::Simulated { Extent::OneHop } else { Extent::TenNodes };
                for (known, (name, hue)) in
                    column.both.iter().zip([(BOTH[0], Hue::Tcp), (BOTH[1], Hue::Fast)])
                {
                    for (parts, mark) in PARTS.into_iter().zip([Mark::Cross, Mark::Triangle, Mark::Circle]) {
                        let Some(averages) = known.response(computing, extent, parts) else { continue };
                        let points = averages.averages.iter().map(|&(n, t)| (n as f64 / 10.0, t as f64));
                        let pieces = if parts == 1 { "whole".into() } else { format!("{parts} parts") };
                        series.push(Series {
                            name: format!("{name}, {pieces}"),
                            hue,
                            mark,
                            how,
                            points: points.collect(),
                        });
                    }
                }
            }
            let mut claims = Vec::new();
            if !computing {
                let limit = if at == 0 { "150 ms" } else { "150 ms, scaled" };
                claims.push(Claim::Across(RESPONSE * sim.asked.response[0], limit.into()));
                claims.push(Claim::Upright(0.6, "TCP to 0.6".into()));
                claims.push(Claim::Upright(0.9, "SocketVIA to 0.9".into()));
            }
            Panel {
                title: String::new(),
                x: Scale { label: "fraction of complete queries", unit: Unit::Share, log: false },
                y: Scale { label: "average response time", unit: Unit::Time, log: false },
                series,
                claims,
            }
        }),
    }
}

fn response_distance(known: &Known, computing: bool) -> Option<f64> {
    let transport = known.transport.as_ref()?;
    let per_byte = if computing { COMPUTATION } else { 0 };
    farthest(known.responses.iter().filter(|response| response.computing == computing).flat_map(|response| {
        response.averages.iter().map(|&(complete, average)| {
            let (extent, parts) = (response.extent, response.parts);
            (average, paper::expected_response(transport, per_byte, extent, parts, complete as usize))
        })
    }))
}
