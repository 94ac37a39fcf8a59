//! Figures of the paper on filters: 2003 on the left, this machine on the right. Simulated points
//! are filled and joined by a line, measured ones are hollow squares, and dashed lines are the
//! paper's values.

use super::canvas::{Area, Axis, FAINT, INK, drawing, font, font_at, heading, picture};
use crate::error::Result;
use crate::figure::{Claim, Figure, How, Hue, Mark, Panel, Scale};
use crate::results::Unit;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::path::Path;

const SIZE: (u32, u32) = (1500, 820);
/// Where the rows of the legend begin, and how high one is.
const LEGEND: (i32, i32) = (100, 28);
const PAPER: RGBColor = RGBColor(90, 90, 160);

type Drawing<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

pub fn draw(figure: &Figure, file: &Path) -> Result<()> {
    picture(file, SIZE, |area| {
        let note = "joined by lines: simulated in virtual time; hollow squares: measured; dashed: what the paper says";
        heading(area, &figure.title, note, &[])?;
        let rows = legend(area, figure)?;
        let (width, _) = area.dim_in_pixel();
        let body = area.margin((LEGEND.0 + rows * LEGEND.1 + 8) as u32, 20, 20, 20);
        let middle = width as i32 / 2 - 20;
        let (left, right) = body.split_horizontally(middle);
        for (half, panel) in [left, right].iter().zip(&figure.panels) {
            chart(half, panel)?;
        }
        Ok(())
    })
}

fn colour(hue: Hue) -> RGBColor {
    match hue {
        Hue::Tcp => RGBColor(110, 110, 110),
        Hue::Same => RGBColor(86, 160, 211),
        Hue::Fast => RGBColor(213, 94, 0),
        Hue::TcpOnDemand => RGBColor(0, 120, 90),
        Hue::FastOnDemand => RGBColor(170, 51, 119),
    }
}

/// Each series once, in whichever panel it is. Returns the number of rows.
fn legend(area: &Drawing, figure: &Figure) -> Result<i32> {
    let mut shown: Vec<&str> = Vec::new();
    let (mut x, mut row) = (30, 0);
    for series in figure.panels.iter().flat_map(|panel| &panel.series) {
        if shown.contains(&series.name.as_str()) {
            continue;
        }
        shown.push(&series.name);
        let style = font(19);
        let (width, _) = area.estimate_text_size(&series.name, &style).map_err(drawing)?;
        if x + 40 + width as i32 > SIZE.0 as i32 - 30 {
            (x, row) = (30, row + 1);
        }
        let y = LEGEND.0 + row * LEGEND.1;
        let at = (x + 14, y + 9);
        let colour = colour(series.hue);
        if series.how == How::Simulated {
            let line = [(x, at.1), (x + 28, at.1)];
            area.draw(&PathElement::new(line, colour.stroke_width(2))).map_err(drawing)?;
        }
        mark(area, at, series.mark, series.how, colour)?;
        area.draw(&Text::new(series.name.clone(), (x + 38, y), style)).map_err(drawing)?;
        x += 38 + width as i32 + 34;
    }
    Ok(row + 1)
}

fn chart(area: &Area, panel: &Panel) -> Result<()> {
    let points = || panel.series.iter().flat_map(|series| series.points.iter().copied());
    let across =
        panel.claims.iter().filter_map(|claim| if let Claim::Across(y, _) = claim { Some(*y) } else { None });
    let x = reach(points().map(|(x, _)| x), panel.x.log);
    let y = Axis::around(points().map(|(_, y)| y).chain(across), panel.y.log);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, font(22))
        .x_label_area_size(58)
        .y_label_area_size(120)
        .margin_right(20)
        .build_cartesian_2d(x, y)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .label_style(font(17))
        .axis_desc_style(font(19))
        .x_desc(panel.x.label)
        .y_desc(panel.y.label)
        .x_label_formatter(&|value| show(panel.x, *value))
        .y_label_formatter(&|value| show(panel.y, *value))
        .draw()
        .map_err(drawing)?;
    // The chart gives places on the whole picture, and the area needs them from its own corner.
    let (left, top) = area.get_base_pixel();
    let place = |(x, y): (i32, i32)| (x - left, y - top);
    let (begin, end) =
        (place(chart.backend_coord(&(x.base(), y.base()))), place(chart.backend_coord(&(x.top(), y.top()))));
    if panel.series.is_empty() {
        let at = ((begin.0 + end.0) / 2, (begin.1 + end.1) / 2);
        let text = Text::new(
            "not measured: there is no Shunt to measure",
            at,
            font_at(19, HPos::Center, VPos::Center),
        );
        area.draw(&text).map_err(drawing)?;
        return Ok(());
    }
    let mut busy: Vec<(i32, i32)> = Vec::new();
    for claim in &panel.claims {
        let (from, to) = match claim {
            Claim::Across(value, _) => {
                let height = place(chart.backend_coord(&(x.base(), *value))).1;
                ((begin.0, height), (end.0, height))
            }
            Claim::Upright(value, _) => {
                let along = place(chart.backend_coord(&(*value, y.base()))).0;
                busy.extend((end.1..begin.1).step_by(4).map(|at| (along, at)));
                ((along, begin.1), (along, end.1))
            }
        };
        dashed(area, from, to)?;
    }
    for series in &panel.series {
        let colour = colour(series.hue);
        let places: Vec<(i32, i32)> = series.points.iter().map(|at| place(chart.backend_coord(at))).collect();
        if series.how == How::Simulated {
            area.draw(&PathElement::new(places.clone(), colour.stroke_width(2))).map_err(drawing)?;
            busy.extend(places.windows(2).flat_map(|ends| between(ends[0], ends[1])));
        }
        busy.extend(&places);
        for at in places {
            mark(area, at, series.mark, series.how, colour)?;
        }
    }
    let mut uprights = 0;
    for claim in &panel.claims {
        match claim {
            Claim::Across(value, label) => {
                let height = place(chart.backend_coord(&(x.base(), *value))).1;
                beside(area, label, (begin.0, end.0), height, &busy)?;
            }
            Claim::Upright(value, label) => {
                let along = place(chart.backend_coord(&(*value, y.base()))).0;
                // On the side that has more room, each a line below the one before.
                let side = if along * 2 > begin.0 + end.0 { (HPos::Right, -6) } else { (HPos::Left, 6) };
                words(area, label, (along + side.1, end.1 + 4 + 22 * uprights), side.0)?;
                uprights += 1;
            }
        }
    }
    Ok(())
}

