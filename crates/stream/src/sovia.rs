//! The byte stream over Virtual Interfaces: SOVIA's protocol ("Design and implementation of a user-level Sockets layer over Virtual
//! Interface Architecture", sections 3 and 4), with what SocketVIA ("Impact of High Performance Sockets on Data Intensive Applications",
//! section 3) added.
//!
//! Bytes go as messages into buffers that the receiver has posted. A *window* of `w` messages may be under way; a receiver that has taken
//! more than `t` of them out acknowledges them, in a message of its own or *piggybacked* on data that goes the other way. Type and
//! acknowledgements are in the immediate data. Acknowledgements say how many messages were taken since the beginning, not since the last
//! one: so it does no harm if one comes twice, or overtakes another.
//!
//! Each direction has a Virtual Interface of its own (SocketVIA, section 3.2.2, "Two VIs per connection"): data goes one way on it, its
//! acknowledgements the other. So who reads and who writes share nothing but three counters ([`Exchange`]), and neither needs the other
//! one's lock, nor a thread that handles what comes. The queues are those of `via` ([`via::wire`]); buffers lie in the receiver's segment,
//! where the sender's processor copies to (programmed I/O), so a message is copied twice in all, as by way of a ring.
//!
//! The write position goes to the reader with each message, and the read position back, as with a ring ([`crate::transport`]). A message
//! may be *joined*: it stays open for the next bytes, and the reader finds what there is of it by the write position. That is SOVIA's combining
//! of small messages, without its timer, as nothing is held back.
//!
//! Sender and receiver lie in memory that forked processes share. Each step is finished by one store to a counter, and whatever a holder
//! who was killed had begun can be done again: entries, cookies and acknowledgements are numbered, and everything else follows from counts.
//!
//! Rule F2: what the peer wrote is checked against what it may write, and costs it its connection otherwise ([`Broken`]). Buffers are named
//! by number, never by the place that a cookie tells.

use fabric::sync::{AtomicU64, Ordering, compiler_fence};
use fabric::{Local, Remote};
use via::wire::{
    self, Cookie, CookieReader, CookieWriter, INLINE, Kind, Transfer, TransferReader, TransferWriter,
};

use crate::ring::Broken;
use crate::transport::Ends;

/// Bytes of a buffer: of the longest message (SOVIA's MTU).
pub const MTU: usize = if cfg!(loom) { 2 } else { 8192 };
/// Messages that may be under way, at most: buffers of a direction.
pub const MOST: usize = if cfg!(loom) { 1 } else { 32 };
/// Descriptors for acknowledgements: more than there can be under way, so none ever waits.
const ACKS: usize = if cfg!(loom) { 1 } else { 2 * MOST };
/// Messages whose ends are known: all that may be under way, and the one before them.
const KNOWN: usize = 2 * MOST;

/// Where everything lies in the memory that each end has for a connection, in bytes from its beginning.
pub mod at {
    use super::{ACKS, MOST, MTU};
    use via::wire::{ENTRY, FEW, INLINE, SLOTS};

    /// Entries of acknowledgements that come.
    pub const ACKNOWLEDGEMENTS: usize = 0;
    /// Cookies of buffers that the peer has posted.
    pub const COOKIES: usize = ACKNOWLEDGEMENTS + ENTRY * ACKS;
    /// Cookies of descriptors that the peer has posted for acknowledgements.
    pub const ACK_COOKIES: usize = COOKIES + QUEUE;
    /// Entries of data that comes.
    pub const MESSAGES: usize =
        if cfg!(loom) { ACK_COOKIES + QUEUE } else { (ACK_COOKIES + QUEUE).next_multiple_of(128) };
    /// The buffers.
    pub const BUFFERS: usize = if cfg!(loom) {
        MESSAGES + SLOTS * (ENTRY + INLINE)
    } else {
        (MESSAGES + ENTRY * MOST).next_multiple_of(4096)
    };
    /// The end.
    pub const END: usize = BUFFERS + MOST * MTU;
    /// A cookie queue whose first places are enough.
    const QUEUE: usize = 16 * (1 + FEW);
}

/// Bytes that each end needs in its segment for a connection.
pub const BYTES: usize = at::END;

