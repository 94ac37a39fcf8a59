//! Addresses by the rule: 02:45:54:48:HH:LL, "ETH" behind the bit for "locally administered", then
//! the host's number. Up to 255 hosts the fifth byte is 0, as in the paper; more hosts use it as
//! well.

use std::fmt;

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

/// The beginning of every address by the rule.
const RULE: [u8; 4] = [0x02, 0x45, 0x54, 0x48];

impl Mac {
    /// The address of a host.
    pub fn of_host(id: u16) -> Mac {
        let [high, low] = id.to_be_bytes();
        Mac([RULE[0], RULE[1], RULE[2], RULE[3], high, low])
    }

    /// The host whose address it is by the rule; none for any other address.
    pub fn host(self) -> Option<u16> {
        let [a, b, c, d, high, low] = self.0;
        ([a, b, c, d] == RULE).then(|| u16::from_be_bytes([high, low]))
    }

    /// Whether it is a group: broadcast or multicast.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_addresses_name_one_another() {
        assert_eq!(Mac::of_host(7).to_string(), "02:45:54:48:00:07");
        assert_eq!(Mac::of_host(300).to_string(), "02:45:54:48:01:2c");
        for id in [1, 255, 256, 65534] {
            assert_eq!(Mac::of_host(id).host(), Some(id));
        }
        assert_eq!(Mac([0xff; 6]).host(), None);
        assert!(Mac([0xff; 6]).is_group() && !Mac::of_host(1).is_group());
    }
}
