//! The writing end: puts bytes into messages, as many as the window and the peer's buffers allow.

use fabric::sync::{Ordering, compiler_fence};
use fabric::{Local, Remote};
use via::wire::{Cookie, CookieReader, CookieWriter, INLINE, Kind, Transfer, TransferReader, TransferWriter};

use super::at::{self, buffer, entry};
use super::manner::Manner;
use super::message::{ACKS, Last, MOST, MTU, full, what};
use crate::ends::Ends;
use crate::ring::Broken;

/// The writing end. Plain data: it may lie in memory shared by forked processes, under a lock.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Sender {
    area: u64,
    window: u32,
    piggyback: u32,
    combine: u32,
    /// Messages stay open for more bytes at this moment.
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
    /// The message that is being filled: see [`Open`].
    open: u64,
    /// The peer has broken the rules.
    broken: u32,
    last: Last,
}

/// The message that is being filled. Its word has the number of the next message, so it is void as
/// soon as that one is sent.
#[derive(Debug, Default, Clone, Copy)]
struct Open {
    bytes: usize,
    /// Its bytes are in the buffer, not in the entry.
    in_buffer: bool,
    /// It is being sent.
    closing: bool,
}

const IN_BUFFER: u64 = 1 << 16;
const CLOSING: u64 = 1 << 17;
/// There is an open message, even if it has no bytes yet.
const BEGUN: u64 = 1 << 18;

impl Sender {
    /// A sender at position 0, whose memory begins at `area` of either segment. Posts the
    /// descriptors for acknowledgements.
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

    /// Whether this is a sender, and not just zeroed memory.
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

    /// Where the sent messages end.
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

    /// To be called before bytes are put: whether messages may be joined, because the program has
    /// not asked for each to be sent by itself.
    #[inline]
    pub fn combine(&mut self, may: bool) {
        self.joins = (may && self.combine != 0).into();
    }

    /// Room for `want` bytes, or for fewer if there are not as many credits.
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

    /// Whether the peer has posted as many buffers as it must: one for each message that may be
    /// sent. Checked once when there are more credits, as the peer goes on writing in those lines.
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
            let entry = TransferReader::at(self.acks).peek(&ends.mine, base, slot);
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

    /// Copies `len` bytes into messages, at most what [`Sender::room`] gave. Invisible until
    /// [`Sender::publish`], or [`Sender::show`].
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

    /// Moves the open message out of its entry, into a buffer.
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

    /// Begins a message. False if the peer has not posted what it must: nothing is sent any more.
    fn begin<L: Local>(&mut self, mine: &L, in_entry: bool) -> bool {
        if self.credits() == 0 || !self.expects(mine) {
            self.broken = 1;
            return false;
        }
        self.set_open(Open { bytes: 0, in_buffer: !in_entry, closing: false });
        true
    }

    /// Where the next bytes go, as many as fit into the open message: offset in the peer's segment,
    /// and bytes. For callers that write there by other means; they call [`Sender::filled`]
    /// afterwards. None if nothing may be sent.
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

    /// Says that `len` bytes of these were written. Invisible until [`Sender::publish`].
    pub fn filled(&mut self, len: usize) {
        let open = self.open();
        self.set_open(Open { bytes: open.bytes + len, ..open });
    }

    /// Makes the bytes that were put visible. More follow at once, for which there was room.
    #[inline(never)]
    pub fn show<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        let open = self.open();
        if open.bytes > 0 && !open.in_buffer {
            self.move_to_buffer(ends);
        }
        ends.theirs.put_word(ends.front, self.position());
    }

    /// Makes the bytes that were put visible, and sends the open message, unless the next bytes may
    /// join it.
    #[inline(never)]
    pub fn publish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        self.finish(ends);
        let open = self.open();
        if open.bytes == MTU || open.bytes > 0 && (self.joins == 0 || !open.in_buffer) {
            self.close(ends);
        }
        ends.theirs.put_word(ends.front, self.position());
    }

    /// Sends the open message, which has bytes.
    #[inline]
    fn close<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        let open = Open { closing: true, ..self.open() };
        self.set_open(open);
        // A thread that finds it closing does the same again.
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

    /// Completes a step of a lock holder that was killed.
    #[inline(always)]
    fn finish<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) {
        if self.open().closing {
            self.close(ends);
        }
    }

    /// Copies bytes that were put, from `position` on, back out of the peer's buffers: as many as
    /// lie together, at most `len`. 0 if they are not there any more.
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
                // SAFETY: the caller vouches for the target; the source is in the entry, or in the
                // buffer.
                unsafe { theirs.get(from + skip, to, part) };
                return part;
            }
            end = start;
        }
        0
    }
}
