//! The connections of filters ([`Layout`]), apart from where filters run ([`Placement`]), and the
//! [`Plan`] that both make: which copies there are, and in which process each one runs. Pure: all
//! mistakes in a program's structure are found here, before anything starts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::flow::Policy;

/// The default size of a buffer, in bytes.
pub const BUFFER_SIZE: usize = 64 << 10;
/// The default number of credits, which is the paper's.
pub const CREDITS: usize = 32;
/// More credits are of no use: they only take memory.
pub const CREDITS_MOST: usize = 4096;
/// A buffer's length has 31 bits.
pub const BUFFER_MOST: usize = 1 << 30;
/// Copies of one filter.
pub const COPIES_MOST: usize = 1024;

/// A filter of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterDef {
    /// Its name.
    pub name: String,
    /// How a worker makes one: for the Rust face the name under which it was registered, and
    /// arguments; for Python a pickled class.
    pub spec: Vec<u8>,
}

/// A directed stream of buffers from one filter to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamDef {
    /// Its name; `FROM->TO` where none is given.
    pub name: String,
    /// The producer's place among the filters.
    pub from: usize,
    /// The consumer's.
    pub to: usize,
    /// How copies of the consumer are chosen.
    pub policy: Policy,
    /// The most bytes that a buffer holds.
    pub buffer_size: usize,
    /// How many buffers of one producer copy may wait at one consumer copy.
    pub credits: usize,
    /// Whether a write of more than a buffer becomes several; it is an error otherwise.
    pub split: bool,
    /// For [`Policy::User`]: how a worker makes the function that chooses, as [`FilterDef::spec`]
    /// is for filters.
    pub chooser: Vec<u8>,
}

/// Filters and streams.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The filters.
    pub filters: Vec<FilterDef>,
    /// The streams.
    pub streams: Vec<StreamDef>,
}

/// The options of a stream. Those that are not set are as in [`StreamOptions::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// See [`StreamDef::name`].
    pub name: Option<String>,
    /// See [`StreamDef::policy`].
    pub policy: Policy,
    /// See [`StreamDef::buffer_size`].
    pub buffer_size: usize,
    /// See [`StreamDef::credits`].
    pub credits: usize,
    /// See [`StreamDef::split`].
    pub split: bool,
    /// See [`StreamDef::chooser`].
    pub chooser: Vec<u8>,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            name: None,
            policy: Policy::DemandDriven,
            buffer_size: BUFFER_SIZE,
            credits: CREDITS,
            split: false,
            chooser: Vec::new(),
        }
    }
}

/// The mistake in a layout or a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

macro_rules! wrong {
    ($($text:tt)*) => { Err(Wrong(format!($($text)*))) };
}

impl Layout {
    /// Adds a filter.
    pub fn filter(&mut self, name: &str, spec: impl Into<Vec<u8>>) -> Result<(), Wrong> {
        named("filter", name)?;
        if self.place_of(name).is_some() {
            return wrong!("there are two filters named '{name}'");
        }
        self.filters.push(FilterDef { name: name.into(), spec: spec.into() });
        Ok(())
    }

