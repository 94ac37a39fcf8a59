//! The network that measurements use.

use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Where the ends of a connection are: the address of the server, and the network namespaces if not
/// this one.
pub struct Wire {
    pub address: Ipv4Addr,
    pub server: Option<PathBuf>,
    pub client: Option<PathBuf>,
    /// Words before the server's command, if it is on another host.
    pub before: Vec<String>,
    /// The folder where programs of several networks meet (`SHUNT_MEETING`), if there is one.
    pub meeting: Option<PathBuf>,
}

impl Wire {
    pub const LOOPBACK: Wire =
        Wire { address: Ipv4Addr::LOCALHOST, server: None, client: None, before: Vec::new(), meeting: None };
}
