//! Checking and admitting frames. Every byte from the wire is untrusted: a malformed frame, or one
//! that claims to come from another host than the one that sent it, is dropped and counted under
//! its [`Drop`].

use serde::Serialize;

use crate::mac::Mac;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;
/// Beyond the MTU: the header and two VLAN tags.
pub const EXTRA: usize = HEADER + 8;
/// "Local Experimental Ethertype 1" (IEEE 802): Shunt's own frames, which others ignore.
pub const EXPERIMENTAL: u16 = 0x88b5;

/// Why a frame was dropped. Each is counted for the peer that it came from or was for, or for the
/// net where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Drop {
    /// In: shorter than an Ethernet header.
    Runt,
    /// In or out: longer than the MTU and its headers.
    Oversize,
    /// In: from an address that is no host's in the table.
    WrongSource,
    /// In: its source address is another host's, or ours, or a group's.
    SpoofedHost,
    /// In: its offload header (checksum, segmentation) is impossible.
    BadOffload,
    /// In or out: the interface did not take it (it is down, for example), or the kernel had no
    /// memory.
    Refused,
    /// Out: its destination is no host in the table.
    UnknownHost,
    /// Out: its host is down (ETHOM: no link).
    NoPeer,
    /// Out: the peer's queue, or the socket, was full.
    QueueFull,
}

impl Drop {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Drop; 9] = [
        Drop::Runt,
        Drop::Oversize,
        Drop::WrongSource,
        Drop::SpoofedHost,
        Drop::BadOffload,
        Drop::Refused,
        Drop::UnknownHost,
        Drop::NoPeer,
        Drop::QueueFull,
    ];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Drop::Runt => "runt",
            Drop::Oversize => "oversize",
            Drop::WrongSource => "wrong_source",
            Drop::SpoofedHost => "spoofed_host",
            Drop::BadOffload => "bad_offload",
            Drop::Refused => "refused",
            Drop::UnknownHost => "unknown_host",
            Drop::NoPeer => "no_peer",
            Drop::QueueFull => "queue_full",
        }
    }
}

/// An Ethernet header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Destination.
    pub to: Mac,
    /// Source.
    pub from: Mac,
    /// The type of its payload.
    pub ethertype: u16,
}

impl Header {
    /// Parses the header of a frame.
    pub fn parse(frame: &[u8]) -> Result<Header, Drop> {
        let Some(head) = frame.first_chunk::<HEADER>() else { return Err(Drop::Runt) };
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = *head;
        let (to, from) = (Mac([a, b, c, d, e, f]), Mac([g, h, i, j, k, l]));
        Ok(Header { to, from, ethertype: u16::from_be_bytes([m, n]) })
    }

    /// The header of a frame of `len` bytes from the wire, if it is admitted. `most` is its
    /// greatest length, `sender` the host that sent it (None if sources are not checked), `me` this
    /// host.
    pub fn admit(
        frame: &[u8],
        len: usize,
        most: usize,
        sender: Option<u16>,
        me: u16,
    ) -> Result<Header, Drop> {
        let header = Header::parse(frame)?;
        if len > most {
            return Err(Drop::Oversize);
        }
        match header.from.host() {
            Some(id) if id == me || sender.is_some_and(|sender| sender != id) => Err(Drop::SpoofedHost),
            None if header.from.is_group() => Err(Drop::SpoofedHost),
            _ => Ok(header),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(to: Mac, from: Mac) -> Vec<u8> {
        [&to.0[..], &from.0, &[8, 0], &[0; 46]].concat()
    }

    #[test]
    fn what_cannot_be_is_not_let_in() {
        let (one, two, three) = (Mac::of_host(1), Mac::of_host(2), Mac::of_host(3));
        let good = frame(one, two);
        let admit = |frame: &[u8], sender| Header::admit(frame, frame.len(), 100, sender, 1);
        assert!(admit(&good, Some(2)).is_ok_and(|header| header.ethertype == 0x800 && header.from == two));
        assert_eq!(admit(&good[..13], Some(2)), Err(Drop::Runt));
        assert_eq!(admit(&[&good[..], &[0; 50]].concat(), Some(2)), Err(Drop::Oversize));
        assert_eq!(admit(&frame(one, three), Some(2)), Err(Drop::SpoofedHost));
        assert!(admit(&frame(one, three), None).is_ok());
        assert_eq!(admit(&frame(two, one), Some(2)), Err(Drop::SpoofedHost), "our own address");
        assert_eq!(admit(&frame(one, Mac([0xff; 6])), Some(2)), Err(Drop::SpoofedHost));
        assert!(admit(&frame(one, Mac([2, 0, 0, 0, 0, 9])), Some(2)).is_ok(), "from behind a bridge");
    }

    #[test]
    fn each_reason_has_its_place() {
        for (i, reason) in Drop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_a_reason(bytes in prop::collection::vec(any::<u8>(), 0..80), me: u16, sender: Option<u16>) {
            if let Ok(header) = Header::admit(&bytes, bytes.len(), 64, sender, me) {
                prop_assert!((HEADER..=64).contains(&bytes.len()));
                prop_assert!(header.from.host() != Some(me) && !header.from.is_group());
            }
        }
    }
}
