//! The byte ring. `send` is one copy into the receiver's segment and a release store of the write
//! position; `recv` is one copy out and a release store of the read position into the sender's
//! segment. Positions count bytes since the ring path began, for ever; the place in the ring is the
//! position modulo the capacity, a power of two. Producer and consumer keep private copies of the
//! other's position and read the shared one only when they run out of bytes or room.
//!
//! On one host the cost is in cache lines that move between two processors. So a reader gives the
//! room of small messages back many at a time, and waits a little for a stream of them to gather. A
//! writer fetches the next lines together, by storing into them ([`Producer::claim`]).
//!
//! Rule F2: a position that the peer has put is accepted only if it moved forward, and by no more
//! than is possible. Anything else is [`Broken`], and ends the connection.

use fabric::{Local, Remote};

/// The peer has put an impossible position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// How much of the ring a writer of small messages claims at once, in bytes.
const CLAIM: u64 = 512;
/// A line of memory, which moves between processors as a whole.
const LINE: u64 = 64;

/// The writing end. Plain data: it may lie in memory shared by forked processes, under a lock.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Producer {
    written: u64,
    read: u64,
    capacity: u64,
    data: u64,
}

/// The reading end.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Consumer {
    read: u64,
    written: u64,
    capacity: u64,
    data: u64,
    /// The read position that the writer knows.
    given: u64,
}

impl Producer {
    /// A producer at position 0 of a ring of `capacity` bytes (a power of two) at offset `data` of
    /// the peer's segment.
    pub fn new(data: usize, capacity: usize) -> Producer {
        debug_assert!(capacity.is_power_of_two());
        Producer { written: 0, read: 0, capacity: capacity as u64, data: data as u64 }
    }

    /// A producer that goes on at `position` of a stream, in an empty ring.
    pub fn at(position: u64, data: usize, capacity: usize) -> Producer {
        Producer { written: position, read: position, ..Producer::new(data, capacity) }
    }

    /// Goes on at the same position in another ring. The caller must announce to the consumer that
    /// it has to change at [`Producer::position`].
    pub fn move_to(&mut self, data: usize, capacity: usize) {
        self.data = data as u64;
        self.capacity = capacity as u64;
        // Bytes that the peer has not read lie in the old ring, and take no room in the new one.
        self.read = self.written;
    }

    /// Bytes written so far.
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Whether its ring is the one at offset `data` of the peer's segment.
    pub fn is_at(&self, data: usize) -> bool {
        self.data == data as u64
    }

    /// Bytes that the ring holds at most.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Room for at least `want` bytes, or less if there is less. `back` is the word of the own
    /// segment where the consumer puts its read position.
    #[inline(always)]
    pub fn room<L: Local>(&mut self, local: &L, back: usize, want: usize) -> Result<usize, Broken> {
        let mut room = self.capacity - (self.written - self.read);
        if room < want as u64 {
            self.refresh(local.word(back))?;
            room = self.capacity - (self.written - self.read);
        }
        Ok(room as usize)
    }

    /// Bytes written that the peer had not read, by its word `back`.
    pub fn unread<L: Local>(&self, local: &L, back: usize) -> Result<u64, Broken> {
        let unread = self.written.wrapping_sub(local.word(back));
        // After a change of rings more than one ring's worth can be unread; never more than was
        // written.
        if unread > self.written { Err(Broken) } else { Ok(unread) }
    }

    #[inline]
    fn refresh(&mut self, read: u64) -> Result<(), Broken> {
        // Until the consumer has changed to a new ring its position may lie behind ours in the old
        // one.
        if read > self.written {
            return Err(Broken);
        }
        if read > self.read {
            self.read = read;
        }
        Ok(())
    }

    /// Copies `len` bytes in, at most what [`Producer::room`] gave. Invisible until
    /// [`Producer::publish`].
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads.
    #[inline(always)]
    pub unsafe fn put<R: Remote>(&mut self, remote: &R, from: *const u8, len: usize) {
        let at = (self.written & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - at);
        // SAFETY: the two pieces are inside `from..from + len`; the caller vouches for them.
        unsafe {
            remote.put(self.data as usize + at, from, first);
            if first < len {
                remote.put(self.data as usize, from.add(first), len - first);
            }
        }
        self.written += len as u64;
    }

    /// Where the next `len` bytes go, at most what [`Producer::room`] gave: (offset in the peer's
    /// segment, bytes), the second perhaps empty. For callers that write there by other means than
    /// [`Producer::put`]; they call [`Producer::filled`] afterwards.
    pub fn places(&self, len: usize) -> [(usize, usize); 2] {
        let at = (self.written & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - at);
        [(self.data as usize + at, first), (self.data as usize, len - first)]
    }

    /// Says that `len` bytes of these places were written. Invisible until [`Producer::publish`].
    pub fn filled(&mut self, len: usize) {
        self.written += len as u64;
    }

