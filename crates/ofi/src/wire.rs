//! The messages of a link, beside the writes: 32 bytes, and a few more where bytes go with a word, each consuming one of the receive buffers that the other end
//! keeps posted. A link begins with one [`Message::Hello`] from each end. Rule F2: what comes is checked before it is used ([`hear`]).

use fabric::shm::Map;
use fabric::{Local as _, Mapped as _, Remote as _};

/// Bytes of what every message has.
pub const HEAD: usize = 32;
/// The most bytes that go with a word.
pub const PIECE: usize = 64;
/// The most bytes of a message.
pub const BYTES: usize = HEAD + PIECE;
const MAGIC: u64 = 0x5348_4f46_4901_0001; // "SHOFI", then the version of the messages

/// A few bytes for the receiver's segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where.
    pub offset: u64,
    /// How many.
    pub len: usize,
    /// They, and nothing behind them.
    pub bytes: [u8; PIECE],
}

impl Piece {
    /// Nothing.
    pub const NONE: Piece = Piece { offset: 0, len: 0, bytes: [0; PIECE] };
}

/// What one end tells the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// The cookie of the sender's segment: where it begins, the key that carries the right to write it, its bytes.
    Hello { base: u64, key: u64, len: u64 },
    /// These bytes are to be in the receiver's segment, and then a word of it this.
    Word { piece: Piece, offset: u64, value: u64 },
    /// These bytes are to be there.
    Bytes(Piece),
    /// Bits of a word of it are to be set.
    Or { offset: u64, bits: u64 },
    /// The tripwire there is stimulated, for any of `interest`.
    Stimulate { offset: u64, interest: u64 },
    /// For the owner of the link: what these mean is not the fabric's business.
    Call { what: u64, value: u64 },
}

impl Message {
    /// As it goes: so many of these bytes.
    pub fn bytes(&self) -> ([u8; BYTES], usize) {
        let (words, piece) = match *self {
            Message::Hello { base, key, len } => ([MAGIC, base, key, len], Piece::NONE),
            Message::Word { piece, offset, value } => ([1, offset, value, piece.offset], piece),
            Message::Bytes(piece) => ([2, 0, 0, piece.offset], piece),
            Message::Or { offset, bits } => ([3, offset, bits, 0], Piece::NONE),
            Message::Stimulate { offset, interest } => ([4, offset, interest, 0], Piece::NONE),
            Message::Call { what, value } => ([5, what, value, 0], Piece::NONE),
        };
        let mut bytes = [0; BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[HEAD..].copy_from_slice(&piece.bytes);
        (bytes, HEAD + piece.len)
    }

    /// What came; nothing if it is no message.
    pub fn parse(bytes: &[u8]) -> Option<Message> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let (words, _) = head.as_chunks::<8>();
        let words = [0, 1, 2, 3].map(|at: usize| u64::from_le_bytes(words[at]));
        let mut piece = Piece { offset: words[3], len: rest.len(), bytes: [0; PIECE] };
        piece.bytes.get_mut(..rest.len())?.copy_from_slice(rest);
        match words {
            [1, offset, value, _] => return Some(Message::Word { piece, offset, value }),
            [2, 0, 0, _] => return Some(Message::Bytes(piece)),
            _ if piece.len > 0 => return None,
            _ => {}
        }
        match words {
            [MAGIC, base, key, len] => Some(Message::Hello { base, key, len }),
            [3, offset, bits, 0] => Some(Message::Or { offset, bits }),
            [4, offset, interest, 0] => Some(Message::Stimulate { offset, interest }),
            [5, what, value, 0] => Some(Message::Call { what, value }),
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
    /// The peer calls the owner of the link.
    Call { what: u64, value: u64 },
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
    let put = |piece: &Piece| {
        let offset = usize::try_from(piece.offset).ok()?;
        offset.checked_add(piece.len).filter(|&end| end <= mine.len())?;
        // SAFETY: a piece has at least so many bytes.
        unsafe { mine.copy_in(offset, piece.bytes.as_ptr(), piece.len) };
        Some(Heard::Done)
    };
    let heard = match Message::parse(bytes) {
        Some(Message::Hello { base, key, len }) => Some(Heard::Hello { base, key, len }),
        Some(Message::Call { what, value }) => Some(Heard::Call { what, value }),
        Some(Message::Word { piece, offset, value }) => word(offset).and_then(|at| {
            put(&piece)?;
            mine.set_word(at, value);
            Some(Heard::Done)
        }),
        Some(Message::Bytes(piece)) => put(&piece),
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
        let piece = |len: usize| {
            let mut piece = Piece { offset: 40, len, bytes: [0; PIECE] };
            piece.bytes[..len].fill(7);
            piece
        };
        for message in [
            Message::Hello { base: 1 << 40, key: 7, len: 4096 },
            Message::Word { piece: Piece::NONE, offset: 8, value: u64::MAX },
            Message::Word { piece: piece(3), offset: 8, value: 1 },
            Message::Word { piece: piece(PIECE), offset: 8, value: 1 },
            Message::Bytes(piece(64)),
            Message::Or { offset: 16, bits: 3 },
            Message::Stimulate { offset: 24, interest: 1 },
            Message::Call { what: 7, value: u64::MAX },
        ] {
            let (bytes, len) = message.bytes();
            assert_eq!(Message::parse(&bytes[..len]), Some(message));
            assert_eq!(Message::parse(&bytes[1..HEAD]), None);
            let mut other = bytes;
            other[7] ^= 1;
            assert_eq!(Message::parse(&other[..len]), None, "another version, or nothing");
        }
        let (bytes, _) = Message::Or { offset: 16, bits: 3 }.bytes();
        assert_eq!(Message::parse(&bytes[..HEAD + 1]), None, "no bytes go with it");
        assert_eq!(Message::parse(&[1; BYTES + 1]), None);
    }
}
