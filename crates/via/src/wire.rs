//! The queues that two connected Virtual Interfaces write into each other's memory: CLAN's two
//! queues ("VIA over the CLAN network", section 3.3.1).
//!
//! * The **cookie queue** lies in the sender's segment. The receiver writes a *cookie* for each
//!   descriptor that it posts: how many bytes its buffers have room for, and where they are. So a
//!   sender knows before it moves a byte whether the peer expects one, and how long it may be:
//!   buffers are never overrun (section 3.3.4).
//! * The **transfer queue** lies in the receiver's segment. After the data the sender writes an
//!   entry: length, immediate data, and small messages themselves.
//!
//! The paper's queues have a write pointer beside the slots. Here each entry carries its own
//! number, in the word that is written last: so a message that fits into its entry costs one line
//! of memory to go from one processor to the other, not two.
//!
//! Few lines, used over and over, stay in the processors' caches, however many Virtual Interfaces
//! there are. So the receiver chooses the slot for each message, the one that was free last, and
//! names it in the cookie. Cookies go round in the first [`FEW`] places until there are more
//! descriptors than that at once. No slot needs a read pointer: cookie n is there only if the
//! program has taken back the descriptor that used the slot, or the place, before.
//!
//! Rule F2: a peer has written everything that is read here. Callers check lengths and places
//! before they use them. An entry whose number is not the next one does not count.

use fabric::{Local, Remote};

/// Entries of each queue: descriptors that may be posted and not taken back.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 1024 };
/// Places of the cookie queue that are used until there are more cookies.
pub const FEW: usize = if cfg!(loom) { 1 } else { 64 };
/// Bytes of a message that fit into its entry, which is two lines of memory; up to 48 need only the
/// first one.
pub const INLINE: usize = if cfg!(loom) { 48 } else { 112 };
/// Bytes of a transfer queue.
pub const TRANSFER_QUEUE: usize = 128 * SLOTS;
/// Bytes of a cookie queue: a word, the first places, all places.
pub const COOKIE_QUEUE: usize = 16 * (1 + FEW + SLOTS);

/// Where the bytes of a message are, or what comes instead of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// In the entry.
    Inline = 1,
    /// In the eager buffer, at [`Transfer::place`].
    Eager = 2,
    /// In the receiver's buffers already.
    Placed = 3,
    /// Written by RDMA, to the place that its writer chose; only the immediate data is for the
    /// descriptor.
    RemoteWrite = 4,
    /// Nowhere: the message was longer than the buffers.
    TooLong = 5,
}

/// The entry of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Where its bytes are.
    pub kind: Kind,
    /// Its bytes.
    pub length: u32,
    /// Four bytes of the sender's descriptor.
    pub immediate: Option<u32>,
    /// The message goes on in the next entry: it was split over several descriptors.
    pub continues: bool,
    /// Where in the eager buffer it begins, or 0.
    pub place: u32,
}

/// The entry of a descriptor that was posted to receive.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    /// Bytes that its buffers hold together, or 2 MiB - 1 if that is less.
    pub room: u32,
    /// The slot of the transfer queue for its message.
    pub slot: u16,
    /// Whether it has more than one buffer. Then `place` is the address of the list of its segments
    /// in the receiver's memory.
    pub scattered: bool,
    /// The address of its buffer in the receiver's memory.
    pub place: u64,
}

/// The sending end of a transfer queue.
#[derive(Debug, Default, Clone, Copy)]
pub struct TransferWriter {
    next: u64,
}

/// The receiving end of a transfer queue.
#[derive(Debug, Default, Clone, Copy)]
pub struct TransferReader {
    next: u64,
}

/// The end of a cookie queue for the process that posts descriptors.
#[derive(Debug, Default, Clone, Copy)]
pub struct CookieWriter {
    next: u64,
    /// More places than the first ones are used.
    many: bool,
}

/// The end of a cookie queue for the process that sends.
#[derive(Debug, Default, Clone, Copy)]
pub struct CookieReader {
    next: u64,
    many: bool,
    /// The next cookies in the line that was fetched last. The receiver goes on writing there,
    /// which takes the line away.
    known: [Cookie; KNOWN],
    first: u8,
    count: u8,
}

/// Cookies that are taken out of a line of memory at once, at most.
const KNOWN: usize = if cfg!(loom) { 2 } else { 4 };

// An entry of the transfer queue: its number (32 bits), kind, whether there is immediate data, and
// whether it goes on; length and immediate data; the bytes, or in their first word the place.
const IMMEDIATE: u64 = 1 << 40;
const CONTINUES: u64 = 1 << 41;
// A cookie: its number (32 bits), room (21 bits), slot (10 bits), whether it is scattered; the
// place.
const ROOM: u64 = (1 << 21) - 1;
const SCATTERED: u64 = 1 << 63;

impl TransferWriter {
    /// One that has put `count` entries.
    pub fn at(count: u64) -> TransferWriter {
        TransferWriter { next: count }
    }

