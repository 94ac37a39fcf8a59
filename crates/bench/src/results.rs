//! The numbers of a run: one `Metric` for each thing measured, with a value for each contender and
//! round.

use crate::figure::Figure;
use crate::stats::{self, Summary};
pub use crate::unit::Unit;
use serde_json::{Map, Value, json};

/// The contenders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Tcp,
    Shunt,
    /// Another build of Shunt's library (`--beside`).
    Beside,
    Unix,
    Raw,
    /// The same two on one host, beside containers.
    HostTcp,
    HostShunt,
    /// Raw memory whose two ends sleep until the other wakes them.
    Futex,
    Eventfd,
    /// A copy of the same file on the same file system.
    Copy,
    /// Shunt's stream over a link of libfabric, and libfabric's own tests: its own program, remote
    /// writes, messages.
    Ofi,
    FiPingpong,
    FiWrites,
    FiMessages,
    /// VIPL.
    Via,
    /// Shunt's sockets, whose bytes go by Virtual Interfaces.
    Sovia,
    /// Filters: buffers in memory that both processes map, by sockets that Shunt promotes, or by
    /// TCP.
    Filters,
    FiltersShunt,
    FiltersTcp,
    /// Others that pass buffers.
    ZmqTcp,
    ZmqIpc,
    Dask,
    Ray,
    /// Policies of filters.
    OnDemand,
    RoundRobin,
    /// TCP over Shunt's two Ethernets, over the kernel's, and over those of others in user space.
    Ethom,
    Ethos,
    Veth,
    Vxlan,
    Tinc,
    Fastd,
    Vde,
    Socat,
}

impl Side {
    pub const ALL: [Side; 33] = [
        Side::Tcp,
        Side::Shunt,
        Side::Beside,
        Side::HostTcp,
        Side::HostShunt,
        Side::Sovia,
        Side::Via,
        Side::Ofi,
        Side::FiPingpong,
        Side::FiWrites,
        Side::FiMessages,
        Side::Unix,
        Side::Raw,
        Side::Futex,
        Side::Eventfd,
        Side::Copy,
        Side::Filters,
        Side::FiltersShunt,
        Side::FiltersTcp,
        Side::ZmqTcp,
        Side::ZmqIpc,
        Side::Dask,
        Side::Ray,
        Side::OnDemand,
        Side::RoundRobin,
        Side::Ethom,
        Side::Ethos,
        Side::Veth,
        Side::Vxlan,
        Side::Tinc,
        Side::Fastd,
        Side::Vde,
        Side::Socat,
    ];

