//! The distributed circular buffer of [`crate::queue`] for frames of any length: records and write index in the receiver's memory, the
//! read index pushed back to the sender's. One producer, one consumer.
//!
//! Layout from `base` in the receiver's segment: write index, padding to 64 bytes, then `size` bytes of records (a power of two). A
//! record is a head of [`HEAD`] bytes (the frame's length), the frame, and padding to [`ALIGN`]; it never wraps: where it would, a
//! head that says [`SKIP`] sends the reader to the beginning. Indices count bytes and only grow.
//!
//! What costs is lines that go to and fro. So several records can be put before they are published ([`Producer::publish`]); the
//! producer looks at the read index only when it believes that there is no room; and the consumer gives room back
//! a quarter of the buffer at a time, or when there is nothing more to read.
//!
//! Rule F2: write index and heads come from the peer. Each is copied out once and checked against what the queue is before it is used;
//! what cannot be is [`Next::Broken`], for good: that link is to be given up.

use crate::mem::{Local, Remote};

/// What records are aligned to: a line of memory, so that two ends never write to one line.
pub const ALIGN: usize = if cfg!(loom) { 16 } else { 64 };
/// Bytes of a record's head.
pub const HEAD: usize = 8;
/// Where the records begin, from the queue's base.
pub const DATA: usize = 64;
/// A head that stands for the rest of the buffer.
const SKIP: u64 = u64::MAX;

/// Bytes that a queue of `size` takes in the receiver's segment.
pub const fn bytes(size: usize) -> usize {
    DATA + size
}

/// What a frame of `len` bytes takes in the buffer.
const fn record(len: usize) -> usize {
    (HEAD + len).next_multiple_of(ALIGN)
}

/// The sending end.
#[derive(Debug, Clone, Copy)]
pub struct Producer {
    size: usize,
    /// Where the next record goes.
    written: u64,
    /// What was published.
    published: u64,
    /// The read index, as it was last seen.
    read: u64,
}

/// The receiving end.
#[derive(Debug, Clone, Copy)]
pub struct Consumer {
    size: usize,
    read: u64,
    /// The write index, as it was last seen.
    written: u64,
    /// What was given back.
    returned: u64,
}

/// What [`Consumer::next`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// No frame.
    Empty,
    /// A frame: where its bytes are in the own segment, and how many. The range lies in the queue. The bytes stay the peer's: they may
    /// change while they are looked at.
    Frame {
        /// Its first byte.
        offset: usize,
        /// Its length.
        len: usize,
    },
    /// The peer wrote what cannot be.
    Broken,
}

impl Producer {
    /// The sending end of an empty queue of `size` bytes, a power of two.
    pub fn new(size: usize) -> Producer {
        assert!(size.is_power_of_two() && size >= 2 * ALIGN);
        Producer { size, written: 0, published: 0, read: 0 }
    }

    /// Puts a frame made of `parts`, which nobody sees before [`Producer::publish`]; false if there is no room (a frame that takes more than half of the queue
    /// never has any: it might not fit before the end). `back` is where the
    /// consumer pushes its read index, in the own segment.
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

    /// Publishes what was put; false if that was nothing. The caller then stimulates the consumer's tripwire.
    pub fn publish<R: Remote>(&mut self, remote: &R, base: usize) -> bool {
        if self.published == self.written {
            return false;
        }
        self.published = self.written;
        remote.put_word(base, self.written);
        true
    }

    /// Bytes that were put and that the consumer has not given back, as far as is known.
    pub fn waiting(&self) -> usize {
        (self.written - self.read) as usize
    }

    fn at(&self) -> usize {
        (self.written % self.size as u64) as usize
    }

    fn room(&self) -> usize {
        self.size - self.waiting()
    }

    /// A read index that cannot be is none: then there is no more room than before.
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

    /// Whether there is something to look at.
    #[inline(always)]
    pub fn ready<L: Local>(&self, local: &L, base: usize) -> bool {
        self.written != self.read || local.word(base) != self.read
    }

    /// The next frame, which stays until [`Consumer::done`].
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
                // Never at the beginning: two that follow one another would be a loop.
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

    /// Lets go of the frame that [`Consumer::next`] found, of `len` bytes. `back` is where the producer reads the read index, in its segment.
    pub fn done<R: Remote>(&mut self, remote: &R, back: usize, len: usize) {
        self.read += record(len) as u64;
        let held = (self.read - self.returned) as usize;
        if self.read == self.written || held >= self.size / 4 {
            self.returned = self.read;
            remote.put_word(back, self.read);
        }
    }
}
