//! How messages go: the two engines of "VIA over the CLAN network", section 3.3.2, on one host.
//!
//! *Programmed I/O* for small messages: into the entry of the transfer queue, or, when they are longer than that, into the eager buffer
//! beside it; the receiver copies them on. *DMA* for large ones: one copy by the kernel, straight from the sender's buffers into the posted
//! ones, wherever the program has them (process_vm_writev); RDMA goes the same way. Registered memory needs not be shared for that. Where
//! the kernel refuses it, large messages go the way of small ones, and wait for room; there is no RDMA then. Messages go so between hosts, too; what RDMA asks for the
//! peer's library does there ([`serve`]), and the send queue waits for it.
//!
//! Buffers that the program has of the library ([`crate::arena`]) are mapped by the peer: messages that do not fit into their entries, and
//! RDMA, are copied straight to them, and from them, by the sender's processor.
//!
//! The sender has the receiver's cookie first, so it knows before it moves a byte whether a descriptor is posted for it, and how long it is.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use fabric::shm::Map;
use fabric::{Local, Remote, sys};

use crate::abi::{Segment as Buffer, status};
use crate::arena::Theirs;
use crate::descriptor::{self, Posted};
use crate::engine;
use crate::far::link::{Wire, reply};
use crate::far::peer::Peer;
use crate::gate;
use crate::limits::{MAX_SEGMENTS, MAX_TRANSFER};
use crate::memory::{self, Asker, Regions, Rights};
use crate::segment::{EAGER, EAGER_ALL, Segment, at, wake};
use crate::wire::{
    Broken, Cookie, CookieReader, CookieWriter, INLINE, Kind, SLOTS, Transfer, TransferReader, TransferWriter,
};

/// How many entries a sender of small messages claims at once.
const CLAIM: u64 = 4;

/// The memory of both ends of a connection, as one end has it.
pub struct Memory {
    /// Own segment.
    pub mine: Arc<Segment>,
    /// The peer's.
    pub theirs: Peer,
    /// The peer's process; 0 between hosts.
    pub pid: u32,
    /// Whether the kernel lets either at the memory of the other one.
    pub direct: AtomicBool,
    /// The peer's region table; between hosts none.
    pub regions: Option<memory::Table>,
    /// The peer's memory that is mapped here as well.
    pub arena: Option<Theirs>,
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

impl Memory {
    /// Whether bytes can be placed in the peer's memory, and taken from there.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Where `length` bytes of the peer at `address` are, if they are mapped here.
    #[inline]
    fn mapped(&self, address: u64, length: usize) -> Option<(&Map, usize)> {
        let arena = self.arena.as_ref()?;
        Some((arena.map(), arena.offset(address, length)?))
    }

    /// Waits until the peer writes to, and reads from, no buffers of this process that it found registered before. Between hosts it never does.
    pub fn await_transfers(&self) {
        while self.theirs.wire().is_none()
            && gate::is_busy(self.mine.map(), at::BUSY)
            && sys::process_lives(self.pid)
        {
            sys::yield_now();
        }
    }