/// What a message is, in the lower half of its immediate data; the upper half acknowledges, if it does.
mod what {
    pub const DATA: u32 = 1;
    pub const ACK: u32 = 2;
    pub const DATA_AND_ACK: u32 = DATA | ACK;
}

/// What can be chosen, the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// Messages that may be under way, 1 to [`MOST`]. 1: the next one waits for the acknowledgement of the last.
    pub window: u32,
    /// So many are taken out before they are acknowledged all together, less than the window. 0: each at once.
    pub delayed: u32,
    /// Whether data acknowledges what came the other way.
    pub piggyback: bool,
    /// Whether small messages are joined.
    pub combine: bool,
}

impl Manner {
    /// As one word that is not 0, to tell the peer and to keep.
    pub fn word(self) -> u32 {
        let bits = u32::from(self.piggyback) << 16 | u32::from(self.combine) << 17;
        self.window.clamp(1, MOST as u32) | self.delayed.min(MOST as u32) << 8 | bits
    }

    /// What such a word says. Whatever it is, what comes out can be worked with.
    pub fn of(word: u32) -> Manner {
        let window = (word & 0xff).clamp(1, MOST as u32);
        let delayed = (word >> 8 & 0xff).min(window - 1);
        Manner { window, delayed, piggyback: word >> 16 & 1 != 0, combine: word >> 17 & 1 != 0 }
    }
}

/// What the two directions of a connection tell each other, in each end's own memory. Counts of messages, which only grow.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Exchange {
    /// Taken out of those that came.
    taken: AtomicU64,
    /// Acknowledged of them.
    told: AtomicU64,
    /// Acknowledged by the peer, with its data.
    acknowledged: AtomicU64,
}

impl Exchange {
    /// As new, for another connection.
    pub fn reset(&self) {
        for count in [&self.taken, &self.told, &self.acknowledged] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Empties the queues in a segment, for a new connection.
pub fn wipe<R: Remote>(segment: &R, area: usize) {
    for word in (0..at::BUFFERS).step_by(8) {
        segment.put_word(area + word, 0);
    }
}

/// The writing end. Plain data: it may lie in memory shared by forked processes, under a lock.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Sender {
    area: u64,
    window: u32,
    piggyback: u32,
    combine: u32,
    /// Messages stay open just now.
    joins: u32,
    /// Messages sent.
    sent: u64,
    /// Messages acknowledged, as far as known.
    acknowledged: u64,
    /// Messages for which buffers are known to be posted.
    expected: u64,
    /// Acknowledgements taken, and descriptors posted for them.
    acks: u64,
    acks_posted: u64,
    /// The message that is being put together: see [`Open`].
    open: u64,
    /// The peer has broken the rules.
    broken: u32,
    last: Last,
}

/// A message that is being put together. It has the number of the next one in its word: so it is none any more as soon as that is sent.
#[derive(Debug, Default, Clone, Copy)]
struct Open {
    bytes: usize,
    /// They are in the buffer, not in the entry.
    in_buffer: bool,
    /// It is being sent.
    closing: bool,
}

const IN_BUFFER: u64 = 1 << 16;
const CLOSING: u64 = 1 << 17;
/// There is one, if only of no bytes yet.
const BEGUN: u64 = 1 << 18;

/// The reading end.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Receiver {
    area: u64,
    window: u32,
    delayed: u32,
    /// Messages whose entries have been seen; that were read whole; and buffers posted.
    closed: u64,
    taken: u64,
    posted: u64,
    /// Acknowledgements sent.
    acks: u64,
    /// Bytes that have come, and bytes that were read.
    arrived: u64,
    read: u64,
    /// The read position that the writer knows.
    given: u64,
    last: Last,
}

/// How long the last messages are, and which of them are in their entries; where the last two end, in bytes of the stream. Each connection has it at each end, whether
/// it goes by Virtual Interfaces or not: so it is small. `count`, where it is asked for, is how many messages there have been.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Last {
    /// Of messages with even numbers, and with odd ones: the next one's is set before it counts.
    ends: [u64; 2],
    lengths: [u16; KNOWN],
}

