//! How messages go: the two engines of "VIA over the CLAN network", section 3.3.2, on one host.
//!
//! *Programmed I/O* for small messages: into the entry of the transfer queue, or, when they are longer than that, into the eager buffer
//! beside it; the receiver copies them on. *DMA* for large ones: one copy by the kernel, straight from the sender's buffers into the posted
//! ones, wherever the program has them (process_vm_writev); RDMA goes the same way. Registered memory needs not be shared for that.
//!
//! The sender has the receiver's cookie first, so it knows before it moves a byte whether a descriptor is posted for it, and how long it is.

use std::sync::Arc;

use fabric::shm::Map;
use fabric::{Local, Remote, sys};

use crate::abi::{Segment as Buffer, status};
use crate::descriptor::{self, Posted};
use crate::gate;
use crate::memory::{self, Asker};
use crate::nic::MAX_SEGMENTS;
use crate::segment::{self, EAGER, Segment, at};
use crate::wire::{
    Broken, Cookie, CookieReader, CookieWriter, INLINE, Kind, SLOTS, Transfer, TransferReader, TransferWriter,
};

/// Messages up to so many bytes are copied twice, through the eager buffer: below, the kernel's call costs more than the second copy.
pub const EAGER_MOST: usize = 8192;

/// The memory of both ends of a connection, as one end has it.
pub struct Memory {
    /// Own segment.
    pub mine: Arc<Segment>,
    /// The peer's.
    pub theirs: Map,
    /// The peer's process; 0 if the kernel does not let us at its memory.
    pub pid: u32,
    /// The peer's region table.
    pub regions: Map,
    /// The peer's Virtual Interface: what it may touch, in its own process.
    pub asker: Asker,
    /// Whether it lets us write, and read, its memory by RDMA.
    pub rights: memory::Rights,
    /// Where hints for the peer's completion queues lie, if its queues have any: that of its receive queue, that of its send queue.
    pub queues: [Option<Hints>; 2],
}

/// A completion queue's memory, and the place in it.
#[derive(Debug, Clone, Copy)]
pub struct Hints {
    /// The memory.
    pub map: Map,
    /// The number of the Virtual Interface there.
    pub slot: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        for map in [Some(self.theirs), Some(self.regions)]
            .into_iter()
            .chain(self.queues.map(|queue| queue.map(|queue| queue.map)))
            .flatten()
        {
            // SAFETY: whoever uses the memory borrows it from here.
            unsafe { map.unmap() };
        }
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is in the peer's memory.
    Done,
    /// The peer has no descriptor posted for it.
    NoDescriptor,
    /// It is longer than the buffers of the peer's descriptor, which knows.
    TooLong,
    /// It may not touch that memory of the peer.
    Forbidden,
    /// The connection is over.
    Lost,
}

/// The sending half of one end.
#[derive(Default)]
pub struct Sender {
    transfers: TransferWriter,
    cookies: CookieReader,
    /// Bytes put into the eager buffer, those left out at its end among them.
    eager: u64,
}

impl Sender {
    /// Whether the peer has posted a descriptor for the next message.
    pub fn has_cookie(&mut self, memory: &Memory) -> bool {
        self.cookies.look(memory.mine.map(), at::COOKIES).is_some()
    }

