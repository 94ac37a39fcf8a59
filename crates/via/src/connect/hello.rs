//! Addresses, and the hellos of the two ends of a connection: in memory's form on one host, as
//! bytes between hosts.

use std::net::{Ipv4Addr, UdpSocket};

use fabric::sync::{AtomicU64, Ordering};
use fabric::sys;

use crate::abi::{Return, ViAttributes};
use crate::limits::{ADDRESS, MAX_DISCRIMINATOR, MAX_TRANSFER};
use crate::memory::Rights;
use crate::opened;
use crate::transfer::Memory;
use crate::vi::Offer;

/// A `VIP_NET_ADDRESS`: a host's address and a discriminator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Address {
    host: [u8; ADDRESS],
    length: u16,
    discriminator: [u8; MAX_DISCRIMINATOR],
}

impl Address {
    /// `InvalidParameter` if the discriminator is too long. `host` may be shorter than a NIC's
    /// address: programs leave bytes out where they do not matter.
    pub fn new(host: &[u8], discriminator: &[u8]) -> Result<Address, Return> {
        if discriminator.len() > MAX_DISCRIMINATOR || host.len() > ADDRESS {
            return Err(Return::InvalidParameter);
        }
        let mut address = Address {
            host: [0; ADDRESS],
            length: discriminator.len() as u16,
            discriminator: [0; MAX_DISCRIMINATOR],
        };
        address.host[..host.len()].copy_from_slice(host);
        address.discriminator[..discriminator.len()].copy_from_slice(discriminator);
        Ok(address)
    }

    /// The host's bytes.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The discriminator.
    pub fn discriminator(&self) -> &[u8] {
        &self.discriminator[..usize::from(self.length).min(MAX_DISCRIMINATOR)]
    }

    pub(super) fn ip(&self) -> Ipv4Addr {
        let [_, _, a, b, c, d] = self.host;
        Ipv4Addr::new(a, b, c, d)
    }

    /// Whether it is an address of this host.
    pub(super) fn is_here(&self) -> bool {
        UdpSocket::bind((self.ip(), 0)).is_ok()
    }

    /// Appends its bytes for another host.
    fn append(&self, to: &mut Vec<u8>) {
        to.extend(self.host);
        to.push(self.length as u8);
        to.extend(self.discriminator());
    }

    /// Takes such bytes from the front.
    fn take(from: &mut &[u8]) -> Option<Address> {
        let (host, rest) = from.split_first_chunk::<ADDRESS>()?;
        let (&length, rest) = rest.split_first()?;
        let (discriminator, rest) = rest.split_at_checked(usize::from(length))?;
        *from = rest;
        Address::new(host, discriminator).ok()
    }
}

/// The first message of an end.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Hello {
    /// [`MAGIC`]: other protocols are refused.
    pub(super) magic: u64,
    pub(super) kind: u32,
    pub(super) level: u32,
    pub(super) most: u64,
    pub(super) nic: u64,
    pub(super) ptag: u64,
    /// Bit 0: may be written by RDMA, bit 1: may be read; bits 2 and 3: its receive queue, its send
    /// queue has a completion queue; bit 4: it can reach the other end's memory.
    pub(super) bits: u64,
    pub(super) slots: [u64; 2],
    /// Address and length of its arena; 0 if there is none.
    pub(super) arena: [u64; 2],
    /// An address in its process, and the value there: a peer that reads it can reach the process's
    /// memory.
    pub(super) probe: [u64; 2],
    pub(super) from: Address,
    pub(super) to: Address,
}

/// "VIACONN" and the version of everything that the two ends share.
pub(super) const MAGIC: u64 = 0x5649_4143_4f4e_4e03;
pub(super) const BYTES: usize = size_of::<Hello>();

pub(super) mod kind {
    pub const REQUEST: u32 = 1;
    pub const ACCEPT: u32 = 2;
    pub const REJECT: u32 = 3;
    pub const CONFIRM: u32 = 4;
    pub const PEER: u32 = 5;
    /// The mistake is in `level`: a [`Return`].
    pub const MISMATCH: u32 = 6;
}

impl Hello {
    pub(super) fn bare(kind: u32, from: &Address, to: &Address) -> Hello {
        Hello {
            magic: MAGIC,
            kind,
            level: 0,
            most: 0,
            nic: 0,
            ptag: 0,
            bits: 0,
            slots: [0; 2],
            arena: [0; 2],
            probe: [0; 2],
            from: *from,
            to: *to,
        }
    }

    pub(super) fn new(kind: u32, offer: Option<&Offer>, from: &Address, to: &Address) -> Hello {
        let mut hello = Hello { probe: probe(), ..Hello::bare(kind, from, to) };
        if let Some(offer) = offer {
            let attributes = &offer.attributes;
            hello.level = attributes.reliability_level.into();
            hello.most = attributes.max_transfer_size;
            (hello.nic, hello.ptag) = (offer.nic as u64, attributes.ptag as u64);
            hello.bits = u64::from(attributes.enable_rdma_write != 0)
                | u64::from(attributes.enable_rdma_read != 0) << 1
                | u64::from(offer.queues[0].is_some()) << 2
                | u64::from(offer.queues[1].is_some()) << 3;
            hello.arena = opened::arena().map_or([0; 2], |arena| arena.place());
            hello.slots = offer.queues.map(|queue| queue.map_or(0, |queue| queue.slot as u64));
        }
        hello
    }