const IN_ENTRY: u16 = 1 << 15;
const _: () = assert!(MTU < IN_ENTRY as usize);

impl Default for Last {
    fn default() -> Last {
        Last { ends: [0; 2], lengths: [0; KNOWN] }
    }
}

impl Last {
    /// Where the last message ends.
    fn end(&self, count: u64) -> u64 {
        if count == 0 { 0 } else { self.ends[(count - 1) as usize % 2] }
    }

    /// Where message `number` begins, one of the last [`KNOWN`] or the next one: where the one before it ends.
    fn start(&self, number: u64, count: u64) -> u64 {
        let behind =
            (number.max(count.saturating_sub(KNOWN as u64))..count).map(|number| self.length(number));
        self.end(count).saturating_sub(behind.sum())
    }

    fn length(&self, number: u64) -> u64 {
        (self.lengths[number as usize % KNOWN] & !IN_ENTRY).into()
    }

    fn is_in_entry(&self, number: u64) -> bool {
        self.lengths[number as usize % KNOWN] & IN_ENTRY != 0
    }

    /// Notes the next message, number `count`, which counts only when that has been raised.
    fn set(&mut self, count: u64, length: u16, in_entry: bool) {
        self.ends[count as usize % 2] = self.end(count) + u64::from(length);
        self.lengths[count as usize % KNOWN] = length | if in_entry { IN_ENTRY } else { 0 };
    }
}

/// The full count that the 16 bits of an acknowledgement mean, which is not far from `near`.
fn full(near: u64, said: u32) -> u64 {
    let ahead = (said as u16).wrapping_sub(near as u16) as i16;
    near.saturating_add_signed(ahead.into())
}

impl Sender {
    /// One at position 0, whose memory begins at `area` of either segment. Posts the descriptors for acknowledgements.
    pub fn new<R: Remote>(theirs: &R, area: usize, manner: Manner) -> Sender {
        let mut sender = Sender {
            area: area as u64,
            window: manner.window.clamp(1, MOST as u32),
            piggyback: manner.piggyback.into(),
            combine: manner.combine.into(),
            ..Default::default()
        };
        sender.post(theirs);
        sender
    }

    /// Whether this is one at all: not what zeroed memory is.
    pub fn is_used(&self) -> bool {
        self.window != 0
    }

    /// Bytes put so far.
    #[inline(never)]
    pub fn position(&self) -> u64 {
        self.end() + self.open().bytes as u64
    }

    /// Bytes of messages that may be under way.
    pub fn capacity(&self) -> u64 {
        u64::from(self.window) * MTU as u64
    }

    /// Bytes that have not been acknowledged, as far as known.
    pub fn under_way(&self) -> u64 {
        self.position().saturating_sub(self.last.start(self.acknowledged, self.sent))
    }

    /// Where the messages that were sent end.
    fn end(&self) -> u64 {
        self.last.end(self.sent)
    }

    fn open(&self) -> Open {
        if self.open >> 32 != self.sent & 0xffff_ffff || self.open & BEGUN == 0 {
            return Open::default();
        }
        Open {
            bytes: self.open as u16 as usize,
            in_buffer: self.open & IN_BUFFER != 0,
            closing: self.open & CLOSING != 0,
        }
    }

    fn set_open(&mut self, open: Open) {
        self.open = self.sent << 32
            | BEGUN
            | open.bytes as u64
            | if open.in_buffer { IN_BUFFER } else { 0 }
            | if open.closing { CLOSING } else { 0 };
    }

    fn is_begun(&self) -> bool {
        self.open >> 32 == self.sent & 0xffff_ffff && self.open & BEGUN != 0
    }

    /// Messages that may be sent.
    fn credits(&self) -> usize {
        (u64::from(self.window) - (self.sent - self.acknowledged)) as usize
    }

    /// Says before bytes are put whether messages may be joined: the program has not asked for each to go by itself.
    #[inline]
    pub fn combine(&mut self, may: bool) {
        self.joins = (may && self.combine != 0).into();
    }