    /// Puts an entry into slot `slot` of the peer's queue at `base`, which the cookie has named
    /// that this uses up; `inline` is the message if its kind is [`Kind::Inline`].
    ///
    /// # Safety
    /// `inline` must be valid for `transfer.length` bytes of reads, at most [`INLINE`], if the kind
    /// is [`Kind::Inline`].
    #[inline(always)]
    pub unsafe fn put<R: Remote>(
        &mut self,
        remote: &R,
        base: usize,
        slot: u16,
        transfer: &Transfer,
        inline: *const u8,
    ) {
        if transfer.kind == Kind::Inline {
            // SAFETY: the caller vouches for the source.
            unsafe { self.fill(remote, base, slot, 0, inline, transfer.length as usize) };
        }
        self.announce(remote, base, slot, transfer);
    }

    /// Puts bytes of a message into the coming entry of slot `slot`, from its byte `at` on.
    ///
    /// # Safety
    /// `from` must be valid for `length` bytes of reads; `at + length` is at most [`INLINE`].
    #[inline(always)]
    pub unsafe fn fill<R: Remote>(
        &self,
        remote: &R,
        base: usize,
        slot: u16,
        at: usize,
        from: *const u8,
        length: usize,
    ) {
        // SAFETY: the caller vouches for the source; the provider checks the target.
        unsafe { remote.put(bytes_at(base, slot) + at, from, length) };
    }

    /// Puts an entry whose bytes are in place.
    #[inline(always)]
    pub fn announce<R: Remote>(&mut self, remote: &R, base: usize, slot: u16, transfer: &Transfer) {
        self.next += 1;
        if transfer.kind == Kind::Eager {
            remote.put_word(place_at(base, slot), u64::from(transfer.place));
        }
        remote.put_word(
            words_at(base, slot) + 8,
            u64::from(transfer.length) | u64::from(transfer.immediate.unwrap_or(0)) << 32,
        );
        let immediate = if transfer.immediate.is_some() { IMMEDIATE } else { 0 };
        let continues = if transfer.continues { CONTINUES } else { 0 };
        remote.put_word(
            words_at(base, slot),
            self.next & 0xffff_ffff | (transfer.kind as u64) << 32 | immediate | continues,
        );
    }

    /// Entries put so far.
    pub fn count(&self) -> u64 {
        self.next
    }

    /// Announces that slot `slot` of the peer's queue at `base`, which a cookie has named, will
    /// soon be written.
    #[inline(always)]
    pub fn claim<R: Remote>(&self, remote: &R, base: usize, slot: u16) {
        remote.claim(words_at(base, slot) + 8);
        remote.claim(words_at(base, slot) + 64);
    }
}

impl TransferReader {
    /// One that has taken `count` entries.
    pub fn at(count: u64) -> TransferReader {
        TransferReader { next: count }
    }

    /// The next entry of the own queue at `base`, if it is in slot `slot`, which the next cookie
    /// named; it stays there. An impossible entry (an unknown kind, more bytes than fit) is an
    /// error: the peer is broken.
    #[inline(always)]
    pub fn peek<L: Local>(&self, local: &L, base: usize, slot: u16) -> Result<Option<Transfer>, Broken> {
        let first = local.word(words_at(base, slot));
        if first & 0xffff_ffff != (self.next + 1) & 0xffff_ffff {
            return Ok(None);
        }
        let second = local.word(words_at(base, slot) + 8);
        let kind = match first >> 32 & 0xff {
            1 => Kind::Inline,
            2 => Kind::Eager,
            3 => Kind::Placed,
            4 => Kind::RemoteWrite,
            5 => Kind::TooLong,
            _ => return Err(Broken),
        };
        let length = second as u32;
        if kind == Kind::Inline && length as usize > INLINE {
            return Err(Broken);
        }
        let place = if kind == Kind::Eager { local.word(place_at(base, slot)) } else { 0 };
        Ok(Some(Transfer {
            kind,
            length,
            immediate: (first & IMMEDIATE != 0).then_some((second >> 32) as u32),
            continues: first & CONTINUES != 0,
            place: u32::try_from(place).map_err(|_| Broken)?,
        }))
    }

    /// Copies bytes of the entry in `slot` that was read, if its kind is [`Kind::Inline`], from its
    /// byte `from` on.
    ///
    /// # Safety
    /// `to` must be valid for `length` bytes of writes, and `from + length` at most [`INLINE`].
    #[inline(always)]
    pub unsafe fn copy<L: Local>(
        &self,
        local: &L,
        base: usize,
        slot: u16,
        from: usize,
        to: *mut u8,
        length: usize,
    ) {
        // SAFETY: the caller vouches for both.
        unsafe { local.get(bytes_at(base, slot) + from, to, length) };
    }

    /// Announces that slot `slot` will soon be read.
    #[inline(always)]
    pub fn foresee<L: Local>(&self, local: &L, base: usize, slot: u16) {
        local.foresee(words_at(base, slot));
        local.foresee(words_at(base, slot) + 64);
    }

    /// Goes on to the next entry. The slot may be named by a cookie again.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// Entries taken so far.
    pub fn count(&self) -> u64 {
        self.next
    }
}

