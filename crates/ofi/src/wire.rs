//! The messages of a link, beside the writes. Each holds one or several items, in order, and
//! consumes one of the receive buffers that the other end keeps posted. A short message costs as
//! much as a long one, so items that are put at once go together ([`Batch`]). A link begins with
//! one [`Item::Hello`] from each end. Rule F2: everything that comes is checked before it is used
//! ([`hear`]).

use std::ptr;

use fabric::shm::Map;
use fabric::{Local as _, Mapped as _, Remote as _};

/// The most bytes for the receiver's segment in one item. Up to here copying them once more costs
/// less than a remote write beside the message.
pub const PIECE: usize = 4096;
/// The most bytes of a message. A piece, the word behind it, a stimulus, and another word (how far
/// a ring was read) fit.
pub const BYTES: usize = PIECE + 64;
/// With any provider, messages up to this size are sent from memory that is free again at once (tcp
/// allows no more). They hold 64 bytes and the items that belong to them.
pub const SHORT: usize = 128;
/// The kinds of items: the last byte of their first word. Above it are 16 bits of length (of a
/// piece), and then the offset.
const WORD: u64 = 1;
const PUT: u64 = 2;
const OR: u64 = 3;
const STIMULATE: u64 = 4;
const CALL: u64 = 5;
const HELLO: u64 = 0x5348_4f46_4903_0006; // "SHOFI", the version of the messages, and a kind
/// An offset that does not fit is sent as this one. No segment is so long, so the receiver rejects
/// it, too.
const FAR: u64 = (1 << 40) - 1;

/// An item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item<'a> {
    /// The cookie of the sender's segment: its beginning, the key with the right to write it, its
    /// length.
    Hello { base: u64, key: u64, len: u64 },
    /// Sets a word of the receiver's segment.
    Word { offset: u64, value: u64 },
    /// Writes these bytes there: at least one, and at most [`PIECE`].
    Put { offset: u64, bytes: &'a [u8] },
    /// Sets bits of a word there.
    Or { offset: u64, bits: u64 },
    /// Stimulates the tripwire there for any of `interest`.
    Stimulate { offset: u64, interest: u64 },
    /// For the owner of the link, which defines the meaning.
    Call { what: u64, value: u64 },
}

/// A message that is being written.
#[derive(Debug)]
pub struct Batch {
    bytes: Box<[u8; BYTES]>,
    len: usize,
}

impl Default for Batch {
    /// An empty message.
    fn default() -> Batch {
        Batch { bytes: Box::new([0; BYTES]), len: 0 }
    }
}

impl Batch {
    /// Adds an item. Returns whether there was room for it; there is in an empty message.
    #[must_use]
    pub fn add(&mut self, item: &Item) -> bool {
        match *item {
            Item::Hello { base, key, len } => self.words([HELLO, base, key, len]),
            Item::Word { offset, value } => self.words([head(WORD, offset), value]),
            Item::Or { offset, bits } => self.words([head(OR, offset), bits]),
            Item::Stimulate { offset, interest } => self.words([head(STIMULATE, offset), interest]),
            Item::Call { what, value } => self.words([CALL, what, value]),
            // SAFETY: a slice has as many bytes as it says.
            Item::Put { offset, bytes } => unsafe { self.add_put(offset, bytes.as_ptr(), bytes.len()) },
        }
    }

