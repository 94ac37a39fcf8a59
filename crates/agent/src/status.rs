//! An agent's report on itself: `shunt agent status`.

use std::collections::BTreeMap;
use std::{fmt, io};

use cluster::client::Client;
use serde::{Deserialize, Serialize};

/// Counts since the agent began.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Processes that were introduced to another one.
    pub introduced: u64,
    /// Ends that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Agents that had another key.
    pub wrong_key: u64,
    /// Agents and processes that sent malformed messages.
    pub garbled: u64,
    /// Agents that took too long.
    pub late: u64,
    /// Agents that connected from outside of the cluster's networks.
    pub outside: u64,
    /// Processes of other users that connected.
    pub foreign: u64,
    /// Connections that were handed over to programs that wait for a Virtual Interface.
    #[serde(default)]
    pub met: u64,
}

/// Another agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Other {
    /// Its host.
    pub address: String,
    /// `open`, or `opening`.
    pub state: String,
    /// Whether this agent has made the connection.
    pub outgoing: bool,
}

/// An agent's report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The port where it listens.
    pub port: u16,
    /// Processes that it serves.
    pub processes: usize,
    /// Ends that they have posted and that are not introduced, or not moved, yet.
    pub posted: usize,
    /// Other agents that it is connected to.
    pub agents: Vec<Other>,
    /// Agents that did not answer just now, and why they are not asked again at once.
    pub away: BTreeMap<String, String>,
    /// The counts.
    pub counts: Counts,
}

/// Asks the agent of this user for its report.
pub fn ask() -> io::Result<Report> {
    let report = Client::connect()?.status()?;
    serde_json::from_slice(&report).map_err(io::Error::other)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "port {}: {} processes, {} ends posted", self.port, self.processes, self.posted)?;
        for agent in &self.agents {
            let direction = if agent.outgoing { "to" } else { "from" };
            writeln!(f, "{direction} {}: {}", agent.address, agent.state)?;
        }
        for (address, why) in &self.away {
            writeln!(f, "{address}: {why}")?;
        }
        let counts = &self.counts;
        writeln!(f, "introduced: {}", counts.introduced)?;
        if counts.met > 0 {
            writeln!(f, "handed over, to Virtual Interfaces: {}", counts.met)?;
        }
        for (why, count) in &counts.refused {
            writeln!(f, "refused, {why}: {count}")?;
        }
        let rejected = [
            ("agents with another key", counts.wrong_key),
            ("malformed messages", counts.garbled),
            ("agents that took too long", counts.late),
            ("agents from outside of the cluster's networks", counts.outside),
            ("processes of other users", counts.foreign),
        ];
        for (what, count) in rejected.into_iter().filter(|&(_, count)| count > 0) {
            writeln!(f, "rejected, {what}: {count}")?;
        }
        Ok(())
    }
}
