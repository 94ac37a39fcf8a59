//! The hosts of a cluster share this: the cluster's key ([`key`]), the encrypted channel between
//! two processes that have it (`channel`, a feature), the messages to agents and among them
//! ([`wire`], in the [`form`] of all messages between hosts), and a process's connection to its
//! host's agent ([`client`]). All crates that reach other hosts use this one.
#![deny(missing_docs)]

#[cfg(feature = "channel")]
pub mod channel;
pub mod client;
pub mod form;
pub mod key;
pub mod wire;
