//! The receiving half of one end.

use fabric::{Local, Remote};

use crate::abi::status;
use crate::descriptor::Posted;
use crate::segment::{EAGER, EAGER_ALL, at, wake};
use crate::transfer::buffers::{eager_start, scatter};
use crate::transfer::ends::{Memory, notify};
use crate::wire::{Broken, Cookie, CookieWriter, Kind, SLOTS, TransferReader};

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// One of [`status`].
    pub op: u32,
    /// Bytes.
    pub length: usize,
    /// Its immediate data.
    pub immediate: Option<u32>,
}

/// The receiving half of one end.
pub struct Receiver {
    transfers: TransferReader,
    cookies: CookieWriter,
    /// Free slots; the one that was free last is used next.
    free: Vec<u16>,
    /// Bytes taken out of the eager buffer, and how many of them the peer knows of.
    eager: u64,
    given_back: u64,
    /// The peer's agent waits for room, and must be told when there is some.
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
    /// Announces a descriptor that was posted to receive. Returns its slot, for
    /// [`Receiver::receive`].
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

    /// Receives the next message, if it has come, into the buffers of `posted`, the first
    /// descriptor that waits for a message, in whose slot it is. `next` is the slot of the
    /// descriptor behind it. Errors are noted in `posted`.
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
        let Some(transfer) = self.transfers.peek(mine, at::TRANSFERS, slot)? else {
            // The answer to the message needs a cookie, which the peer writes meanwhile.
            memory.mine.foresee_cookie();
            if let Some(wire) = memory.theirs.wire() {
                wire.poll();
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
                // SAFETY: the caller vouches for the buffers; the entry is as long as `peek` says.
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