    /// As `add`, of [`Item::Put`], with bytes that another thread may be writing.
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads.
    #[must_use]
    pub unsafe fn add_put(&mut self, offset: u64, from: *const u8, len: usize) -> bool {
        debug_assert!((1..=PIECE).contains(&len));
        let (at, end) = (self.len + 8, self.len + 8 + len.next_multiple_of(8));
        if end > BYTES || !self.words([head(PUT, offset) | (len as u64) << 8]) {
            return false;
        }
        self.bytes[at + len..end].fill(0);
        let room = &mut self.bytes[at..at + len];
        // SAFETY: the room is of so many bytes, and nobody else's; the caller vouches for `from`.
        unsafe { ptr::copy_nonoverlapping(from, room.as_mut_ptr(), len) };
        self.len = end;
        true
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    fn words<const N: usize>(&mut self, words: [u64; N]) -> bool {
        let Some(room) = self.bytes.get_mut(self.len..self.len + N * 8) else { return false };
        for (place, word) in room.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        self.len += N * 8;
        true
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The first word of an item.
fn head(kind: u64, offset: u64) -> u64 {
    kind | offset.min(FAR) << 24
}

/// The first item of a message, and the bytes behind it. None if there is no valid one.
pub fn parse(bytes: &[u8]) -> Option<(Item<'_>, &[u8])> {
    fn word(bytes: &[u8]) -> Option<(u64, &[u8])> {
        let (word, rest) = bytes.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*word), rest))
    }
    let (head, rest) = word(bytes)?;
    let (kind, len, offset) = (head & 0xff, (head >> 8 & 0xffff) as usize, head >> 24);
    if kind == PUT {
        let (padded, behind) = rest.split_at_checked(len.next_multiple_of(8))?;
        let bytes = (1..=PIECE).contains(&len).then(|| &padded[..len])?;
        return Some((Item::Put { offset, bytes }, behind));
    }
    let (value, rest) = word(rest)?;
    Some(match (kind, len) {
        (WORD, 0) => (Item::Word { offset, value }, rest),
        (OR, 0) => (Item::Or { offset, bits: value }, rest),
        (STIMULATE, 0) => (Item::Stimulate { offset, interest: value }, rest),
        _ if head == CALL => {
            let (second, rest) = word(rest)?;
            (Item::Call { what: value, value: second }, rest)
        }
        _ if head == HELLO => {
            let (key, rest) = word(rest)?;
            let (len, rest) = word(rest)?;
            (Item::Hello { base: value, key, len }, rest)
        }
        _ => return None,
    })
}

/// The effect of an item, where that is more than a change of the own segment.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The tripwire at this offset held this word, and is disarmed: its sleeper is to be woken.
    Fired(usize, u64),
    /// The peer's hello.
    Hello { base: u64, key: u64, len: u64 },
    /// The peer calls the owner of the link.
    Call { what: u64, value: u64 },
    /// The item is malformed: the peer breaks the rules. Nothing behind it is carried out.
    Wrong,
}

/// Carries out the items of a message on the own segment, in order, and calls `tell` with all other
/// effects.
pub fn hear(mine: &Map, mut bytes: &[u8], mut tell: impl FnMut(Heard)) {
    // Nobody sends an empty one, so the loop is entered.
    loop {
        let Some((item, rest)) = parse(bytes) else { return tell(Heard::Wrong) };
        match hear_one(mine, &item) {
            Ok(None) => {}
            Ok(Some(heard)) => tell(heard),
            Err(Wrong) => return tell(Heard::Wrong),
        }
        if rest.is_empty() {
            return;
        }
        bytes = rest;
    }
}

struct Wrong;

fn hear_one(mine: &Map, item: &Item) -> Result<Option<Heard>, Wrong> {
    let word = |offset: u64| {
        let offset = inside(mine, offset, 8)?;
        if offset.is_multiple_of(8) { Ok(offset) } else { Err(Wrong) }
    };
    match *item {
        Item::Hello { base, key, len } => return Ok(Some(Heard::Hello { base, key, len })),
        Item::Call { what, value } => return Ok(Some(Heard::Call { what, value })),
        Item::Word { offset, value } => mine.set_word(word(offset)?, value),
        Item::Or { offset, bits } => drop(mine.or_word(word(offset)?, bits)),
        Item::Put { offset, bytes } => {
            let offset = inside(mine, offset, bytes.len())?;
            // SAFETY: a slice has as many bytes as it says.
            unsafe { mine.copy_in(offset, bytes.as_ptr(), bytes.len()) };
        }
        Item::Stimulate { offset, interest } => {
            let offset = word(offset)?;
            let held = mine.stimulate(offset, interest);
            return Ok((held != 0).then_some(Heard::Fired(offset, held)));
        }
    }
    Ok(None)
}

