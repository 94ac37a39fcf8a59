//! The offload header of a frame: work that the kernel has left undone, a checksum to fill in or a
//! segment to cut up (Linux's virtio_net_hdr, which TAP devices with IFF_VNET_HDR put before each
//! frame). Between two hosts that both take it, it is sent along, so that TCP's 64 KB pieces
//! (*super-frames*) cross in one frame and nobody computes a checksum. For others
//! [`Vnet::complete`] and [`Segments`] do that work.
//!
//! A peer's header is untrusted, and would go to our kernel: an impossible one is dropped.

use crate::frame::{Drop, HEADER};

/// Its length.
pub const LEN: usize = 10;
/// The longest frame with such a header: the most bytes of an IP packet, with Ethernet's header and
/// two VLAN tags.
pub const LONGEST: usize = 65_535 + crate::frame::EXTRA;

const NEEDS_CSUM: u8 = 1;
const DATA_VALID: u8 = 2;
const TCPV4: u8 = 1;
const TCPV6: u8 = 4;
const UDP_L4: u8 = 5;
const ECN: u8 = 0x80;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: [u16; 2] = [0x8100, 0x88a8];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Flags of TCP that only the first segment keeps, and those that only the last one keeps.
const CWR: u8 = 0x80;
const FIN_PSH: u8 = 0x09;
/// The most segments of one super-frame: those of 32 bytes.
const MOST_SEGMENTS: usize = 2048;

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
    /// Parses the header's bytes.
    pub fn parse(bytes: &[u8; LEN]) -> Vnet {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Vnet {
            flags: bytes[0],
            gso_type: bytes[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    /// Whether the frame must be cut up.
    pub fn is_super(&self) -> bool {
        self.gso_type != 0
    }

    /// Fills in the checksum of a frame whose header this is and [fits](Vnet::fits), if that was
    /// left undone.
    pub fn complete(&self, frame: &mut [u8]) {
        if self.flags & NEEDS_CSUM != 0 {
            let start = usize::from(self.csum_start);
            fill_checksum(frame, start, start + usize::from(self.csum_offset));
        }
    }

    /// Whether the header is possible for a frame of `len` bytes on an interface whose frames have
    /// at most `most`.
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

/// A super-frame cut up: complete frames, one after the other, all as long as the first one but the
/// last, which may be shorter.
#[derive(Debug, Default)]
pub struct Segments {
    bytes: Vec<u8>,
    each: usize,
}

impl Segments {
    /// Cuts up a super-frame, as the kernel would, into frames of at most `most` bytes.
    pub fn cut(&mut self, vnet: &Vnet, frame: &[u8], most: usize) -> Result<(), Drop> {
        self.bytes.clear();
        let layout = Layout::of(vnet, frame).ok_or(Drop::BadOffload)?;
        let (headers, payload) = frame.split_at(layout.payload);
        let size = usize::from(vnet.gso_size);
        if size == 0 || payload.is_empty() || payload.len().div_ceil(size) > MOST_SEGMENTS {
            return Err(Drop::BadOffload);
        }
        self.each = headers.len() + size;
        if self.each > most {
            return Err(Drop::Oversize);
        }
        let count = payload.len().div_ceil(size);
        for (i, part) in payload.chunks(size).enumerate() {
            let at = self.bytes.len();
            self.bytes.extend_from_slice(headers);
            self.bytes.extend_from_slice(part);
            layout.finish(&mut self.bytes[at..], frame.len(), i, size, i + 1 == count);
        }
        Ok(())
    }

    /// The frames in groups of at most `most` bytes and at most `count` frames, but at least one.
    pub fn groups(&self, count: usize, most: usize) -> impl Iterator<Item = &[u8]> {
        let together = count.min(most / self.each.max(1)).max(1);
        self.bytes.chunks((together * self.each).max(1))
    }

    /// The length of each but the last.
    pub fn each(&self) -> usize {
        self.each
    }
}

/// The places of a super-frame's headers; all of them lie before `payload`.
struct Layout {
    ip: usize,
    transport: usize,
    payload: usize,
    is_v6: bool,
    is_tcp: bool,
}

impl Layout {
    fn of(vnet: &Vnet, frame: &[u8]) -> Option<Layout> {
        let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let (mut ip, mut ethertype) = (HEADER, word(HEADER - 2)?);
        for _ in 0..2 {
            if VLAN.contains(&ethertype) {
                (ip, ethertype) = (ip + 4, word(ip + 2)?);
            }
        }
        let transport = usize::from(vnet.csum_start);
        let is_v6 = ethertype == IPV6;
        let first = *frame.get(ip)?;
        let header = if is_v6 { 40 } else { usize::from(first & 15) * 4 };
        let protocol = match (ethertype, first >> 4) {
            (IPV4, 4) if header >= 20 && ip + header == transport => *frame.get(ip + 9)?,
            (IPV6, 6) if ip + header == transport => *frame.get(ip + 6)?,
            // Behind extension headers: the offload header names the protocol.
            (IPV6, 6) if ip + header < transport && vnet.gso_type & !ECN == TCPV6 => TCP,
            (IPV6, 6) if ip + header < transport => UDP,
            _ => return None,
        };
        let (length, checksum) = match (vnet.gso_type & !ECN, protocol, is_v6) {
            (TCPV4, TCP, false) | (TCPV6, TCP, true) => {
                (usize::from(frame.get(transport + 12)? >> 4) * 4, 16)
            }
            (UDP_L4, UDP, _) => (8, 6),
            _ => return None,
        };
        let is_tcp = protocol == TCP;
        let fits = (!is_tcp || length >= 20) && transport + length <= frame.len();
        let partial = vnet.flags & NEEDS_CSUM != 0 && usize::from(vnet.csum_offset) == checksum;
        (fits && partial).then_some(Layout { ip, transport, payload: transport + length, is_v6, is_tcp })
    }

    /// Completes the headers of segment `number`, which is a copy of the super-frame's headers with
    /// its part of the payload. `whole` is the length of the super-frame.
    fn finish(&self, segment: &mut [u8], whole: usize, number: usize, size: usize, is_last: bool) {
        let (ip, transport) = (self.ip, self.transport);
        let word = |segment: &[u8], at: usize| u16::from_be_bytes([segment[at], segment[at + 1]]);
        let put = |segment: &mut [u8], at: usize, value: usize| {
            segment[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
        };
        if self.is_v6 {
            put(segment, ip + 4, segment.len() - ip - 40);
        } else {
            put(segment, ip + 2, segment.len() - ip);
            put(segment, ip + 4, usize::from(word(segment, ip + 4)) + number);
            put(segment, ip + 10, 0);
            put(segment, ip + 10, (!sum(&segment[ip..transport])).into());
        }
        let length = segment.len() - transport;
        let checksum = if self.is_tcp {
            let sequence = &mut segment[transport + 4..transport + 8];
            let first = u32::from_be_bytes([sequence[0], sequence[1], sequence[2], sequence[3]]);
            sequence.copy_from_slice(&first.wrapping_add((number * size) as u32).to_be_bytes());
            let dropped = if number == 0 { 0 } else { CWR } | if is_last { 0 } else { FIN_PSH };
            segment[transport + 13] &= !dropped;
            transport + 16
        } else {
            put(segment, transport + 4, length);
            transport + 6
        };
        // There is the sum of the pseudo-header, with the length of the whole.
        let pseudo = add(word(segment, checksum), add(!((whole - transport) as u16), length as u16));
        put(segment, checksum, pseudo.into());
        fill_checksum(segment, transport, checksum);
    }
}

/// Writes the checksum of the bytes from `start` on to `at`, where the sum of everything else that
/// it covers is.
fn fill_checksum(frame: &mut [u8], start: usize, at: usize) {
    // For UDP zero would mean that there is none; for others it is the same number.
    let value = match !sum(&frame[start..]) {
        0 => 0xffff,
        value => value,
    };
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The sum of 16-bit words in ones' complement (RFC 1071), which does not depend on the order of
/// bytes, so that whole words of the machine's are added.
fn sum(bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let mut total: u64 = words.iter().chain([&last]).map(|word| u64::from(u32::from_ne_bytes(*word))).sum();
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    u16::from_be(total as u16)
}

fn add(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(flags: u8, gso: u8, words: [u16; 4]) -> Vnet {
        let mut bytes = [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
        for (i, word) in words.into_iter().enumerate() {
            bytes[2 + 2 * i..4 + 2 * i].copy_from_slice(&word.to_le_bytes());
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

        #[test]
        fn segments_carry_the_payload_and_say_so(
            v6: bool, tcp: bool, tags in 0..3usize, options in 0..4usize, flags: u8, id: u16, sequence: u32,
            addresses: [u8; 32], payload in prop::collection::vec(any::<u8>(), 1..9000), size in 8..1400u16,
        ) {
            let sample = Sample { v6, tcp, tags, options, id, sequence, addresses, payload };
            let (frame, ip, transport) = sample.frame(&sample.payload, 0, flags, true);
            let vnet = sample.vnet(transport, size);
            prop_assert!(vnet.fits(frame.len(), 1522));
            let mut segments = Segments::default();
            let headers = frame.len() - sample.payload.len();
            prop_assert_eq!(segments.cut(&vnet, &frame, headers + usize::from(size) - 1), Err(Drop::Oversize));
            prop_assert_eq!(segments.cut(&vnet, &frame, headers + usize::from(size)), Ok(()));
            let cut: Vec<&[u8]> = segments.groups(1, 65_507).collect();
            let parts: Vec<&[u8]> = sample.payload.chunks(size.into()).collect();
            prop_assert_eq!(cut.len(), parts.len());
            for (i, (segment, part)) in cut.iter().zip(&parts).enumerate() {
                // It is the frame that the kernel would have made of that part alone, checksums
                // included.
                let first = if i == 0 { 0xff } else { !0x80 };
                let last = if i + 1 == parts.len() { 0xff } else { !0x09 };
                let (wanted, ..) = sample.frame(part, i, flags & first & last, false);
                prop_assert_eq!(*segment, &wanted[..]);
                prop_assert!(v6 || sum(&segment[ip..transport]) == 0xffff);
                prop_assert_eq!(sample.whole_sum(segment, transport), 0xffff);
            }
            for (count, most) in [(64, 65_507), (7, 5000), (3, 1)] {
                let groups: Vec<&[u8]> = segments.groups(count, most).collect();
                prop_assert_eq!(groups.concat(), cut.concat());
                for (i, group) in groups.iter().enumerate() {
                    prop_assert!(group.len() <= (count * segments.each()).min(most.max(segments.each())));
                    prop_assert!(i + 1 == groups.len() || group.len().is_multiple_of(segments.each()));
                }
            }
        }

        #[test]
        fn a_checksum_that_was_left_undone_is_filled_in(payload in prop::collection::vec(any::<u8>(), 0..300), v6: bool, tcp: bool, addresses: [u8; 32]) {
            let sample = Sample { v6, tcp, tags: 0, options: 0, id: 0, sequence: 0, addresses, payload };
            let (mut frame, _, transport) = sample.frame(&sample.payload, 0, 0, true);
            Vnet { gso_type: 0, ..sample.vnet(transport, 0) }.complete(&mut frame);
            prop_assert_eq!(sample.whole_sum(&frame, transport), 0xffff);
        }

        #[test]
        fn any_bytes_are_segments_or_a_reason(
            bytes: [u8; LEN], frame in prop::collection::vec(any::<u8>(), 0..300),
            kind in prop::sample::select(vec![None, Some((false, 1)), Some((true, 4)), Some((false, 5)), Some((true, 5))]),
        ) {
            let (mut vnet, mut frame, mut segments) = (Vnet::parse(&bytes), frame, Segments::default());
            // Headers that nearly fit get further.
            if let Some((v6, gso_type)) = kind
                && frame.len() > 15
            {
                let ip = if v6 { 40 } else { 20 };
                let tcp = gso_type != 5;
                let csum_offset = if tcp { 16 } else { 6 };
                vnet = Vnet { flags: 1, gso_type, csum_start: HEADER as u16 + ip, csum_offset, ..vnet };
                frame[12..14].copy_from_slice(&(if v6 { IPV6 } else { IPV4 }).to_be_bytes());
                frame[14] = if v6 { 0x60 } else { 0x45 };
                let protocol = if v6 { 20 } else { 23 };
                if let Some(byte) = frame.get_mut(protocol) {
                    *byte = if tcp { TCP } else { UDP };
                }
            }
            if segments.cut(&vnet, &frame, 1514).is_ok() {
                prop_assert!(segments.groups(1, 0).all(|segment| segment.len() <= 1514));
                prop_assert!(segments.bytes.len() < MOST_SEGMENTS * 300);
            }
            if vnet.fits(frame.len(), 1514) {
                vnet.complete(&mut frame);
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_up_is_refused() {
        let sample = Sample {
            v6: false,
            tcp: true,
            tags: 0,
            options: 0,
            id: 1,
            sequence: 1,
            addresses: [9; 32],
            payload: vec![7; 5000],
        };
        let (frame, _, transport) = sample.frame(&sample.payload, 0, 0x10, true);
        let good = sample.vnet(transport, 1000);
        let mut segments = Segments::default();
        assert_eq!(segments.cut(&good, &frame, 1514), Ok(()));
        for bad in [
            Vnet { flags: 0, ..good },
            Vnet { gso_type: 0, ..good },
            Vnet { gso_type: TCPV6, ..good },
            Vnet { gso_type: UDP_L4, ..good },
            Vnet { gso_size: 0, ..good },
            Vnet { gso_size: 2, ..good },
            Vnet { csum_start: 30, ..good },
            Vnet { csum_start: 60_000, ..good },
            Vnet { csum_offset: 6, ..good },
        ] {
            assert_eq!(segments.cut(&bad, &frame, 1514), Err(Drop::BadOffload), "{bad:?}");
        }
        let headers = frame.len() - 5000;
        for len in 0..=headers {
            assert_eq!(
                segments.cut(&good, &frame[..len], 1514),
                Err(Drop::BadOffload),
                "{len} bytes of headers alone"
            );
        }
    }

    /// The parts of a super-frame.
    struct Sample {
        v6: bool,
        tcp: bool,
        tags: usize,
        options: usize,
        id: u16,
        sequence: u32,
        addresses: [u8; 32],
        payload: Vec<u8>,
    }

    impl Sample {
        fn vnet(&self, transport: usize, gso_size: u16) -> Vnet {
            let gso_type = if !self.tcp {
                UDP_L4
            } else if self.v6 {
                TCPV6
            } else {
                TCPV4
            };
            let csum_offset = if self.tcp { 16 } else { 6 };
            Vnet { flags: 1, gso_type, hdr_len: 0, gso_size, csum_start: transport as u16, csum_offset }
        }

        /// The frame of a part of the payload, and the places of its headers; only with the sum of
        /// the pseudo-header if `partial`.
        fn frame(&self, part: &[u8], number: usize, flags: u8, partial: bool) -> (Vec<u8>, usize, usize) {
            let mut frame = vec![2; 12];
            for _ in 0..self.tags {
                frame.extend([0x81, 0, 0, 7]);
            }
            frame.extend((if self.v6 { IPV6 } else { IPV4 }).to_be_bytes());
            let ip = frame.len();
            let options = if self.tcp { self.options * 4 } else { 0 };
            let length = options + part.len() + if self.tcp { 20 } else { 8 };
            let protocol = if self.tcp { TCP } else { UDP };
            if self.v6 {
                frame.extend([0x60, 0, 0, 0]);
                frame.extend((length as u16).to_be_bytes());
                frame.extend([protocol, 64]);
                frame.extend(self.addresses);
            } else {
                frame.extend([0x45, 0]);
                frame.extend((length as u16 + 20).to_be_bytes());
                frame.extend(self.id.wrapping_add(number as u16).to_be_bytes());
                frame.extend([0x40, 0, 64, protocol, 0, 0]);
                frame.extend(&self.addresses[..8]);
                let value = !slow_sum(&frame[ip..]);
                frame[ip + 10..ip + 12].copy_from_slice(&value.to_be_bytes());
            }
            let transport = frame.len();
            if self.tcp {
                // The place of the part in the payload: all before the last are of one size.
                let at = part.as_ptr() as usize - self.payload.as_ptr() as usize;
                frame.extend([1, 2, 3, 4]);
                frame.extend(self.sequence.wrapping_add(at as u32).to_be_bytes());
                frame.extend([0, 0, 0, 9, ((20 + options) * 4) as u8, flags, 1, 0, 0, 0, 0, 0]);
                frame.extend(vec![1; options]);
            } else {
                frame.extend([1, 2, 3, 4]);
                frame.extend((length as u16).to_be_bytes());
                frame.extend([0, 0]);
            }
            frame.extend(part);
            let at = transport + if self.tcp { 16 } else { 6 };
            let value = if partial {
                self.pseudo(length)
            } else {
                match !self.whole_sum(&frame, transport) {
                    0 => 0xffff,
                    value => value,
                }
            };
            frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
            (frame, ip, transport)
        }

        fn pseudo(&self, length: usize) -> u16 {
            let protocol = if self.tcp { TCP } else { UDP };
            let addresses = &self.addresses[..if self.v6 { 32 } else { 8 }];
            slow_sum(&[addresses, &(length as u32).to_be_bytes(), &[0, 0, 0, protocol]].concat())
        }

        /// The sum of everything that a checksum covers: 0xffff if it is right.
        fn whole_sum(&self, frame: &[u8], transport: usize) -> u16 {
            let pseudo = self.pseudo(frame.len() - transport).to_be_bytes();
            slow_sum(&[&pseudo[..], &frame[transport..]].concat())
        }
    }

    /// The sum as RFC 1071 defines it.
    fn slow_sum(bytes: &[u8]) -> u16 {
        let word = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(word).fold(0, |sum, word| {
            let sum = sum + word;
            (sum & 0xffff) + (sum >> 16)
        }) as u16
    }
}
