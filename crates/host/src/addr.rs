//! The address of a connection's end.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address as IPv6 has it (IPv4 is mapped), port in host order.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    pub ip: [u8; 16],
    pub port: u16,
}

impl Addr {
    /// What the kernel says of a socket; `None` if that is of another family.
    pub fn of(address: &libc::sockaddr_storage) -> Option<Addr> {
        match i32::from(address.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that it is a sockaddr_in, which is smaller.
                let v4 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in>() };
                let ip = u32::from_be(v4.sin_addr.s_addr);
                Some(Addr { ip: octets(IpAddr::V4(ip.into())), port: u16::from_be(v4.sin_port) })
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that it is a sockaddr_in6, which is smaller.
                let v6 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in6>() };
                Some(Addr { ip: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
            }
            _ => None,
        }
    }

    /// Whether it is this host's alone, and this network namespace's.
    pub fn is_loopback(&self) -> bool {
        Ipv6Addr::from(self.ip).to_canonical().is_loopback()
    }

    /// The halves of the address, as words.
    pub fn halves(&self) -> [u64; 2] {
        [0, 8].map(|at| u64::from_ne_bytes(core::array::from_fn(|i| self.ip[at + i])))
    }
}

/// As people write it.
impl core::fmt::Display for Addr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        SocketAddr::new(Ipv6Addr::from(self.ip).to_canonical(), self.port).fmt(f)
    }
}

/// An address as IPv6 has it.
pub fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_people_do() {
        let v4 = Addr { ip: octets([127, 0, 0, 1].into()), port: 80 };
        let v6 = Addr { ip: octets(Ipv6Addr::LOCALHOST.into()), port: 80 };
        assert_eq!(format!("{v4} {v6}"), "127.0.0.1:80 [::1]:80");
    }
}
