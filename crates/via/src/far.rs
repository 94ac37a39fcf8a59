//! Between hosts: what a connection needs of whoever brings it there, the crate `envoy`, which alone knows of libfabric and of agents. This crate knows that a peer's segment
//! may be a *wire*: then what is written goes into a shadow of it first, where it can be read again, and from there to the peer. Programs that never say that there are other
//! hosts ([`install`]) have none of that.
//!
//! Whoever waits at an address is found by the name of the UNIX socket at which he listens, as on one host: the agent of his host connects there for those who come from
//! others, and hands their TCP connection over.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use crate::abi::Return;
use crate::until::Until;
use crate::user;

pub(crate) mod link;
pub(crate) mod peer;
mod watch;

pub use link::{Wire, reply};
pub use peer::Peer;
pub use watch::Watch;

/// A connection to another host over which two Virtual Interfaces meet. Both ends have proved that they have the cluster's key.
pub trait Line: Send + Sync {
    /// Says something, behind all that was put by the link.
    fn send(&self, bytes: &[u8]) -> bool;
    /// The next that was said; what was put before it is there. None if there is no more.
    fn receive(&self, until: Until) -> Result<Option<Vec<u8>>, Return>;
    /// Whether the other end has given up.
    fn is_over(&self) -> bool;
    /// The link with it.
    fn open(&self, watch: Watch) -> Option<Arc<dyn Wire>>;
    /// A descriptor whose end is the connection's.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// Who brings connections to other hosts.
pub trait Envoy: Send + Sync {
    /// Calls whoever listens by that name at a host. `NoMatch` if nobody does, `NotReachable` if that host is not reached.
    fn call(&self, host: Ipv4Addr, name: &[u8], until: Until) -> Result<Box<dyn Line>, Return>;
    /// Answers one who calls, by a connection that this host's agent has handed over.
    fn accept(&self, connection: OwnedFd) -> Option<Box<dyn Line>>;
    /// This host's address in the cluster.
    fn own_address(&self) -> Option<Ipv4Addr>;
}

static ENVOY: OnceLock<&'static dyn Envoy> = OnceLock::new();

/// There are other hosts.
pub fn install(envoy: &'static dyn Envoy) {
    let _ = ENVOY.set(envoy);
}

pub(crate) fn envoy() -> Option<&'static dyn Envoy> {
    ENVOY.get().copied()
}

/// Whether who has connected is this host's agent, as far as that can be known: it runs as this user, or as root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    user::is_kin(&socket)
}
