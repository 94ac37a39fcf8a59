//! Asking the kernel who owns one end of a TCP connection: one NETLINK_SOCK_DIAG request for an
//! exact 4-tuple. The library proves its peers by the same question; here it is put as a user
//! program may put it, to see whether it is answered.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `SOCK_DIAG_BY_FAMILY`, the type of the request and of its answer.
const BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
/// The sizes of `struct nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ANSWER: usize = 72;

/// What the kernel knows about a socket.
pub struct Found {
    /// As SO_COOKIE shows it.
    pub cookie: u64,
    /// Who made it.
    pub uid: u32,
}

/// Looks up the socket that has these addresses.
pub fn lookup(local: SocketAddr, peer: SocketAddr) -> io::Result<Found> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(2)))?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(&socket, &request(local, peer), SendFlags::empty(), &kernel)?;
    let mut answer = [0; 4096];
    let (len, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    parse(&answer[..len])
}

fn request(local: SocketAddr, peer: SocketAddr) -> [u8; HEADER + REQUEST] {
    let mut message = [0; HEADER + REQUEST];
    let mut put = |at: usize, bytes: &[u8]| message[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &((HEADER + REQUEST) as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    put(
        HEADER,
        &[if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8, libc::IPPROTO_TCP as u8],
    );
    put(HEADER + 4, &u32::MAX.to_ne_bytes()); // whatever state it is in
    let id = HEADER + 8;
    put(id, &local.port().to_be_bytes());
    put(id + 2, &peer.port().to_be_bytes());
    for (at, address) in [(id + 4, local.ip()), (id + 20, peer.ip())] {
        match address {
            IpAddr::V4(address) => put(at, &address.octets()),
            IpAddr::V6(address) => put(at, &address.octets()),
        }
    }
    put(id + 40, &[0xff; 8]); // any cookie
    message
}

fn parse(answer: &[u8]) -> io::Result<Found> {
    let word = |at: usize| {
        answer.get(at..at + 4).map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let kind = answer.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    match (kind, word(HEADER)) {
        (Some(NLMSG_ERROR), Some(errno)) => Err(io::Error::from_raw_os_error((errno as i32).wrapping_neg())),
        (Some(BY_FAMILY), _) if answer.len() >= HEADER + ANSWER => {
            // inet_diag_msg: 4 bytes, then the id (its cookie at 40, low half first), then 3 words,
            // then the uid.
            let at = |offset| word(HEADER + offset).unwrap_or(0);
            Ok(Found { cookie: u64::from(at(44)) | u64::from(at(48)) << 32, uid: at(64) })
        }
        _ => Err(io::Error::other("the kernel's answer is not understood")),
    }
}
