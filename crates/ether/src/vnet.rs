//! The header that says what the kernel has left undone in a frame: a checksum to fill in, a segment to cut up (Linux's virtio_net_hdr,
//! as TAP devices with IFF_VNET_HDR have it before each frame). Between two ETHOM hosts it goes along, so that TCP's 64 KB
//! pieces cross in one frame and nobody computes a checksum.
//!
//! From a peer it is untrusted, and goes to our kernel: what cannot be does not get there.

use crate::frame::HEADER;

/// Its length.
pub const LEN: usize = 10;
/// The longest frame with such a header: what IP can say, with Ethernet's header and two VLAN tags.
pub const LONGEST: usize = 65_535 + crate::frame::EXTRA;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;
const ECN: u8 = 0x80;

/// The header's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Vnet {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl Vnet {
    /// The header in its bytes.
    pub fn parse(bytes: &[u8; LEN]) -> Vnet {
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        Vnet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Whether it can be before a frame of `len` bytes on an interface whose frames have at most `most`.
    pub fn fits(&self, len: usize, most: usize) -> bool {
        if self.flags & !(NEEDS_CSUM | DATA_VALID) != 0 {
            return false;
        }
        let checksum = usize::from(self.csum_start) + usize::from(self.csum_offset) + 2;
        let partial = self.flags & NEEDS_CSUM != 0;
        if partial && (usize::from(self.csum_start) < HEADER || checksum > len) {
            return false;
        }
        match self.gso_type & !ECN {
            0 => self.gso_type == 0 && len <= most,
            TCPV4 | TCPV6 | UDP_L4 => {
                partial
                    && self.gso_size > 0
                    && usize::from(self.gso_size) + HEADER <= most
                    && usize::from(self.hdr_len) <= len
                    && len <= LONGEST
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(flags: u8, gso: u8, words: [u16; 4]) -> Vnet {
        let mut bytes = [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
        for (i, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * i..4 + 2 * i].copy_from_slice(&word.to_ne_bytes());
        }
        Vnet::parse(&bytes)
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Vnet::default().fits(1514, 1514) && !Vnet::default().fits(1515, 1514));
        let tso = [66, 1448, 34, 16];
        assert!(header(1, 1, tso).fits(60_000, 1514));
        assert!(header(1, 1 | ECN, tso).fits(60_000, 1514));
        assert!(!header(0, 1, tso).fits(60_000, 1514), "segments need their checksum filled in");
        assert!(!header(1, 1, [66, 0, 34, 16]).fits(60_000, 1514));
        assert!(!header(1, 3, tso).fits(60_000, 1514), "UFO is no more");
        assert!(!header(1, 0, [0, 0, 60, 10]).fits(60, 1514), "beyond the end");
        assert!(!header(1, 0, [0, 0, 2, 10]).fits(60, 1514), "within Ethernet's header");
        assert!(!header(8, 0, [0; 4]).fits(60, 1514));
        assert!(!header(0, ECN, [0; 4]).fits(60, 1514));
    }

    proptest! {
        #[test]
        fn a_checksum_lies_within_its_frame(bytes: [u8; LEN], len in 14..70_000usize, most in 82..65_557usize) {
            let vnet = Vnet::parse(&bytes);
            if vnet.fits(len, most) {
                prop_assert!(len <= LONGEST);
                prop_assert!(vnet.flags & 1 == 0 || usize::from(vnet.csum_start) + usize::from(vnet.csum_offset) + 2 <= len);
                prop_assert!(vnet.gso_type != 0 || len <= most);
            }
        }
    }
}
