//! Counters for each peer and for each net, and their presentation. Counters are words that one
//! thread adds to and any may read.

use std::fmt::Write as _;

use fabric::sync::{AtomicU64, Ordering};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::frame::Drop;

/// A number that grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds, where several threads may.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Adds, where only one thread does: without the bus lock.
    #[inline(always)]
    pub fn add_mine(&self, more: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Its value.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of a peer; a net has one more set for events that belong to none.
#[derive(Debug, Default)]
pub struct Counters {
    /// Frames from it that went to the interface.
    pub frames_in: Count,
    /// Their bytes.
    pub bytes_in: Count,
    /// Frames to it.
    pub frames_out: Count,
    /// Their bytes.
    pub bytes_out: Count,
    /// How often it connected.
    pub connects: Count,
    drops: [Count; Drop::ALL.len()],
}

impl Counters {
    /// Counts a frame that was dropped.
    pub fn drop(&self, reason: Drop) {
        self.drop_many(reason, 1);
    }

    /// Counts frames that were dropped for one reason.
    pub fn drop_many(&self, reason: Drop, frames: u64) {
        self.drops[reason as usize].add(frames);
    }

    /// Those dropped for one reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize].value()
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        Drop::ALL.into_iter().map(|reason| (reason.name().to_string(), self.dropped(reason))).collect()
    }
}

/// A daemon's report on itself; `shunt ether stat --json` prints a list of them.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// The process.
    pub pid: u32,
    /// The host that it is.
    pub host: u16,
    /// Its name in the table.
    pub name: String,
    /// The table's file.
    pub table: String,
    /// How often the table was read again.
    pub reloads: u64,
    /// Its nets.
    pub nets: Vec<NetReport>,
}

/// The report on a net.
#[derive(Debug, Serialize, Deserialize)]
pub struct NetReport {
    /// Its name.
    pub net: String,
    /// `ethos` or `ethom`.
    pub driver: String,
    /// The TAP device.
    pub interface: String,
    /// Its address.
    pub mac: String,
    /// Its MTU.
    pub mtu: u32,
    /// Whether its carrier is on.
    pub carrier: bool,
    /// Learned addresses that do not follow the rule.
    pub learned: usize,
    /// How often its threads were woken out of their sleep, and how often they found work while
    /// spinning.
    pub wakes: u64,
    /// See [`NetReport::wakes`].
    pub polls: u64,
    /// Frames dropped that belong to no peer, by reason.
    pub drops: BTreeMap<String, u64>,
    /// Frames that a dump did not get, because its reader was too slow.
    pub dump_lost: u64,
    /// ETHOM: how hosts of other machines are reached, or why they are not, if there may be any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub between_hosts: Option<String>,
    /// The other hosts.
    pub peers: Vec<PeerReport>,
}

/// The report on a peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerReport {
    /// Its number.
    pub host: u16,
    /// Its name.
    pub name: String,
    /// Its address, if the table has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<String>,
    /// ETHOM: the kind of its link: `memory`, or between hosts libfabric's provider.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub by: Option<String>,
    /// ETHOM: why it is not linked, if that is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub trouble: Option<String>,
    /// Whether it is there.
    pub up: bool,
    /// How often it connected.
    pub connects: u64,
    /// See [`Counters`].
    pub frames_in: u64,
    /// See [`Counters`].
    pub bytes_in: u64,
    /// See [`Counters`].
    pub frames_out: u64,
    /// See [`Counters`].
    pub bytes_out: u64,
    /// Frames dropped, by reason.
    pub drops: BTreeMap<String, u64>,
}

impl PeerReport {
    /// The report on a peer with these counters.
    pub fn new(host: u16, name: &str, address: Option<String>, up: bool, counters: &Counters) -> PeerReport {
        PeerReport {
            host,
            name: name.to_string(),
            address,
            by: None,
            trouble: None,
            up,
            connects: counters.connects.value(),
            frames_in: counters.frames_in.value(),
            bytes_in: counters.bytes_in.value(),
            frames_out: counters.frames_out.value(),
            bytes_out: counters.bytes_out.value(),
            drops: counters.drops(),
        }
    }
}

/// Frames dropped that belong to no peer, for a [`NetReport`].
pub fn drops_of(counters: &Counters) -> BTreeMap<String, u64> {
    counters.drops()
}

