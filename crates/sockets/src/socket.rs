//! Questions to the kernel about one socket.

use fabric::sys;

use host::addr::Addr;

pub const SO_COOKIE: i32 = 57;

/// Whether a descriptor is a socket of TCP.
pub fn is_tcp(fd: i32) -> bool {
    sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

pub fn parse(address: &libc::sockaddr_storage) -> Option<Addr> {
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller.
            let v4 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in>() };
            let mut ip = [0; 16];
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Some(Addr { ip, port: u16::from_be(v4.sin_port) })
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller.
            let v6 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in6>() };
            Some(Addr { ip: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
        }
        _ => None,
    }
}
