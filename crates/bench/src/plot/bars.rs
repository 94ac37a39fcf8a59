//! Groups of bars, one bar for each contender, with its value above and the range of the rounds on
//! it.

use super::canvas::{Area, Axis, FAINT, INK, drawing, font, font_at, heading, picture};
use crate::error::Result;
use crate::stats::Summary;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::path::Path;

pub struct Bars {
    pub title: String,
    pub note: String,
    /// The title of the vertical axis.
    pub axis: String,
    pub categories: Vec<String>,
    pub series: Vec<Series>,
    pub log: bool,
    /// Formats a value for axis and bars.
    pub show: Box<dyn Fn(f64) -> String>,
}

pub struct Series {
    pub name: String,
    pub colour: RGBColor,
    /// One for each category.
    pub values: Vec<Option<Summary>>,
}

/// The part of a category's width that its bars take.
const FILLED: f64 = 0.84;

pub fn draw(bars: &Bars, file: &Path) -> Result<()> {
    let width = (bars.categories.len() * bars.series.len() * 92 + 220).clamp(1000, 2400) as u32;
    picture(file, (width, 720), |area| {
        let legend: Vec<_> = bars.series.iter().map(|s| (s.name.clone(), s.colour)).collect();
        let body = heading(area, &bars.title, &bars.note, &legend)?;
        chart(&body, bars)
    })
}

fn chart(area: &Area, bars: &Bars) -> Result<()> {
    let summaries = bars.series.iter().flat_map(|s| s.values.iter().flatten());
    let axis = Axis::around(summaries.flat_map(|s| [s.min, s.max]), bars.log);
    let count = bars.categories.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(50)
        .y_label_area_size(120)
        .build_cartesian_2d(0.0..count, axis)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .x_labels(0)
        .y_label_style(font(18))
        .axis_desc_style(font(20))
        .y_desc(&bars.axis)
        .y_label_formatter(&|place| (bars.show)(*place))
        .draw()
        .map_err(drawing)?;
    // The chart gives places on the whole picture, and the area needs them from its own corner.
    let (left, top) = area.get_base_pixel();
    let offset = |(x, y): (i32, i32), down: i32| (x - left, y - top + down);
    let each = FILLED / bars.series.len().max(1) as f64;
    for (s, series) in bars.series.iter().enumerate() {
        for (c, summary) in series.values.iter().enumerate() {
            let Some(summary) = summary else { continue };
            let left = c as f64 + (1.0 - FILLED) / 2.0 + s as f64 * each;
            let (middle, right) = (left + each * 0.48, left + each * 0.96);
            let top = summary.median;
            let body = Rectangle::new([(left, axis.base()), (right, top)], series.colour.filled());
            let range = [(middle, summary.min), (middle, summary.max)];
            chart.draw_series([body]).map_err(drawing)?;
            chart.draw_series([PathElement::new(range, INK.stroke_width(2))]).map_err(drawing)?;
            // Above the bar, and above its range.
            let at = offset(chart.backend_coord(&(middle, summary.max.max(top))), -4);
            let text = Text::new((bars.show)(summary.median), at, font_at(17, HPos::Center, VPos::Bottom));
            area.draw(&text).map_err(drawing)?;
        }
    }
    for (c, name) in bars.categories.iter().enumerate() {
        let at = offset(chart.backend_coord(&(c as f64 + 0.5, axis.base())), 12);
        area.draw(&Text::new(name.clone(), at, font_at(19, HPos::Center, VPos::Top))).map_err(drawing)?;
    }
    Ok(())
}
