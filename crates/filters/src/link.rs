//! The connection between two processes that have no memory in common: buffers, ends of units of
//! work and acknowledgements as frames on one byte stream, each way. A frame is a header of 64
//! bytes, then the note, then the buffer's bytes.
//!
//! The copies themselves write, one frame at a time; `listener` says who reads. The reader never
//! waits for a copy: by the credits every frame has room. So two processes whose copies all write
//! cannot stop each other.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use stream::spin::{nanos_of, ticks, ticks_of};

use crate::ring::{Entry, Kind, Place};

/// Bytes of a header.
pub const HEADER: usize = 64;

/// A connected byte stream, which one thread reads while others write.
pub trait Wire: Send + Sync {
    /// Writes all of it.
    fn send(&self, parts: &mut [IoSlice]) -> io::Result<()>;
    /// Reads bytes, and waits for some if there are none; 0 is the end.
    fn read(&self, to: &mut [u8]) -> io::Result<usize>;
    /// The same without waiting: [`io::ErrorKind::WouldBlock`] if there are none.
    fn read_now(&self, to: &mut [u8]) -> io::Result<usize>;
    /// Ends it both ways: reads and writes fail from then on.
    fn close(&self);
    /// The present transport of bytes, as status shows it: `shunt` or `tcp`.
    fn way(&self) -> &'static str;
}

/// A link.
pub struct Link {
    wire: Arc<dyn Wire>,
    /// One writer at a time.
    writing: Mutex<()>,
    /// Nanoseconds to add to the peer's clock to get ours.
    offset: i64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Link").field("way", &self.wire.way()).finish()
    }
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// A buffer, whose note and bytes follow, or the end of a unit of work.
    Entry {
        /// By which stream, from which copy of its producer, to which of its consumer.
        stream: u32,
        /// As there.
        producer: u32,
        /// As there.
        consumer: u32,
        /// The entry; its slot is the sender's.
        entry: Entry,
    },
    /// How many entries a consumer copy has taken, and on how many buffers it has started.
    Taken {
        /// As above.
        stream: u32,
        /// As above.
        producer: u32,
        /// As above.
        consumer: u32,
        /// Entries.
        taken: u64,
        /// Buffers.
        started: u64,
    },
}

const DATA: u8 = 1;
const END: u8 = 2;
const TAKEN: u8 = 3;

impl Frame {
    /// Its header. The time is in nanoseconds of the sender's clock.
    fn header(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let (kind, [stream, producer, consumer]) = match *self {
            Frame::Entry { stream, producer, consumer, entry } => {
                (if entry.kind == Kind::Data { DATA } else { END }, [stream, producer, consumer])
            }
            Frame::Taken { stream, producer, consumer, .. } => (TAKEN, [stream, producer, consumer]),
        };
        header[0] = kind;
        for (at, number) in [stream, producer, consumer].into_iter().enumerate() {
            header[4 + at * 4..8 + at * 4].copy_from_slice(&number.to_le_bytes());
        }
        let numbers = match *self {
            Frame::Entry { entry, .. } => {
                header[1] = u8::from(entry.more);
                header[2..4].copy_from_slice(&entry.note.to_le_bytes());
                [u64::from(entry.len), entry.uow, entry.key, entry.sent]
            }
            Frame::Taken { taken, started, .. } => [taken, started, 0, 0],
        };
        for (at, number) in numbers.into_iter().enumerate() {
            header[16 + at * 8..24 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        header
    }

    /// Parses a header; `None` if it is malformed. The receiver checks what the numbers name.
    pub fn parse(header: &[u8; HEADER]) -> Option<Frame> {
        let short =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let (stream, producer, consumer) = (short(4), short(8), short(12));
        let kind = match header[0] {
            DATA => Kind::Data,
            END => Kind::EndOfWork,
            TAKEN => {
                return Some(Frame::Taken { stream, producer, consumer, taken: long(16), started: long(24) });
            }
            _ => return None,
        };
        let entry = Entry {
            kind,
            uow: long(24),
            place: Place::Slot(0),
            len: u32::try_from(long(16)).ok()?,
            note: u16::from_le_bytes([header[2], header[3]]),
            more: header[1] == 1,
            key: long(32),
            sent: long(40),
        };
        if kind == Kind::EndOfWork && (entry.len > 0 || entry.note > 0) {
            return None;
        }
        Some(Frame::Entry { stream, producer, consumer, entry })
    }
}

/// Nanoseconds of this host's clock.
fn clock() -> u64 {
    fabric::sys::now()
}

impl Link {
    /// For a connection whose peer's clock differs by so many nanoseconds; see `offset_of`.
    pub fn new(wire: Arc<dyn Wire>, offset: i64) -> Link {
        Link { wire, writing: Mutex::new(()), offset }
    }

    /// Sends an entry with its buffer.
    pub fn send_data(
        &self,
        stream: usize,
        producer: usize,
        consumer: usize,
        entry: &Entry,
        bytes: &[u8],
        note: &[u8],
    ) -> io::Result<()> {
        let sent = clock().saturating_sub(nanos_of(ticks().saturating_sub(entry.sent)));
        let entry = Entry { sent, ..*entry };
        let header = Frame::Entry {
            stream: stream as u32,
            producer: producer as u32,
            consumer: consumer as u32,
            entry,
        }
        .header();
        self.send(&mut [IoSlice::new(&header), IoSlice::new(note), IoSlice::new(bytes)])
    }

    /// Reports what a consumer copy has taken.
    pub fn send_taken(
        &self,
        stream: usize,
        producer: usize,
        consumer: usize,
        taken: u64,
        started: u64,
    ) -> io::Result<()> {
        let (stream, producer, consumer) = (stream as u32, producer as u32, consumer as u32);
        let header = Frame::Taken { stream, producer, consumer, taken, started }.header();
        self.send(&mut [IoSlice::new(&header)])
    }

    fn send(&self, parts: &mut [IoSlice]) -> io::Result<()> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.wire.send(parts)
    }

    /// The other direction, for the reader.
    pub fn incoming(&self) -> Incoming {
        Incoming { wire: Arc::clone(&self.wire), ahead: vec![0; AHEAD], unread: 0..0, offset: self.offset }
    }

    /// Ends it.
    pub fn close(&self) {
        self.wire.close();
    }

    /// The present transport of bytes.
    pub fn way(&self) -> &'static str {
        self.wire.way()
    }
}

