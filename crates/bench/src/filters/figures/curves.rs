//! Figures 19 and 20: latency and bandwidth of both transports, from which all other figures
//! follow.

use super::parts::{Columns, FAST, each, ratio};
use crate::figure::{COLUMNS, Claim, Figure, How, Hue, Mark, Panel, Row, Scale, Series, Values};
use crate::filters::column::Column;
use crate::results::Unit;
use filters::sim::Profile;

/// Figures 19 and 20, from which all others follow.
pub fn figure(columns: &Columns) -> Figure {
    const LARGE: u64 = 1 << 20;
    const SMALL: u64 = 64;
    let of = |which: usize, value: fn(&Profile) -> f64| {
        each(columns, |column| column.both[which].transport.as_ref().map(value))
    };
    // On this machine these are measurements; nothing in them is simulated.
    let only_measured = |values: Values| [values[0], None, values[2]];
    let small = |t: &Profile| t.one_way(SMALL) as f64;
    let large = |t: &Profile| LARGE as f64 * 1e9 / t.gap(LARGE) as f64;
    let times = |column: &Column, value: fn(&Profile) -> f64| {
        let [tcp, fast] = column.both.each_ref().map(|known| known.transport.as_ref().map(value));
        ratio(fast, tcp)
    };
    let overhead = |which: usize| each(columns, |column| column.both[which].overhead);
    let rows = vec![
        Row::new("one way, 64 bytes, TCP", "45 us (4 B)", Unit::Time, only_measured(of(0, small))),
        Row::new("one way, 64 bytes, fast sockets", "9.1 us", Unit::Time, only_measured(of(1, small))),
        Row::new(
            "how much shorter",
            "5",
            Unit::Share,
            only_measured(each(columns, |c| times(c, small).map(|t| 1.0 / t))),
        ),
        Row::new("bandwidth, 1 MB, TCP", "63.8 MB/s", Unit::BytesPerSecond, only_measured(of(0, large))),
        Row::new(
            "bandwidth, 1 MB, fast sockets",
            "95.4 MB/s",
            Unit::BytesPerSecond,
            only_measured(of(1, large)),
        ),
        Row::new("how much wider", "1.5", Unit::Share, only_measured(each(columns, |c| times(c, large)))),
        Row::new("filters: overhead of a buffer, TCP", "", Unit::CpuPerRequest, overhead(0)),
        Row::new("filters: overhead of a buffer, fast sockets", "", Unit::CpuPerRequest, overhead(1)),
    ];
    let panel = |title, y: Scale, value: fn(&Profile, u64) -> f64, claims| {
        let sizes = (6..=20).step_by(2).map(|power| 1u64 << power);
        let mut series = Vec::new();
        for (column, how) in [(0, How::Simulated), (2, How::Measured)] {
            for (known, (name, hue)) in
                columns[column].both.iter().zip([("TCP", Hue::Tcp), ("fast sockets", Hue::Fast)])
            {
                let Some(transport) = &known.transport else { continue };
                let points = sizes.clone().map(|size| (size as f64, value(transport, size)));
                let mark = if column == 0 { Mark::Circle } else { Mark::Triangle };
                series.push(Series {
                    name: format!("{name}, {}", COLUMNS[column].0),
                    hue,
                    mark,
                    how,
                    points: points.collect(),
                });
            }
        }
        let x = Scale { label: "message size", unit: Unit::Bytes, log: true };
        Panel { title: String::from(title), x, y, series, claims }
    };
    let across = |value: f64, label: &str| Claim::Across(value, label.to_string());
    Figure {
        number: "20",
        title: "Figures 19 and 20: both transports, one message alone and many one way".into(),
        notes: vec![
            FAST.into(),
            "Of cLAN the paper prints latency and peak bandwidth only; its curves are lines made of these two.".into(),
        ],
        rows,
        panels: vec![
            panel(
                "one way",
                Scale { label: "time", unit: Unit::Time, log: true },
                |t, size| t.one_way(size) as f64,
                vec![across(45e3, "paper: TCP, 45 us"), across(9.1e3, "paper: SocketVIA, 9.1 us")],
            ),
            panel(
                "bandwidth",
                Scale { label: "bytes per second", unit: Unit::BytesPerSecond, log: true },
                |t, size| size as f64 * 1e9 / t.gap(size) as f64,
                vec![across(510e6 / 8.0, "paper: TCP, 510 Mb/s"), across(763e6 / 8.0, "paper: SocketVIA, 763 Mb/s")],
            ),
        ],
    }
}
