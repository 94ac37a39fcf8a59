//! The address of a connection's end.

/// An address as IPv6 has it (IPv4 is mapped), port in host order.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Addr {
    pub ip: [u8; 16],
    pub port: u16,
}