/// Bytes of small frames that are read at once.
const AHEAD: usize = 64 << 10;

/// The received frames of a link.
pub struct Incoming {
    wire: Arc<dyn Wire>,
    /// Bytes of the next frames that were read already.
    ahead: Vec<u8>,
    unread: Range<usize>,
    offset: i64,
}

impl Incoming {
    /// The next frame; its time becomes ticks of this host. Without `wait`, `None` if none has
    /// come.
    pub fn frame(&mut self, wait: bool) -> io::Result<Option<Frame>> {
        while self.unread.len() < HEADER {
            self.ahead.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            let room = &mut self.ahead[self.unread.end..];
            // The rest of a frame that has begun to come is on its way.
            let read = match wait || !self.unread.is_empty() {
                true => self.wire.read(room),
                false => self.wire.read_now(room),
            };
            match read {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.unread.end += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !wait => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let header = self.ahead[self.unread.start..][..HEADER].try_into().expect("it has that length");
        self.unread.start += HEADER;
        let mut frame = Frame::parse(header)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a frame that is none"))?;
        if let Frame::Entry { entry, .. } = &mut frame {
            let sent = entry.sent.wrapping_add_signed(self.offset);
            entry.sent = ticks().saturating_sub(ticks_of(clock().saturating_sub(sent)));
        }
        Ok(Some(frame))
    }

    /// Reads what follows a header.
    pub fn bytes(&mut self, to: &mut [u8]) -> io::Result<()> {
        let (first, rest) = to.split_at_mut(to.len().min(self.unread.len()));
        first.copy_from_slice(&self.ahead[self.unread.start..][..first.len()]);
        self.unread.start += first.len();
        read_exact(&*self.wire, rest)
    }
}

fn read_exact(wire: &dyn Wire, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match wire.read(to) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => to = &mut to[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How many times the clocks are compared; the fastest answer counts.
const PINGS: usize = 8;

/// Compares clocks: the asking end.
pub fn ask_clock(wire: &dyn Wire) -> io::Result<i64> {
    let mut best = (u64::MAX, 0);
    for _ in 0..PINGS {
        let before = clock();
        wire.send(&mut [IoSlice::new(&before.to_le_bytes())])?;
        let mut answer = [0; 8];
        read_exact(wire, &mut answer)?;
        let took = clock() - before;
        if took < best.0 {
            best = (took, (before + took / 2).wrapping_sub(u64::from_le_bytes(answer)) as i64);
        }
    }
    let (_, offset) = best;
    wire.send(&mut [IoSlice::new(&offset.to_le_bytes())])?;
    Ok(offset)
}

/// The answering end, which receives the result.
pub fn answer_clock(wire: &dyn Wire) -> io::Result<i64> {
    let mut bytes = [0; 8];
    for _ in 0..PINGS {
        read_exact(wire, &mut bytes)?;
        wire.send(&mut [IoSlice::new(&clock().to_le_bytes())])?;
    }
    read_exact(wire, &mut bytes)?;
    Ok(i64::from_le_bytes(bytes).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry() -> impl Strategy<Value = Entry> {
        (any::<bool>(), any::<u64>(), any::<u32>(), any::<u16>(), any::<(u64, u64, bool)>()).prop_map(
            |(data, uow, len, note, (key, sent, more))| {
                if data {
                    Entry { kind: Kind::Data, uow, place: Place::Slot(0), len, note, more, key, sent }
                } else {
                    Entry { key, sent, more, ..Entry::end_of(uow) }
                }
            },
        )
    }

    proptest! {
        #[test]
        fn frames_come_back(stream: u32, producer: u32, consumer: u32, entry in entry(), counts: (u64, u64)) {
            let data = Frame::Entry { stream, producer, consumer, entry };
            prop_assert_eq!(Frame::parse(&data.header()), Some(data));
            let taken = Frame::Taken { stream, producer, consumer, taken: counts.0, started: counts.1 };
            prop_assert_eq!(Frame::parse(&taken.header()), Some(taken));
        }

        #[test]
        fn garbage_is_refused_or_understood(bytes: [u8; 32], more: [u8; 32]) {
            let mut header = [0; HEADER];
            header[..32].copy_from_slice(&bytes);
            header[32..].copy_from_slice(&more);
            if let Some(Frame::Entry { entry, .. }) = Frame::parse(&header) {
                prop_assert!(entry.kind == Kind::Data || entry.len == 0);
            }
        }
    }
}
