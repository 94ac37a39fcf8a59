//! The cells of `never-slower`: a dot for each ratio to plain TCP, its range, and the line that no
//! dot should be left of.

use super::canvas::{Area, Axis, FAINT, INK, drawing, font, font_at, heading, picture};
use crate::error::Result;
use crate::report::NEVER_SLOWER;
use crate::results::{Metric, Side};
use crate::stats::Summary;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::path::Path;

const FINE: RGBColor = RGBColor(0, 120, 90);
const SLOWER: RGBColor = RGBColor(200, 30, 30);
const ROW: u32 = 30;
const NAMES: u32 = 470;

pub fn never_slower(metrics: &[&Metric], file: &Path) -> Result<()> {
    let cells: Vec<(String, Summary)> = metrics
        .iter()
        .filter(|m| m.target.over_tcp.is_some() || m.target.value.is_none())
        .filter_map(|m| Some((format!("{}, {}", m.row, m.name), m.advantage(Side::Shunt, Side::Tcp)?)))
        .collect();
    picture(file, (1300, 230 + ROW * cells.len().max(1) as u32), |area| {
        let note = "how many times better than plain TCP, median and range of the rounds; logarithmic";
        let legend = [("at least 0.95".to_string(), FINE), ("slower".to_string(), SLOWER)];
        let body = heading(area, "Never slower", note, &legend)?;
        chart(&body, &cells)
    })
}

fn chart(area: &Area, cells: &[(String, Summary)]) -> Result<()> {
    let ends = cells.iter().flat_map(|(_, s)| [s.min, s.max]);
    let axis = Axis::around(ends.chain([0.9, 1.1]), true);
    // Ratios are mostly near one: from the least of them, not from a whole decade below.
    let least = cells.iter().map(|(_, s)| s.min).fold(0.9, f64::min);
    let axis = Axis { low: (least * 0.9).max(0.01).log10(), ..axis };
    let count = cells.len().max(1) as f64;
    let mut chart = ChartBuilder::on(area)
        .x_label_area_size(60)
        .y_label_area_size(NAMES)
        .margin_right(20)
        .build_cartesian_2d(axis, 0.0..count)
        .map_err(drawing)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .bold_line_style(FAINT)
        .light_line_style(TRANSPARENT)
        .axis_style(INK)
        .y_labels(0)
        .label_style(font(18))
        .axis_desc_style(font(20))
        .x_desc("times plain TCP")
        .x_label_formatter(&|place| format!("{:.1}", *place))
        .draw()
        .map_err(drawing)?;
    for (bound, width) in [(NEVER_SLOWER, 2), (1.0, 1)] {
        let line = [(bound, 0.0), (bound, count)];
        let colour = if width == 2 { SLOWER } else { INK };
        chart.draw_series([PathElement::new(line, colour.stroke_width(width))]).map_err(drawing)?;
    }
    for (i, (name, s)) in cells.iter().enumerate() {
        let y = count - i as f64 - 0.5;
        let colour = if s.median >= NEVER_SLOWER { FINE } else { SLOWER };
        let range = [(s.min, y), (s.max, y)];
        chart.draw_series([PathElement::new(range, INK.stroke_width(2))]).map_err(drawing)?;
        chart.draw_series([Circle::new((s.median, y), 6, colour.filled())]).map_err(drawing)?;
        let (x, y) = chart.backend_coord(&(axis.base(), y));
        let (left, top) = area.get_base_pixel();
        let style = font_at(18, HPos::Right, VPos::Center);
        area.draw(&Text::new(name.clone(), (x - left - 12, y - top), style)).map_err(drawing)?;
    }
    Ok(())
}