    /// Room for bytes: for `want`, or fewer if there are not as many credits.
    #[inline(never)]
    pub fn room<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, want: usize) -> Result<usize, Broken> {
        self.finish(ends);
        let open = self.open().bytes;
        let messages = (open + want).div_ceil(MTU).max(1);
        if self.credits() < messages {
            self.take_acknowledgements(ends)?;
        }
        let may = messages.min(self.credits());
        if self.broken != 0 || may > 0 && !self.expects(&ends.mine) {
            return Err(Broken);
        }
        Ok((may * MTU).saturating_sub(open))
    }

    /// Whether the peer has posted as many buffers as it must have: for all messages for which there are credits. Looked up once when there
    /// are more, as the peer goes on writing in those lines.
    #[inline]
    fn expects<L: Local>(&mut self, mine: &L) -> bool {
        let last = self.acknowledged + u64::from(self.window);
        if self.expected < last {
            let cookies = CookieReader::at(last - 1);
            if cookies.slot_of(mine, self.area as usize + at::COOKIES, 0).is_none() {
                return false;
            }
            self.expected = last;
        }
        true
    }

    #[cold]
    fn take_acknowledgements<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) -> Result<(), Broken> {
        self.acknowledge(ends.exchange.acknowledged.load(Ordering::Acquire))?;
        for _ in 0..ACKS {
            let base = self.area as usize + at::ACKNOWLEDGEMENTS;
            let slot = (self.acks % ACKS as u64) as u16;
            let entry = TransferReader::at(self.acks).look(&ends.mine, base, slot);
            let Some(entry) = entry.map_err(|_| Broken)? else { break };
            let said = entry.immediate.unwrap_or(0);
            if said & 0xffff != what::ACK || entry.length != 0 {
                return Err(Broken);
            }
            self.acknowledge(full(self.acknowledged, said >> 16))?;
            self.acks += 1;
        }
        self.post(&ends.theirs);
        Ok(())
    }

    fn acknowledge(&mut self, count: u64) -> Result<(), Broken> {
        if count > self.sent {
            return Err(Broken);
        }
        self.acknowledged = self.acknowledged.max(count);
        Ok(())
    }

    /// Posts the descriptors for acknowledgements that have been used.
    fn post<R: Remote>(&mut self, theirs: &R) {
        while self.acks_posted < self.acks + ACKS as u64 {
            let slot = (self.acks_posted % ACKS as u64) as u16;
            let cookie = Cookie { room: 0, slot, scattered: false, place: 0 };
            let base = self.area as usize + at::ACK_COOKIES;
            CookieWriter::at(self.acks_posted).put(theirs, base, &cookie, 0);
            self.acks_posted += 1;
        }
    }

    /// Copies `len` bytes into messages, at most what [`Sender::room`] gave. Invisible until [`Sender::publish`], or [`Sender::show`].
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads.
    #[inline(never)]
    pub unsafe fn put<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, from: *const u8, len: usize) {
        let (area, mut done) = (self.area as usize, 0);
        while done < len {
            let small = len - done <= INLINE && self.joins == 0;
            if !self.is_begun() && !self.begin(&ends.mine, small) {
                return;
            }
            let mut open = self.open();
            if !open.in_buffer && open.bytes + len - done > INLINE {
                open = self.move_to_buffer(ends);
            }
            let part = (len - done).min(MTU - open.bytes);
            let slot = self.slot();
            // SAFETY: the part lies in what the caller vouches for.
            unsafe {
                let from = from.add(done);
                if open.in_buffer {
                    ends.theirs.put(buffer(area, slot) + open.bytes, from, part);
                } else {
                    let writer = TransferWriter::at(self.sent);
                    writer.fill(&ends.theirs, area + at::MESSAGES, slot, open.bytes, from, part);
                }
            }
            open.bytes += part;
            compiler_fence(Ordering::SeqCst);
            self.set_open(open);
            done += part;
            if open.bytes == MTU {
                self.close(ends);
            }
        }
    }

    fn slot(&self) -> u16 {
        (self.sent % MOST as u64) as u16
    }

    /// The message that is being put together does not stay in its entry after all.
    #[cold]
    fn move_to_buffer<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) -> Open {
        let (mut bytes, area, slot) = ([0u8; INLINE], self.area as usize, self.slot());
        let open = Open { in_buffer: true, ..self.open() };
        let entry = TransferReader::at(self.sent);
        // SAFETY: the array has room for what an entry holds.
        unsafe {
            entry.copy(&ends.theirs, area + at::MESSAGES, slot, 0, bytes.as_mut_ptr(), open.bytes);
            ends.theirs.put(buffer(area, slot), bytes.as_ptr(), open.bytes);
        }
        self.set_open(open);
        open
    }

    /// Begins a message. False if the peer has not posted what it must have: nothing goes any more.
    fn begin<L: Local>(&mut self, mine: &L, in_entry: bool) -> bool {
        if self.credits() == 0 || !self.expects(mine) {
            self.broken = 1;
            return false;
        }
        self.set_open(Open { bytes: 0, in_buffer: !in_entry, closing: false });
        true
    }

    /// Where the next bytes go, as many as fit into the message that is being put together: offset in the peer's segment, and bytes. For those
    /// who write there by other means; then they say [`Sender::filled`]. None if nothing may be sent.
    pub fn place<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) -> Option<(usize, usize)> {
        if !self.is_begun() && !self.begin(&ends.mine, false) {
            return None;
        }
        let mut open = self.open();
        if !open.in_buffer {
            open = self.move_to_buffer(ends);
        }
        Some((buffer(self.area as usize, self.slot()) + open.bytes, MTU - open.bytes))
    }

    /// `len` bytes of these are there. Invisible until [`Sender::publish`].
    pub fn filled(&mut self, len: usize) {
        let open = self.open();
        self.set_open(Open { bytes: open.bytes + len, ..open });
    }

    /// Makes what was put visible; more follows at once, for which there was room.
    #[inline(never)]
    pub fn show<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        let open = self.open();
        if open.bytes > 0 && !open.in_buffer {
            self.move_to_buffer(ends);
        }
        ends.theirs.put_word(ends.front, self.position());
    }

    /// Makes what was put visible, and sends the message that is being put together, unless the next bytes may join it.
    #[inline(never)]
    pub fn publish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        self.finish(ends);
        let open = self.open();
        if open.bytes == MTU || open.bytes > 0 && (self.joins == 0 || !open.in_buffer) {
            self.close(ends);
        }
        ends.theirs.put_word(ends.front, self.position());
    }

    /// Sends the message that is being put together, which has bytes.
    #[inline]
    fn close<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        let open = Open { closing: true, ..self.open() };
        self.set_open(open);
        // Whoever finds it closing does the same again.
        compiler_fence(Ordering::SeqCst);
        let mut immediate = what::DATA;
        if self.piggyback != 0 {
            let taken = ends.exchange.taken.load(Ordering::Acquire);
            immediate = what::DATA_AND_ACK | (taken as u32) << 16;
            if ends.exchange.told.load(Ordering::Relaxed) < taken {
                ends.exchange.told.store(taken, Ordering::Relaxed);
            }
        }
        let transfer = Transfer {
            kind: if open.in_buffer { Kind::Placed } else { Kind::Inline },
            length: open.bytes as u32,
            immediate: Some(immediate),
            continues: false,
            place: 0,
        };
        self.last.set(self.sent, open.bytes as u16, !open.in_buffer);
        let base = self.area as usize + at::MESSAGES;
        TransferWriter::at(self.sent).announce(&ends.theirs, base, self.slot(), &transfer);
        compiler_fence(Ordering::SeqCst);
        self.sent += 1;
    }

    /// Ends what a holder has begun who was killed.
    #[inline(always)]
    fn finish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        if self.open().closing {
            self.close(ends);
        }
    }

    /// Copies bytes that were put, from `position` on, back out of the peer's buffers: as many as are there together, at most `len`. 0 if
    /// they are no more.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    pub unsafe fn recover<L: Local>(&self, theirs: &L, position: u64, to: *mut u8, len: usize) -> usize {
        let (area, mut end) = (self.area as usize, self.position());
        let oldest = self.sent.saturating_sub(MOST as u64);
        for number in (oldest..=self.sent).rev() {
            let start = self.last.start(number, self.sent);
            if start <= position && position < end {
                let (slot, skip) = ((number % MOST as u64) as u16, (position - start) as usize);
                let part = len.min((end - position) as usize);
                let in_entry =
                    if number == self.sent { !self.open().in_buffer } else { self.last.is_in_entry(number) };
                let from = if in_entry { entry(area, slot) } else { buffer(area, slot) };
                // SAFETY: the caller vouches for the target; the source is in the entry, or in the buffer.
                unsafe { theirs.get(from + skip, to, part) };
                return part;
            }
            end = start;
        }
        0
    }
}

