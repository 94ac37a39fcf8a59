//! Agents: one on each host of a cluster, which introduce processes of different hosts to each other, and never carry data. A process under Shunt that has a connection to
//! another host of the cluster tells its host's agent; the agents of the two hosts, who have proved to each other that they hold the cluster's key, ask their kernels whose
//! the two ends are, and tell each process how the other is to be reached. If an agent dies, connections that have moved do not notice; none moves meanwhile.
//!
//! [`daemon`] is `shunt agent`; [`status`] is what it says of itself. What is said, and how, is in the crate `cluster`; how a process says it in the crate `carrier`.
#![deny(missing_docs)]

pub mod daemon;
mod listening;
mod place;
pub mod status;
