//! The tables and pictures of the paper's figures: the question of each row, the paper's answer,
//! and the expected values. Expectations follow from the paper's constants, by the closed forms of
//! `filters::sim::paper`; where the paper says something else, its claim stands beside them, and
//! docs/papers.md says why they differ.

mod balance;
mod curves;
mod guarantees;
mod parts;
mod responses;

use crate::figure::Figure;
use parts::Columns;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::How;
    use crate::filters::column::Column;

    /// Invented measurements: the tests of the tables must not depend on the machine that they run
    /// on.
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
