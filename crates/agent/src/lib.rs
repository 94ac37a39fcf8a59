//! Agents introduce processes of different hosts to each other: one agent runs on each host of a
//! cluster. They never carry data. A process under Shunt that has a connection to another host of
//! the cluster posts it with its host's agent. The two hosts' agents have proved to each other that
//! they hold the cluster's key. They ask their kernels whose the two ends are, and tell each
//! process how the other one is reached. If an agent dies, connections that have moved to memory go
//! on as before; no more move until it runs again.
//!
//! [`daemon`] is `shunt agent`; [`status`] is its report. The messages and the channel are in the
//! crate `cluster`; the process's side is in the crate `progress`.
#![deny(missing_docs)]

pub mod daemon;
mod listening;
mod place;
pub mod status;