/// Reports as a table for people.
pub fn table(reports: &[Report]) -> String {
    let mut text = String::new();
    for report in reports {
        let _ = writeln!(
            text,
            "host {} ({}), pid {}, table {}",
            report.host, report.name, report.pid, report.table
        );
        for net in &report.nets {
            let carrier = if net.carrier { "" } else { ", no carrier" };
            let _ = writeln!(
                text,
                "  {} ({}): {} {} mtu {}{carrier}; {} wakes, {} polls{}",
                net.net,
                net.driver,
                net.interface,
                net.mac,
                net.mtu,
                net.wakes,
                net.polls,
                dropped(&net.drops)
            );
            if let Some(how) = &net.between_hosts {
                let _ = writeln!(text, "    between hosts: {how}");
            }
            for peer in &net.peers {
                let state = if peer.up { "up" } else { "down" };
                let _ = writeln!(
                    text,
                    "    {:>5} {:<12} {state:<4} in {:>10} frames {:>14} bytes   out {:>10} frames {:>14} bytes{}{}",
                    peer.host,
                    peer.name,
                    peer.frames_in,
                    peer.bytes_in,
                    peer.frames_out,
                    peer.bytes_out,
                    how(peer),
                    dropped(&peer.drops)
                );
            }
        }
    }
    text
}

/// The kind of an ETHOM peer's link, or why there is none.
fn how(peer: &PeerReport) -> String {
    match (peer.by.as_deref(), &peer.trouble) {
        (Some("memory"), _) => "; by memory".into(),
        (Some(provider), _) => format!("; between hosts, by {provider}"),
        (None, Some(trouble)) => format!("; not linked: {trouble}"),
        (None, None) => String::new(),
    }
}

fn dropped(drops: &BTreeMap<String, u64>) -> String {
    let some: Vec<String> = drops
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    if some.is_empty() { String::new() } else { format!("; dropped: {}", some.join(", ")) }
}

/// Reports in Prometheus' format.
pub fn prometheus(reports: &[Report]) -> String {
    type Value = fn(&PeerReport) -> u64;
    let each: [(&str, &str, &str, Value); 7] = [
        ("shunt_ether_peer_up", "gauge", "Whether the peer is there.", |peer| u64::from(peer.up)),
        (
            "shunt_ether_peer_between_hosts",
            "gauge",
            "Whether the peer is linked by a fabric between hosts.",
            |peer| u64::from(peer.by.as_deref().is_some_and(|by| by != "memory")),
        ),
        ("shunt_ether_peer_connects_total", "counter", "How often the peer came.", |peer| peer.connects),
        ("shunt_ether_receive_frames_total", "counter", "Frames from the peer.", |peer| peer.frames_in),
        ("shunt_ether_receive_bytes_total", "counter", "Bytes from the peer.", |peer| peer.bytes_in),
        ("shunt_ether_transmit_frames_total", "counter", "Frames to the peer.", |peer| peer.frames_out),
        ("shunt_ether_transmit_bytes_total", "counter", "Bytes to the peer.", |peer| peer.bytes_out),
    ];
    let mut text = String::new();
    let nets = || reports.iter().flat_map(|report| report.nets.iter().map(move |net| (report, net)));
    let labels = |report: &Report, net: &NetReport| {
        format!(
            "host=\"{}\",net=\"{}\",interface=\"{}\"",
            report.host,
            escaped(&net.net),
            escaped(&net.interface)
        )
    };
    for (name, kind, help, value) in each {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (report, net) in nets() {
            for peer in &net.peers {
                let of = labels(report, net);
                let _ = writeln!(text, "{name}{{{of},peer=\"{}\"}} {}", peer.host, value(peer));
            }
        }
    }
    let _ = writeln!(
        text,
        "# HELP shunt_ether_drops_total Frames dropped.\n# TYPE shunt_ether_drops_total counter"
    );
    for (report, net) in nets() {
        let of = labels(report, net);
        for (reason, count) in &net.drops {
            let _ = writeln!(text, "shunt_ether_drops_total{{{of},peer=\"\",reason=\"{reason}\"}} {count}");
        }
        for peer in &net.peers {
            for (reason, count) in &peer.drops {
                let _ = writeln!(
                    text,
                    "shunt_ether_drops_total{{{of},peer=\"{}\",reason=\"{reason}\"}} {count}",
                    peer.host
                );
            }
        }
    }
    type NetValue = fn(&NetReport) -> u64;
    let of_net: [(&str, &str, &str, NetValue); 3] = [
        ("shunt_ether_carrier", "gauge", "Whether the interface has its carrier.", |net| {
            u64::from(net.carrier)
        }),
        ("shunt_ether_wakes_total", "counter", "How often a thread was woken.", |net| net.wakes),
        ("shunt_ether_polls_total", "counter", "How often a thread found work while spinning.", |net| {
            net.polls
        }),
    ];
    for (name, kind, help, value) in of_net {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (report, net) in nets() {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(report, net), value(net));
        }
    }
    text
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