/// The offset, if so many bytes from it on lie in the segment.
fn inside(mine: &Map, offset: u64, len: usize) -> Result<usize, Wrong> {
    let offset = usize::try_from(offset).map_err(|_| Wrong)?;
    let end = offset.checked_add(len).ok_or(Wrong)?;
    if end <= mine.len() { Ok(offset) } else { Err(Wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Vec<Item<'_>> {
        let (mut items, mut bytes) = (Vec::new(), bytes);
        while let Some((item, rest)) = parse(bytes) {
            items.push(item);
            bytes = rest;
        }
        assert!(bytes.is_empty(), "{} bytes are no item", bytes.len());
        items
    }

    #[test]
    fn what_is_said_is_understood() {
        for item in [
            Item::Hello { base: 1 << 40, key: 7, len: 4096 },
            Item::Word { offset: 8, value: u64::MAX },
            Item::Put { offset: 40, bytes: &[7; 3] },
            Item::Put { offset: FAR, bytes: &[7; PIECE] },
            Item::Or { offset: 16, bits: 3 },
            Item::Stimulate { offset: 24, interest: 1 },
            Item::Call { what: u64::MAX, value: 1 << 63 },
        ] {
            let mut batch = Batch::default();
            assert!(batch.add(&item) && !batch.is_empty());
            let bytes = batch.bytes();
            assert_eq!(parse(bytes), Some((item, &[][..])));
            for less in 0..bytes.len() {
                assert_eq!(parse(&bytes[..less]), None, "{item:?}, {less} bytes of it");
            }
            let mut other = bytes.to_vec();
            other[0] ^= 0x40;
            assert_eq!(parse(&other), None, "another version, or nothing");
        }
    }

    #[test]
    fn what_is_said_at_once_goes_together() {
        let said = [
            Item::Word { offset: 64, value: 9 },
            Item::Put { offset: 4097, bytes: &[3; PIECE] },
            Item::Word { offset: 0, value: 64 },
            Item::Stimulate { offset: 128, interest: 1 },
        ];
        let mut batch = Batch::default();
        assert!(said.iter().all(|item| batch.add(item)), "what a stream says");
        assert_eq!(all(batch.bytes()), said);
        let before = batch.bytes().to_vec();
        assert!(!batch.add(&Item::Word { offset: 8, value: 1 }), "it is full");
        assert!(!batch.add(&Item::Put { offset: 8, bytes: &[1] }));
        assert!(!batch.add(&Item::Call { what: 1, value: 1 }));
        assert_eq!(batch.bytes(), before);
    }

    #[test]
    fn offsets_that_are_not_there_stay_so() {
        let mut batch = Batch::default();
        assert!(batch.add(&Item::Word { offset: 1 << 40, value: 1 }));
        assert_eq!(all(batch.bytes()), [Item::Word { offset: FAR, value: 1 }]);
    }

    #[test]
    fn nothing_is_done_behind_what_cannot_be() {
        let mut memory = vec![0u64; 16];
        // SAFETY: the vector's, which lives until the end and is not used otherwise meanwhile.
        let mine = unsafe { Map::of(memory.as_mut_ptr().cast(), 128) };
        let hear = |items: &[Item]| {
            let (mut batch, mut told) = (Batch::default(), Vec::new());
            assert!(items.iter().all(|item| batch.add(item)));
            super::hear(&mine, batch.bytes(), |heard| told.push(heard));
            told
        };
        let call = Item::Call { what: 1, value: 2 };
        let told =
            hear(&[Item::Word { offset: 0, value: 5 }, call, Item::Put { offset: 126, bytes: &[1; 2] }]);
        assert_eq!(told, [Heard::Call { what: 1, value: 2 }]);
        assert_eq!((mine.word(0), mine.word(120)), (5, 0x0101 << 48));
        for wrong in [
            Item::Word { offset: 4, value: 1 },
            Item::Or { offset: 128, bits: 1 },
            Item::Stimulate { offset: FAR, interest: 1 },
            Item::Put { offset: 127, bytes: &[9; 2] },
        ] {
            let told =
                hear(&[Item::Word { offset: 8, value: 6 }, wrong, call, Item::Word { offset: 8, value: 7 }]);
            assert_eq!(told, [Heard::Wrong], "{wrong:?}");
            assert_eq!(mine.word(8), 6);
        }
        let mut told = Vec::new();
        super::hear(&mine, &[], |heard| told.push(heard));
        super::hear(&mine, &[1; BYTES + 8], |heard| told.push(heard));
        assert_eq!(told, [Heard::Wrong, Heard::Wrong]);
    }
}
