//! The plots: PNG files drawn without any font or library of the machine.

mod bars;
mod canvas;
mod colour;
mod dots;
mod filters;
mod lines;

use crate::error::{Result, failed};
use crate::results::{Metric, Results, Side, Unit};
use crate::stats::Summary;
use crate::{containers, ether, ofi, via};
use bars::{Bars, Series};
use colour::colour;
use std::path::{Path, PathBuf};

/// Draws a plot for each group that was measured; returns the files.
pub fn draw_all(results: &Results, directory: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory).map_err(failed(format!("cannot make {}", directory.display())))?;
    let mut files = Vec::new();
    for group in results.groups() {
        let file = directory.join(format!("{group}.png"));
        let metrics = results.group(group);
        match group {
            "latency" => latency(&metrics, "Round trip of 64 bytes", &file)?,
            "asleep" => latency(&metrics, "Round trip of 64 bytes, without spinning", &file)?,
            "throughput" => lines::throughput(&metrics, &file)?,
            "apps" => apps(&metrics, "Unmodified applications", &file)?,
            containers::GROUP => apps(&metrics, "Between two containers", &file)?,
            "ftp" => ftp(&metrics, &file)?,
            "rpc" => lines::rpc(&metrics, &file)?,
            via::LATENCY => lines::via(&metrics, "p50", "Half a round trip", "message size", "time", &file)?,
            via::BANDWIDTH => {
                lines::via(&metrics, "bytes", "Bandwidth", "message size", "bytes per second", &file)?
            }
            ofi::LATENCY => {
                lines::ofi(&metrics, "mean", "Half a round trip", &captions(results, group), &file)?
            }
            ofi::BANDWIDTH => lines::ofi(&metrics, "bytes", "One way", &captions(results, group), &file)?,
            via::LOAD => lines::load(&metrics, &file)?,
            via::STEPS => steps(&metrics, &file)?,
            "idle" => idle(&metrics, &file)?,
            "never-slower" => dots::never_slower(&metrics, &file)?,
            _ => match ether::CURVES.into_iter().find(|(name, _)| *name == group) {
                Some((name, mtu)) => {
                    let title = format!("TCP over Ethernets of MTU {mtu}");
                    let panels = [(ether::HALF, "half a round trip"), (ether::NETPIPE, "bytes per second")];
                    lines::ether(&metrics, &title, panels, &file)?;
                    let file = directory.join(format!("{name}-load.png"));
                    let title = format!("The machine meanwhile, MTU {mtu}");
                    let panels =
                        [(ether::SWITCHES, "switches per second"), (ether::BUSY, "processors at work")];
                    lines::ether(&metrics, &title, panels, &file)?;
                    files.push(file);
                }
                None => continue,
            },
        }
        files.push(file);
    }
    for figure in &results.figures {
        let file = directory.join(format!("filters-{}.png", figure.number));
        filters::draw(figure, &file)?;
        files.push(file);
    }
    Ok(files)
}

/// The text above a group's table.
fn captions(results: &Results, group: &str) -> String {
    let of_it = |(of, _): &&(String, String)| group.split('-').next() == Some(of);
    results.captions.iter().filter(of_it).map(|(_, caption)| caption.as_str()).collect()
}

/// The picture of `shunt demo`, with these names of its sides.
pub fn demo(results: &Results, title: fn(Side) -> &'static str, file: &Path) -> Result<()> {
    let metrics: Vec<&Metric> = results.metrics.iter().filter(|m| m.name == "requests").collect();
    let best = metrics
        .iter()
        .filter_map(|m| m.advantage(Side::Shunt, Side::Tcp))
        .map(|s| s.median)
        .fold(0.0, f64::max);
    let series = [Side::Tcp, Side::Shunt].map(|side| Series {
        name: title(side).into(),
        colour: colour(side),
        values: metrics.iter().map(|m| m.summary(side)).collect(),
    });
    bars::draw(
        &Bars {
            title: format!("Redis, unmodified: up to {best:.1} times the requests"),
            note: "redis-benchmark, 50 connections, no pipelining; median and range of the rounds".into(),
            axis: "requests per second".into(),
            categories: metrics.iter().map(|m| m.row.clone()).collect(),
            series: series.into(),
            log: false,
            show: Box::new(|v| Unit::PerSecond.show(v)),
        },
        file,
    )
}

fn series(metrics: &[&Metric], value: impl Fn(&Metric, Side) -> Option<Summary>) -> Vec<Series> {
    let all = Side::ALL.map(|side| Series {
        name: side.title().into(),
        colour: colour(side),
        values: metrics.iter().map(|m| value(m, side)).collect(),
    });
    all.into_iter().filter(|s| s.values.iter().any(Option::is_some)).collect()
}

fn latency(metrics: &[&Metric], title: &str, file: &Path) -> Result<()> {
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.name != "mean").collect();
    bars::draw(
        &Bars {
            title: title.into(),
            note: "less is better; logarithmic; median and range of the rounds".into(),
            axis: "time there and back".into(),
            categories: shown.iter().map(|m| format!("{}, {}", m.row, m.name)).collect(),
            series: series(&shown, |m, side| m.summary(side)),
            log: true,
            show: Box::new(|v| Unit::Time.show(v)),
        },
        file,
    )
}