    pub fn key(self) -> &'static str {
        match self {
            Side::Tcp => "tcp",
            Side::Shunt => "shunt",
            Side::Beside => "shunt_beside",
            Side::Unix => "unix",
            Side::Raw => "raw",
            Side::HostTcp => "tcp_on_one_host",
            Side::HostShunt => "shunt_on_one_host",
            Side::Futex => "futex",
            Side::Eventfd => "eventfd",
            Side::Copy => "copy",
            Side::Ofi => "shunt_over_libfabric",
            Side::FiPingpong => "fi_pingpong",
            Side::FiWrites => "libfabric_writes",
            Side::FiMessages => "libfabric_messages",
            Side::Via => "vipl",
            Side::Sovia => "sockets_over_vipl",
            Side::Filters => "filters",
            Side::FiltersShunt => "filters_shunt",
            Side::FiltersTcp => "filters_tcp",
            Side::ZmqTcp => "zeromq_tcp",
            Side::ZmqIpc => "zeromq_ipc",
            Side::Dask => "dask",
            Side::Ray => "ray",
            Side::OnDemand => "on_demand",
            Side::RoundRobin => "round_robin",
            Side::Ethom => "ethom",
            Side::Ethos => "ethos",
            Side::Veth => "veth",
            Side::Vxlan => "vxlan",
            Side::Tinc => "tinc",
            Side::Fastd => "fastd",
            Side::Vde => "vde2",
            Side::Socat => "socat",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Side::Tcp => "kernel TCP",
            Side::Shunt => "Shunt",
            Side::Beside => "other build",
            Side::Unix => "UNIX socket",
            Side::Raw => "raw memory",
            Side::HostTcp => "TCP, one host",
            Side::HostShunt => "Shunt, one host",
            Side::Futex | Side::Eventfd => self.key(),
            Side::Copy => "file copy",
            Side::Ofi => "Shunt, libfabric",
            Side::FiPingpong => "fi_pingpong",
            Side::FiWrites => "remote writes",
            Side::FiMessages => "messages",
            Side::Via => "VIPL",
            Side::Sovia => "Shunt over VIPL",
            Side::Filters => "filters",
            Side::FiltersShunt => "filters, Shunt",
            Side::FiltersTcp => "filters, TCP",
            Side::ZmqTcp => "ZeroMQ tcp",
            Side::ZmqIpc => "ZeroMQ ipc",
            Side::Dask => "Dask",
            Side::Ray => "Ray",
            Side::OnDemand => "on demand",
            Side::RoundRobin => "round-robin",
            Side::Ethom => "ETHOM",
            Side::Ethos => "ETHOS",
            Side::Vxlan => "VXLAN",
            Side::Veth | Side::Tinc | Side::Fastd | Side::Vde | Side::Socat => self.key(),
        }
    }

    /// Whether its programs run with the library preloaded.
    pub fn is_accelerated(self) -> bool {
        matches!(self, Side::Shunt | Side::Beside | Side::HostShunt | Side::Sovia | Side::FiltersShunt)
    }

    /// Whether it joins two hosts of [`crate::lan::Lan`].
    pub fn is_ethernet(self) -> bool {
        self as usize >= Side::Ethom as usize
    }

    /// Whether its programs use a fabric.
    pub fn is_fabric(self) -> bool {
        matches!(self, Side::Ofi | Side::FiWrites | Side::FiMessages)
    }

    /// The contenders in the order of their turns: each round begins with another one.
    pub fn turns(sides: &[Side], round: usize) -> Vec<Side> {
        let mut turns = sides.to_vec();
        turns.rotate_left(round % sides.len().max(1));
        turns
    }
}

/// The project's promise for Shunt, or for VIPL where that is measured: how many times better than
/// TCP, and what part of the raw-memory limit.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Target {
    pub over_tcp: Option<f64>,
    pub of_raw: Option<f64>,
    /// This part of a copy of the file is enough, whatever TCP does.
    pub or_of_copy: Option<f64>,
    /// The part of VIPL's own performance that sockets over it keep.
    pub kept_of_vipl: Option<f64>,
    /// A bound on the value itself, where there is no ratio.
    pub value: Option<f64>,
    /// How many times better than each of these.
    pub over: &'static [(Side, f64)],
}

impl Target {
    pub const NONE: Target =
        Target { over_tcp: None, of_raw: None, or_of_copy: None, kept_of_vipl: None, value: None, over: &[] };

    pub fn over_tcp(times: f64) -> Target {
        Target { over_tcp: Some(times), ..Target::NONE }
    }

    pub fn and_of_raw(self, share: f64) -> Target {
        Target { of_raw: Some(share), ..self }
    }

    pub fn value(bound: f64) -> Target {
        Target { value: Some(bound), ..Target::NONE }
    }
}

/// One thing measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    pub group: String,
    /// "redis GET", "64 B blocking".
    pub row: String,
    /// "p50", "requests".
    pub name: String,
    pub unit: Unit,
    pub target: Target,
    values: [Vec<Option<f64>>; Side::ALL.len()],
}

impl Metric {
    pub fn values(&self, side: Side) -> &[Option<f64>] {
        &self.values[side as usize]
    }

    pub fn summary(&self, side: Side) -> Option<Summary> {
        stats::summary(self.values(side).iter().copied().flatten())
    }

