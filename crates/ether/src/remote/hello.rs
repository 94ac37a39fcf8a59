//! The messages between two hosts of different machines before there is a link between them: their
//! numbers and the addresses of their fabrics ([`Hello`]), and the words of the request for the
//! link.

use cluster::form;
use cluster::wire::{ADDRESS, Message, Ticket};
use serde::{Deserialize, Serialize};

/// The beginning of a hello: "ethom", between hosts, and the version. A change of [`Hello`] must
/// increase it. Version 1 had an encoding of its own; the rest of a message is in that of [`form`].
const MAGIC: &[u8; 8] = b"ethom-f\x02";
/// The beginning of a request for a link.
pub(super) const REQUEST: &[u8; 8] = b"SHUNTET\x01";
/// The most bytes of a net's name.
const NET: usize = 32;

/// The message of each host when both have proved that they have the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The net.
    #[serde(deserialize_with = "form::text::<_, 0, NET>")]
    pub net: String,
    /// The sender's number.
    pub from: u16,
    /// The receiver's number.
    pub to: u16,
    /// Bytes of its own queue.
    pub size: u64,
    /// Identifies the link; drawn by the caller.
    pub ticket: Ticket,
    /// libfabric's provider.
    #[serde(deserialize_with = "form::provider")]
    pub provider: String,
    /// The address of its fabric, in the provider's own form.
    #[serde(deserialize_with = "form::bytes::<_, 1, ADDRESS>")]
    pub address: Vec<u8>,
}

impl Message for Hello {
    fn bytes(&self) -> Vec<u8> {
        form::encode(MAGIC, self)
    }

    fn parse(bytes: &[u8]) -> Option<Hello> {
        form::decode(MAGIC, bytes)
    }
}

/// The ticket in a request for a link. Some providers append bytes to what they carry.
pub(super) fn ticket_of(words: &[u8]) -> Option<Ticket> {
    words.strip_prefix(REQUEST)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> Hello {
        let (net, provider) = ("mem0".to_string(), "tcp".to_string());
        Hello { net, from: 1, to: 65_534, size: 1 << 20, ticket: [7; 16], provider, address: vec![2; 16] }
    }

    #[test]
    fn a_hello_is_understood_and_nothing_else_is() {
        let bytes = hello().bytes();
        assert!(bytes.len() <= cluster::wire::MOST);
        assert_eq!(Hello::parse(&bytes), Some(hello()));
        for len in 0..bytes.len() {
            assert_eq!(Hello::parse(&bytes[..len]), None);
        }
        assert_eq!(Hello::parse(&[&bytes[..], &[0]].concat()), None);
        let start = b"ethom-f\x02\x04mem0\x01\xfe\xff\x03\x80\x80\x40";
        assert_eq!(bytes, [&start[..], &[7; 16], b"\x03tcp\x10", &[2; 16]].concat());
        assert_eq!(Hello::parse(&[b"ethom-f\x01", &bytes[8..]].concat()), None, "an older version");
        let long = [&bytes[..13], b"\x81\0", &bytes[14..]].concat();
        assert_eq!(Hello::parse(&long), None, "a number with a byte too many");
        let huge = [&bytes[..8], b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", &bytes[9..]].concat();
        assert_eq!(Hello::parse(&huge), None, "a name as long as memory");
        for wrong in [
            Hello { net: "n".repeat(33), ..hello() },
            Hello { provider: String::new(), ..hello() },
            Hello { provider: "a b".into(), ..hello() },
            Hello { provider: "p".repeat(17), ..hello() },
            Hello { address: vec![], ..hello() },
            Hello { address: vec![0; 129], ..hello() },
        ] {
            assert_eq!(Hello::parse(&wrong.bytes()), None, "{wrong:?}");
        }
        assert_eq!(ticket_of(&[&REQUEST[..], &[7; 16], &[0; 32]].concat()), Some([7; 16]), "filled up");
        assert_eq!(ticket_of(&[&REQUEST[..], &[7; 15]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_hello_or_none(noise in prop::collection::vec(any::<u8>(), 0..300), keep in 0..60usize) {
            let mut bytes = hello().bytes();
            bytes.truncate(keep);
            bytes.extend(noise);
            if let Some(hello) = Hello::parse(&bytes) {
                prop_assert_eq!(hello.bytes(), bytes);
            }
        }
    }
}
