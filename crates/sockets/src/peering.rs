//! Where the peer of a connection is, and what differs by that: on this host, where both map the same memory, or on another one, to which
//! an outbox and a thread of this process bring what is put.

pub(crate) mod cut;
pub mod desk;
pub(crate) mod peer;
pub(crate) mod records;
pub mod remote;
pub mod wire;
