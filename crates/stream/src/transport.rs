//! The two kinds of byte stream as one: [`crate::ring`] and [`crate::sovia`]. A stream may begin as
//! either; with `SHUNT_STREAM=via` at the end that makes the offer it begins with SOVIA's messages,
//! on the queues of `via::wire`. It goes on in a bigger ring when it grows.
//!
//! Positions count bytes since the stream left tcp. They are in the same two words of shared memory
//! for both kinds: the write position in the reader's segment, and the read position in the
//! writer's. So code that needs only positions (readiness, counts, announcements, recalls, deaths)
//! does not know which kind it is. SOVIA's messages also say which buffers the bytes are in.
//!
//! The two kinds differ in `sockets` as follows:
//!
//! * A slot has memory for both (`layout::via`), emptied before an offer (`pairing::wipe`). The
//!   offer carries the parameters (window and so on) for both ends.
//! * A window may be full with less than 16 KB, where tcp would take more. Then the stream goes on
//!   in the big ring (`send::stuck`) when the peer has read nothing for 200 ms. So two programs
//!   that both write first do not stop each other. A program that does not wait in send() gets
//!   EAGAIN until then, and its poll() or epoll_wait() checks that in time
//!   (`send::stuck_for_long`). A window that is full of small messages, with less than half of the
//!   bytes that it could carry, is left at once: for so little no program expects EAGAIN.
//! * Acknowledgements may be in data that nobody has read. A writer without credits looks for them
//!   there, if no reader has the lock (`send::look_for_credits`).
//! * Small buffers that programs set bound the bytes under way, as they bound a ring that does not
//!   grow (`small_buffers.rs`).

use fabric::{Local, Remote};

pub use crate::ends::Ends;
use crate::ring::{Broken, Consumer, Producer};
use crate::sovia::{Receiver, Sender};

/// The writing end. Plain data: it may lie in memory shared by forked processes, under a lock;
/// zeroed memory is a ring of no bytes.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Writer {
    ring: Producer,
    by: By,
    /// Kept when the stream has grown to a ring: the peer may not have read all of it. Last, as it
    /// is long, and a ring does not need it.
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

/// Which kind.
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
    /// Goes on at the same position in a ring of `capacity` bytes at offset `data` of the peer's
    /// segment. The caller must announce to the reader that it has to change at
    /// [`Writer::position`].
    pub fn move_to(&mut self, data: usize, capacity: usize) {
        if self.by == By::Sovia {
            self.ring = Producer::at(self.sovia.position(), data, capacity);
            self.by = By::Ring;
        } else {
            self.ring.move_to(data, capacity);
        }
    }

    /// Whether it has changed to the ring at offset `data` of the peer's segment.
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

    /// Copies bytes that were sent by descriptors, from `position` on, back out of the peer's
    /// buffers; see [`Sender::recover`]. 0 for a stream that began by a ring.
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

    /// Whether a window of messages is full with less than half of the bytes that it could carry:
    /// of small messages.
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

    /// Bytes written that the peer had not read, when its position was last read.
    pub fn unread<M: Local + Remote>(&self, ends: &Ends<'_, M>) -> Result<u64, Broken> {
        match self.by {
            By::Ring => self.ring.unread(&ends.mine, ends.back),
            By::Sovia => self.sovia.position().checked_sub(ends.mine.word(ends.back)).ok_or(Broken),
        }
    }

    /// To be called before bytes are put: whether the program lets small messages go together.
    #[inline(always)]
    pub fn combine(&mut self, may: bool) {
        if self.by == By::Sovia {
            self.sovia.combine(may);
        }
    }

    /// Copies `len` bytes in, at most what [`Writer::room`] gave. The last of them are invisible
    /// until [`Writer::publish`].
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

    /// Where the next bytes go, at most `len`: (offset in the peer's segment, bytes), the second
    /// perhaps empty. For callers that write there by other means than [`Writer::put`]; they call
    /// [`Writer::filled`] afterwards.
    pub fn places<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) -> [(usize, usize); 2] {
        match self.by {
            By::Ring => self.ring.places(len),
            By::Sovia => {
                let (offset, room) = self.sovia.place(ends).unwrap_or((0, 0));
                [(offset, room.min(len)), (0, 0)]
            }
        }
    }

    /// Says that `len` bytes of these were written. Invisible until [`Writer::publish`].
    pub fn filled(&mut self, len: usize) {
        match self.by {
            By::Ring => self.ring.filled(len),
            By::Sovia => self.sovia.filled(len),
        }
    }

    /// Announces that small messages will follow one of `len` bytes that was published.
    #[inline(always)]
    pub fn claim<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) {
        if self.by == By::Ring {
            self.ring.claim(&ends.theirs, len);
        }
    }

    /// Makes the bytes that were put visible. More follow at once, of what [`Writer::room`] gave.
    #[inline(always)]
    pub fn show<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        match self.by {
            By::Ring => self.ring.publish(&ends.theirs, ends.front),
            By::Sovia => self.sovia.show(ends),
        }
    }

    /// Makes the bytes that were put visible.
    #[inline(always)]
    pub fn publish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        match self.by {
            By::Ring => self.ring.publish(&ends.theirs, ends.front),
            By::Sovia => self.sovia.publish(ends),
        }
    }
}

impl Reader {
    /// Goes on at the same position in a ring of `capacity` bytes at offset `data` of the own
    /// segment.
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

    /// Bytes that are known to be ready, without checking for more.
    #[inline(always)]
    pub fn known(&self) -> u64 {
        match self.by {
            By::Ring => self.ring.known(),
            By::Sovia => self.sovia.known(),
        }
    }

    /// Where the next bytes will be in the own segment, and the word that announces them besides
    /// the write position. For callers that wait for them, or know that the program is about to
    /// read: they have these lines fetched beforehand.
    #[inline]
    pub fn ahead(&self) -> [usize; 2] {
        match self.by {
            By::Ring => [self.ring.piece().0; 2],
            By::Sovia => self.sovia.ahead(),
        }
    }

    /// Bytes that are ready. Checks for more if fewer than `want` are known. Bytes from position
    /// `until()` on go another way and are not counted. `until` is called after the check, because
    /// a writer announces that it leaves before it publishes bytes beyond.
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

    /// Copies out `len` bytes that start `skip` bytes ahead; both together at most what
    /// [`Reader::ready`] gave.
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

    /// Where the next bytes lie together: their offset in the own segment, and how many there can
    /// be.
    pub fn piece(&self) -> (usize, usize) {
        match self.by {
            By::Ring => self.ring.piece(),
            By::Sovia => self.sovia.piece(0),
        }
    }

    /// Goes `len` bytes on without telling the writer: for a copy of the reading end that only
    /// peeks.
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
