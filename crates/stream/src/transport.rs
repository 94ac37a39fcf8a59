//! The two ways of a byte stream as one: [`crate::ring`] and [`crate::sovia`]. A stream may begin by either, and goes on by a bigger ring when it grows.
//! Positions count bytes since it left tcp, and are in the same two words of shared memory whichever way it goes: how far was written, in the
//! reader's segment, and how far was read, in the writer's. By them whoever only looks (readiness, counts, changes of path) needs to know
//! nothing else. SOVIA's messages say besides which buffers the bytes are in.

use fabric::{Local, Remote};

pub use crate::ends::Ends;
use crate::ring::{Broken, Consumer, Producer};
use crate::sovia::{Receiver, Sender};

/// The writing end. Plain data: it may lie in memory shared by forked processes, under a lock; zeroed memory is a ring of no bytes.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Writer {
    ring: Producer,
    by: By,
    /// Kept when the stream has grown to a ring: the peer may not have read all of it. Last, as it is long, and a ring needs none of it.
    sovia: Sender,
}

/// The reading end.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Reader {
    ring: Consumer,
    by: By,
    sovia: Receiver,
}

/// Which way.
#[repr(u32)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum By {
    #[default]
    Ring,
    Sovia,
}

impl From<Producer> for Writer {
    fn from(ring: Producer) -> Writer {
        Writer { ring, by: By::Ring, ..Default::default() }
    }
}

impl From<Sender> for Writer {
    fn from(sovia: Sender) -> Writer {
        Writer { sovia, by: By::Sovia, ..Default::default() }
    }
}

impl From<Consumer> for Reader {
    fn from(ring: Consumer) -> Reader {
        Reader { ring, by: By::Ring, ..Default::default() }
    }
}

impl From<Receiver> for Reader {
    fn from(sovia: Receiver) -> Reader {
        Reader { sovia, by: By::Sovia, ..Default::default() }
    }
}

impl Writer {
    /// Goes on at the same position in a ring of `capacity` bytes at offset `data` of the peer's segment. The reader must be told to change
    /// over at [`Writer::position`].
    pub fn move_to(&mut self, data: usize, capacity: usize) {
        if self.by == By::Sovia {
            self.ring = Producer::at(self.sovia.position(), data, capacity);
            self.by = By::Ring;
        } else {
            self.ring.move_to(data, capacity);
        }
    }

    /// Whether it has come to the ring at offset `data` of the peer's segment.
    pub fn is_at(&self, data: usize) -> bool {
        self.by == By::Ring && self.ring.is_at(data)
    }

    /// Bytes that fit if the peer has read everything.
    pub fn capacity(&self) -> u64 {
        match self.by {
            By::Ring => self.ring.capacity(),
            By::Sovia => self.sovia.capacity(),
        }
    }

    /// Copies bytes that were sent by descriptors, from `position` on, back out of the peer's buffers; see [`Sender::recover`]. 0 for a
    /// stream that began by a ring.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    pub unsafe fn recover<M: Local + Remote>(
        &self,
        ends: &Ends<'_, M>,
        position: u64,
        to: *mut u8,
        len: usize,
    ) -> usize {
        // SAFETY: the caller vouches for the target.
        if self.sovia.is_used() { unsafe { self.sovia.recover(&ends.theirs, position, to, len) } } else { 0 }
    }

    /// Bytes written so far.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        match self.by {
            By::Ring => self.ring.position(),
            By::Sovia => self.sovia.position(),
        }
    }

    /// Of a window of messages, whether it is full of less than half of the bytes that it could have under way: of small messages.
    pub fn is_full_of_little(&self) -> bool {
        self.by == By::Sovia && self.sovia.under_way() * 2 < self.sovia.capacity()
    }

    /// Room for at least `want` bytes, or less if there is less.
    #[inline(always)]
    pub fn room<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, want: usize) -> Result<usize, Broken> {
        match self.by {
            By::Ring => self.ring.room(&ends.mine, ends.back, want),
            By::Sovia => self.sovia.room(ends, want),
        }
    }

    /// Bytes written that the peer had not read when last looked.
    pub fn unread<M: Local + Remote>(&self, ends: &Ends<'_, M>) -> Result<u64, Broken> {
        match self.by {
            By::Ring => self.ring.unread(&ends.mine, ends.back),
            By::Sovia => self.sovia.position().checked_sub(ends.mine.word(ends.back)).ok_or(Broken),
        }
    }

    /// Says before bytes are put whether the program lets small messages go together.
    #[inline(always)]
    pub fn combine(&mut self, may: bool) {
        if self.by == By::Sovia {
            self.sovia.combine(may);
        }
    }

    /// Copies `len` bytes in, at most what [`Writer::room`] gave. Invisible, the last of them, until [`Writer::publish`].
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads.
    #[inline(always)]
    pub unsafe fn put<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for the bytes.
        unsafe {
            match self.by {
                By::Ring => self.ring.put(&ends.theirs, from, len),
                By::Sovia => self.sovia.put(ends, from, len),
            }
        }
    }

    /// Where the next bytes go, at most `len`: (offset in the peer's segment, bytes), the second perhaps empty. For those who write there by
    /// other means than [`Writer::put`]; then they say [`Writer::filled`].
    pub fn places<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) -> [(usize, usize); 2] {
        match self.by {
            By::Ring => self.ring.places(len),
            By::Sovia => {
                let (offset, room) = self.sovia.place(ends).unwrap_or((0, 0));
                [(offset, room.min(len)), (0, 0)]
            }
        }
    }

    /// `len` bytes of these are there. Invisible until [`Writer::publish`].
    pub fn filled(&mut self, len: usize) {
        match self.by {
            By::Ring => self.ring.filled(len),
            By::Sovia => self.sovia.filled(len),
        }
    }

    /// Says that small messages will follow one of `len` bytes that was published.
    #[inline(always)]
    pub fn claim<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) {
        if self.by == By::Ring {
            self.ring.claim(&ends.theirs, len);
        }
    }

    /// Makes what was put visible; more follows at once, of what [`Writer::room`] gave.
    #[inline(always)]
    pub fn show<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        match self.by {
            By::Ring => self.ring.publish(&ends.theirs, ends.front),
            By::Sovia => self.sovia.show(ends),
        }
    }

    /// Makes what was put visible.
    #[inline(always)]
    pub fn publish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        match self.by {
            By::Ring => self.ring.publish(&ends.theirs, ends.front),
            By::Sovia => self.sovia.publish(ends),
        }
    }
}

