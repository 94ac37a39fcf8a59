//! Plots against the size of messages. Throughput: messages a second on the left, bytes a second on
//! the right, all logarithmic. Remote procedure calls: their time against the size of the argument.
//! VIPL: time and rate against size, rate against connections.

use super::canvas::{Area, Axis, FAINT, INK, drawing, font, heading, picture};
use super::colour::colour;
use crate::error::Result;
use crate::results::{Metric, Side, Unit};
use plotters::prelude::*;
use std::path::Path;

/// The contenders that were measured in any of these.
fn taking_part(metrics: &[&Metric]) -> Vec<Side> {
    let measured = |side: &Side| metrics.iter().any(|m| m.summary(*side).is_some());
    Side::ALL.into_iter().filter(measured).collect()
}

pub fn throughput(metrics: &[&Metric], file: &Path) -> Result<()> {
    let sides = taking_part(metrics);
    picture(file, (1400, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note = "one connection, one processor for each end; logarithmic; median and range of the rounds";
        let body = heading(area, "Messages one way", note, &legend)?;
        let (left, right) = body.split_horizontally(675);
        for (half, name, axis) in
            [(left, "messages", "messages per second"), (right, "bytes", "bytes per second")]
        {
            let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.name == name).collect();
            panel(&half, &shown, &sides, "message size", axis)?;
        }
        Ok(())
    })
}

pub fn rpc(metrics: &[&Metric], file: &Path) -> Result<()> {
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.name == "p50").collect();
    let sides = taking_part(&shown);
    picture(file, (1000, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note = "one processor for each end; logarithmic; p50, median and range of the rounds";
        let body = heading(area, "Call of an empty remote procedure", note, &legend)?;
        panel(&body, &shown, &sides, "argument", "time of a call")
    })
}

/// VIPL beside the others, in the axes of "VIA over the CLAN network", table 1 and figure 6. Rows
/// that only VIPL has are left to the table.
pub fn via(
    metrics: &[&Metric],
    name: &str,
    title: &str,
    size: &str,
    description: &str,
    file: &Path,
) -> Result<()> {
    let shown: Vec<&Metric> =
        metrics.iter().copied().filter(|m| m.name == name && !m.row.contains(',')).collect();
    let sides = taking_part(&shown);
    picture(file, (1000, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note =
            "one connection, one processor for each end, polled; logarithmic; median and range of the rounds";
        let body = heading(area, title, note, &legend)?;
        panel(&body, &shown, &sides, size, description)
    })
}

/// A stream over a link of libfabric beside libfabric's own tests; with copies.
pub fn ofi(metrics: &[&Metric], name: &str, title: &str, by: &str, file: &Path) -> Result<()> {
    let shown: Vec<&Metric> =
        metrics.iter().copied().filter(|m| m.name == name && !m.row.contains(',')).collect();
    let sides = taking_part(&shown);
    let axis = if name == "bytes" { "bytes per second" } else { "time" };
    picture(file, (1000, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note = format!("{by}; logarithmic; median and range of the rounds");
        let body = heading(area, title, &note, &legend)?;
        panel(&body, &shown, &sides, "message size", axis)
    })
}

/// One completion queue, or epoll set, with many connections: figure 7 of the same paper.
pub fn load(metrics: &[&Metric], file: &Path) -> Result<()> {
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.unit == Unit::PerSecond).collect();
    let sides = taking_part(&shown);
    picture(file, (1400, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note = "one request under way on each connection; logarithmic; median and range of the rounds";
        let body = heading(area, "Requests to one completion queue, or epoll set", note, &legend)?;
        let (left, right) = body.split_horizontally(675);
        for (half, name) in [(left, "polled"), (right, "blocking")] {
            let part: Vec<&Metric> = shown.iter().copied().filter(|m| m.name == name).collect();
            panel(&half, &part, &sides, &format!("connections, {name}"), "requests per second")?;
        }
        Ok(())
    })
}

/// Two measures of TCP over Ethernets, against the size of messages.
pub fn ether(metrics: &[&Metric], title: &str, panels: [(&str, &str); 2], file: &Path) -> Result<()> {
    let sides = taking_part(metrics);
    picture(file, (1400, 720), |area| {
        let legend: Vec<_> = sides.iter().map(|s| (s.title().to_string(), colour(*s))).collect();
        let note =
            "one connection between two network namespaces; logarithmic; median and range of the rounds";
        let body = heading(area, title, note, &legend)?;
        let (left, right) = body.split_horizontally(675);
        for (half, (name, axis)) in [left, right].iter().zip(panels) {
            let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.name == name).collect();
            panel(half, &shown, &sides, "message size", axis)?;
        }
        Ok(())
    })
}

fn panel(area: &Area, metrics: &[&Metric], sides: &[Side], size: &str, description: &str) -> Result<()> {
    let unit = metrics.first().map_or(Unit::PerSecond, |m| m.unit);
    let summaries = metrics.iter().flat_map(|m| sides.iter().filter_map(|s| m.summary(*s)));
    let axis = Axis::around(summaries.flat_map(|s| [s.min, s.max]), true);
    let last = metrics.len().saturating_sub(1) as f64;
    let sizes = Axis { low: -0.3, high: last + 0.3, log: false };
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(60)
        .y_label_area_size(125)
        .margin_right(15)
        .build_cartesian_2d(sizes, axis)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(font(18))
        .axis_desc_style(font(20))
        .x_desc(size)
        .y_desc(description)
        .x_label_formatter(&|x| size_at(metrics, *x))
        .y_label_formatter(&|place| unit.show(*place))
        .draw()
        .map_err(drawing)?;
    for side in sides {
        let colour = colour(*side);
        let found = metrics.iter().enumerate().filter_map(|(i, m)| Some((i as f64, m.summary(*side)?)));
        let found: Vec<_> = found.collect();
        let line = found.iter().map(|(x, s)| (*x, s.median));
        chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(3))).map_err(drawing)?;
        chart.draw_series(line.map(|at| Circle::new(at, 6, colour.filled()))).map_err(drawing)?;
        let ranges = found.iter().map(|(x, s)| [(*x, s.min), (*x, s.max)]);
        chart.draw_series(ranges.map(|r| PathElement::new(r, INK.stroke_width(2)))).map_err(drawing)?;
    }
    Ok(())
}

/// The size at a place on the axis; empty between two sizes.
fn size_at(metrics: &[&Metric], x: f64) -> String {
    let near = x >= -0.01 && (x - x.round()).abs() < 0.01;
    metrics.get(x.round() as usize).filter(|_| near).map_or(String::new(), |m| m.row.clone())
}