    /// To be called after a small message of `len` bytes was published. The reader's processor has
    /// the next lines, as it read there one round ago. Each small message would have to wait for
    /// one of them, before the fence that every message has. So now and then many lines are fetched
    /// together, by a store into each, in the part of the ring that is the writer's.
    #[inline(always)]
    pub fn claim<R: Remote>(&mut self, remote: &R, len: usize) {
        if len as u64 > CLAIM / 4 || self.written / CLAIM == (self.written - len as u64) / CLAIM {
            return;
        }
        let first = self.written.next_multiple_of(LINE);
        let end = (self.written + CLAIM).next_multiple_of(LINE).min(self.read + self.capacity);
        for line in (first..end).step_by(LINE as usize) {
            remote.claim(self.data as usize + (line & (self.capacity - 1)) as usize);
        }
    }

    /// Makes what was put visible: puts the write position into the word `front` of the peer's
    /// segment.
    #[inline(always)]
    pub fn publish<R: Remote>(&self, remote: &R, front: usize) {
        remote.put_word(front, self.written);
    }
}

impl Consumer {
    /// A consumer at position 0 of a ring of `capacity` bytes at offset `data` of the own segment.
    pub fn new(data: usize, capacity: usize) -> Consumer {
        debug_assert!(capacity.is_power_of_two());
        Consumer { read: 0, written: 0, capacity: capacity as u64, data: data as u64, given: 0 }
    }

    /// A consumer that goes on at `position` of a stream, in an empty ring.
    pub fn at(position: u64, data: usize, capacity: usize) -> Consumer {
        Consumer { read: position, written: position, given: position, ..Consumer::new(data, capacity) }
    }

    /// Goes on at the same position in another ring.
    pub fn move_to(&mut self, data: usize, capacity: usize) {
        self.data = data as u64;
        self.capacity = capacity as u64;
        self.written = self.read;
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Bytes that are known to be ready, without reading the peer's position.
    pub fn known(&self) -> u64 {
        self.written - self.read
    }

    /// Bytes that are ready. Reads the peer's write position (word `front` of the own segment) if
    /// fewer than `want` are known. Bytes from position `until()` on are not in this ring and not
    /// counted. `until` is called after the write position was read, because a writer announces
    /// that it leaves a ring before it publishes bytes beyond it.
    #[inline(always)]
    pub fn ready<L: Local>(
        &mut self,
        local: &L,
        front: usize,
        want: usize,
        until: impl FnOnce() -> u64,
    ) -> Result<usize, Broken> {
        if self.written - self.read < want as u64 {
            let written = local.word(front).min(until());
            if written < self.written || written - self.read > self.capacity {
                return Err(Broken);
            }
            self.written = written;
        }
        Ok((self.written - self.read) as usize)
    }

    /// Copies out `len` bytes that start `skip` bytes ahead; both together at most what
    /// [`Consumer::ready`] gave.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    #[inline(always)]
    pub unsafe fn peek<L: Local>(&self, local: &L, skip: usize, to: *mut u8, len: usize) {
        let at = ((self.read + skip as u64) & (self.capacity - 1)) as usize;
        let first = len.min(self.capacity as usize - at);
        // SAFETY: the two pieces are inside `to..to + len`; the caller vouches for them.
        unsafe {
            local.get(self.data as usize + at, to, first);
            if first < len {
                local.get(self.data as usize, to.add(first), len - first);
            }
        }
    }

    /// Where the next bytes lie together: their offset in the segment, and how many there are
    /// before the ring begins anew.
    pub fn piece(&self) -> (usize, usize) {
        let at = (self.read & (self.capacity - 1)) as usize;
        (self.data as usize + at, self.capacity as usize - at)
    }

    /// Goes `len` bytes on without giving room back: for a copy of the reading end that only peeks.
    pub fn skip(&mut self, len: usize) {
        self.read += len as u64;
    }

    /// Reads `len` bytes. Gives their room back to the writer if all that is known to be there was
    /// read, or if it is much. In between, the line with the read position stays where it is: it
    /// would move for each small message. So the ring may seem fuller to the writer than it is, by
    /// an eighth at most. An empty ring never seems to have unread bytes for long: where words are
    /// messages, room is given back at once if it is much, and else with the next bytes that are
    /// written, if that is soon.
    #[inline(always)]
    pub fn consume<R: Remote>(&mut self, remote: &R, back: usize, len: usize) {
        self.read += len as u64;
        if self.read - self.given >= self.capacity / 8 {
            self.give_back(remote, back);
        } else if self.read == self.written {
            self.given = self.read;
            remote.put_word_soon(back, self.read);
        }
    }

    /// Bytes that were given back so far.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Gives back to the writer all that was read: puts the read position into the word `back` of
    /// the peer's segment.
    #[inline(always)]
    pub fn give_back<R: Remote>(&mut self, remote: &R, back: usize) {
        self.given = self.read;
        remote.put_word(back, self.read);
    }
}
