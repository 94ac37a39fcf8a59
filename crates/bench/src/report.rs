//! The tables that people read.

use crate::error::NOT_HERE;
use crate::results::{Metric, Results, Side, Unit};
use crate::stats::Summary;
use std::fmt::Write;

/// Below this part of plain TCP is called slower; smaller losses are within the variation of a
/// quiet machine.
pub const NEVER_SLOWER: f64 = 0.95;

/// All groups, one table each, and below them what was not run.
pub fn tables(results: &Results) -> String {
    let mut out = String::new();
    for group in results.groups() {
        let of_it = |(of, _): &&(String, String)| group.split('-').next() == Some(of);
        results.captions.iter().filter(of_it).for_each(|(_, caption)| {
            let _ = writeln!(out, "{caption}");
        });
        let absent = results.absent.iter().filter(|(of, _)| *of == group).map(|(_, side)| *side);
        out.push_str(&table(group, &results.group(group), &absent.collect::<Vec<_>>()));
        out.push('\n');
    }
    for figure in &results.figures {
        let _ = writeln!(out, "{}\n{}", figure.title, align(&figure.cells()));
        out.truncate(out.trim_end().len());
        out.push('\n');
        figure.notes.iter().for_each(|note| {
            let _ = writeln!(out, "  {note}");
        });
        out.push('\n');
    }
    if !results.not_run.is_empty() {
        out.push_str("Not measured:\n");
        for (what, why) in &results.not_run {
            let _ = writeln!(out, "  {what}: {why}");
        }
    }
    out
}

fn table(title: &str, metrics: &[&Metric], absent: &[Side]) -> String {
    let measured = |side: &Side| metrics.iter().any(|m| m.summary(*side).is_some());
    let sides: Vec<Side> = Side::ALL.into_iter().filter(|s| measured(s) || absent.contains(s)).collect();
    let subject = metrics.first().map_or(Side::Shunt, |m| m.subject());
    // For the other Ethernets in user space it is enough to show whether they are behind.
    let apart = [Side::Tinc, Side::Fastd, Side::Vde, Side::Socat];
    let compared = |s: &Side| *s != subject && !apart.contains(s) && measured(s);
    let versus: Vec<Side> = sides.iter().copied().filter(compared).collect();
    let versus = if sides.contains(&subject) { versus } else { Vec::new() };
    let mut rows = vec![header(&sides, &versus)];
    let mut last = "";
    for metric in metrics {
        let row = if metric.row == last { "" } else { &metric.row };
        last = &metric.row;
        let mut cells = vec![row.to_string(), metric.name.clone()];
        let none = |side: &Side| if measured(side) { "-" } else { NOT_HERE };
        let cell = |s: &Side| metric.summary(*s).map_or(none(s).into(), |v| value(metric.unit, v));
        cells.extend(sides.iter().map(cell));
        cells.extend(versus.iter().map(|s| ratio(metric, *s)));
        if !versus.is_empty() {
            cells.push(remark(metric));
        }
        rows.push(cells);
    }
    let rounds =
        metrics.iter().flat_map(|m| sides.iter().filter_map(|s| m.summary(*s))).map(|s| s.rounds).max();
    format!("{title}: median (least - most) of {} rounds\n{}", rounds.unwrap_or(0), align(&rows))
}

fn header(sides: &[Side], versus: &[Side]) -> Vec<String> {
    let mut cells = vec![String::new(), String::new()];
    cells.extend(sides.iter().map(|s| s.title().to_string()));
    cells.extend(versus.iter().map(|s| match s {
        Side::Raw | Side::Copy => format!("of {}", s.title()),
        other => format!("x {}", other.title()),
    }));
    if !versus.is_empty() {
        cells.push(String::new());
    }
    cells
}

fn value(unit: Unit, s: Summary) -> String {
    let shown = [s.median, s.min, s.max].map(|v| unit.show(v));
    if s.rounds == 1 {
        return shown[0].clone();
    }
    let parts = shown.each_ref().map(|text| text.split_once(' ').unwrap_or((text, "")));
    let [median, (min, min_unit), (max, max_unit)] = parts;
    // The unit is written once if all three have the same.
    match median.1 == min_unit && min_unit == max_unit {
        true => format!("{} ({min}-{max})", shown[0]),
        false => format!("{} ({} - {})", shown[0], shown[1], shown[2]),
    }
}

