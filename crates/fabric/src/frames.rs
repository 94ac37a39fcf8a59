//! The distributed circular buffer of [`crate::queue`] for frames of any length. Records and write
//! index are in the receiver's memory; the receiver pushes the read index back to the sender's. One
//! producer, one consumer.
//!
//! Layout from `base` in the receiver's segment: write index, padding to 64 bytes, then `size`
//! bytes of records (a power of two). A record is a head of [`HEAD`] bytes (the frame's length),
//! the frame, and padding to [`ALIGN`]. A record never wraps: where it would, a head with the value
//! `SKIP` sends the reader to the beginning. Indices count bytes and only grow.
//!
//! The cost is in cache lines that move between the two processors. So:
//!
//! * A producer can put several records before it publishes them ([`Producer::publish`]).
//! * It reads the read index only when it believes that there is no room.
//! * The consumer gives room back a quarter of the buffer at a time, or when it has read all.
//!
//! Rule F2: write index and heads come from the peer. Each is copied out once and checked against
//! the queue's bounds before it is used. One that is out of bounds is [`Next::Broken`], for good:
//! the caller gives the link up.

use crate::mem::{Local, Remote};

/// The alignment of records: a line of memory, so that two ends never write to one line.
pub const ALIGN: usize = if cfg!(loom) { 16 } else { 64 };
/// Bytes of a record's head.
pub const HEAD: usize = 8;
/// Where the records begin, from the queue's base.
pub const DATA: usize = 64;
/// A head that tells the reader to skip the rest of the buffer.
const SKIP: u64 = u64::MAX;

/// Bytes that a queue of `size` takes in the receiver's segment.
pub const fn bytes(size: usize) -> usize {
    DATA + size
}

/// Bytes of the buffer that a frame of `len` bytes takes.
const fn record(len: usize) -> usize {
    (HEAD + len).next_multiple_of(ALIGN)
}

/// The sending end.
#[derive(Debug, Clone, Copy)]
pub struct Producer {
    size: usize,
    /// Where the next record goes.
    written: u64,
    /// The write index that was last published.
    published: u64,
    /// The read index when it was last read.
    read: u64,
}

/// The receiving end.
#[derive(Debug, Clone, Copy)]
pub struct Consumer {
    size: usize,
    read: u64,
    /// The write index when it was last read.
    written: u64,
    /// The index up to which room was given back.
    returned: u64,
}

/// The result of [`Consumer::next`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// No frame.
    Empty,
    /// A frame: its place in the own segment. The range lies in the queue. The peer may change the
    /// bytes while they are read.
    Frame {
        /// Its first byte.
        offset: usize,
        /// Its length.
        len: usize,
    },
    /// The peer has written an impossible index or length.
    Broken,
}

impl Producer {
    /// The sending end of an empty queue of `size` bytes, a power of two.
    pub fn new(size: usize) -> Producer {
        assert!(size.is_power_of_two() && size >= 2 * ALIGN);
        Producer { size, written: 0, published: 0, read: 0 }
    }

    /// Puts a frame made of `parts`, which nobody sees before [`Producer::publish`]. Returns false
    /// if there is no room. A frame that takes more than half of the queue never has any: it might
    /// not fit before the end. `back` is the offset, in the own segment, to which the consumer
    /// pushes its read index.
    pub fn put<L: Local, R: Remote>(
        &mut self,
        remote: &R,
        base: usize,
        local: &L,
        back: usize,
        parts: &[&[u8]],
    ) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let need = record(len);
        if need > self.size / 2 {
            return false;
        }
        let at = self.at();
        let rest = self.size - at;
        let whole = if need > rest { rest + need } else { need };
        if self.room() < whole {
            self.read = self.sane(local.word(back));
            if self.room() < whole {
                return false;
            }
        }
        let mut at = base + DATA + at;
        if need > rest {
            // SAFETY: the source is eight bytes; the provider checks the target.
            unsafe { remote.put(at, SKIP.to_le_bytes().as_ptr(), HEAD) };
            self.written += rest as u64;
            at = base + DATA;
        }
        // SAFETY: as above.
        unsafe { remote.put(at, (len as u64).to_le_bytes().as_ptr(), HEAD) };
        at += HEAD;
        for part in parts {
            // SAFETY: the part is a valid slice; the provider checks the target.
            unsafe { remote.put(at, part.as_ptr(), part.len()) };
            at += part.len();
        }
        self.written += need as u64;
        true
    }

    /// Publishes what was put. Returns false if nothing was. The caller then stimulates the
    /// consumer's tripwire.
    pub fn publish<R: Remote>(&mut self, remote: &R, base: usize) -> bool {
        if self.published == self.written {
            return false;
        }
        self.published = self.written;
        remote.put_word(base, self.written);
        true
    }

    /// Bytes that were put and that the consumer has not given back yet, as far as this end knows.
    pub fn waiting(&self) -> usize {
        (self.written - self.read) as usize
    }

    fn at(&self) -> usize {
        (self.written % self.size as u64) as usize
    }

    fn room(&self) -> usize {
        self.size - self.waiting()
    }

    /// Checks a read index. An impossible one is ignored: then there is no more room than before.
    fn sane(&self, read: u64) -> u64 {
        let moved = read.wrapping_sub(self.read);
        if moved <= self.written - self.read && moved.is_multiple_of(ALIGN as u64) { read } else { self.read }
    }
}

impl Consumer {
    /// The receiving end of an empty queue of `size` bytes, a power of two.
    pub fn new(size: usize) -> Consumer {
        assert!(size.is_power_of_two() && size >= 2 * ALIGN);
        Consumer { size, read: 0, written: 0, returned: 0 }
    }

    /// Whether there may be a frame.
    #[inline(always)]
    pub fn ready<L: Local>(&self, local: &L, base: usize) -> bool {
        self.written != self.read || local.word(base) != self.read
    }

    /// The next frame. Its bytes stay until [`Consumer::done`].
    pub fn next<L: Local>(&mut self, local: &L, base: usize) -> Next {
        loop {
            if self.written == self.read {
                let written = local.word(base);
                let ahead = written.wrapping_sub(self.read);
                if ahead > self.size as u64 || !ahead.is_multiple_of(ALIGN as u64) {
                    return Next::Broken;
                }
                self.written = written;
                if ahead == 0 {
                    return Next::Empty;
                }
            }
            let ahead = self.written - self.read;
            let at = (self.read % self.size as u64) as usize;
            let rest = self.size - at;
            let mut head = [0; HEAD];
            // SAFETY: the target is an array of that length; the provider checks the source.
            unsafe { local.get(base + DATA + at, head.as_mut_ptr(), HEAD) };
            match u64::from_le_bytes(head) {
                // Not at the beginning: two skips that follow one another would be a loop.
                SKIP if at != 0 && rest as u64 <= ahead => self.read += rest as u64,
                len if len <= self.size as u64 => {
                    let need = record(len as usize);
                    if need > rest || need as u64 > ahead {
                        return Next::Broken;
                    }
                    return Next::Frame { offset: base + DATA + at + HEAD, len: len as usize };
                }
                _ => return Next::Broken,
            }
        }
    }

    /// Lets go of the frame that [`Consumer::next`] found, of `len` bytes. `back` is the offset, in
    /// the producer's segment, of its copy of the read index.
    pub fn done<R: Remote>(&mut self, remote: &R, back: usize, len: usize) {
        self.read += record(len) as u64;
        let held = (self.read - self.returned) as usize;
        if self.read == self.written || held >= self.size / 4 {
            self.returned = self.read;
            remote.put_word(back, self.read);
        }
    }
}
