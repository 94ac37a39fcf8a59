//! The sending half of one end.

use fabric::{Local, Remote};

use crate::abi::Segment as Buffer;
use crate::descriptor::{self, Posted};
use crate::engine;
use crate::gate;
use crate::limits::MAX_SEGMENTS;
use crate::remote::link::{Wire, reply};
use crate::segment::at;
use crate::transfer::buffers::{eager_start, gather, part_of, put_all, scatter};
use crate::transfer::direct::{enter, rdma, write_to_cookie};
use crate::transfer::ends::{Memory, Sent};
use crate::wire::{Cookie, CookieReader, INLINE, Kind, Transfer, TransferWriter};

/// How many entries a sender of small messages claims at once.
const CLAIM: u64 = 4;

/// The sending half of one end.
pub struct Sender {
    /// Messages up to so many bytes go by programmed I/O: those that fit into their entry, and
    /// others.
    inline_most: usize,
    eager_most: usize,
    transfers: TransferWriter,
    cookies: CookieReader,
    /// Bytes put into the eager buffer, including those left out at its end.
    eager: u64,
    /// Bytes of the message that is being sent that have gone into earlier descriptors.
    part: usize,
    /// Some of those may be unknown to the peer, as the rest was to come with them.
    untold: bool,
    /// The request that the peer on another host carries out just now; 0: none.
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

/// The contents of an entry of the transfer queue, without immediate data.
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
        self.cookies.peek(memory.mine.map(), at::COOKIES).is_some()
    }

    /// Sends the bytes of a descriptor's buffers. `splits`: a message that is longer than the
    /// peer's descriptor goes on in its next one.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[inline(always)]
    pub unsafe fn send(&mut self, memory: &Memory, posted: &Posted, splits: bool) -> Sent {
        loop {
            let Some(cookie) = self.cookies.peek(memory.mine.map(), at::COOKIES) else {
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

    /// Sends the next `length` bytes of a message that goes into several descriptors. None if there
    /// are more.
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
            // Parts that have gone stay gone: it goes on with the same part.
            Sent::NoRoom => Some(Sent::NoRoom),
            sent => {
                self.part = 0;
                Some(sent)
            }
        }
    }

    /// Whether a part of a message has gone whose rest did not: the peer must be told. Once.
    pub fn take_untold(&mut self) -> bool {
        core::mem::take(&mut self.untold)
    }

    /// Gives up the message that was being sent: the next one begins at its beginning.
    pub fn give_up(&mut self) {
        self.part = 0;
    }

    /// Sends bytes that fit a descriptor.
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

    /// Writes the bytes of a descriptor's buffers to the peer's memory. With immediate data it uses
    /// up one of the peer's descriptors.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub unsafe fn write(&mut self, memory: &Memory, posted: &Posted, to: descriptor::Remote) -> Sent {
        let cookie = match posted.immediate {
            Some(_) => match self.cookies.peek(memory.mine.map(), at::COOKIES) {
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

    /// RDMA between hosts: sends the request, and the descriptor waits for the answer.
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
                // SAFETY: the caller vouches for the buffers; no descriptor has more than there is
                // room for.
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

    /// The peer's processor has the lines of entries that it has read, and each small message would
    /// wait for one. So those of the next few entries are fetched together, if the peer expects as
    /// many.
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
        // A peer that claims to have read more than there was only hurts its own messages.
        if end.wrapping_sub(read) > all as u64 {
            return None;
        }
        self.eager = end.next_multiple_of(64);
        Some(start as usize % all)
    }
}