impl Reader {
    /// Goes on at the same position in a ring of `capacity` bytes at offset `data` of the own segment.
    pub fn move_to(&mut self, data: usize, capacity: usize) {
        if self.by == By::Sovia {
            self.ring = Consumer::at(self.sovia.position(), data, capacity);
            self.by = By::Ring;
        } else {
            self.ring.move_to(data, capacity);
        }
    }

    /// Bytes read so far.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        match self.by {
            By::Ring => self.ring.position(),
            By::Sovia => self.sovia.position(),
        }
    }

    /// Bytes that are known to be ready, without a look at what has come meanwhile.
    #[inline(always)]
    pub fn known(&self) -> u64 {
        match self.by {
            By::Ring => self.ring.known(),
            By::Sovia => self.sovia.known(),
        }
    }

    /// Where in the own segment the next bytes will be, and what tells of them besides the write position. For those who wait for them, and
    /// those who say that the program is about to read: they let these lines come beforehand.
    #[inline]
    pub fn ahead(&self) -> [usize; 2] {
        match self.by {
            By::Ring => [self.ring.piece().0; 2],
            By::Sovia => self.sovia.ahead(),
        }
    }

    /// Bytes ready, looking whether more have come if fewer than `want` are known. Bytes from position `until()` on go another way and are not
    /// counted; it is asked after the look, because a writer announces that it leaves before it publishes what lies beyond.
    #[inline(always)]
    pub fn ready<M: Local + Remote>(
        &mut self,
        ends: &Ends<'_, M>,
        want: usize,
        until: impl FnOnce() -> u64,
    ) -> Result<usize, Broken> {
        match self.by {
            By::Ring => self.ring.ready(&ends.mine, ends.front, want, until),
            By::Sovia => self.sovia.ready(ends, want, until),
        }
    }

    /// Copies out `len` bytes that start `skip` bytes ahead; both together at most what [`Reader::ready`] gave.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    #[inline(always)]
    pub unsafe fn peek<M: Local + Remote>(&self, ends: &Ends<'_, M>, skip: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the target.
        unsafe {
            match self.by {
                By::Ring => self.ring.peek(&ends.mine, skip, to, len),
                By::Sovia => self.sovia.peek(&ends.mine, skip, to, len),
            }
        }
    }

    /// Where the next bytes lie together: their offset in the own segment, and how many there can be.
    pub fn piece(&self) -> (usize, usize) {
        match self.by {
            By::Ring => self.ring.piece(),
            By::Sovia => self.sovia.piece(0),
        }
    }

    /// Goes `len` bytes on without telling the writer: for a copy of the reading end that only looks.
    pub fn skip(&mut self, len: usize) {
        match self.by {
            By::Ring => self.ring.skip(len),
            By::Sovia => self.sovia.skip(len),
        }
    }

    /// Reads `len` bytes, and tells the writer now and then.
    #[inline(always)]
    pub fn consume<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) {
        match self.by {
            By::Ring => self.ring.consume(&ends.theirs, ends.back, len),
            By::Sovia => self.sovia.consume(ends, len),
        }
    }

    /// Bytes of a ring that the writer knows to have been read.
    #[inline(always)]
    pub fn given(&self) -> u64 {
        self.ring.given()
    }

    /// Tells the writer all that was read.
    #[inline(always)]
    pub fn give_back<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        match self.by {
            By::Ring => self.ring.give_back(&ends.theirs, ends.back),
            By::Sovia => self.sovia.give_back(ends),
        }
    }
}
