//! The first messages of two processes that have both proved that they have the key: the message of
//! `via`, and where the link is. Every field has bounds, and is checked before it is used (rule
//! F2).

use cluster::form;
use cluster::wire::{self, ADDRESS, Ticket};
use serde::{Deserialize, Serialize};

/// The beginning of each: "vipl", between hosts, and the version of everything that the two ends
/// share. A change of [`Handshake`] must increase it. Version 1 had an encoding of its own; the
/// rest of a message is in that of [`form`].
const MAGIC: &[u8; 8] = b"vipl-f\0\x02";
/// The beginning of a request for a link.
const REQUEST: &[u8; 8] = b"SHUNTVI\x01";
/// The most bytes of the message of `via`.
const HELLO: usize = 128;

/// The first message of each end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// Identifies the link; drawn by the caller.
    pub ticket: Ticket,
    /// libfabric's provider.
    #[serde(deserialize_with = "form::provider")]
    pub provider: String,
    /// The address of the fabric, in the provider's own form.
    #[serde(deserialize_with = "form::bytes::<_, 1, ADDRESS>")]
    pub address: Vec<u8>,
    /// The message of `via`.
    #[serde(deserialize_with = "form::bytes::<_, 0, HELLO>")]
    pub hello: Vec<u8>,
}

impl wire::Message for Handshake {
    fn bytes(&self) -> Vec<u8> {
        form::encode(MAGIC, self)
    }

    fn parse(bytes: &[u8]) -> Option<Handshake> {
        form::decode(MAGIC, bytes)
    }
}

/// The bytes of a request for a link.
pub(crate) fn words(ticket: &Ticket) -> Vec<u8> {
    [&REQUEST[..], ticket].concat()
}

/// The ticket in them. Some providers append bytes to what they carry.
pub(crate) fn ticket_of(words: &[u8]) -> Option<Ticket> {
    words.strip_prefix(REQUEST)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::wire::Message as _;
    use proptest::prelude::*;

    fn sample() -> Handshake {
        Handshake {
            ticket: [7; 16],
            provider: "verbs;ofi_rxm".into(),
            address: vec![2; ADDRESS],
            hello: vec![3; HELLO],
        }
    }

    #[test]
    fn what_is_said_is_understood_and_nothing_else_is() {
        let bytes = sample().bytes();
        assert!(bytes.len() <= wire::MOST);
        assert_eq!(Handshake::parse(&bytes), Some(sample()));
        for len in 0..bytes.len() {
            assert_eq!(Handshake::parse(&bytes[..len]), None);
        }
        assert_eq!(Handshake::parse(&[&bytes[..], &[0]].concat()), None);
        let short = Handshake { provider: "tcp".into(), address: vec![2], hello: vec![3, 4], ..sample() };
        assert_eq!(short.bytes(), [&b"vipl-f\0\x02"[..], &[7; 16], b"\x03tcp\x01\x02\x02\x03\x04"].concat());
        assert_eq!(
            Handshake::parse(&[&b"vipl-f\0\x01"[..], &short.bytes()[8..]].concat()),
            None,
            "an older version"
        );
        // A length beyond the bytes that there are, one of all memory, and a number with a byte too
        // many.
        for wrong in
            [&b"\x03\x03\x04"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x03\x04", b"\x82\0\x03\x04"]
        {
            assert_eq!(Handshake::parse(&[&short.bytes()[..30], wrong].concat()), None, "{wrong:?}");
        }
        for wrong in [
            Handshake { provider: String::new(), ..sample() },
            Handshake { provider: "a b".into(), ..sample() },
            Handshake { provider: "p".repeat(17), ..sample() },
            Handshake { address: vec![], ..sample() },
            Handshake { address: vec![0; 129], ..sample() },
            Handshake { hello: vec![0; 129], ..sample() },
        ] {
            assert_eq!(Handshake::parse(&wrong.bytes()), None, "{wrong:?}");
        }
        assert_eq!(ticket_of(&[&words(&[7; 16])[..], &[0; 32]].concat()), Some([7; 16]), "filled up");
        assert_eq!(ticket_of(&words(&[7; 16])[1..]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_not(noise in prop::collection::vec(any::<u8>(), 0..300), keep in 0..60usize) {
            let mut bytes = sample().bytes();
            bytes.truncate(keep);
            bytes.extend(noise);
            if let Some(handshake) = Handshake::parse(&bytes) {
                prop_assert_eq!(handshake.bytes(), bytes);
            }
        }
    }
}
