//! Between hosts: the interface to the crate `cm`, which makes the connections, and alone knows of
//! libfabric and of agents. This crate knows that a peer's segment may be a *wire*: then bytes are
//! written to a shadow of it first, where they can be read again, and go from there to the peer.
//! Programs that do not call [`install`] have none of that.
//!
//! A program that waits at an address is found by the name of the UNIX socket at which it listens,
//! as on one host. Its host's agent connects there for programs of other hosts, and hands their TCP
//! connections over.

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

/// A connection to another host over which two Virtual Interfaces are connected. Both ends have
/// proved that they have the cluster's key.
pub trait Line: Send + Sync {
    /// Sends a message, behind everything that was put by the link.
    fn send(&self, bytes: &[u8]) -> bool;
    /// The next message; everything that was put before it has arrived. None if there are no more.
    fn receive(&self, until: Until) -> Result<Option<Vec<u8>>, Return>;
    /// Whether the other end has given up.
    fn is_over(&self) -> bool;
    /// Its link.
    fn open(&self, watch: Watch) -> Option<Arc<dyn Wire>>;
    /// A descriptor whose end is the connection's.
    fn descriptor(&self) -> Option<OwnedFd>;
}

/// Makes connections to other hosts.
pub trait ConnectionManager: Send + Sync {
    /// Calls the program that listens by that name at a host. `NoMatch` if none does,
    /// `NotReachable` if that host cannot be reached.
    fn call(&self, host: Ipv4Addr, name: &[u8], until: Until) -> Result<Box<dyn Line>, Return>;
    /// Answers a client, on a connection that this host's agent has handed over.
    fn accept(&self, connection: OwnedFd) -> Option<Box<dyn Line>>;
    /// This host's address in the cluster.
    fn own_address(&self) -> Option<Ipv4Addr>;
}

static MANAGER: OnceLock<&'static dyn ConnectionManager> = OnceLock::new();

/// From now on there are other hosts.
pub fn install(cm: &'static dyn ConnectionManager) {
    let _ = MANAGER.set(cm);
}

pub(crate) fn cm() -> Option<&'static dyn ConnectionManager> {
    MANAGER.get().copied()
}

/// Whether the process at the other end is this host's agent, as far as that can be known: it runs
/// as this user, or as root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    user::is_kin(&socket)
}
