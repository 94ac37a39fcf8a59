//! Frames of Shunt's own: hellos, and wrapped ones.

use crate::frame::EXPERIMENTAL;
use crate::vnet;

/// The bytes after the Ethernet header of a frame of Shunt's own, before the byte for its kind.
pub(super) const MAGIC: &[u8; 12] = b"shunt-ether\x01";
/// Kinds: a hello that is an answer, one that asks for one, a wrapped frame.
pub(super) const ANSWER: u8 = 0;
pub(super) const ASK: u8 = 1;
pub(super) const WRAPPED: u8 = 2;
/// The bits after the kind of a hello; older versions have 0.
pub(super) const TAKES_SUPERS: u8 = 1;
/// The length of a hello: the least that Ethernet has.
pub(super) const HELLO_LEN: usize = 60;
/// Bytes of the two addresses, with which a frame begins, wrapped or not.
pub(super) const ADDRESSES: usize = 12;
/// The bytes between the addresses and the offload header of a wrapped frame.
pub(super) const WRAPPING: [u8; 15] = *b"\x88\xb5shunt-ether\x01\x02";

/// A frame of Shunt's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own<'a> {
    /// A hello.
    Hello {
        /// Whether it asks for an answer.
        wants_answer: bool,
        /// Whether its sender takes super-frames.
        takes_supers: bool,
    },
    /// Another frame, whose addresses come before this.
    Wrapped {
        /// Its offload header.
        offload: &'a [u8; vnet::LEN],
        /// The rest of the frame, behind the addresses.
        rest: &'a [u8],
    },
}

impl Own<'_> {
    /// Parses a frame of Shunt's own; None for other frames.
    pub fn parse(frame: &[u8]) -> Option<Own<'_>> {
        let (ethertype, body) = frame.get(ADDRESSES..)?.split_first_chunk()?;
        let (magic, body) = body.split_first_chunk()?;
        let (kind, body) = body.split_first()?;
        if (u16::from_be_bytes(*ethertype), magic) != (EXPERIMENTAL, MAGIC) {
            return None;
        }
        match *kind {
            ANSWER | ASK => {
                let takes_supers = body.first().is_some_and(|bits| bits & TAKES_SUPERS != 0);
                Some(Own::Hello { wants_answer: *kind == ASK, takes_supers })
            }
            WRAPPED => body.split_first_chunk().map(|(offload, rest)| Own::Wrapped { offload, rest }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_shunts_own_is_taken_for_it() {
        let mut frame = [0; HELLO_LEN];
        assert_eq!(Own::parse(&frame), None);
        frame[12..26].copy_from_slice(&WRAPPING[..14]);
        let hello = |wants_answer, takes_supers| Some(Own::Hello { wants_answer, takes_supers });
        assert_eq!(Own::parse(&frame), hello(false, false), "as older versions say it");
        frame[26] = ASK;
        assert_eq!(Own::parse(&frame[..27]), hello(true, false));
        frame[27] = 0xff;
        assert_eq!(Own::parse(&frame), hello(true, true));
        assert_eq!(Own::parse(&frame[..26]), None);
        frame[26] = WRAPPED;
        assert_eq!(
            Own::parse(&frame),
            Some(Own::Wrapped { offload: &[0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0], rest: &[0; 23] })
        );
        assert_eq!(Own::parse(&frame[..36]), None);
        frame[26] = 3;
        assert_eq!(Own::parse(&frame), None);
        frame[26] = ASK;
        frame[13] = 0;
        assert_eq!(Own::parse(&frame), None, "it is IP");
    }
}
