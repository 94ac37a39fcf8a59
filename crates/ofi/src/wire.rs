//! The messages of a link, beside the writes: 32 bytes, each consuming one of the receive buffers that the other end keeps posted. A link begins with one
//! [`Message::Hello`] from each end. Rule F2: what comes is checked before it is used ([`hear`]).

use fabric::shm::Map;
use fabric::{Local as _, Remote as _};

/// Bytes of a message.
pub const BYTES: usize = 32;
const MAGIC: u64 = 0x5348_4f46_4901_0001; // "SHOFI", version 1, of this many words
const _: () = assert!(BYTES == 4 * 8);

/// What one end tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The cookie of the sender's segment: where it begins, the key that carries the right to write it, its bytes.
    Hello { base: u64, key: u64, len: u64 },
    /// A word of the receiver's segment is to be this.
    Word { offset: u64, value: u64 },
    /// Bits of a word of it are to be set.
    Or { offset: u64, bits: u64 },
    /// The tripwire there is stimulated, for any of `interest`.
    Stimulate { offset: u64, interest: u64 },
}

impl Message {
    /// As it goes.
    pub fn bytes(&self) -> [u8; BYTES] {
        let words = match *self {
            Message::Hello { base, key, len } => [MAGIC, base, key, len],
            Message::Word { offset, value } => [1, offset, value, 0],
            Message::Or { offset, bits } => [2, offset, bits, 0],
            Message::Stimulate { offset, interest } => [3, offset, interest, 0],
        };
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What came; nothing if it is no message.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        match [0, 1, 2, 3].map(|at: usize| u64::from_le_bytes(words[at])) {
            [MAGIC, base, key, len] => Some(Message::Hello { base, key, len }),
            [1, offset, value, 0] => Some(Message::Word { offset, value }),
            [2, offset, bits, 0] => Some(Message::Or { offset, bits }),
            [3, offset, interest, 0] => Some(Message::Stimulate { offset, interest }),
            _ => None,
        }
    }
}

/// What a message has come to.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// It is done.
    Done,
    /// The tripwire at this offset held this, and is disarmed: whoever sleeps there is to be woken.
    Fired(usize, u64),
    /// The peer has said hello.
    Hello { base: u64, key: u64, len: u64 },
    /// It cannot be: the peer breaks the rules.
    Wrong,
}

/// Does what a message says to the own segment.
pub fn hear(mine: &Map, bytes: &[u8]) -> Heard {
    let word = |offset: u64| {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset.checked_add(8).is_some_and(|end| end <= mine.len());
        (inside && offset.is_multiple_of(8)).then_some(offset)
    };
    let heard = match Message::parse(bytes) {
        Some(Message::Hello { base, key, len }) => Some(Heard::Hello { base, key, len }),
        Some(Message::Word { offset, value }) => word(offset).map(|at| {
            mine.set_word(at, value);
            Heard::Done
        }),
        Some(Message::Or { offset, bits }) => word(offset).map(|at| {
            mine.or_word(at, bits);
            Heard::Done
        }),
        Some(Message::Stimulate { offset, interest }) => {
            word(offset).map(|at| match mine.stimulate(at, interest) {
                0 => Heard::Done,
                held => Heard::Fired(at, held),
            })
        }
        None => None,
    };
    heard.unwrap_or(Heard::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood() {
        for message in [
            Message::Hello { base: 1 << 40, key: 7, len: 4096 },
            Message::Word { offset: 8, value: u64::MAX },
            Message::Or { offset: 16, bits: 3 },
            Message::Stimulate { offset: 24, interest: 1 },
        ] {
            let bytes = message.bytes();
            assert_eq!(Message::parse(&bytes), Some(message));
            assert_eq!(Message::parse(&bytes[1..]), None);
            let mut other = bytes;
            other[7] ^= 1;
            assert_eq!(Message::parse(&other), None, "another version, or nothing");
        }
    }
}
