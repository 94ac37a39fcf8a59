//! Units of measurement.

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unit {
    /// Nanoseconds.
    Time,
    PerSecond,
    BytesPerSecond,
    Bytes,
    /// Nanoseconds of processor time for one request.
    CpuPerRequest,
    /// Percent of one processor.
    CpuPercent,
    /// Events in a second; fewer are better.
    Events,
    Share,
    Percent,
    /// A count; lower is better.
    Count,
}

impl Unit {
    /// A value in a form for people.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Time => scaled(value, 1000.0, &["ns", "us", "ms", "s"]),
            Unit::CpuPerRequest => scaled(value, 1000.0, &["ns", "us", "ms", "s"]),
            Unit::PerSecond | Unit::Events => scaled(value, 1000.0, &["/s", "k/s", "M/s", "G/s"]),
            Unit::BytesPerSecond => scaled(value, 1000.0, &["B/s", "KB/s", "MB/s", "GB/s"]),
            Unit::Bytes => scaled(value, 1024.0, &["B", "KiB", "MiB", "GiB"]),
            Unit::CpuPercent | Unit::Percent => format!("{value:.2} %"),
            Unit::Share => format!("{value:.2}"),
            Unit::Count => format!("{value:.0}"),
        }
    }

    pub fn key(self) -> &'static str {
        match self {
            Unit::Time => "ns",
            Unit::PerSecond | Unit::Events => "1/s",
            Unit::BytesPerSecond => "B/s",
            Unit::Bytes => "B",
            Unit::CpuPerRequest => "cpu ns/request",
            Unit::CpuPercent => "% of a cpu",
            Unit::Share => "share",
            Unit::Percent => "%",
            Unit::Count => "",
        }
    }

    /// Whether more of it is better.
    pub fn more_is_better(self) -> bool {
        matches!(self, Unit::PerSecond | Unit::BytesPerSecond | Unit::Share)
    }
}

fn scaled(mut value: f64, step: f64, names: &[&str]) -> String {
    let mut name = 0;
    // 999.5 would be printed as 1000.
    while value.abs() >= step * 0.9995 && name + 1 < names.len() {
        value /= step;
        name += 1;
    }
    let digits = if value == 0.0 || value.abs() >= 99.95 {
        0
    } else if value.abs() >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", names[name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_with_three_digits() {
        assert_eq!(Unit::Time.show(231.4), "231 ns");
        assert_eq!(Unit::Time.show(46_120.0), "46.1 us");
        assert_eq!(Unit::PerSecond.show(1_213_000.0), "1.21 M/s");
        assert_eq!(Unit::PerSecond.show(999_900.0), "1.00 M/s");
        assert_eq!(Unit::Bytes.show(34.0 * 1024.0), "34.0 KiB");
        assert_eq!(Unit::PerSecond.show(0.0), "0 /s");
    }
}
