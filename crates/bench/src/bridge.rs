//! Two containers, as far as their networks go: namespaces of their own on a bridge, and a meeting
//! place that both see.

use crate::error::{Error, Result, failed};
use crate::lan::Host;
use crate::results::Side;
use crate::wire::Wire;
use fabric::sys;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// By what it stays on TCP there.
const OLD_KERNEL: &str = "connections between networks stay on TCP before Linux 6.16 (SO_PASSRIGHTS)";

/// Dropping it removes the namespaces, and the bridge with them.
pub struct Bridge {
    containers: [Host; 2],
    _router: Host,
    meeting: PathBuf,
}

impl Bridge {
    pub fn new(temp: &Path) -> Result<Bridge> {
        let kept_out = UnixDatagram::unbound()
            .is_ok_and(|it| sys::setsockopt(it.as_raw_fd(), libc::SOL_SOCKET, sys::SO_PASSRIGHTS, 0).is_ok());
        if !kept_out {
            return Err(Error::Failed(OLD_KERNEL.into()));
        }
        let router = Host::new(0)?;
        let containers = [Host::new(1)?, Host::new(2)?];
        router.ip("link add bridge type bridge")?;
        router.ip("link set bridge up")?;
        for container in &containers {
            let end = format!("container{}", container.number());
            router.ip(&format!("link add {end} type veth peer name eth0 netns {}", container.name()))?;
            router.ip(&format!("link set {end} master bridge up"))?;
            container.ip(&format!("addr add {}/24 dev eth0", address(container)))?;
            container.ip("link set eth0 up")?;
        }
        let meeting = temp.join("meeting");
        let made = std::fs::create_dir_all(&meeting)
            .and_then(|()| std::fs::set_permissions(&meeting, PermissionsExt::from_mode(0o1777)));
        made.map_err(failed(format!("cannot make {}", meeting.display())))?;
        Ok(Bridge { containers, _router: router, meeting })
    }

    /// Where the ends of a side's connections are.
    pub fn wire(&self, side: Side) -> Option<Wire> {
        let [server, client] = &self.containers;
        matches!(side, Side::Tcp | Side::Shunt).then(|| Wire {
            address: address(server),
            server: Some(server.path()),
            client: Some(client.path()),
            before: Vec::new(),
            meeting: Some(self.meeting.clone()),
        })
    }
}

fn address(container: &Host) -> Ipv4Addr {
    Ipv4Addr::new(10, 201, 0, container.number())
}
