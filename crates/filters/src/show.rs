//! Figures in a form for people: a table, the same that the Python interface prints (`_show.py`).

use std::fmt;

use crate::stats::Figures;
use crate::status::Status;

const HEAD: [&str; 13] = [
    "stream", "from", "to", "way", "buffers", "bytes", "unack", "most", "blocked", "idle", "p50", "p99",
    "max",
];
/// Columns of text, which stand at the left.
const TEXTS: usize = 4;

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut lines = vec![HEAD.map(String::from)];
        lines.extend(self.figures.iter().map(row));
        let widths: [usize; HEAD.len()] =
            std::array::from_fn(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0));
        for line in &lines {
            let cell = |(at, text): (usize, &String)| match at < TEXTS {
                true => format!("{text:<width$}", width = widths[at]),
                false => format!("{text:>width$}", width = widths[at]),
            };
            let cells: Vec<String> = line.iter().enumerate().map(cell).collect();
            writeln!(f, "{}", cells.join("  ").trim_end())?;
        }
        let [done, failed, running, waiting] = self.units;
        write!(f, "units of work: {done} done, {failed} failed, {running} running, {waiting} waiting")?;
        if self.losses > 0 {
            write!(f, "; processes lost: {}", self.losses)?;
        }
        match self.figures.iter().map(|figures| figures.unread).sum::<u64>() {
            0 => Ok(()),
            unread => write!(f, "; buffers left unread: {}", grouped(unread)),
        }
    }
}

fn row(figures: &Figures) -> [String; HEAD.len()] {
    let latency = |part| figures.latency(part).map_or_else(|| "-".into(), duration);
    [
        figures.stream.clone(),
        figures.producer.clone(),
        figures.consumer.clone(),
        figures.way.clone(),
        grouped(figures.buffers),
        amount(figures.bytes),
        figures.unacknowledged.to_string(),
        figures.unacknowledged_most.to_string(),
        duration(figures.blocked_ns),
        duration(figures.idle_ns),
        latency(0.5),
        latency(0.99),
        latency(1.0),
    ]
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|part| std::str::from_utf8(part).unwrap_or("")).collect();
    parts.join(",")
}

/// 3.2 us, 14 ms.
fn duration(nanos: u64) -> String {
    for (unit, size) in [("s", 1e9), ("ms", 1e6), ("us", 1e3)] {
        if nanos as f64 >= size {
            return format!("{} {unit}", three(nanos as f64 / size));
        }
    }
    format!("{nanos} ns")
}

/// Bytes: 608 KiB, 1.3 MiB.
fn amount(bytes: u64) -> String {
    let mut count = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if count < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{} {unit}", three(count)) };
        }
        count /= 1024.0;
    }
    format!("{} TiB", three(count))
}

/// Three significant digits, without zeros at the end.
fn three(value: f64) -> String {
    let places = match value {
        _ if value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 3210, 14_000_000, 99_960_000, 2_500_000_000].map(duration),
            ["0 ns", "999 ns", "1 us", "3.21 us", "14 ms", "100 ms", "2.5 s"]
        );
        assert_eq!(
            [0, 1023, 1024, 622_592, 1 << 40].map(amount),
            ["0 B", "1023 B", "1 KiB", "608 KiB", "1 TiB"]
        );
    }

    #[test]
    fn a_status_is_a_table() {
        let figures = Figures {
            stream: "a->b".into(),
            producer: "a".into(),
            consumer: "b[0]".into(),
            way: "memory".into(),
            buffers: 1500,
            bytes: 3000,
            unread: 2,
            ..Figures::default()
        };
        let status = Status { figures: vec![figures], units: [1, 0, 2, 0], losses: 1, ..Status::default() };
        assert_eq!(
            status.to_string(),
            "stream  from  to    way     buffers     bytes  unack  most  blocked  idle  p50  p99  max\n\
             a->b    a     b[0]  memory    1,500  2.93 KiB      0     0     0 ns  0 ns    -    -    -\n\
             units of work: 1 done, 0 failed, 2 running, 0 waiting; processes lost: 1; buffers left unread: 2"
        );
    }
}