    /// How much is used of either end's eager buffer.
    #[inline]
    fn eager(&self) -> usize {
        if self.is_direct() { EAGER } else { EAGER_ALL }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(regions) = self.regions {
            // SAFETY: whoever uses the memory borrows it from here.
            unsafe { regions.unmap() };
        }
        for queue in self.queues.iter().flatten() {
            // SAFETY: as above.
            unsafe { queue.map.unmap() };
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
    /// There will be room for it when the peer has read others.
    NoRoom,
    /// It is longer than the buffers of the peer's descriptor, which knows.
    TooLong,
    /// It may not touch that memory of the peer.
    Forbidden,
    /// The connection is over.
    Lost,
}

/// The sending half of one end.
pub struct Sender {
    /// Messages up to so many bytes go by programmed I/O: those that fit into their entry, and others.
    inline_most: usize,
    eager_most: usize,
    transfers: TransferWriter,
    cookies: CookieReader,
    /// Bytes put into the eager buffer, those left out at its end among them.
    eager: u64,
    /// Bytes of the message that is being sent that have gone into earlier descriptors.
    part: usize,
    /// There are such that the peer may not be told of, as the rest was to come with them.
    untold: bool,
    /// What the peer does by RDMA just now, on another host; 0: nothing.
    request: u64,
}

impl Default for Sender {
    fn default() -> Sender {
        let most = engine::pio_most();
        Sender {
            inline_most: most.min(INLINE),
            eager_most: most,
            transfers: TransferWriter::default(),
            cookies: CookieReader::default(),
            eager: 0,
            part: 0,
            untold: false,
            request: 0,
        }
    }
}

/// What an entry of the transfer queue says but for immediate data.
#[derive(Clone, Copy)]
struct Entry {
    kind: Kind,
    length: usize,
    place: usize,
    continues: bool,
}

impl Sender {
    /// Messages sent so far, or parts of them.
    pub fn count(&self) -> u64 {
        self.transfers.count()
    }

    /// Whether the peer has posted a descriptor for the next message.
    pub fn has_cookie(&mut self, memory: &Memory) -> bool {
        self.cookies.look(memory.mine.map(), at::COOKIES).is_some()
    }

    /// Sends the bytes of a descriptor's buffers. `splits`: what is longer than the peer's descriptor goes on in its next one.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline(always)]
    pub unsafe fn send(&mut self, memory: &Memory, posted: &Posted, splits: bool) -> Sent {
        loop {
            let Some(cookie) = self.cookies.look(memory.mine.map(), at::COOKIES) else {
                return Sent::NoDescriptor;
            };
            let (left, room) = (posted.length - self.part, cookie.room as usize);
            if left > room && !splits {
                let entry = Entry { kind: Kind::TooLong, length: left, place: 0, continues: false };
                self.put(memory, &cookie, entry, posted.immediate, core::ptr::null());
                return Sent::TooLong;
            }
            if left <= room && left == posted.length {
                // SAFETY: the caller vouches for the buffers.
                return unsafe {
                    self.send_part(memory, &cookie, posted.segments(), left, posted.immediate, false)
                };
            }
            // SAFETY: as above.
            if let Some(sent) = unsafe { self.send_split(memory, &cookie, posted, left.min(room)) } {
                return sent;
            }
        }
    }

    /// Sends the next `length` bytes of a message that goes into several descriptors. None if there are more.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline(never)]
    unsafe fn send_split(
        &mut self,
        memory: &Memory,
        cookie: &Cookie,
        posted: &Posted,
        length: usize,
    ) -> Option<Sent> {
        let continues = self.part + length < posted.length;
        let mut parts = [Buffer::default(); MAX_SEGMENTS];
        let buffers = part_of(posted.segments(), self.part, length, &mut parts);
        let immediate = posted.immediate.filter(|_| !continues);
        // SAFETY: the caller vouches for the buffers.
        match unsafe { self.send_part(memory, cookie, buffers, length, immediate, continues) } {
            Sent::Done if continues => {
                self.part += length;
                self.untold = true;
                None
            }
            // What has gone stays gone: it goes on with the same part.
            Sent::NoRoom => Some(Sent::NoRoom),
            sent => {
                self.part = 0;
                Some(sent)
            }
        }
    }

    /// Whether a part of a message has gone whose rest did not: the peer is to be told. Once.
    pub fn take_untold(&mut self) -> bool {
        core::mem::take(&mut self.untold)
    }

    /// The message that was being sent is given up: the next one begins at its beginning.
    pub fn give_up(&mut self) {
        self.part = 0;
    }

    /// Sends what fits a descriptor.
    ///
    /// # Safety
    /// The buffers must be mapped, and have so many bytes.
    #[inline(always)]
    unsafe fn send_part(
        &mut self,
        memory: &Memory,
        cookie: &Cookie,
        buffers: &[Buffer],
        length: usize,
        immediate: Option<u32>,
        continues: bool,
    ) -> Sent {
        let entry = |kind, place| Entry { kind, length, place, continues };
        if length <= self.inline_most {
            if let [one] = buffers {
                self.put(memory, cookie, entry(Kind::Inline, 0), immediate, one.address as *const u8);
            } else {
                let mut together = [0u8; INLINE];
                // SAFETY: the caller vouches for the buffers, and their sum fits.
                unsafe { gather(buffers, together.as_mut_ptr()) };
                self.put(memory, cookie, entry(Kind::Inline, 0), immediate, together.as_ptr());
            }
            return Sent::Done;
        }
        if !cookie.scattered
            && let Some((map, offset)) = memory.mapped(cookie.place, length)
        {
            if !enter(memory) {
                return Sent::Lost;
            }
            // SAFETY: the caller vouches for the buffers, which are so long together.
            unsafe { put_all(map, offset, buffers) };
            gate::leave(&memory.theirs, at::BUSY);
            self.put(memory, cookie, entry(Kind::Placed, 0), immediate, core::ptr::null());
            return Sent::Done;
        }
        let direct = memory.is_direct();
        if (length <= self.eager_most || !direct)
            && let Some(place) = self.eager_room(memory, length)
        {
            // SAFETY: the caller vouches for the buffers.
            unsafe { put_all(&memory.theirs, at::EAGER + place, buffers) };
            self.put(memory, cookie, entry(Kind::Eager, place), immediate, core::ptr::null());
            return Sent::Done;
        }
        if !direct {
            return Sent::NoRoom;
        }
        // SAFETY: the caller vouches for the buffers.
        match unsafe { write_to_cookie(memory, buffers, length, cookie) } {
            Sent::Done => {}
            other => return other,
        }
        self.put(memory, cookie, entry(Kind::Placed, 0), immediate, core::ptr::null());
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
        match unsafe { self.rdma(memory, posted, to, true) } {
            Sent::Done => {}
            other => return other,
        }
        if let Some(cookie) = cookie {
            let entry = Entry { kind: Kind::RemoteWrite, length: posted.length, place: 0, continues: false };
            self.put(memory, &cookie, entry, posted.immediate, core::ptr::null());
        }
        Sent::Done
    }

    /// Reads from the peer's memory into a descriptor's buffers.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub unsafe fn read(&mut self, memory: &Memory, posted: &Posted, from: descriptor::Remote) -> Sent {
        // SAFETY: the caller vouches for the buffers.
        unsafe { self.rdma(memory, posted, from, false) }
    }

    /// # Safety
    /// The buffers must be mapped.
    unsafe fn rdma(
        &mut self,
        memory: &Memory,
        posted: &Posted,
        remote: descriptor::Remote,
        write: bool,
    ) -> Sent {
        match memory.theirs.wire() {
            // SAFETY: the caller vouches for the buffers.
            None => unsafe { rdma(memory, posted, remote, write) },
            // SAFETY: as above.
            Some(wire) => unsafe { self.ask(memory, wire.as_ref(), posted, remote, write) },
        }
    }

    /// RDMA between hosts: the peer is asked for it, and the descriptor waits until it has answered.
    ///
    /// # Safety
    /// The buffers must be mapped.
    unsafe fn ask(
        &mut self,
        memory: &Memory,
        wire: &dyn Wire,
        posted: &Posted,
        remote: descriptor::Remote,
        write: bool,
    ) -> Sent {
        if self.request == 0 {
            if !(if write { memory.rights.write } else { memory.rights.read }) {
                return Sent::Forbidden;
            }
            let what = u64::from(remote.handle) | (posted.length as u64) << 32 | u64::from(write) << 63;
            if write {
                // SAFETY: the caller vouches for the buffers; no descriptor has more than there is room for.
                unsafe { put_all(&memory.theirs, at::ASKED + 64, posted.segments()) };
            }
            memory.theirs.put_word(at::ASKED, remote.address);
            memory.theirs.put_word(at::ASKED + 8, what);
            self.request = wire.request();
        }
        let Some(what) = wire.replied(self.request) else { return Sent::NoRoom };
        self.request = 0;
        match what {
            reply::DONE if !write => {
                // SAFETY: the caller vouches for the buffers.
                unsafe {
                    scatter(posted.segments(), posted.length, |from, to, count| {
                        memory.mine.map().get(at::GOT + from, to, count);
                    });
                }
                Sent::Done
            }
            reply::DONE => Sent::Done,
            reply::FORBIDDEN => Sent::Forbidden,
            _ => Sent::Lost,
        }
    }

    #[inline(always)]
    fn put(
        &mut self,
        memory: &Memory,
        cookie: &Cookie,
        entry: Entry,
        immediate: Option<u32>,
        inline: *const u8,
    ) {
        let transfer = Transfer {
            kind: entry.kind,
            length: entry.length as u32,
            immediate,
            continues: entry.continues,
            place: entry.place as u32,
        };
        // SAFETY: `send_part` passes the message if it is in the entry.
        unsafe { self.transfers.put(&memory.theirs, at::TRANSFERS, cookie.slot, &transfer, inline) };
        self.cookies.advance();
        memory.mine.note_cookie(self.cookies.place(at::COOKIES));
        if entry.kind == Kind::Inline && self.transfers.count().is_multiple_of(CLAIM) {
            self.claim(memory);
        }
    }

    /// The peer's processor has the lines of entries that it has read. Each small message would wait for them; so those of the next few are
    /// fetched together, if the peer expects as many.
    fn claim(&self, memory: &Memory) {
        let mine = memory.mine.map();
        if self.cookies.slot_of(mine, at::COOKIES, 2 * CLAIM - 1).is_none() {
            return;
        }
        for ahead in 0..CLAIM {
            if let Some(slot) = self.cookies.slot_of(mine, at::COOKIES, ahead) {
                self.transfers.claim(&memory.theirs, at::TRANSFERS, slot);
            }
        }
    }

    /// Where in the eager buffer there is room for a message, in one piece.
    fn eager_room(&mut self, memory: &Memory, length: usize) -> Option<usize> {
        let all = memory.eager();
        let start = eager_start(self.eager, length, all)?;
        let read = memory.mine.map().word(at::EAGER_READ);
        let end = start + length as u64;
        // A peer that says that it has read more than there was only hurts its own messages.
        if end.wrapping_sub(read) > all as u64 {
            return None;
        }
        self.eager = end.next_multiple_of(64);
        Some(start as usize % all)
    }
}

/// Where a message begins that is put into an eager buffer of `all` bytes behind `position`: not across its end.
fn eager_start(position: u64, length: usize, all: usize) -> Option<u64> {
    let offset = position as usize % all;
    if length > all {
        None
    } else if offset + length > all {
        Some(position + (all - offset) as u64)
    } else {
        Some(position)
    }
}

/// The part of some buffers that has `length` bytes from byte `from` on.
#[cold]
fn part_of<'a>(
    buffers: &[Buffer],
    mut from: usize,
    mut length: usize,
    parts: &'a mut [Buffer; MAX_SEGMENTS],
) -> &'a [Buffer] {
    let mut count = 0;
    for buffer in buffers {
        let all = buffer.length as usize;
        let skipped = from.min(all);
        let taken = (all - skipped).min(length);
        if taken > 0 {
            let address = buffer.address + skipped as u64;
            parts[count] = Buffer { address, handle: buffer.handle, length: taken as u32 };
            count += 1;
        }
        from -= skipped;
        length -= taken;
    }
    &parts[..count]
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

/// Puts buffers one behind the other.
///
/// # Safety
/// The buffers must be mapped.
#[inline]
unsafe fn put_all<R: Remote>(map: &R, mut to: usize, buffers: &[Buffer]) {
    for buffer in buffers {
        // SAFETY: the caller vouches for the buffer.
        unsafe { map.put(to, buffer.address as *const u8, buffer.length as usize) };
        to += buffer.length as usize;
    }
}

/// Passes the gate before the peer's buffers; false if it is shut.
#[inline]
fn enter(memory: &Memory) -> bool {
    gate::enter(memory.mine.map(), at::SHUT, &memory.theirs, at::BUSY)
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
    if !memory.is_direct() || !enter(memory) {
        return Sent::Lost;
    }
    let done = through();
    gate::leave(&memory.theirs, at::BUSY);
    if done { Sent::Done } else { Sent::Lost }
}

/// # Safety
/// The buffers must be mapped.
unsafe fn rdma(memory: &Memory, posted: &Posted, remote: descriptor::Remote, write: bool) -> Sent {
    let mapped = memory.mapped(remote.address, posted.length);
    if mapped.is_none() && !memory.is_direct() || !enter(memory) {
        return Sent::Lost;
    }
    let may = if write { memory.rights.write } else { memory.rights.read };
    // Looked up behind the gate: whoever takes a region back waits for those who are through.
    let allows = |regions: memory::Table| {
        regions.allows(memory.asker, remote.handle, remote.address, posted.length, write)
    };
    let sent = if !may || !memory.regions.is_some_and(allows) {
        Sent::Forbidden
    } else if let Some((map, offset)) = mapped {
        if write {
            // SAFETY: the caller vouches for the buffers.
            unsafe { put_all(map, offset, posted.segments()) };
        } else {
            // SAFETY: as above.
            unsafe {
                scatter(posted.segments(), posted.length, |from, to, count| {
                    map.get(offset + from, to, count)
                });
            }
        }
        Sent::Done
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

/// Does what the peer on another host asks for by RDMA; what comes of it, as [`reply`] has it. `asker` and `rights` are the Virtual Interface's here, whose connection must
/// stay as long.
///
/// # Safety
/// Registered memory must be mapped.
pub unsafe fn serve(memory: &Memory, regions: &Regions, asker: Asker, rights: Rights) -> u64 {
    let mine = memory.mine.map();
    // Rule F2: read once, and checked.
    let (address, what) = (mine.word(at::ASKED), mine.word(at::ASKED + 8));
    let (handle, length, write) = (what as u32, (what >> 32) as usize & 0x7fff_ffff, what >> 63 != 0);
    if length > MAX_TRANSFER {
        return reply::WRONG;
    }
    let may = if write { rights.write } else { rights.read };
    if !may || !regions.lend(asker, handle, address, length, write) {
        return reply::FORBIDDEN;
    }
    if write {
        // SAFETY: all of it is in a region, which stays registered meanwhile.
        unsafe { mine.get(at::ASKED + 64, address as *mut u8, length) };
    } else {
        // SAFETY: as above.
        unsafe { memory.theirs.put(at::GOT, address as *const u8, length) };
    }
    regions.release(handle);
    reply::DONE
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
    /// The peer's agent waits for room, and is to be told that there is.
    pub wakes: bool,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver {
            transfers: TransferReader::default(),
            cookies: CookieWriter::default(),
            free: (0..SLOTS as u16).rev().collect(),
            eager: 0,
            given_back: 0,
            wakes: false,
        }
    }
}

impl Receiver {
    /// Tells the peer of a descriptor that was posted to receive. Its slot, to be passed to [`Receiver::receive`].
    ///
    /// # Panics
    /// If there are more than [`SLOTS`].
    #[inline(always)]
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
    /// come, and in whose slot it is; `next` is that of the one behind it. Errors are noted in `posted`.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline(always)]
    pub unsafe fn receive(
        &mut self,
        memory: &Memory,
        posted: &mut Posted,
        slot: u16,
        next: Option<u16>,
    ) -> Result<Option<Received>, Broken> {
        let mine = memory.mine.map();
        let Some(transfer) = self.transfers.look(mine, at::TRANSFERS, slot)? else {
            // The answer to what comes needs a cookie, which the peer writes meanwhile.
            memory.mine.foresee_cookie();
            if let Some(wire) = memory.theirs.wire() {
                wire.look();
            }
            return Ok(None);
        };
        memory.mine.foresee_cookie();
        if let Some(next) = next {
            self.transfers.foresee(mine, at::TRANSFERS, next);
        }
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
                if place.checked_add(length).is_none_or(|end| end > EAGER_ALL) {
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
            Kind::TooLong => posted.does_not_fit(length),
        }
        self.transfers.advance();
        self.free.push(slot);
        let length = if transfer.kind == Kind::TooLong { 0 } else { length };
        if transfer.continues {
            op |= status::CONTINUES;
        }
        Ok(Some(Received { op, length, immediate: transfer.immediate }))
    }

    /// Tells the peer now and then that there is room in the eager buffer.
    fn give_back(&mut self, memory: &Memory, length: usize) {
        if let Some(start) = eager_start(self.eager, length, memory.eager()) {
            self.eager = (start + length as u64).next_multiple_of(64);
        }
        let waited_for = !memory.is_direct();
        if waited_for || self.eager - self.given_back > EAGER as u64 / 4 {
            self.given_back = self.eager;
            memory.theirs.put_word(at::EAGER_READ, self.eager);
        }
        if waited_for {
            self.wakes |= notify(memory, at::COOKIE_TRIP) & wake::AGENT != 0;
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
#[inline(always)]
pub fn notify(memory: &Memory, trip: usize) -> u64 {
    memory.theirs.fire(trip)
}
