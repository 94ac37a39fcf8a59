//! The reading end: finds received messages, posts their buffers again and acknowledges them.

use fabric::sync::{Ordering, compiler_fence};
use fabric::{Local, Remote};
use via::wire::{
    self, Cookie, CookieReader, CookieWriter, INLINE, Kind, Transfer, TransferReader, TransferWriter,
};

use super::at::{self, buffer, entry};
use super::manner::Manner;
use super::message::{ACKS, Last, MOST, MTU, full, what};
use crate::ends::Ends;
use crate::ring::Broken;

/// The reading end.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct Receiver {
    area: u64,
    window: u32,
    delayed: u32,
    /// Messages whose entries were found; messages that were read whole; and buffers posted.
    closed: u64,
    taken: u64,
    posted: u64,
    /// Acknowledgements sent.
    acks: u64,
    /// Bytes that were received, and bytes that were read.
    arrived: u64,
    read: u64,
    /// The read position that the writer knows.
    given: u64,
    last: Last,
}

impl Receiver {
    /// A receiver at position 0. Posts the buffers.
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

    /// Bytes that are known to be ready, without checking for more.
    pub fn known(&self) -> u64 {
        self.arrived - self.read
    }

    /// Bytes that are ready. Checks for messages if fewer than `want` are known; see
    /// [`crate::transport::Reader::ready`].
    #[inline(never)]
    pub fn ready<M: Local + Remote>(
        &mut self,
        ends: &Ends<'_, M>,
        want: usize,
        until: impl FnOnce() -> u64,
    ) -> Result<usize, Broken> {
        if self.arrived - self.read < want as u64 {
            // Read before the entries: so of a message without an entry as much is there as this
            // says.
            let written = ends.mine.word(ends.front).min(until());
            if written < self.arrived {
                return Err(Broken);
            }
            self.settle(ends);
            while self.last.end(self.closed) < written && self.closed - self.taken < u64::from(self.window) {
                if !self.poll(ends)? {
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

    /// Finds the next entry, if it is there.
    fn poll<M: Local + Remote>(&mut self, ends: &Ends<'_, M>) -> Result<bool, Broken> {
        let slot = (self.closed % MOST as u64) as u16;
        let base = self.area as usize + at::MESSAGES;
        let found = TransferReader::at(self.closed).peek(&ends.mine, base, slot).map_err(|_| Broken)?;
        let Some(found) = found else { return Ok(false) };
        let said = found.immediate.unwrap_or(0);
        let (within, in_entry) = match found.kind {
            Kind::Inline => (INLINE, true),
            Kind::Placed => (MTU, false),
            _ => (0, false),
        };
        let start = self.last.end(self.closed);
        let end = start + u64::from(found.length);
        // The part of it that was seen before its end was there lies in the buffer.
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
        // It is no longer than a buffer, as was just checked.
        self.last.set(self.closed, found.length as u16, in_entry);
        compiler_fence(Ordering::SeqCst);
        self.closed += 1;
        Ok(true)
    }

    /// Where the next bytes will be if their message stays open, and where its entry will be.
    pub fn ahead(&self) -> [usize; 2] {
        let (area, slot) = (self.area as usize, (self.closed % MOST as u64) as u16);
        [self.piece(0).0, wire::words_at(area + at::MESSAGES, slot)]
    }

    /// The piece that begins `skip` bytes ahead, within what [`Receiver::ready`] gave: its offset
    /// in the own segment, and its length, which may go beyond that.
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

    /// Copies out `len` bytes that start `skip` bytes ahead; both together at most what
    /// [`Receiver::ready`] gave.
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

    /// Goes `len` bytes on without telling the writer: for a copy of the reading end that only
    /// peeks.
    #[inline(never)]
    pub fn skip(&mut self, len: usize) {
        self.read += len as u64;
        while self.taken < self.closed && self.last.start(self.taken + 1, self.closed) <= self.read {
            self.taken += 1;
        }
    }

    /// Reads `len` bytes. Posts the buffers that were read whole again, and acknowledges them when
    /// they are more than may be delayed.
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

    /// Goes on to the message with the read position, and posts the buffers before it.
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

    /// Acknowledges all that was read.
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
        // A writer that has not posted the descriptor that it owes waits in vain.
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