fn entry(area: usize, slot: u16) -> usize {
    wire::bytes_at(area + at::MESSAGES, slot)
}

fn buffer(area: usize, slot: u16) -> usize {
    area + at::BUFFERS + usize::from(slot) * MTU
}

impl Receiver {
    /// One at position 0. Posts the buffers.
    pub fn new<R: Remote>(theirs: &R, area: usize, manner: Manner) -> Receiver {
        let window = manner.window.clamp(1, MOST as u32);
        let mut receiver = Receiver {
            area: area as u64,
            window,
            delayed: manner.delayed.min(window - 1),
            ..Default::default()
        };
        receiver.post(theirs);
        receiver
    }

    /// Posts the buffers that have been read whole.
    fn post<R: Remote>(&mut self, theirs: &R) {
        while self.posted < self.taken + MOST as u64 {
            let slot = (self.posted % MOST as u64) as u16;
            let place = buffer(self.area as usize, slot) as u64;
            let cookie = Cookie { room: MTU as u32, slot, scattered: false, place };
            CookieWriter::at(self.posted).put(theirs, self.area as usize + at::COOKIES, &cookie, 0);
            self.posted += 1;
        }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.read
    }

    /// Bytes that are known to be ready, without a look at what has come meanwhile.
    pub fn known(&self) -> u64 {
        self.arrived - self.read
    }