    /// How many times better `a` is than `b`, over the rounds that have both: above 1 is better for
    /// any unit.
    pub fn advantage(&self, a: Side, b: Side) -> Option<Summary> {
        let (over, under) = if self.unit.more_is_better() { (a, b) } else { (b, a) };
        stats::summary(stats::ratios(self.values(over), self.values(under)))
    }

    /// The contender that the promise is about.
    pub fn subject(&self) -> Side {
        let measured = |side: &Side| !self.values(*side).is_empty();
        [Side::Ofi, Side::Filters, Side::OnDemand, Side::Via, Side::Shunt, Side::Ethom]
            .into_iter()
            .find(measured)
            .unwrap_or(Side::Shunt)
    }

    /// Whether the promise is kept. `None` where there is none, or no value to judge by.
    pub fn verdict(&self) -> Option<bool> {
        let subject = self.subject();
        let met = |wanted: Option<f64>, other| Some(self.advantage(subject, other)?.median >= wanted?);
        let own = || {
            let (bound, median) = (self.target.value?, self.summary(subject)?.median);
            Some(if self.unit.more_is_better() { median >= bound } else { median <= bound })
        };
        let at_limit = met(self.target.or_of_copy, Side::Copy) == Some(true);
        let over_tcp = met(self.target.over_tcp, Side::Tcp).map(|kept| kept || at_limit);
        let kept = || {
            let wanted = self.target.kept_of_vipl?;
            Some(self.advantage(Side::Sovia, Side::Via)?.median >= wanted)
        };
        let verdicts = [over_tcp, met(self.target.of_raw, Side::Raw), kept(), own()];
        let others = self.target.over.iter().map(|(side, times)| met(Some(*times), *side));
        verdicts.into_iter().chain(others).flatten().reduce(|a, b| a && b)
    }
}

/// All results of a run.
#[derive(Debug, Default)]
pub struct Results {
    pub metrics: Vec<Metric>,
    /// Of the paper on filters.
    pub figures: Vec<Figure>,
    /// Contenders that could not take part in a group: a column of its table says so.
    pub absent: Vec<(&'static str, Side)>,
    /// Measurements that could not be made, and why.
    pub not_run: Vec<(String, String)>,
    /// Texts above the tables of groups, by the name of a group or the beginning of it.
    pub captions: Vec<(String, String)>,
    /// Output of other commands that belongs to the numbers.
    pub notes: Map<String, Value>,
}

/// Where a value belongs.
pub struct Place<'a> {
    pub group: &'a str,
    pub row: &'a str,
    pub side: Side,
    pub round: usize,
}

impl Results {
    pub fn add(&mut self, place: &Place, name: &str, unit: Unit, target: Target, value: f64) {
        let metrics = &mut self.metrics;
        let found =
            metrics.iter().position(|m| m.group == place.group && m.row == place.row && m.name == name);
        let at = found.unwrap_or_else(|| {
            let (group, row) = (place.group.into(), place.row.into());
            let values = [const { Vec::new() }; Side::ALL.len()];
            metrics.push(Metric { group, row, name: name.into(), unit, target, values });
            metrics.len() - 1
        });
        let values = &mut metrics[at].values[place.side as usize];
        values.resize(values.len().max(place.round + 1), None);
        values[place.round] = Some(value);
    }

    /// Notes a failure; once for each measurement and reason, however many rounds there are.
    pub fn skip(&mut self, what: impl Into<String>, why: impl ToString) {
        let entry = (what.into(), why.to_string());
        if !self.not_run.contains(&entry) {
            self.not_run.push(entry);
        }
    }