/// Points of a line, close enough that no word fits between them.
fn between(from: (i32, i32), to: (i32, i32)) -> impl Iterator<Item = (i32, i32)> {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let steps = (dx.abs().max(dy.abs()) / 4).max(1);
    (0..=steps).map(move |step| (from.0 + dx * step / steps, from.1 + dy * step / steps))
}

/// Words above or below a line across, where they cover the least.
fn beside(
    area: &Area,
    text: &str,
    (left, right): (i32, i32),
    height: i32,
    busy: &[(i32, i32)],
) -> Result<()> {
    const ROOM: i32 = 9;
    let (width, tall) = area.estimate_text_size(text, &font(17)).map_err(drawing)?;
    let (width, tall) = (width as i32, tall as i32);
    let covered = |at: (i32, i32)| {
        let inside = |p: &&(i32, i32)| {
            (at.0 - ROOM..at.0 + width + ROOM).contains(&p.0) && (at.1 - 6..at.1 + tall + 6).contains(&p.1)
        };
        busy.iter().filter(inside).count()
    };
    let tops = [height - tall - 5, height + 6];
    let places = (left + 8..right - width - 6).step_by(12).rev().flat_map(|x| tops.map(|y| (x, y)));
    let best = places.min_by_key(|at| covered(*at)).unwrap_or((left + 8, tops[0]));
    words(area, text, best, HPos::Left)
}

/// A value of the paper, on a white ground, as lines may pass below.
fn words(area: &Area, text: &str, at: (i32, i32), horizontal: HPos) -> Result<()> {
    let style = font_at(17, horizontal, VPos::Top).color(&PAPER);
    let (width, height) = area.estimate_text_size(text, &style).map_err(drawing)?;
    let left = if matches!(horizontal, HPos::Right) { at.0 - width as i32 } else { at.0 };
    let ground = [(left - 2, at.1), (left + width as i32 + 2, at.1 + height as i32)];
    area.draw(&Rectangle::new(ground, WHITE.mix(0.9).filled())).map_err(drawing)?;
    area.draw(&Text::new(text.to_string(), at, style)).map_err(drawing)
}

fn dashed(area: &Area, from: (i32, i32), to: (i32, i32)) -> Result<()> {
    const DASH: i32 = 7;
    let length = (to.0 - from.0).abs().max((to.1 - from.1).abs());
    let along = |at: i32| {
        let part = |from: i32, to: i32| from + (to - from) * at.min(length) / length.max(1);
        (part(from.0, to.0), part(from.1, to.1))
    };
    for at in (0..length).step_by(2 * DASH as usize) {
        area.draw(&PathElement::new([along(at), along(at + DASH)], PAPER.stroke_width(2)))
            .map_err(drawing)?;
    }
    Ok(())
}

fn mark(area: &Drawing, at: (i32, i32), mark: Mark, how: How, colour: RGBColor) -> Result<()> {
    const R: i32 = 6;
    let square = [(at.0 - R, at.1 - R), (at.0 + R, at.1 + R)];
    match (how, mark) {
        (How::Measured, _) => {
            area.draw(&Rectangle::new(square, WHITE.filled())).map_err(drawing)?;
            area.draw(&Rectangle::new(square, colour.stroke_width(2))).map_err(drawing)
        }
        (_, Mark::Circle) => area.draw(&Circle::new(at, R, colour.filled())).map_err(drawing),
        (_, Mark::Triangle) => area.draw(&TriangleMarker::new(at, R + 3, colour.filled())).map_err(drawing),
        (_, Mark::Cross) => area.draw(&Cross::new(at, R, colour.stroke_width(3))).map_err(drawing),
    }
}

/// From the first to the last of these, with a little room at both ends.
fn reach(values: impl Iterator<Item = f64>, log: bool) -> Axis {
    let values: Vec<f64> = values.map(|value| if log { value.log10() } else { value }).collect();
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if low >= high || values.is_empty() {
        return Axis { low: 0.0, high: 1.0, log: false };
    }
    let room = (high - low) * 0.04;
    Axis { low: low - room, high: high + room, log }
}

fn show(scale: Scale, value: f64) -> String {
    match scale.unit {
        // Without zeros at the end.
        Unit::Share => format!("{}", (value * 100.0).round() / 100.0),
        // Decades of bytes are decades.
        Unit::Bytes => {
            Unit::BytesPerSecond.show(value).replace("/s", "").replace(".00", "").replace(".0", "")
        }
        unit => unit.show(value),
    }
}
