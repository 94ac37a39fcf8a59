//! A figure of the paper, as a table and as a picture: the paper's claim, beside simulated and
//! measured values. Each value is marked as one or the other.

use crate::unit::Unit;
use serde_json::{Value, json};

/// Whether a value was simulated or measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Simulated,
    Measured,
}

impl How {
    pub fn word(self) -> &'static str {
        match self {
            How::Simulated => "simulated",
            How::Measured => "measured",
        }
    }
}

/// The columns of all tables: the constants of which network, and how.
pub const COLUMNS: [(&str, How); 3] =
    [("cLAN 2003", How::Simulated), ("this machine", How::Simulated), ("this machine", How::Measured)];
/// A value of each.
pub type Values = [Option<f64>; COLUMNS.len()];
/// Columns that an expectation covers.
pub const CLAN: &[usize] = &[0];
pub const SIMULATED: &[usize] = &[0, 1];

#[derive(Debug)]
pub struct Figure {
    /// Number of the paper's, as in "24".
    pub number: &'static str,
    pub title: String,
    /// Notes to the reader of the table, a line each.
    pub notes: Vec<String>,
    pub rows: Vec<Row>,
    pub panels: Vec<Panel>,
}

#[derive(Debug)]
pub struct Row {
    pub name: String,
    /// The paper's claim, in its words.
    pub claim: &'static str,
    pub unit: Unit,
    pub values: Values,
    pub expected: Option<Expected>,
}

/// Bounds for the values of these columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expected {
    pub low: f64,
    pub high: f64,
    pub columns: &'static [usize],
}

impl Row {
    pub fn new(name: impl Into<String>, claim: &'static str, unit: Unit, values: Values) -> Row {
        Row { name: name.into(), claim, unit, values, expected: None }
    }

    pub fn expect(self, low: f64, high: f64, columns: &'static [usize]) -> Row {
        Row { expected: Some(Expected { low, high, columns }), ..self }
    }

    /// Whether the values are as expected. `None` if nothing was expected, or there is no value.
    pub fn verdict(&self) -> Option<bool> {
        let Expected { low, high, columns } = self.expected?;
        let values = columns.iter().filter_map(|&column| self.values[column]);
        values.map(|value| (low..=high).contains(&value)).reduce(|a, b| a && b)
    }

    fn remark(&self) -> String {
        let Some(Expected { low, high, .. }) = self.expected else { return String::new() };
        let show = |value| self.unit.show(value);
        let bounds = match () {
            () if low == high => show(low),
            () if low <= 0.0 => format!("at most {}", show(high)),
            () => format!("{} to {}", show(low), show(high)),
        };
        match self.verdict() {
            Some(true) => format!("ok: {bounds}"),
            Some(false) => format!("MISSED: {bounds}"),
            None => String::new(),
        }
    }
}

impl Figure {
    /// Cells of its table, with a header.
    pub fn cells(&self) -> Vec<Vec<String>> {
        let mut header = vec![String::new(), "paper".into()];
        header.extend(COLUMNS.iter().map(|(whose, how)| format!("{whose}, {}", how.word())));
        header.push(String::new());
        let rows = self.rows.iter().map(|row| {
            let mut cells = vec![row.name.clone(), row.claim.to_string()];
            cells.extend(row.values.iter().map(|value| value.map_or("-".into(), |v| row.unit.show(v))));
            cells.push(row.remark());
            cells
        });
        [header].into_iter().chain(rows).collect()
    }

    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let values = COLUMNS.iter().zip(row.values).filter_map(|((whose, how), value)| {
                Some(json!({"profile": whose, "how": how.word(), "value": value?}))
            });
            let mut object = json!({
                "row": row.name,
                "unit": row.unit.key(),
                "paper": row.claim,
                "values": values.collect::<Vec<_>>(),
            });
            if let (Some(Expected { low, high, .. }), Some(met)) = (row.expected, row.verdict()) {
                object["expected"] = json!([low, high]);
                object["as_expected"] = json!(met);
            }
            object
        });
        let panels = self.panels.iter().map(|panel| {
            let series = panel.series.iter().map(|series| {
                json!({"name": series.name, "how": series.how.word(), "points": series.points})
            });
            json!({"title": panel.title, "x": panel.x.label, "y": panel.y.label, "series": series.collect::<Vec<_>>()})
        });
        json!({
            "figure": self.number,
            "title": self.title,
            "rows": rows.collect::<Vec<_>>(),
            "panels": panels.collect::<Vec<_>>(),
        })
    }
}

/// One of the pictures of a figure, that lie side by side.
#[derive(Debug)]
pub struct Panel {
    pub title: String,
    pub x: Scale,
    pub y: Scale,
    pub series: Vec<Series>,
    pub claims: Vec<Claim>,
}

#[derive(Debug, Clone, Copy)]
pub struct Scale {
    pub label: &'static str,
    pub unit: Unit,
    pub log: bool,
}

#[derive(Debug)]
pub struct Series {
    pub name: String,
    pub hue: Hue,
    pub mark: Mark,
    pub how: How,
    pub points: Vec<(f64, f64)>,
}

/// A colour, by the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hue {
    Tcp,
    /// Fast sockets with TCP's blocks.
    Same,
    /// Fast sockets with their own blocks.
    Fast,
    /// Demand-driven, over TCP and over fast sockets.
    TcpOnDemand,
    FastOnDemand,
}

/// The shape of simulated points. Measured ones are hollow squares, always.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    Circle,
    Triangle,
    Cross,
}

/// A line with the paper's value.
#[derive(Debug)]
pub enum Claim {
    /// At this height.
    Across(f64, String),
    /// At this place on the horizontal axis.
    Upright(f64, String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: Values) -> Row {
        Row::new("gain", "> 10", Unit::Share, values).expect(9.0, 10.0, SIMULATED)
    }

    #[test]
    fn what_was_not_expected_is_missed() {
        assert_eq!(row([Some(9.9), Some(9.1), Some(1.0)]).verdict(), Some(true));
        assert_eq!(row([Some(9.9), Some(1.0), None]).verdict(), Some(false));
        assert_eq!(row([None, None, Some(1.0)]).verdict(), None);
        assert_eq!(row([Some(8.0), None, None]).remark(), "MISSED: 9.00 to 10.00");
    }

    #[test]
    fn each_value_says_how_it_came_about() {
        let figure = Figure {
            number: "24",
            title: "t".into(),
            notes: Vec::new(),
            rows: vec![row([Some(9.5), None, Some(3.0)])],
            panels: Vec::new(),
        };
        assert!(
            figure.cells()[0]
                .join("|")
                .contains("cLAN 2003, simulated|this machine, simulated|this machine, measured")
        );
        let json = figure.to_json();
        assert_eq!(json["rows"][0]["values"][0]["how"], "simulated");
        assert_eq!(json["rows"][0]["values"][1]["how"], "measured");
    }
}