    pub fn group(&self, group: &str) -> Vec<&Metric> {
        self.metrics.iter().filter(|m| m.group == group).collect()
    }

    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for metric in &self.metrics {
            if !groups.contains(&metric.group.as_str()) {
                groups.push(&metric.group);
            }
        }
        groups
    }

    pub fn to_json(&self) -> Value {
        let metrics = self.metrics.iter().map(|m| {
            let mut object = Map::new();
            object.insert("group".into(), json!(m.group));
            object.insert("row".into(), json!(m.row));
            object.insert("metric".into(), json!(m.name));
            object.insert("unit".into(), json!(m.unit.key()));
            for side in Side::ALL.into_iter().filter(|s| !m.values(*s).is_empty()) {
                object.insert(side.key().into(), json!(m.values(side)));
            }
            for other in Side::ALL.into_iter().filter(|other| *other != m.subject()) {
                if let Some(s) = m.advantage(m.subject(), other) {
                    let ratio = json!({"median": s.median, "min": s.min, "max": s.max});
                    object.insert(format!("advantage_over_{}", other.key()), ratio);
                }
            }
            if let Some(met) = m.verdict() {
                object.insert("promise_kept".into(), json!(met));
            }
            Value::Object(object)
        });
        let not_run = self.not_run.iter().map(|(what, why)| json!({"what": what, "why": why}));
        json!({
            "metrics": metrics.collect::<Vec<_>>(),
            "figures": self.figures.iter().map(Figure::to_json).collect::<Vec<_>>(),
            "not_run": not_run.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::default();
        for (round, (tcp, shunt, raw)) in
            [(40e3, 800.0, 400.0), (60e3, 1000.0, 500.0)].into_iter().enumerate()
        {
            for (side, value) in [(Side::Tcp, tcp), (Side::Shunt, shunt), (Side::Raw, raw)] {
                let place = Place { group: "latency", row: "64 B", side, round };
                results.add(&place, "p50", Unit::Time, Target::over_tcp(50.0).and_of_raw(0.5), value);
            }
        }
        results
    }

    #[test]
    fn less_time_is_an_advantage() {
        let results = results();
        let metric = &results.metrics[0];
        assert_eq!(metric.advantage(Side::Shunt, Side::Tcp).unwrap().median, 55.0);
        assert_eq!(metric.advantage(Side::Shunt, Side::Raw).unwrap().median, 0.5);
        assert_eq!(metric.advantage(Side::Shunt, Side::Unix), None);
        assert_eq!(metric.verdict(), Some(true));
    }

    #[test]
    fn the_limit_of_the_file_system_is_enough() {
        let verdict = |tcp: f64, copy: f64| {
            let mut results = Results::default();
            let target = Target { over_tcp: Some(1.5), or_of_copy: Some(0.9), ..Target::NONE };
            for (side, value) in [(Side::Tcp, tcp), (Side::Shunt, 1.0), (Side::Copy, copy)] {
                let place = Place { group: "ftp", row: "get", side, round: 0 };
                results.add(&place, "rate", Unit::BytesPerSecond, target, value);
            }
            results.metrics[0].verdict()
        };
        assert_eq!(verdict(0.5, 2.0), Some(true));
        assert_eq!(verdict(0.9, 1.1), Some(true));
        assert_eq!(verdict(0.9, 2.0), Some(false));
    }

    #[test]
    fn a_round_that_failed_leaves_a_gap() {
        let mut results = results();
        let place = Place { group: "latency", row: "64 B", side: Side::Unix, round: 1 };
        results.add(&place, "p50", Unit::Time, Target::NONE, 2000.0);
        assert_eq!(results.metrics.len(), 1);
        assert_eq!(results.metrics[0].values(Side::Unix), [None, Some(2000.0)]);
        assert_eq!(results.metrics[0].advantage(Side::Shunt, Side::Unix).unwrap().median, 2.0);
    }

    #[test]
    fn every_contender_begins_a_round() {
        let sides = [Side::Tcp, Side::Shunt, Side::Unix];
        let first: Vec<Side> = (0..3).map(|round| Side::turns(&sides, round)[0]).collect();
        assert_eq!(first, sides);
    }

    #[test]
    fn the_same_trouble_is_noted_once() {
        let mut results = Results::default();
        results.skip("nginx", "not installed");
        results.skip("nginx", "not installed");
        assert_eq!(results.not_run.len(), 1);
    }
}
