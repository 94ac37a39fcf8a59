//! Datagrams: how many at once, how long, and addresses in the kernel's form.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Frames that are read, or sent, at once.
pub(super) const BATCH: usize = 32;
/// The most bytes of a datagram.
pub(super) const DATAGRAM: usize = 65_507;

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
pub(super) struct Address {
    pub(super) storage: libc::sockaddr_in6,
    pub(super) len: u32,
}

impl Default for Address {
    fn default() -> Address {
        // SAFETY: all zeroes are an address of no family.
        Address { storage: unsafe { std::mem::zeroed() }, len: size_of::<libc::sockaddr_in6>() as u32 }
    }
}

impl Address {
    pub(super) fn of(address: &SocketAddr) -> Address {
        let mut all = Address::default();
        match address {
            SocketAddr::V6(v6) => {
                all.storage = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as u16,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
            }
            SocketAddr::V4(v4) => {
                let short = libc::sockaddr_in {
                    sin_family: libc::AF_INET as u16,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: an IPv4 address is the shorter of the two.
                unsafe { (&raw mut all.storage).cast::<libc::sockaddr_in>().write(short) };
                all.len = size_of::<libc::sockaddr_in>() as u32;
            }
        }
        all
    }

    pub(super) fn parse(&self) -> Option<SocketAddr> {
        let v6 = &self.storage;
        match i32::from(v6.sin6_family) {
            libc::AF_INET6 => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Some(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
            }
            libc::AF_INET => {
                // SAFETY: the family says so, and that address is the shorter one.
                let v4 = unsafe { (&raw const *v6).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        for text in ["10.1.2.3:7471", "[fd00::1]:7", "[fe80::1%3]:9"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::of(&address).parse(), Some(address));
        }
        assert_eq!(Address::default().parse(), None);
    }
}