    /// Adds a stream between two filters.
    pub fn stream(&mut self, from: &str, to: &str, options: StreamOptions) -> Result<(), Wrong> {
        let place = |name: &str| {
            self.place_of(name).ok_or_else(|| {
                let known: Vec<&str> = self.filters.iter().map(|filter| filter.name.as_str()).collect();
                Wrong(format!(
                    "a stream names the filter '{name}', which is not there (there are: {})",
                    known.join(", ")
                ))
            })
        };
        let (from_place, to_place) = (place(from)?, place(to)?);
        let name = match options.name {
            Some(name) => {
                named("stream", &name)?;
                name
            }
            None => format!("{from}->{to}"),
        };
        if self.streams.iter().any(|stream| stream.name == name) {
            return wrong!("there are two streams named '{name}'; give one of them another name");
        }
        if !(1..=BUFFER_MOST).contains(&options.buffer_size) {
            return wrong!("stream '{name}': buffer_size is {}, not 1 byte to 1 GiB", options.buffer_size);
        }
        if !(1..=CREDITS_MOST).contains(&options.credits) {
            return wrong!("stream '{name}': credits is {}, not 1 to {CREDITS_MOST}", options.credits);
        }
        if let Policy::Weighted(weights) = &options.policy
            && (weights.iter().all(|&weight| weight == 0) || weights.iter().any(|&weight| weight > 1 << 20))
        {
            return wrong!(
                "stream '{name}': weights are numbers from 0 to {}, and not all of them 0",
                1 << 20
            );
        }
        self.streams.push(StreamDef {
            name,
            from: from_place,
            to: to_place,
            policy: options.policy,
            buffer_size: options.buffer_size,
            credits: options.credits,
            split: options.split,
            chooser: options.chooser,
        });
        Ok(())
    }

    /// The filter's place in [`Layout::filters`].
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.filters.iter().position(|filter| filter.name == name)
    }

    /// Streams that the filter reads, by their places.
    pub fn inputs(&self, filter: usize) -> impl Iterator<Item = usize> {
        self.streams.iter().enumerate().filter(move |(_, stream)| stream.to == filter).map(|(place, _)| place)
    }

    /// Streams that the filter writes.
    pub fn outputs(&self, filter: usize) -> impl Iterator<Item = usize> {
        self.streams
            .iter()
            .enumerate()
            .filter(move |(_, stream)| stream.from == filter)
            .map(|(place, _)| place)
    }

    /// Checks whether it can run: not empty, and without a cycle, since the end of a unit of work
    /// goes along the streams.
    pub fn check(&self) -> Result<(), Wrong> {
        if self.filters.is_empty() {
            return wrong!("the layout has no filters");
        }
        let mut waits: Vec<usize> =
            (0..self.filters.len()).map(|filter| self.inputs(filter).count()).collect();
        let mut free: Vec<usize> = (0..waits.len()).filter(|&filter| waits[filter] == 0).collect();
        while let Some(filter) = free.pop() {
            for stream in self.outputs(filter) {
                let to = self.streams[stream].to;
                waits[to] -= 1;
                if waits[to] == 0 {
                    free.push(to);
                }
            }
        }
        let left: Vec<&str> = (0..waits.len())
            .filter(|&filter| waits[filter] > 0)
            .map(|filter| self.filters[filter].name.as_str())
            .collect();
        if !left.is_empty() {
            return wrong!(
                "streams go round in a circle, so that no unit of work could end: see {}",
                left.join(", ")
            );
        }
        Ok(())
    }
}

fn named(what: &str, name: &str) -> Result<(), Wrong> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.>".contains(c);
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return wrong!("'{name}' is no name for a {what}: 1 to 64 letters, digits, '_', '-', '.'");
    }
    Ok(())
}

/// The name of the caller's host and process.
pub const CALLER: &str = "caller";

/// Where the copies of one filter run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// How many.
    pub copies: usize,
    /// On which hosts, in turn; empty: on all that the launcher has, in turn. [`CALLER`] is the
    /// process that made the group.
    pub hosts: Vec<String>,
    /// Whether each has a process of its own, rather than a thread in its host's process.
    pub processes: bool,
}

impl Default for Place {
    fn default() -> Place {
        Place { copies: 1, hosts: Vec::new(), processes: false }
    }
}

/// Where filters run. A filter that is not named has one copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement(pub BTreeMap<String, Place>);

/// A process of the group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDef {
    /// The host, by the launcher's name for it.
    pub host: String,
    /// The copy that has it for itself: filter and rank.
    pub only: Option<(usize, usize)>,
}