impl CookieWriter {
    /// One that has put `count` cookies, never more than [`FEW`] at once.
    pub fn at(count: u64) -> CookieWriter {
        CookieWriter { next: count, ..Default::default() }
    }

    /// Puts a cookie into the peer's queue at `base`, beside `unused` others whose messages have
    /// not been taken out of the transfer queue: fewer than [`SLOTS`].
    #[inline(always)]
    pub fn put<R: Remote>(&mut self, remote: &R, base: usize, cookie: &Cookie, unused: usize) {
        if unused >= FEW && !self.many {
            self.many = true;
            remote.put_word(base, self.next + 1);
        }
        let at = cookie_at(base, self.next, self.many);
        self.next += 1;
        let scattered = if cookie.scattered { SCATTERED } else { 0 };
        remote.put_word(at + 8, cookie.place);
        let room = u64::from(cookie.room).min(ROOM) << 32;
        remote.put_word(at, self.next & 0xffff_ffff | room | u64::from(cookie.slot) << 53 | scattered);
    }
}

impl CookieReader {
    /// One that has used up `count` cookies, of which there are never more than [`FEW`] at once.
    pub fn at(count: u64) -> CookieReader {
        CookieReader { next: count, ..Default::default() }
    }

    /// The next cookie of the own queue at `base`, if the peer has posted a descriptor for another
    /// message; it stays there.
    #[inline(always)]
    pub fn peek<L: Local>(&mut self, local: &L, base: usize) -> Option<Cookie> {
        if self.count == 0 {
            self.fetch(local, base);
        }
        (self.count > 0).then(|| self.known[usize::from(self.first) % KNOWN])
    }

    /// Reads the cookies in the line in which the next one is, or will be.
    #[inline(always)]
    fn fetch<L: Local>(&mut self, local: &L, base: usize) {
        let mut at = cookie_at(base, self.next, self.many);
        let mut next = cookie(local, at, self.next);
        if next.is_none() && !self.many && local.word(base) == self.next + 1 {
            self.many = true;
            at = cookie_at(base, self.next, true);
            next = cookie(local, at, self.next);
        }
        self.first = 0;
        while let Some(cookie_there) = next {
            self.known[usize::from(self.count)] = cookie_there;
            self.count += 1;
            let (number, ahead) = (self.next + u64::from(self.count), 16 * usize::from(self.count));
            let same = usize::from(self.count) < KNOWN
                && cookie_at(base, number, self.many) == at + ahead
                && (at + ahead) / LINE == at / LINE;
            next = if same { cookie(local, at + ahead, number) } else { None };
        }
    }

    /// The slot of the cookie `ahead` places behind the next one, if it is there.
    #[inline(always)]
    pub fn slot_of<L: Local>(&self, local: &L, base: usize, ahead: u64) -> Option<u16> {
        let first = local.word(cookie_at(base, self.next + ahead, self.many));
        (first & 0xffff_ffff == (self.next + ahead + 1) & 0xffff_ffff).then(|| slot_in(first))
    }

    /// The place, in the queue at `base`, of the next cookie that was not fetched yet.
    #[inline(always)]
    pub fn place(&self, base: usize) -> usize {
        cookie_at(base, self.next + u64::from(self.count), self.many)
    }

    /// Uses it up.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.next += 1;
        self.first += 1;
        self.count -= 1;
    }
}

/// The cookie at `at`, if it has that number.
#[inline(always)]
fn cookie<L: Local>(local: &L, at: usize, number: u64) -> Option<Cookie> {
    let first = local.word(at);
    if first & 0xffff_ffff != (number + 1) & 0xffff_ffff {
        return None;
    }
    Some(Cookie {
        room: (first >> 32 & ROOM) as u32,
        slot: slot_in(first),
        scattered: first & SCATTERED != 0,
        place: local.word(at + 8),
    })
}

/// Bytes that move from one processor to the other together.
const LINE: usize = 64;

fn slot_in(first: u64) -> u16 {
    (first >> 53) as u16 & (1023.min(SLOTS - 1)) as u16
}

/// The peer has written an impossible entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

fn cookie_at(base: usize, number: u64, many: bool) -> usize {
    let place = if many { FEW + number as usize % SLOTS } else { number as usize % FEW };
    base + 16 + place * 16
}

/// Bytes of an entry of the transfer queue: two lines. The model checker's segments have their
/// words first and their bytes behind them.
pub const ENTRY: usize = if cfg!(loom) { 24 } else { 128 };

/// Where the entry in slot `slot` of the transfer queue at `base` begins.
pub fn words_at(base: usize, slot: u16) -> usize {
    base + slot as usize * ENTRY
}

fn place_at(base: usize, slot: u16) -> usize {
    words_at(base, slot) + 16
}

/// Where the bytes of the message in slot `slot` of the transfer queue at `base` are, if they are
/// in its entry.
pub fn bytes_at(base: usize, slot: u16) -> usize {
    if cfg!(loom) { base + SLOTS * ENTRY + slot as usize * INLINE } else { words_at(base, slot) + 16 }
}