    /// Sends the bytes of a descriptor's buffers.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline]
    pub unsafe fn send(&mut self, memory: &Memory, posted: &Posted) -> Sent {
        let Some(cookie) = self.cookies.look(memory.mine.map(), at::COOKIES) else {
            return Sent::NoDescriptor;
        };
        let length = posted.length;
        if length > cookie.room as usize {
            self.put(memory, &cookie, Kind::TooLong, length, posted.immediate, 0, core::ptr::null());
            return Sent::TooLong;
        }
        if length <= INLINE {
            let mut together = [0u8; INLINE];
            let from = match posted.segments() {
                [one] => one.address as *const u8,
                many => {
                    // SAFETY: the caller vouches for the buffers, and their sum fits.
                    unsafe { gather(many, together.as_mut_ptr()) };
                    together.as_ptr()
                }
            };
            self.put(memory, &cookie, Kind::Inline, length, posted.immediate, 0, from);
            return Sent::Done;
        }
        if (length <= EAGER_MOST || memory.pid == 0)
            && let Some(place) = self.eager_room(memory, length)
        {
            let mut to = at::EAGER + place;
            for segment in posted.segments() {
                // SAFETY: the caller vouches for the buffer.
                unsafe { memory.theirs.put(to, segment.address as *const u8, segment.length as usize) };
                to += segment.length as usize;
            }
            self.put(memory, &cookie, Kind::Eager, length, posted.immediate, place, core::ptr::null());
            return Sent::Done;
        }
        // SAFETY: the caller vouches for the buffers.
        match unsafe { write_to_cookie(memory, posted.segments(), length, &cookie) } {
            Sent::Done => {}
            other => return other,
        }
        self.put(memory, &cookie, Kind::Placed, length, posted.immediate, 0, core::ptr::null());
        Sent::Done
    }

    /// Writes the bytes of a descriptor's buffers to the peer's memory. With immediate data it uses up one of the peer's descriptors.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub unsafe fn write(&mut self, memory: &Memory, posted: &Posted, to: descriptor::Remote) -> Sent {
        let cookie = match posted.immediate {
            Some(_) => match self.cookies.look(memory.mine.map(), at::COOKIES) {
                None => return Sent::NoDescriptor,
                cookie => cookie,
            },
            None => None,
        };
        // SAFETY: the caller vouches for the buffers.
        match unsafe { rdma(memory, posted, to, true) } {
            Sent::Done => {}
            other => return other,
        }
        if let Some(cookie) = cookie {
            let kind = Kind::RemoteWrite;
            self.put(memory, &cookie, kind, posted.length, posted.immediate, 0, core::ptr::null());
        }
        Sent::Done
    }

    /// Reads from the peer's memory into a descriptor's buffers.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub unsafe fn read(&mut self, memory: &Memory, posted: &Posted, from: descriptor::Remote) -> Sent {
        // SAFETY: the caller vouches for the buffers.
        unsafe { rdma(memory, posted, from, false) }
    }

    #[allow(clippy::too_many_arguments)] // an entry has so many parts
    #[inline(always)]
    fn put(
        &mut self,
        memory: &Memory,
        cookie: &Cookie,
        kind: Kind,
        length: usize,
        immediate: Option<u32>,
        place: usize,
        inline: *const u8,
    ) {
        let transfer = Transfer { kind, length: length as u32, immediate, place: place as u32 };
        // SAFETY: `send` passes the message if it is in the entry.
        unsafe { self.transfers.put(&memory.theirs, at::TRANSFERS, cookie.slot, &transfer, inline) };
        self.cookies.advance();
    }

    /// Where in the eager buffer there is room for a message, in one piece.
    fn eager_room(&mut self, memory: &Memory, length: usize) -> Option<usize> {
        let start = eager_start(self.eager, length)?;
        let read = memory.mine.map().word(at::EAGER_READ);
        let end = start + length as u64;
        // A peer that says that it has read more than there was only hurts its own messages.
        if end.wrapping_sub(read) > EAGER as u64 {
            return None;
        }
        self.eager = end.next_multiple_of(64);
        Some(start as usize % EAGER)
    }
}

/// Where a message begins that is put into the eager buffer behind `position`: not across its end.
fn eager_start(position: u64, length: usize) -> Option<u64> {
    let offset = position as usize % EAGER;
    if length > EAGER {
        None
    } else if offset + length > EAGER {
        Some(position + (EAGER - offset) as u64)
    } else {
        Some(position)
    }
}

/// Copies buffers one behind the other.
///
/// # Safety
/// The buffers must be mapped, and `to` have room for all.
unsafe fn gather(from: &[Buffer], mut to: *mut u8) {
    for buffer in from {
        // SAFETY: the caller vouches for both.
        unsafe {
            core::ptr::copy(buffer.address as *const u8, to, buffer.length as usize);
            to = to.add(buffer.length as usize);
        }
    }
}