/// The layout, and the worker of each copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The layout.
    pub layout: Layout,
    /// The processes; the first one is the caller's.
    pub workers: Vec<WorkerDef>,
    /// For each filter, for each of its copies, the worker.
    pub copies: Vec<Vec<usize>>,
}

/// One copy of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CopyId {
    /// The filter's place in the layout.
    pub filter: usize,
    /// Which copy, from 0.
    pub rank: usize,
}

impl Plan {
    /// Puts the copies on `hosts`, which the launcher has. Filters that the placement does not name
    /// go to the hosts in turn; but those that write no stream go to the caller, since their
    /// results are wanted there.
    pub fn new(layout: &Layout, placement: &Placement, hosts: &[String]) -> Result<Plan, Wrong> {
        layout.check()?;
        for name in placement.0.keys() {
            if layout.place_of(name).is_none() {
                return wrong!("the placement names the filter '{name}', which is not in the layout");
            }
        }
        let known: HashSet<&str> = hosts.iter().map(String::as_str).chain([CALLER]).collect();
        let mut workers = vec![WorkerDef { host: CALLER.into(), only: None }];
        let mut of_host: HashMap<String, usize> = HashMap::from([(CALLER.into(), 0)]);
        let mut copies = Vec::new();
        for (place, filter) in layout.filters.iter().enumerate() {
            let wanted = placement.0.get(&filter.name).cloned().unwrap_or_default();
            if !(1..=COPIES_MOST).contains(&wanted.copies) {
                return wrong!(
                    "filter '{}' has {} copies, not 1 to {COPIES_MOST}",
                    filter.name,
                    wanted.copies
                );
            }
            if let Some(host) = wanted.hosts.iter().find(|host| !known.contains(host.as_str())) {
                let mut all: Vec<&str> = known.iter().copied().collect();
                all.sort_unstable();
                return wrong!(
                    "filter '{}' is placed on host '{host}', which the launcher does not have (it has: {})",
                    filter.name,
                    all.join(", ")
                );
            }
            let is_sink = layout.outputs(place).next().is_none();
            let caller = [CALLER.to_string()];
            let on: &[String] = match () {
                () if !wanted.hosts.is_empty() => &wanted.hosts,
                () if is_sink || hosts.is_empty() => &caller,
                () => hosts,
            };
            copies.push(
                (0..wanted.copies)
                    .map(|rank| {
                        let host = &on[rank % on.len()];
                        if wanted.processes {
                            workers.push(WorkerDef { host: host.clone(), only: Some((place, rank)) });
                            return workers.len() - 1;
                        }
                        *of_host.entry(host.clone()).or_insert_with(|| {
                            workers.push(WorkerDef { host: host.clone(), only: None });
                            workers.len() - 1
                        })
                    })
                    .collect(),
            );
        }
        for stream in &layout.streams {
            if let Policy::Weighted(weights) = &stream.policy
                && weights.len() != copies_of(&copies, stream.to).len()
            {
                return wrong!(
                    "stream '{}' has {} weights, but its consumer '{}' has {} copies",
                    stream.name,
                    weights.len(),
                    layout.filters[stream.to].name,
                    copies_of(&copies, stream.to).len()
                );
            }
        }
        Ok(Plan { layout: layout.clone(), workers, copies })
    }

    /// All copies of all filters.
    pub fn all(&self) -> impl Iterator<Item = CopyId> {
        self.copies
            .iter()
            .enumerate()
            .flat_map(|(filter, copies)| (0..copies.len()).map(move |rank| CopyId { filter, rank }))
    }

    /// How many copies the filter has.
    pub fn count(&self, filter: usize) -> usize {
        self.copies[filter].len()
    }

    /// The worker that a copy runs in.
    pub fn worker_of(&self, copy: CopyId) -> usize {
        self.copies[copy.filter][copy.rank]
    }

