//! What the hosts of a cluster share, below everything that reaches other hosts: the cluster's key ([`key`]), the encrypted channel of two who have it (`channel`, with the
//! feature of that name), what is said to agents and among them ([`wire`]), and a process's connection to its host's agent ([`client`]).
#![deny(missing_docs)]

#[cfg(feature = "channel")]
pub mod channel;
pub mod client;
pub mod key;
pub mod wire;
