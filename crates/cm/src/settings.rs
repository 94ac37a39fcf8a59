//! Cluster settings, parsed once.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::OnceLock;
use std::{ffi::OsStr, ptr};

use cluster::key::{self, Key};
use host::addr::octets;
use options::{Networks, Options};

use crate::notes::note;

/// How other hosts are reached.
pub struct Settings {
    /// The networks whose hosts are reached.
    pub networks: Networks,
    /// libfabric's provider. None: the best that it finds, but not TCP.
    pub provider: Option<&'static str>,
    /// Where agents listen.
    pub port: u16,
    /// The cluster's key, or what is wrong with it.
    pub key: Result<Key, String>,
}

/// The settings; none if no networks are named.
pub fn settings() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    SETTINGS
        .get_or_init(|| {
            let options = options();
            (!options.cluster.is_empty()).then(|| Settings {
                networks: options.cluster,
                provider: options.fabric.provider(),
                port: options.agent_port,
                key: key::file(&options).and_then(|path| key::read(&path)),
            })
        })
        .as_ref()
}

fn options() -> Options {
    let env: Vec<Vec<u8>> =
        std::env::vars_os().map(|(name, value)| [name.into_vec(), value.into_vec()].join(&b'=')).collect();
    let entries = || env.iter().map(Vec::as_slice);
    let files = options::config_files(entries()).map(|path| {
        let read = |path: options::Text| std::fs::read(OsStr::from_bytes(path.as_bytes())).ok();
        path.and_then(read).unwrap_or_default()
    });
    // Mistakes in other options do not concern this program.
    let ours = ["CLUSTER", "FABRIC", "AGENT_PORT", "cluster", "fabric", "agent-port"];
    options::from_environ(entries(), &[&files[0], &files[1]], &mut |problem| {
        let text = problem.to_string();
        if ours.iter().any(|name| text.contains(name)) {
            note(&text);
        }
    })
}

/// The first IPv4 address of this host in one of the networks.
pub fn own_address(networks: &Networks) -> Option<Ipv4Addr> {
    let mut first = ptr::null_mut();
    // SAFETY: the list is written where it is to be, and freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return None;
    }
    let (mut at, mut found) = (first, None);
    while !at.is_null() && found.is_none() {
        // SAFETY: an entry of the list.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        // SAFETY: an address, if it is not null, of the family that it says.
        let family = unsafe { entry.ifa_addr.as_ref() }.map(|address| address.sa_family);
        if family == Some(libc::AF_INET as libc::sa_family_t) {
            // SAFETY: an IPv4 address.
            let address = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
            found = networks.contains(octets(IpAddr::V4(address))).then_some(address);
        }
    }
    // SAFETY: what getifaddrs has made.
    unsafe { libc::freeifaddrs(first) };
    found
}