    /// Sets whether the other end's memory can be reached.
    pub(super) fn reaching(mut self, memory: &Memory) -> Hello {
        self.bits |= u64::from(memory.is_direct()) << 4;
        self
    }

    /// Bytes are placed directly only if each end can reach the other: so both use their memory
    /// alike.
    pub(super) fn agree(&self, memory: &Memory) {
        memory.direct.fetch_and(self.bits >> 4 & 1 != 0, Ordering::Relaxed);
    }

    /// Its bytes for another host, without the parts about one host's memory.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.level.to_le_bytes());
        bytes.extend(self.most.to_le_bytes());
        bytes.push(self.bits as u8 & 3);
        self.from.append(&mut bytes);
        self.to.append(&mut bytes);
        bytes
    }

    /// Parses the bytes of another host; None if they are malformed.
    pub(super) fn parse(mut bytes: &[u8]) -> Option<Hello> {
        fn some<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk::<N>()?;
            *bytes = rest;
            Some(*first)
        }
        let kind = u32::from_le_bytes(some(&mut bytes)?);
        let level = u32::from_le_bytes(some(&mut bytes)?);
        let most = u64::from_le_bytes(some(&mut bytes)?);
        let [bits] = some(&mut bytes)?;
        let (from, to) = (Address::take(&mut bytes)?, Address::take(&mut bytes)?);
        let can_be = (kind::REQUEST..=kind::MISMATCH).contains(&kind)
            && level <= u32::from(u16::MAX)
            && most <= MAX_TRANSFER as u64
            && bits <= 3;
        let bits = u64::from(bits);
        (can_be && bytes.is_empty()).then(|| Hello { level, most, bits, ..Hello::bare(kind, &from, &to) })
    }

    pub(super) fn rights(&self) -> Rights {
        Rights { write: self.bits & 1 != 0, read: self.bits & 2 != 0 }
    }

    pub(super) fn attributes(&self) -> ViAttributes {
        ViAttributes {
            reliability_level: self.level as u16,
            max_transfer_size: self.most,
            qos: core::ptr::null_mut(),
            ptag: core::ptr::null_mut(),
            enable_rdma_write: i32::from(self.bits & 1 != 0),
            enable_rdma_read: i32::from(self.bits & 2 != 0),
        }
    }
}

static PROBE: AtomicU64 = AtomicU64::new(0);

/// A parent's settings in the kernel do not hold for its child.
pub(super) fn in_child() {
    PROBE.store(0, Ordering::Relaxed);
}

/// A value for peers to read. Where the kernel lets only parents read a process's memory (Yama),
/// this allows the user's other processes.
fn probe() -> [u64; 2] {
    if PROBE.load(Ordering::Relaxed) == 0 {
        // SAFETY: only changes who may do that.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    }
    let _ = PROBE.compare_exchange(0, sys::random() | 1, Ordering::AcqRel, Ordering::Relaxed);
    [(&raw const PROBE) as u64, PROBE.load(Ordering::Acquire)]
}

/// Parses a hello of another host and encodes it again. For the fuzzer.
#[doc(hidden)]
pub fn understood(bytes: &[u8]) -> Option<Vec<u8>> {
    Hello::parse(bytes).map(|hello| hello.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_of_another_host_is_understood_and_nothing_else_is() {
        let from = Address::new(&[0, 0, 10, 1, 0, 2], b"me").unwrap();
        let to = Address::new(&[0, 0, 10, 1, 0, 1], &[7; MAX_DISCRIMINATOR]).unwrap();
        let hello =
            |kind, level, most, bits| Hello { level, most, bits, ..Hello::bare(kind, &from, &to) }.bytes();
        let bytes = hello(kind::REQUEST, 2, MAX_TRANSFER as u64, 3);
        assert!(bytes.len() <= 128, "what `cm` takes");
        let understood = Hello::parse(&bytes).unwrap();
        assert_eq!((understood.from, understood.to, understood.bits), (from, to, 3));
        assert_eq!(understood.bytes(), bytes);
        for len in 0..bytes.len() {
            assert!(Hello::parse(&bytes[..len]).is_none());
        }
        assert!(Hello::parse(&[&bytes[..], &[0]].concat()).is_none());
        for wrong in [
            hello(0, 2, 1, 0),
            hello(kind::MISMATCH + 1, 2, 1, 0),
            hello(kind::REQUEST, 1 << 16, 1, 0),
            hello(kind::REQUEST, 2, MAX_TRANSFER as u64 + 1, 0),
        ] {
            assert!(Hello::parse(&wrong).is_none());
        }
        let mut long = bytes;
        long[17 + ADDRESS] = 33;
        assert!(Hello::parse(&long).is_none(), "a discriminator that is too long");
    }
}