    /// Bytes ready, looking for messages if fewer than `want` are known; see [`crate::transport::Reader::ready`].
    #[inline(never)]
    pub fn ready<M: Local + Remote>(
        &mut self,
        ends: &Ends<'_, M>,
        want: usize,
        until: impl FnOnce() -> u64,
    ) -> Result<usize, Broken> {
        if self.arrived - self.read < want as u64 {
            // Asked before the entries: so of a message that has none as much is there as this says.
            let written = ends.mine.word(ends.front).min(until());
            if written < self.arrived {
                return Err(Broken);
            }
            self.settle(ends);
            while self.last.end(self.closed) < written && self.closed - self.taken < u64::from(self.window) {
                if !self.look(ends)? {
                    break;
                }
            }
            let end = self.last.end(self.closed);
            let full = self.closed - self.taken >= u64::from(self.window);
            if written > end && (full || written - end > MTU as u64) {
                return Err(Broken);
            }
            self.arrived = written;
        }
        Ok((self.arrived - self.read) as usize)
    }

    /// The next entry, if it is there.
    fn look<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) -> Result<bool, Broken> {
        let slot = (self.closed % MOST as u64) as u16;
        let base = self.area as usize + at::MESSAGES;
        let found = TransferReader::at(self.closed).look(&ends.mine, base, slot).map_err(|_| Broken)?;
        let Some(found) = found else { return Ok(false) };
        let said = found.immediate.unwrap_or(0);
        let (within, in_entry) = match found.kind {
            Kind::Inline => (INLINE, true),
            Kind::Placed => (MTU, false),
            _ => (0, false),
        };
        let start = self.last.end(self.closed);
        let end = start + u64::from(found.length);
        // What was seen of it before its end was there, was in the buffer.
        let seen = self.arrived > start;
        let (data, acknowledges) = (said & 0xffff & !what::ACK == what::DATA, said & what::ACK != 0);
        if !data
            || found.length == 0
            || found.length as usize > within
            || seen && (in_entry || end < self.arrived)
        {
            return Err(Broken);
        }
        if acknowledges {
            let known = &ends.exchange.acknowledged;
            let near = known.load(Ordering::Relaxed);
            known.fetch_max(full(near, said >> 16), Ordering::AcqRel);
        }
        // No longer than a buffer, as has just been looked at.
        self.last.set(self.closed, found.length as u16, in_entry);
        compiler_fence(Ordering::SeqCst);
        self.closed += 1;
        Ok(true)
    }

    /// Where the next bytes will be if their message is open, and where its entry will be.
    pub fn ahead(&self) -> [usize; 2] {
        let (area, slot) = (self.area as usize, (self.closed % MOST as u64) as u16);
        [self.piece(0).0, wire::words_at(area + at::MESSAGES, slot)]
    }

    /// The piece that begins `skip` bytes ahead, within what [`Receiver::ready`] gave: its offset in the own segment, and its length, which
    /// may go beyond that.
    #[inline(never)]
    pub fn piece(&self, skip: usize) -> (usize, usize) {
        let position = self.read + skip as u64;
        let mut number = self.taken;
        while number < self.closed && self.last.start(number + 1, self.closed) <= position {
            number += 1;
        }
        let (slot, start) = ((number % MOST as u64) as u16, self.last.start(number, self.closed));
        let end = if number < self.closed { self.last.start(number + 1, self.closed) } else { self.arrived };
        let in_entry = number < self.closed && self.last.is_in_entry(number);
        let area = self.area as usize;
        let from = if in_entry { entry(area, slot) } else { buffer(area, slot) };
        (from + (position - start) as usize, (end - position) as usize)
    }

    /// Copies out `len` bytes that start `skip` bytes ahead; both together at most what [`Receiver::ready`] gave.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    #[inline(never)]
    pub unsafe fn peek<L: Local>(&self, mine: &L, skip: usize, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let (offset, length) = self.piece(skip + done);
            let part = length.min(len - done);
            // SAFETY: the caller vouches for the target; the source is in an entry, or in a buffer.
            unsafe { mine.get(offset, to.add(done), part) };
            done += part;
        }
    }

    /// Goes `len` bytes on without telling the writer: for a copy of the reading end that only looks.
    #[inline(never)]
    pub fn skip(&mut self, len: usize) {
        self.read += len as u64;
        while self.taken < self.closed && self.last.start(self.taken + 1, self.closed) <= self.read {
            self.taken += 1;
        }
    }

    /// Reads `len` bytes. Buffers that were read whole are posted again, and acknowledged when there are more of them than may be delayed.
    #[inline(never)]
    pub fn consume<M: Local + Remote>(&mut self, ends: &Ends<'_, M>, len: usize) {
        self.read += len as u64;
        self.settle(ends);
        let told = ends.exchange.told.load(Ordering::Relaxed);
        if self.taken.saturating_sub(told) > u64::from(self.delayed) {
            self.acknowledge(ends);
        }
        if self.read == self.arrived || self.read - self.given >= MTU as u64 {
            self.give(ends);
        }
    }

    /// Goes on to the message in which the read position is, and posts the buffers before it.
    #[inline]
    fn settle<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        self.skip(0);
        if self.posted != self.taken + MOST as u64 {
            self.post(&ends.theirs);
            ends.exchange.taken.store(self.taken, Ordering::Release);
        }
    }

    fn give<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        self.given = self.read;
        ends.theirs.put_word(ends.back, self.read);
    }

    /// Tells the writer all that was read.
    #[inline(never)]
    pub fn give_back<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        if ends.exchange.told.load(Ordering::Relaxed) < self.taken {
            self.acknowledge(ends);
        }
        self.give(ends);
    }

    fn acknowledge<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        let (area, slot) = (self.area as usize, (self.acks % ACKS as u64) as u16);
        let cookies = CookieReader::at(self.acks);
        // A writer that has posted no descriptor for it, which it must have, waits for it in vain.
        if cookies.slot_of(&ends.mine, area + at::ACK_COOKIES, 0).is_none() {
            return;
        }
        let immediate = Some(what::ACK | (self.taken as u32) << 16);
        let transfer = Transfer { kind: Kind::Placed, length: 0, immediate, continues: false, place: 0 };
        TransferWriter::at(self.acks).announce(&ends.theirs, area + at::ACKNOWLEDGEMENTS, slot, &transfer);
        self.acks += 1;
        ends.exchange.told.store(self.taken, Ordering::Relaxed);
    }
}
