//! The tables and pictures of the paper's figures: which question each row asks of each column, what the paper answers, and what must come out. Expectations
//! follow from the paper's constants, by the closed forms of `filters::sim::paper`; where the paper says something else, its claim
//! stands beside them, and docs/papers.md says why they differ.

mod balance;
mod curves;
mod guarantees;
mod responses;

use super::column::{Column, Known};
use super::figure::{COLUMNS, Figure, How, Panel, Row, SIMULATED, Values};
use crate::results::Unit;

type Columns = [Column; COLUMNS.len()];

/// In per cent: how far a simulation may be from its closed form.
const TOLERANCE: f64 = 1.0;
const BOTH: [&str; 2] = ["TCP", "fast sockets"];
const FAST: &str = "Fast sockets: SocketVIA in 2003, Shunt here.";
const NOT_RUN: &str = "Nothing is measured of running filters in this version: the table says - there.";

pub fn all(columns: &Columns) -> Vec<Figure> {
    vec![
        curves::figure(columns),
        guarantees::of_rate(columns, false),
        guarantees::of_rate(columns, true),
        guarantees::of_latency(columns, false),
        guarantees::of_latency(columns, true),
        responses::figure(columns, false),
        responses::figure(columns, true),
        balance::figure(columns),
    ]
}

/// A value of each column.
fn each(columns: &Columns, value: impl Fn(&Column) -> Option<f64>) -> Values {
    columns.each_ref().map(value)
}

fn ratio(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    Some(over? / under?)
}

/// cLAN on the left, this machine on the right, with what was measured of it.
fn panels(columns: &Columns, panel: impl Fn(usize, &Column, &Column) -> Panel) -> Vec<Panel> {
    let none = Column { how: How::Measured, both: Default::default(), asked: columns[0].asked };
    let [clan, here, ran] = columns;
    [(clan, &none), (here, ran)]
        .into_iter()
        .enumerate()
        .map(|(at, (sim, ran))| Panel { title: COLUMNS[at].0.into(), ..panel(at, sim, ran) })
        .collect()
}

fn work(computing: bool) -> &'static str {
    if computing { "with computation" } else { "without computation" }
}

fn notes(computing: bool) -> Vec<String> {
    let scaled = "This machine is asked for as much more as its TCP can do more.";
    let mut notes = vec![FAST.to_string(), scaled.into()];
    // A processor for each of ten filters, or a sleep of 18 ns, is what this machine does not have.
    notes.push(if computing {
        "Computation: 18 ns for each byte in each filter but the repository. None of it is measured: two processors are not ten.".into()
    } else {
        NOT_RUN.into()
    });
    notes
}

/// The row that holds the simulation to its closed forms.
fn distance(columns: &Columns, of: impl Fn(&Known) -> Option<f64>) -> Row {
    let farthest = each(columns, |column| {
        if column.how == How::Measured {
            return None;
        }
        column.both.iter().filter_map(&of).reduce(f64::max)
    });
    Row::new("farthest from the closed form", "", Unit::Percent, farthest).expect(0.0, TOLERANCE, SIMULATED)
}

/// The largest distance of these pairs, in per cent of what is expected; less than 10 ns is none.
fn farthest(pairs: impl Iterator<Item = (u64, u64)>) -> Option<f64> {
    let off = |(simulated, expected): (u64, u64)| match simulated.abs_diff(expected) {
        0..10 => 0.0,
        off => off as f64 * 100.0 / expected as f64,
    };
    pairs.map(off).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What would be measured, and is here made up: what the tables make of it must not depend on the machine that the tests run on.
    fn made_up() -> [Column; 3] {
        let clan = Column::clan();
        let asked = clan.asked;
        let here = Column { how: How::Simulated, both: Default::default(), asked };
        let mut ran = Column { how: How::Measured, both: Default::default(), asked };
        ran.both[0].blocks[0] = clan.both[0].blocks[0].clone();
        [clan, here, ran]
    }

    #[test]
    fn the_papers_constants_give_what_is_expected() {
        let figures = all(&made_up());
        let numbers: Vec<&str> = figures.iter().map(|figure| figure.number).collect();
        assert_eq!(numbers, ["20", "24", "25", "26", "27", "28", "29", "31"]);
        for figure in &figures {
            let judged = figure.rows.iter().filter(|row| row.verdict().is_some()).count();
            assert!(judged > 0 || figure.number == "20", "figure {} promises nothing", figure.number);
            for row in &figure.rows {
                assert_ne!(row.verdict(), Some(false), "figure {}: {row:?}", figure.number);
            }
            assert!(figure.panels.iter().any(|panel| !panel.series.is_empty()));
        }
        let measured = figures[1].panels[1].series.iter().filter(|series| series.how == How::Measured);
        assert_eq!(measured.count(), 1);
        let temp = crate::temp::TempDir::new().expect("there is a place for it");
        let results = crate::results::Results { figures, ..Default::default() };
        let files = crate::plot::draw_all(&results, temp.path()).expect("they are drawn");
        assert_eq!(files.len(), 8);
    }
}