/// # Safety
/// The buffers must be mapped.
unsafe fn write_to_cookie(memory: &Memory, from: &[Buffer], length: usize, cookie: &Cookie) -> Sent {
    let through = || {
        let mut list = [Buffer::default(); MAX_SEGMENTS];
        let to = if cookie.scattered {
            let local = [iovec(list.as_mut_ptr() as u64, size_of_val(&list))];
            let remote = [iovec(cookie.place, size_of_val(&list))];
            // SAFETY: `list` has room.
            if unsafe { sys::process_vm_readv(memory.pid, &local, &remote) } != Ok(size_of_val(&list)) {
                return false;
            }
            &list[..]
        } else {
            list[0] = Buffer { address: cookie.place, handle: 0, length: length as u32 };
            &list[..1]
        };
        // SAFETY: the caller vouches for the buffers.
        unsafe { copy(memory.pid, from, to, length, true) }
    };
    if memory.pid == 0 || !gate::enter(memory.mine.map(), at::SHUT, &memory.theirs, at::BUSY) {
        return Sent::Lost;
    }
    let done = through();
    gate::leave(&memory.theirs, at::BUSY);
    if done { Sent::Done } else { Sent::Lost }
}

/// # Safety
/// The buffers must be mapped.
unsafe fn rdma(memory: &Memory, posted: &Posted, remote: descriptor::Remote, write: bool) -> Sent {
    if memory.pid == 0 || !gate::enter(memory.mine.map(), at::SHUT, &memory.theirs, at::BUSY) {
        return Sent::Lost;
    }
    let may = if write { memory.rights.write } else { memory.rights.read };
    // Looked up behind the gate: whoever takes a region back waits for those who are through.
    let sent = if !may
        || !memory::allows(&memory.regions, memory.asker, remote.handle, remote.address, posted.length, write)
    {
        Sent::Forbidden
    } else {
        let to = [Buffer { address: remote.address, handle: 0, length: posted.length as u32 }];
        // SAFETY: the caller vouches for the buffers.
        if unsafe { copy(memory.pid, posted.segments(), &to, posted.length, write) } {
            Sent::Done
        } else {
            Sent::Lost
        }
    };
    gate::leave(&memory.theirs, at::BUSY);
    sent
}

/// Copies `length` bytes between buffers here and there, by the kernel. False if not all of it could be.
///
/// # Safety
/// The buffers here must be mapped.
unsafe fn copy(pid: u32, here: &[Buffer], there: &[Buffer], length: usize, write: bool) -> bool {
    if length == 0 {
        return true;
    }
    let (mut local, mut remote) = ([iovec(0, 0); MAX_SEGMENTS], [iovec(0, 0); MAX_SEGMENTS]);
    let local = fill(&mut local, here, length);
    let remote = fill(&mut remote, there, length);
    let copied = if write {
        // SAFETY: the caller vouches for the buffers.
        unsafe { sys::process_vm_writev(pid, local, remote) }
    } else {
        // SAFETY: as above.
        unsafe { sys::process_vm_readv(pid, local, remote) }
    };
    copied == Ok(length)
}

/// The first `length` bytes of some buffers, for the kernel.
fn fill<'a>(to: &'a mut [libc::iovec; MAX_SEGMENTS], from: &[Buffer], length: usize) -> &'a [libc::iovec] {
    let mut left = length;
    let mut count = 0;
    for buffer in from {
        let part = left.min(buffer.length as usize);
        if part > 0 {
            to[count] = iovec(buffer.address, part);
            count += 1;
        }
        left -= part;
    }
    &to[..count]
}

fn iovec(address: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: address as *mut _, iov_len: length }
}

/// How a message came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Of [`status`].
    pub op: u32,
    /// Bytes.
    pub length: usize,
    /// What came with it.
    pub immediate: Option<u32>,
}

