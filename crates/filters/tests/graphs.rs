//! Random layouts, up to seven filters with streams that part and meet again, have the results of a
//! few lines of plain arithmetic: whatever the policies, copies, buffer sizes and credits are, in
//! threads and in processes.

use std::sync::Arc;
use std::time::Duration;

use filters::flow::Policy;
use filters::{
    Error, Layout, Local, Options, Place, Placement, Registry, StreamOptions, Transport, UnitOptions, With,
    spec,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

/// Filters 0 to n-1; streams go from lower to higher numbers.
#[derive(Debug, Clone)]
struct Graph {
    /// Each filter's function of a number: times, plus.
    lines: Vec<(u64, u64)>,
    copies: Vec<usize>,
    streams: Vec<(usize, usize, StreamOptions)>,
    /// How many numbers each source gives, in one unit of work after the other.
    work: Vec<u64>,
}

impl Graph {
    fn inputs(&self, at: usize) -> impl Iterator<Item = usize> {
        self.streams.iter().filter(move |stream| stream.1 == at).map(|stream| stream.0)
    }

    fn is_sink(&self, at: usize) -> bool {
        self.streams.iter().all(|stream| stream.0 != at) && self.inputs(at).next().is_some()
    }

    fn layout(&self) -> Layout {
        let mut layout = Layout::default();
        for (at, (times, more)) in self.lines.iter().enumerate() {
            let spec = match self.inputs(at).next() {
                None => spec("numbers", b""),
                Some(_) if self.is_sink(at) => spec("sum", &[at as u8]),
                Some(_) => spec("line", &[times.to_le_bytes(), more.to_le_bytes()].concat()),
            };
            layout.filter(&format!("f{at}"), spec).expect("the name is good");
        }
        for (from, to, options) in &self.streams {
            layout.stream(&format!("f{from}"), &format!("f{to}"), options.clone()).expect("both are there");
        }
        layout
    }

    fn placement(&self, processes: bool) -> Placement {
        let place = |(at, &copies)| (format!("f{at}"), Place { copies, processes, ..Place::default() });
        Placement(self.copies.iter().enumerate().map(place).collect())
    }

    /// Sum and count of the numbers at each sink.
    fn expected(&self, numbers: u64) -> Vec<(u8, u64, u64)> {
        let mut values: Vec<Vec<u64>> = Vec::new();
        for (at, (times, more)) in self.lines.iter().enumerate() {
            let came = self.inputs(at).flat_map(|from| values[from].clone());
            let made = match self.inputs(at).next() {
                None => (0..numbers).collect(),
                Some(_) if self.is_sink(at) => came.collect(),
                Some(_) => came.map(|value| line(value, *times, *more)).collect(),
            };
            values.push(made);
        }
        (0..values.len())
            .filter(|&at| self.is_sink(at))
            .map(|at| (at as u8, sum(values[at].iter().copied()), values[at].len() as u64))
            .collect()
    }
}

fn line(value: u64, times: u64, more: u64) -> u64 {
    value.wrapping_mul(times).wrapping_add(more)
}

fn sum(values: impl Iterator<Item = u64>) -> u64 {
    values.fold(0, u64::wrapping_add)
}

fn graphs(filters: usize, copies: usize) -> impl Strategy<Value = Graph> {
    let options = (0..4u8, prop::collection::vec(0..6u32, copies), 1..9usize, 0..3usize);
    let options = prop::collection::vec(options, filters * filters);
    (
        prop::collection::vec(any::<(u64, u64)>(), 2..=filters),
        prop::collection::vec(any::<u8>(), filters),
        prop::collection::vec(1..=copies, filters),
        options,
        prop::collection::vec(0..40u64, 1..4),
    )
        .prop_map(|(lines, from, copies, options, work)| {
            let n = lines.len();
            let mut streams = Vec::new();
            for (to, bits) in from.iter().enumerate().take(n).skip(1) {
                // At most three of those before it; with none it is a source, too.
                let inputs = (0..to).filter(|&at| bits >> at & 1 == 1).take(3);
                streams.extend(inputs.map(|at| (at, to)));
            }
            if !streams.contains(&(0, n - 1)) {
                streams.push((0, n - 1));
            }
            let streams = streams
                .into_iter()
                .zip(options)
                .map(|((from, to), (policy, mut weights, credits, size))| {
                    weights.truncate(copies[to]);
                    weights[0] += 1;
                    let policy = match policy {
                        0 => Policy::RoundRobin,
                        1 => Policy::DemandDriven,
                        2 => Policy::Keyed,
                        _ => Policy::Weighted(weights),
                    };
                    let buffer_size = [8, 64, 5000][size];
                    (from, to, StreamOptions { policy, credits, buffer_size, ..StreamOptions::default() })
                })
                .collect();
            Graph { lines, copies: copies[..n].to_vec(), streams, work }
        })
}

fn registry() -> Registry {
    let mut registry = Registry::default();
    registry
        .function("numbers", |context| {
            let count = number(&context.uow().params);
            for value in (context.rank() as u64..count).step_by(context.copies()) {
                write(context, value)?;
            }
            Ok(())
        })
        .filter("line", |args, _, _| Line(number(args), number(&args[8..])))
        .filter("sum", |args, _, _| Sum(args[0]));
    registry
}

struct Line(u64, u64);

impl filters::Filter for Line {
    fn process(&mut self, context: &mut filters::Context) -> Result<(), Error> {
        while let Some(buffer) = context.read()? {
            let value = line(number(&buffer), self.0, self.1);
            drop(buffer);
            write(context, value)?;
        }
        Ok(())
    }
}

struct Sum(u8);

impl filters::Filter for Sum {
    fn process(&mut self, context: &mut filters::Context) -> Result<(), Error> {
        let (mut total, mut count) = (0u64, 0u64);
        while let Some(buffer) = context.read()? {
            total = total.wrapping_add(number(&buffer));
            count += 1;
        }
        context.emit([&[self.0][..], &total.to_le_bytes(), &count.to_le_bytes()].concat())
    }
}

fn write(context: &mut filters::Context, value: u64) -> Result<(), Error> {
    for output in 0..context.outputs().count() {
        context.write_to(output, &value.to_le_bytes(), With { key: value % 5, note: b"" })?;
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("it has eight bytes"))
}

/// Runs as many random graphs.
fn run(cases: u32, filters: usize, copies: usize, processes: Option<Transport>) {
    let registry = Arc::new(registry());
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    };
    let run = |graph: Graph| {
        let mut options =
            Options::local(graph.placement(processes.is_some())).expect("this program has a path");
        options.transport = processes.unwrap_or(Transport::Auto);
        let myself = std::env::current_exe().expect("this program has a path");
        options.beside = Local::new(myself, ["--exact", "a_process_of_a_group"].map(String::from));
        let group = registry.start_with(&graph.layout(), options).expect("the group starts");
        let units: Vec<_> = graph
            .work
            .iter()
            .map(|count| group.append(count.to_le_bytes(), UnitOptions::default()))
            .collect();
        for (unit, &numbers) in units.iter().zip(&graph.work) {
            let done = unit.wait(Some(Duration::from_secs(60)));
            prop_assert_eq!(done, Some(Ok(())));
            let mut got = graph.expected(0);
            for part in unit.result().expect("it is done") {
                let sink = got.iter_mut().find(|sink| sink.0 == part.data[0]).expect("it is a sink");
                sink.1 = sink.1.wrapping_add(number(&part.data[1..]));
                sink.2 += number(&part.data[9..]);
            }
            prop_assert_eq!(got, graph.expected(numbers));
        }
        Ok(())
    };
    TestRunner::new(config).run(&graphs(filters, copies), run).expect("all graphs give what they should");
}

#[test]
fn random_graphs_in_threads() {
    run(1000, 7, 8, None);
}

#[test]
fn random_graphs_in_processes() {
    run(24, 4, 2, Some(Transport::Auto));
}

#[test]
fn random_graphs_in_processes_by_sockets() {
    run(12, 4, 2, Some(Transport::Tcp));
}

/// Not a test: processes of a group run this.
#[test]
fn a_process_of_a_group() {
    registry().serve_if_asked();
}
