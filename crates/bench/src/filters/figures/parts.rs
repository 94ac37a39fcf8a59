//! Rows, notes and panels that several of the figures have.

use crate::figure::{COLUMNS, How, Panel, Row, SIMULATED, Values};
use crate::filters::column::{Column, Known};
use crate::results::Unit;

pub type Columns = [Column; COLUMNS.len()];

/// In per cent: how far a simulation may be from its closed form.
pub const TOLERANCE: f64 = 1.0;
pub const BOTH: [&str; 2] = ["TCP", "fast sockets"];
pub const FAST: &str = "Fast sockets: SocketVIA in 2003, Shunt here.";
pub const RUN: &str = "Measured: the four filters as they run, one copy of each in a process of its own, by sockets: two processors are not ten nodes.";

/// A value of each column.
pub fn each(columns: &Columns, value: impl Fn(&Column) -> Option<f64>) -> Values {
    columns.each_ref().map(value)
}

pub fn ratio(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    Some(over? / under?)
}

/// cLAN on the left, this machine on the right, with what was measured of it.
pub fn panels(columns: &Columns, panel: impl Fn(usize, &Column, &Column) -> Panel) -> Vec<Panel> {
    let none = Column { how: How::Measured, both: Default::default(), asked: columns[0].asked };
    let [clan, here, ran] = columns;
    [(clan, &none), (here, ran)]
        .into_iter()
        .enumerate()
        .map(|(at, (sim, ran))| Panel { title: COLUMNS[at].0.into(), ..panel(at, sim, ran) })
        .collect()
}

pub fn work(computing: bool) -> &'static str {
    if computing { "with computation" } else { "without computation" }
}

pub fn notes(computing: bool) -> Vec<String> {
    let scaled = "This machine is asked for as much more as its TCP can do more, simulated and measured.";
    let mut notes = vec![FAST.to_string(), scaled.into()];
    // This machine does not have a processor for each of ten filters, or a sleep of 18 ns.
    notes.push(if computing {
        "Computation: 18 ns for each byte in each filter but the repository. None of it is measured: two processors are not ten.".into()
    } else {
        RUN.into()
    });
    notes
}

/// The row that compares the simulation with its closed forms.
pub fn distance(columns: &Columns, of: impl Fn(&Known) -> Option<f64>) -> Row {
    let farthest = each(columns, |column| {
        if column.how == How::Measured {
            return None;
        }
        column.both.iter().filter_map(&of).reduce(f64::max)
    });
    Row::new("farthest from the closed form", "", Unit::Percent, farthest).expect(0.0, TOLERANCE, SIMULATED)
}

/// The largest distance of these pairs, in per cent of the expected value; less than 10 ns counts
/// as none.
pub fn farthest(pairs: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
    let off = |(simulated, expected): (u64, u64)| match simulated.abs_diff(expected) {
        0..10 => 0.0,
        off => off as f64 * 100.0 / expected as f64,
    };
    pairs.map(off).reduce(f64::max)
}