/// The receiving half of one end.
pub struct Receiver {
    transfers: TransferReader,
    cookies: CookieWriter,
    /// Slots that are free; the one that was free last is used next.
    free: Vec<u16>,
    /// Bytes taken out of the eager buffer, and what the peer knows of it.
    eager: u64,
    given_back: u64,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            transfers: TransferReader::default(),
            cookies: CookieWriter::default(),
            free: (0..SLOTS as u16).rev().collect(),
            eager: 0,
            given_back: 0,
        }
    }
}

impl Receiver {
    /// Tells the peer of a descriptor that was posted to receive. Its slot, to be passed to [`Receiver::receive`].
    ///
    /// # Panics
    /// If there are more than [`SLOTS`].
    pub fn post(&mut self, memory: &Memory, posted: &mut Posted) -> u16 {
        let unused = SLOTS - self.free.len();
        let slot = self.free.pop().expect("no more descriptors are posted than there are slots");
        let (scattered, place) = match posted.segments() {
            [one] => (false, one.address),
            _ => (true, posted.list() as u64),
        };
        let cookie = Cookie { room: posted.length.min(1 << 20) as u32, slot, scattered, place };
        self.cookies.put(&memory.theirs, at::COOKIES, &cookie, unused);
        slot
    }

    /// The next message, if it has come: it is in the buffers of `posted` then, which is the first of those whose message was still to
    /// come, and in whose slot it is. Errors are noted in `posted`.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline]
    pub unsafe fn receive(
        &mut self,
        memory: &Memory,
        posted: &mut Posted,
        slot: u16,
    ) -> Result<Option<Received>, Broken> {
        let mine = memory.mine.map();
        let Some(transfer) = self.transfers.look(mine, at::TRANSFERS, slot)? else { return Ok(None) };
        let length = transfer.length as usize;
        let mut op = status::OP_RECEIVE;
        match transfer.kind {
            Kind::Inline | Kind::Eager | Kind::Placed if length > posted.length => return Err(Broken),
            Kind::Inline => {
                // SAFETY: the caller vouches for the buffers; the entry is as long as `look` says.
                unsafe {
                    scatter(posted.segments(), length, |from, to, count| {
                        self.transfers.copy(mine, at::TRANSFERS, slot, from, to, count);
                    });
                }
            }
            Kind::Eager => {
                let place = transfer.place as usize;
                if place.checked_add(length).is_none_or(|end| end > EAGER) {
                    return Err(Broken);
                }
                // SAFETY: as above; the place was checked.
                unsafe {
                    scatter(posted.segments(), length, |from, to, count| {
                        mine.get(at::EAGER + place + from, to, count);
                    });
                }
                self.give_back(memory, length);
            }
            Kind::Placed => {}
            Kind::RemoteWrite => op = status::OP_REMOTE_RDMA_WRITE,
            Kind::TooLong => posted.errors |= status::LENGTH_ERROR,
        }
        self.transfers.advance();
        self.free.push(slot);
        let length = if transfer.kind == Kind::TooLong { 0 } else { length };
        Ok(Some(Received { op, length, immediate: transfer.immediate }))
    }

    /// Tells the peer now and then that there is room in the eager buffer.
    fn give_back(&mut self, memory: &Memory, length: usize) {
        if let Some(start) = eager_start(self.eager, length) {
            self.eager = (start + length as u64).next_multiple_of(64);
        }
        if self.eager - self.given_back > EAGER as u64 / 4 {
            self.given_back = self.eager;
            memory.theirs.put_word(at::EAGER_READ, self.eager);
        }
    }
}

/// Copies `length` bytes into buffers, with what copies from one place of the message.
///
/// # Safety
/// The buffers must be mapped, and be long enough together.
#[inline(always)]
unsafe fn scatter(to: &[Buffer], length: usize, mut copy: impl FnMut(usize, *mut u8, usize)) {
    let mut done = 0;
    for buffer in to {
        let part = (length - done).min(buffer.length as usize);
        if part > 0 {
            copy(done, buffer.address as *mut u8, part);
            done += part;
        }
    }
}

/// Tells whoever waits at the peer that something has come: a message, or a cookie.
#[inline]
pub fn notify(memory: &Memory, trip: usize) -> u64 {
    segment::fire(&memory.theirs, trip)
}