/// How many times better Shunt, or VIPL, is. Above one is better, for times as for rates.
fn ratio(metric: &Metric, other: Side) -> String {
    let Some(s) = metric.advantage(metric.subject(), other) else { return "-".into() };
    match s.rounds {
        1 => factor(s.median),
        _ => format!("{} ({}-{})", factor(s.median), factor(s.min), factor(s.max)),
    }
}

/// A ratio with three digits, or two decimals where it is small but not tiny.
fn factor(value: f64) -> String {
    match value {
        v if v >= 99.5 => format!("{v:.0}"),
        v if v >= 9.95 => format!("{v:.1}"),
        v if v >= 0.0995 => format!("{v:.2}"),
        v => format!("{v:.4}"),
    }
}

fn remark(metric: &Metric) -> String {
    let target = metric.target;
    let mut promises: Vec<String> = Vec::new();
    promises.extend(target.over_tcp.map(|t| format!("{t} x TCP")));
    promises.extend(target.of_raw.map(|t| format!("{t:.2} of raw")));
    promises.extend(target.kept_of_vipl.map(|t| format!("sockets keep {t:.2}")));
    // Contenders that only have to be beaten share one word.
    promises
        .extend(target.over.iter().filter(|(_, t)| *t > 1.0).map(|(s, t)| format!("{t:.2} x {}", s.title())));
    let ahead: Vec<&str> = target.over.iter().filter(|(_, t)| *t == 1.0).map(|(s, _)| s.title()).collect();
    promises.extend(
        target.over.iter().filter(|(_, t)| *t < 1.0).map(|(s, t)| format!("{t:.2} of {}", s.title())),
    );
    promises.extend((!ahead.is_empty()).then(|| format!("ahead of {}", ahead.join(", "))));
    promises.extend(target.value.map(|t| metric.unit.show(t)));
    let mut promise = promises.join(", ");
    if let Some(part) = target.or_of_copy {
        let _ = write!(promise, " or {part:.2} of copy");
    }
    match metric.verdict() {
        Some(true) => format!("ok: {promise}"),
        Some(false) => format!("MISSED: {promise}"),
        None => String::new(),
    }
}

/// Columns of equal width; the first two to the left, numbers to the right.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[c] - cell.chars().count());
            let remark = c + 1 == columns && columns > 3;
            let _ =
                if c < 2 || remark { write!(line, "  {cell}{pad}") } else { write!(line, "  {pad}{cell}") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Place, Target};

    fn results(values: &[(Side, f64)], target: Target) -> Results {
        let mut results = Results::default();
        for (side, value) in values {
            let place = Place { group: "latency", row: "64 B", side: *side, round: 0 };
            results.add(&place, "p50", Unit::Time, target, *value);
        }
        results
    }

    #[test]
    fn a_table_has_values_ratios_and_the_promise() {
        let kept = tables(&results(&[(Side::Tcp, 46e3), (Side::Shunt, 230.0)], Target::over_tcp(50.0)));
        assert!(kept.contains("46.0 us") && kept.contains("230 ns") && kept.contains("200"), "{kept}");
        assert!(kept.contains("ok: 50 x TCP"), "{kept}");
        let missed = tables(&results(&[(Side::Tcp, 46e3), (Side::Shunt, 2300.0)], Target::over_tcp(50.0)));
        assert!(missed.contains("MISSED"), "{missed}");
    }

    #[test]
    fn without_shunt_there_are_no_ratios() {
        let table = tables(&results(&[(Side::Tcp, 46e3), (Side::Unix, 20e3)], Target::NONE));
        assert!(!table.contains("x UNIX"), "{table}");
    }

    #[test]
    fn who_is_not_here_is_named() {
        let mut results = results(&[(Side::Filters, 300.0), (Side::ZmqTcp, 1500.0)], Target::NONE);
        results.absent.push(("latency", Side::Ray));
        let table = tables(&results);
        assert!(table.contains("Ray") && table.contains(NOT_HERE) && !table.contains("x Ray"), "{table}");
    }

    #[test]
    fn a_range_names_its_unit_once() {
        let s = Summary { median: 240.0, min: 230.0, max: 250.0, rounds: 3 };
        assert_eq!(value(Unit::Time, s), "240 ns (230-250)");
        assert_eq!(value(Unit::Time, Summary { max: 2500.0, ..s }), "240 ns (230 ns - 2.50 us)");
    }

    #[test]
    fn small_ratios_keep_their_digits() {
        assert_eq!([200.4, 15.04, 0.954, 0.0031].map(factor), ["200", "15.0", "0.95", "0.0031"]);
    }
}
