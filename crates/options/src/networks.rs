//! A list of networks whose hosts count as one cluster.

use core::net::{IpAddr, Ipv6Addr};

/// The most networks that a list has.
const MOST: usize = 16;

/// Networks, IPv4 ones as IPv6 has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Networks {
    list: [(u128, u32); MOST],
    len: usize,
}

impl Networks {
    /// None.
    pub const NONE: Networks = Networks { list: [(0, 0); MOST], len: 0 };

    /// Parses `ADDRESS[/BITS]`, separated by commas or spaces. `None` if the text is something
    /// else, has too many networks, or none.
    pub fn parse(text: &[u8]) -> Option<Networks> {
        let mut networks = Networks::NONE;
        let words = text.split(|byte| matches!(byte, b',' | b' ' | b'\t')).filter(|word| !word.is_empty());
        for word in words {
            *networks.list.get_mut(networks.len)? = network(word)?;
            networks.len += 1;
        }
        (networks.len > 0).then_some(networks)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether an address, as IPv6 has it, is in one of them.
    pub fn contains(&self, address: [u8; 16]) -> bool {
        let address = u128::from_be_bytes(address);
        self.list[..self.len].iter().any(|&(network, bits)| address & mask(bits) == network)
    }
}

fn mask(bits: u32) -> u128 {
    u128::MAX.checked_shl(128 - bits).unwrap_or(0)
}

fn network(word: &[u8]) -> Option<(u128, u32)> {
    let word = core::str::from_utf8(word).ok()?;
    let (address, bits) = match word.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (word, None),
    };
    let (address, most): (Ipv6Addr, u32) = match address.parse().ok()? {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 32),
        IpAddr::V6(v6) => (v6, 128),
    };
    let bits = match bits {
        Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().ok()?,
        Some(_) => return None,
        None => most,
    };
    let bits = (bits <= most).then_some(bits + 128 - most)?;
    Some((address.to_bits() & mask(bits), bits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn v4(a: u8, b: u8, c: u8, d: u8) -> [u8; 16] {
        Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets()
    }

    #[test]
    fn networks_have_their_addresses_and_no_others() {
        let networks = Networks::parse(b"10.1.0.0/16, 192.168.7.9 fd00::/8").expect("networks");
        assert!(networks.contains(v4(10, 1, 255, 3)) && !networks.contains(v4(10, 2, 0, 1)));
        assert!(networks.contains(v4(192, 168, 7, 9)) && !networks.contains(v4(192, 168, 7, 8)));
        let own = Ipv6Addr::new(0xfd12, 0, 0, 0, 0, 0, 0, 1).octets();
        assert!(networks.contains(own) && !networks.contains(Ipv6Addr::LOCALHOST.octets()));
        let all = Networks::parse(b"0.0.0.0/0").expect("a network");
        assert!(all.contains(v4(1, 2, 3, 4)) && !all.contains(own), "IPv4 only");
        assert!(Networks::parse(b"::/0").expect("a network").contains(v4(1, 2, 3, 4)));
        assert!(!Networks::NONE.contains(v4(10, 1, 0, 1)));
    }

    #[test]
    fn what_is_no_network_is_none() {
        for wrong in [
            &b""[..],
            b" , ",
            b"10.0.0",
            b"10.0.0.0/33",
            b"10.0.0.0/",
            b"10.0.0.0/+8",
            b"host",
            b"fd00::/129",
            b"\xff",
        ] {
            assert_eq!(Networks::parse(wrong), None, "{wrong:?}");
        }
        assert_eq!(Networks::parse(&b"10.0.0.1 ".repeat(MOST + 1)), None, "too many");
    }
}
