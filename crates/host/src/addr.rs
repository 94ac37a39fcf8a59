//! The address of a connection's end.

use core::net::IpAddr;

/// An address as IPv6 has it (IPv4 is mapped), port in host order.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    pub ip: [u8; 16],
    pub port: u16,
}

/// An address as IPv6 has it.
pub fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
