//! Common parts of the plots: a bitmap that becomes a PNG file, the font, and an axis that may be
//! logarithmic.

use crate::error::{Error, Result, failed};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;
use std::sync::Once;

pub const INK: RGBColor = RGBColor(40, 40, 40);
pub const FAINT: RGBColor = RGBColor(225, 225, 225);
const FONT: &[u8] = include_bytes!("../../assets/sans.ttf");

pub type Area<'a> = DrawingArea<BitMapBackend<'a>, Shift>;

/// Draws a picture of this size and writes it.
pub fn picture(file: &Path, size: (u32, u32), draw: impl FnOnce(&Area) -> Result<()>) -> Result<()> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // Fails only for bytes that are not a font, which a test would have seen.
        let _ = plotters::style::register_font("sans-serif", FontStyle::Normal, FONT);
    });
    let mut pixels = vec![255; (size.0 * size.1 * 3) as usize];
    {
        let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
        area.fill(&WHITE).map_err(drawing)?;
        draw(&area)?;
        area.present().map_err(drawing)?;
    }
    write_png(file, size, &pixels).map_err(failed(format!("cannot write {}", file.display())))
}

fn write_png(file: &Path, size: (u32, u32), pixels: &[u8]) -> std::result::Result<(), png::EncodingError> {
    let out = std::io::BufWriter::new(std::fs::File::create(file)?);
    let mut encoder = png::Encoder::new(out, size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header()?.write_image_data(pixels)
}

/// An error of the drawing library.
pub fn drawing(error: impl std::fmt::Display) -> Error {
    Error::Failed(format!("cannot draw a plot: {error}"))
}

pub fn font(size: u32) -> TextStyle<'static> {
    TextStyle::from(("sans-serif", size).into_font()).color(&INK)
}

pub fn font_at(size: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    font(size).pos(Pos::new(horizontal, vertical))
}

/// Title, a line of explanation, and the legend; gives the area below them.
pub fn heading<'a>(
    area: &Area<'a>,
    title: &str,
    note: &str,
    legend: &[(String, RGBColor)],
) -> Result<Area<'a>> {
    area.draw(&Text::new(title.to_string(), (30, 20), font(32))).map_err(drawing)?;
    area.draw(&Text::new(note.to_string(), (30, 62), font(19))).map_err(drawing)?;
    let mut x = 30;
    for (name, colour) in legend {
        area.draw(&Rectangle::new([(x, 100), (x + 22, 116)], colour.filled())).map_err(drawing)?;
        let style = font(19);
        area.draw(&Text::new(name.clone(), (x + 30, 99), style.clone())).map_err(drawing)?;
        let (width, _) = area.estimate_text_size(name, &style).map_err(drawing)?;
        x += 30 + width as i32 + 36;
    }
    let top = if legend.is_empty() { 95 } else { 130 };
    Ok(area.margin(top, 20, 20, 30))
}

/// An axis with a plain or a logarithmic scale. `low` and `high` are logarithms where it is
/// logarithmic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    pub low: f64,
    pub high: f64,
    pub log: bool,
}

impl Axis {
    /// Long enough for these values, with room above for a label.
    pub fn around(values: impl Iterator<Item = f64>, log: bool) -> Axis {
        let values: Vec<f64> = values.filter(|v| v.is_finite() && (!log || *v > 0.0)).collect();
        let most = values.iter().copied().fold(f64::NAN, f64::max);
        let least = values.iter().copied().fold(f64::NAN, f64::min);
        if most.is_nan() {
            return Axis { low: 0.0, high: 1.0, log: false };
        }
        if log {
            let low = (least * 0.7).log10().floor();
            return Axis { low, high: (most * 1.6).log10().max(low + 1.0), log };
        }
        Axis { low: 0.0, high: if most > 0.0 { most * 1.15 } else { 1.0 }, log }
    }

    /// The value that the axis begins with.
    pub fn base(&self) -> f64 {
        self.value(self.low)
    }

    /// The value that it ends with.
    pub fn top(&self) -> f64 {
        self.value(self.high)
    }

    fn place(&self, value: f64) -> f64 {
        if self.log { value.max(f64::MIN_POSITIVE).log10().max(self.low) } else { value }
    }

    fn value(&self, place: f64) -> f64 {
        if self.log { 10f64.powf(place) } else { place }
    }

    /// Where lines and numbers go: decades, or round steps.
    fn marks(&self) -> Vec<f64> {
        let step = if self.log { 1.0 } else { round_step((self.high - self.low) / 6.0) };
        let first = (self.low / step).ceil() as i64;
        let last = (self.high / step).floor() as i64;
        let mut marks: Vec<f64> = (first..=last).map(|i| i as f64 * step).collect();
        if self.log && marks.len() < 4 {
            // A short axis needs numbers between the decades as well.
            marks.extend((first - 1..=last).flat_map(|i| [2f64, 5.0].map(|d| i as f64 + d.log10())));
            marks.retain(|m| *m >= self.low && *m <= self.high);
            marks.sort_by(f64::total_cmp);
        }
        marks
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (self.place(*value) - self.low) / (self.high - self.low);
        from + (share * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks().into_iter().map(|mark| self.value(mark)).collect()
    }

    fn range(&self) -> std::ops::Range<f64> {
        self.base()..self.value(self.high)
    }
}

/// 1, 2 or 5 times a power of ten, at least as large as this.
fn round_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|d| d * decade)
        .find(|s| *s >= least * 0.999)
        .unwrap_or(decade * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_font_is_a_font() {
        assert!(plotters::style::register_font("test", FontStyle::Normal, FONT).is_ok());
    }

    #[test]
    fn steps_are_round() {
        assert_eq!((round_step(0.3), round_step(17.0), round_step(100.0)), (0.5, 20.0, 100.0));
    }

    #[test]
    fn a_logarithmic_axis_begins_at_a_decade() {
        let axis = Axis::around([230.0, 46_000.0].into_iter(), true);
        assert_eq!(axis.low, 2.0);
        assert_eq!(axis.marks()[0], 2.0);
        assert_eq!(axis.map(&100.0, (500, 0)), 500);
        assert_eq!(axis.place(1000.0), 3.0);
        assert_eq!(axis.value(3.0), 1000.0);
    }

    #[test]
    fn an_axis_without_values_is_still_one() {
        assert_eq!(Axis::around(std::iter::empty(), true), Axis { low: 0.0, high: 1.0, log: false });
    }
}