/// SOVIA's optimisations, one after the other: figure 9(b) of its paper.
fn steps(metrics: &[&Metric], file: &Path) -> Result<()> {
    let shown = |m: &&Metric| m.unit == Unit::BytesPerSecond;
    let mut rows: Vec<&str> = Vec::new();
    let mut sizes: Vec<&str> = Vec::new();
    for metric in metrics.iter().copied().filter(shown) {
        if !rows.contains(&metric.row.as_str()) {
            rows.push(&metric.row);
        }
        if !sizes.contains(&metric.name.as_str()) {
            sizes.push(&metric.name);
        }
    }
    let of = |row: &str, size: &str| metrics.iter().find(|m| m.row == row && m.name == size);
    let colours = [Side::Tcp, Side::Unix, Side::Sovia].map(colour);
    let series = sizes.iter().zip(colours.into_iter().cycle()).map(|(size, colour)| Series {
        name: format!("sends of {size}"),
        colour,
        values: rows.iter().map(|row| of(row, size)?.summary(Side::Sovia)).collect(),
    });
    bars::draw(
        &Bars {
            title: "Sockets over VIPL, one optimisation after the other".into(),
            note: "one way, TCP_NODELAY off; logarithmic; median and range of the rounds".into(),
            axis: "bytes per second".into(),
            categories: rows.iter().map(|row| row.to_string()).collect(),
            series: series.collect(),
            log: true,
            show: Box::new(|v| Unit::BytesPerSecond.show(v)),
        },
        file,
    )
}

fn apps(metrics: &[&Metric], what: &str, file: &Path) -> Result<()> {
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.name == "requests").collect();
    bars::draw(
        &Bars {
            title: format!("{what}: requests per second"),
            note: "as multiples of plain kernel TCP in the same round; median and range of the rounds".into(),
            axis: "times plain TCP".into(),
            categories: shown.iter().map(|m| m.row.clone()).collect(),
            series: series(&shown, |m, side| m.advantage(side, Side::Tcp)),
            log: false,
            show: Box::new(|v| if v < 9.95 { format!("{v:.2} x") } else { format!("{v:.1} x") }),
        },
        file,
    )
}

fn ftp(metrics: &[&Metric], file: &Path) -> Result<()> {
    bars::draw(
        &Bars {
            title: "Files by FTP, from tmpfs to tmpfs".into(),
            note: "vsftpd; what the client says of a transfer; median and range of the rounds".into(),
            axis: "bytes per second".into(),
            categories: metrics.iter().map(|m| m.row.clone()).collect(),
            series: series(metrics, |m, side| m.summary(side)),
            log: false,
            show: Box::new(|v| Unit::BytesPerSecond.show(v)),
        },
        file,
    )
}

fn idle(metrics: &[&Metric], file: &Path) -> Result<()> {
    let shown: Vec<&Metric> = metrics.iter().copied().filter(|m| m.unit == Unit::PerSecond).collect();
    let row = shown.first().map_or("", |m| &m.row);
    bars::draw(
        &Bars {
            title: "Active connections, alone and among idle ones".into(),
            note: format!("one epoll server, {row}; median and range of the rounds"),
            axis: "round trips per second".into(),
            categories: shown.iter().map(|m| m.name.clone()).collect(),
            series: series(&shown, |m, side| m.summary(side)),
            log: true,
            show: Box::new(|v| Unit::PerSecond.show(v)),
        },
        file,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Place, Target};
    use crate::temp::TempDir;

    #[test]
    fn every_group_becomes_a_png() {
        let mut results = Results::default();
        let rows = [
            ("latency", "64 B blocking", "p50", Unit::Time),
            ("throughput", "64 B", "messages", Unit::PerSecond),
            ("throughput", "64 B", "bytes", Unit::BytesPerSecond),
            ("apps", "redis GET", "requests", Unit::PerSecond),
            ("never-slower", "busy: redis GET", "requests", Unit::PerSecond),
            ("ftp", "lftp get 19 MB", "rate", Unit::BytesPerSecond),
            ("rpc", "null", "p50", Unit::Time),
            ("rpc", "64 B", "p50", Unit::Time),
            (via::LATENCY, "4 B", "p50", Unit::Time),
            (via::BANDWIDTH, "64 B", "bytes", Unit::BytesPerSecond),
            (via::LOAD, "4 VIs", "polled", Unit::PerSecond),
            (via::LOAD, "4 VIs", "blocking", Unit::PerSecond),
            (ofi::LATENCY, "64 B", "mean", Unit::Time),
            (ofi::BANDWIDTH, "64 KB", "bytes", Unit::BytesPerSecond),
            ("ether-1450", "64 B", ether::HALF, Unit::Time),
            ("ether-1450", "64 B", ether::NETPIPE, Unit::BytesPerSecond),
            ("ether-1450", "64 B", ether::SWITCHES, Unit::Events),
            ("ether-1450", "64 B", ether::BUSY, Unit::CpuPercent),
            ("idle", "100 connections", "alone", Unit::PerSecond),
        ];
        for (group, row, name, unit) in rows {
            for (side, value) in [(Side::Tcp, 100.0), (Side::Shunt, 1500.0)] {
                for round in 0..2 {
                    let place = Place { group, row, side, round };
                    results.add(&place, name, unit, Target::NONE, value + round as f64);
                }
            }
        }
        let temp = TempDir::new().unwrap();
        let files = draw_all(&results, temp.path()).unwrap();
        assert_eq!(files.len(), 14);
        for file in files {
            assert!(std::fs::read(&file).unwrap().starts_with(b"\x89PNG"), "{}", file.display());
        }
    }
}
