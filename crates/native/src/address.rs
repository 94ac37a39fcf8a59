//! Conversion between std's addresses and the kernel's.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::{io, mem};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};

/// An address for the kernel to read, or to write.
pub struct Address {
    storage: sockaddr_storage,
    len: socklen_t,
}

const V4: usize = size_of::<sockaddr_in>();
const V6: usize = size_of::<sockaddr_in6>();

impl Address {
    /// With room for any.
    pub fn empty() -> Address {
        // SAFETY: all zeroes is a valid sockaddr_storage.
        let storage = unsafe { mem::zeroed() };
        Address { storage, len: size_of::<sockaddr_storage>() as socklen_t }
    }

    /// Its family: AF_INET or AF_INET6.
    pub fn family(&self) -> c_int {
        self.storage.ss_family.into()
    }

    /// The arguments of a call that reads it.
    pub fn as_ptr(&self) -> (*const sockaddr, socklen_t) {
        ((&raw const self.storage).cast(), self.len)
    }

    /// The arguments of a call that writes it.
    pub fn as_mut_ptr(&mut self) -> (*mut sockaddr, *mut socklen_t) {
        ((&raw mut self.storage).cast(), &raw mut self.len)
    }

    /// As std has it.
    pub fn to_std(&self) -> io::Result<SocketAddr> {
        match self.family() {
            libc::AF_INET if self.len as usize >= V4 => {
                // SAFETY: the family says that it is a sockaddr_in, which is smaller than the
                // storage.
                let v4 = unsafe { &*(&raw const self.storage).cast::<sockaddr_in>() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 if self.len as usize >= V6 => {
                // SAFETY: the family says that it is a sockaddr_in6, which is smaller than the
                // storage.
                let v6 = unsafe { &*(&raw const self.storage).cast::<sockaddr_in6>() };
                let (ip, port) = (Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port));
                Ok(SocketAddr::V6(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id)))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "no internet address")),
        }
    }
}

impl From<&SocketAddr> for Address {
    fn from(address: &SocketAddr) -> Address {
        let mut made = Address::empty();
        match address {
            SocketAddr::V4(v4) => {
                // SAFETY: the storage has room for it, and is aligned for every kind of address.
                let place = unsafe { &mut *(&raw mut made.storage).cast::<sockaddr_in>() };
                place.sin_family = libc::AF_INET as _;
                place.sin_port = v4.port().to_be();
                place.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                made.len = V4 as socklen_t;
            }
            SocketAddr::V6(v6) => {
                // SAFETY: as above.
                let place = unsafe { &mut *(&raw mut made.storage).cast::<sockaddr_in6>() };
                place.sin6_family = libc::AF_INET6 as _;
                place.sin6_port = v6.port().to_be();
                place.sin6_addr.s6_addr = v6.ip().octets();
                place.sin6_flowinfo = v6.flowinfo();
                place.sin6_scope_id = v6.scope_id();
                made.len = V6 as socklen_t;
            }
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for text in ["127.0.0.1:80", "[::1]:65535", "[fe80::1%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Address::from(&address).to_std().unwrap(), address);
        }
        assert!(Address::empty().to_std().is_err());
    }
}