    /// How people name a copy: `zoom` if there is one, else `zoom[1]`.
    pub fn name_of(&self, copy: CopyId) -> String {
        let name = &self.layout.filters[copy.filter].name;
        if self.count(copy.filter) == 1 { name.clone() } else { format!("{name}[{}]", copy.rank) }
    }

    /// How people name the host of a worker.
    pub fn host_of(&self, worker: usize) -> &str {
        &self.workers[worker].host
    }
}

fn copies_of(copies: &[Vec<usize>], filter: usize) -> &[usize] {
    copies.get(filter).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(filters: &[&str], streams: &[(&str, &str)]) -> Result<Layout, Wrong> {
        let mut layout = Layout::default();
        for name in filters {
            layout.filter(name, *b"")?;
        }
        for (from, to) in streams {
            layout.stream(from, to, StreamOptions::default())?;
        }
        Ok(layout)
    }

    fn wrong_is<T: fmt::Debug>(result: Result<T, Wrong>, part: &str) {
        let said = result.expect_err("it is wrong").to_string();
        assert!(said.contains(part), "{said}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        wrong_is(layout(&["a", "a"], &[]), "two filters named 'a'");
        wrong_is(layout(&["a b"], &[]), "no name for a filter");
        wrong_is(layout(&["a"], &[("a", "b")]), "'b', which is not there (there are: a)");
        wrong_is(layout(&["a", "b"], &[("a", "b"), ("a", "b")]), "two streams named 'a->b'");
        wrong_is(
            layout(&["a", "b", "c"], &[("a", "b"), ("b", "c"), ("c", "b")]).and_then(|l| l.check()),
            "circle",
        );
        wrong_is(layout(&["a"], &[("a", "a")]).and_then(|l| l.check()), "circle");
        wrong_is(Layout::default().check(), "no filters");
        let mut good = layout(&["a", "b"], &[]).expect("it is good");
        let odd = |options| StreamOptions { ..options };
        wrong_is(
            good.stream("a", "b", odd(StreamOptions { buffer_size: 0, ..Default::default() })),
            "buffer_size is 0",
        );
        wrong_is(
            good.stream("a", "b", odd(StreamOptions { credits: 0, ..Default::default() })),
            "credits is 0",
        );
        let weights = StreamOptions { policy: Policy::Weighted(vec![1, 2]), ..Default::default() };
        good.stream("a", "b", weights).expect("it is good");
        wrong_is(
            Plan::new(&good, &Placement::default(), &[]),
            "2 weights, but its consumer 'b' has 1 copies",
        );
    }

    #[test]
    fn copies_go_to_hosts_in_turn_and_results_to_the_caller() {
        let layout = layout(&["read", "zoom", "collect"], &[("read", "zoom"), ("zoom", "collect")])
            .expect("it is good");
        let hosts = ["h1".to_string(), "h2".to_string()];
        let mut placement = Placement::default();
        placement.0.insert("read".into(), Place { copies: 3, ..Place::default() });
        placement.0.insert("zoom".into(), Place { copies: 2, hosts: vec!["h2".into()], processes: true });
        let plan = Plan::new(&layout, &placement, &hosts).expect("it is good");
        assert_eq!(plan.copies, [vec![1, 2, 1], vec![3, 4], vec![0]]);
        assert_eq!(plan.host_of(4), "h2");
        assert_eq!(plan.workers[4].only, Some((1, 1)));
        assert_eq!(plan.name_of(CopyId { filter: 1, rank: 1 }), "zoom[1]");
        assert_eq!(plan.name_of(CopyId { filter: 2, rank: 0 }), "collect");
        placement.0.get_mut("zoom").expect("it is there").hosts = vec!["h3".into()];
        wrong_is(
            Plan::new(&layout, &placement, &hosts),
            "host 'h3', which the launcher does not have (it has: caller, h1, h2)",
        );
        assert_eq!(Plan::new(&layout, &Placement::default(), &[]).expect("it is good").workers.len(), 1);
    }
}
