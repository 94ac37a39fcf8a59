//! The sockets at which an agent accepts processes and other agents.

use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};

use cluster::client;
use fabric::sys;
use socket2::{Domain, Protocol, Socket, Type};

/// Listens for the processes of this host.
pub fn local() -> io::Result<OwnedFd> {
    let socket = client::socket()?;
    let (address, len) = client::address(sys::geteuid());
    // SAFETY: an address of so many bytes.
    let done = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) == 0
            && libc::listen(socket.as_raw_fd(), 512) == 0
    };
    if done { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

/// Listens for the agents of other hosts: by IPv4 and IPv6, or by IPv4 alone where there is no
/// IPv6.
pub fn to_agents(port: u16) -> io::Result<TcpListener> {
    let open = |domain, address: SocketAddr| {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if domain == Domain::IPV6 {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(512)?;
        io::Result::Ok(TcpListener::from(socket))
    };
    match open(Domain::IPV6, SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            open(Domain::IPV4, SocketAddr::from(([0, 0, 0, 0], port)))
        }
        done => done,
    }
}
