//! What a buffer costs between two copies: `cost SIZE COUNT memory|thread|tcp|pipe`. Used by hand; `shunt bench filters` measures for the record.
use filters::*;
use std::time::Instant;

fn main() {
    let mut registry = Registry::default();
    registry
        .function("source", |context| {
            let (size, count) = numbers(&context.uow().params);
            for _ in 0..count {
                let mut draft = context.reserve(0)?;
                draft.bytes()[..size.min(8)].fill(1);
                context.send(0, draft, size, With::default())?;
            }
            Ok(())
        })
        .function("sink", |context| {
            let mut sum = 0u64;
            while let Some(buffer) = context.read()? {
                sum += u64::from(buffer[0]);
            }
            context.emit(sum.to_le_bytes())
        });
    let registry = registry.serve_if_asked();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (size, count): (usize, u64) = (args[0].parse().unwrap(), args[1].parse().unwrap());
    let mut layout = Layout::default();
    layout.filter("source", spec("source", b"")).unwrap();
    layout.filter("sink", spec("sink", b"")).unwrap();
    layout.stream("source", "sink", StreamOptions { buffer_size: size, ..Default::default() }).unwrap();
    let mut placement = Placement::default();
    placement.0.insert("source".into(), Place { processes: args[2] != "thread", ..Place::default() });
    let mut options = Options::local(placement).unwrap();
    if args[2] == "shunt" {
        options.transport = Transport::Shunt;
    }
    if args[2] == "tcp" {
        options.transport = Transport::Tcp;
    }
    let group = registry.start_with(&layout, options).unwrap();
    for _ in 0..5 {
        let params = [(size as u64).to_le_bytes(), count.to_le_bytes()].concat();
        let begun = Instant::now();
        group.append(params, UnitOptions::default()).result().unwrap();
        let took = begun.elapsed();
        println!(
            "{:.1} ns a buffer, {:.2} GB/s",
            took.as_nanos() as f64 / count as f64,
            size as f64 * count as f64 / took.as_nanos() as f64
        );
    }
    let figures = &group.status().figures[0];
    println!("{}", figures.way);
    println!(
        "p50 {:?} ns, p99 {:?} ns, blocked {} ms, idle {} ms",
        figures.latency(0.5),
        figures.latency(0.99),
        figures.blocked_ns / 1_000_000,
        figures.idle_ns / 1_000_000
    );
}

fn numbers(params: &[u8]) -> (usize, u64) {
    let at = |from: usize| u64::from_le_bytes(params[from..from + 8].try_into().unwrap());
    (at(0) as usize, at(8))
}
