//! One link: its segments, control queues, bells and slots.

use core::cell::UnsafeCell;
use fabric::bell::Loud;
use fabric::lock::Lock;
use fabric::queue::{Consumer, MESSAGE, Producer};
use fabric::shm::Map;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote};
use stream::spin::{ticks, ticks_of};

use crate::conn::Conn;
use crate::layout::{self, BELLS, GROWN, SLOTS};
use crate::peering::peer::Peer;
use crate::peering::wire::Wire;
use crate::thread::{self, Place};
use crate::{descriptors, process};

/// How long a segment stays mapped after the last connection has left it: a thread whose call was under way may still look there.
/// The fuzzer has one thread, and counts descriptors after each input.
const IN_HAND_NS: u64 = if cfg!(fuzzing) { 0 } else { 100_000_000 };

pub mod state {
    pub const FREE: u32 = 0;
    /// HELLO sent, answer awaited.
    pub const ASKED: u32 = 1;
    pub const READY: u32 = 2;
    /// Failed; kept for a while so that it is not tried again at once.
    pub const FAILED: u32 = 3;
    /// Its peer is gone and nobody uses it; to be unmapped.
    pub const DYING: u32 = 4;
    /// Given up by a process that has become a lesser one; its memory is nobody else's.
    pub const RENOUNCED: u32 = 5;
}

/// One link.
pub struct Link {
    pub state: AtomicU32,
    pub socket: AtomicI32,
    pub token: AtomicU64,
    pub peer_uid: AtomicU32,
    pub peer_pid: AtomicU32,
    /// The process of ours that made it: in children of fork() its event queues are the parent's.
    pub(crate) owner: AtomicU32,
    /// The peer's bells, +1.
    pub bells: [AtomicU32; BELLS],
    /// How the peer can ring ours: not at all, by bells that it has got, or, of another user, by datagrams.
    pub(crate) rings: AtomicU32,
    /// So many of our event queues it can ring: those that it can not have their members on the link armed for kicks.
    pub(crate) heard: AtomicU32,
    /// How the bells of a peer of another user are rung, and by which socket, +1.
    pub(crate) loud: [AtomicU64; 2],
    pub(crate) speaker: AtomicU32,
    /// The cookie of our end of the connection by which it was proved.
    pub(crate) proof: AtomicU64,
    /// 0 if we opened the link, 1 if we answered: we hand out the slots of this parity. Between hosts [`ALL`] or [`NONE`], as one end makes all offers.
    pub(crate) parity: AtomicU32,
    /// When FAILED: not tried again before this time, in ticks. When READY: not unmapped before it.
    pub(crate) not_before: AtomicU64,
    pub live: AtomicU32,
    /// Event queues whose sleep words have been armed, as bits.
    pub(crate) armed: AtomicU32,
    /// Between hosts: its [`Wire`], and the carrier's number of it.
    pub(crate) wire: AtomicU64,
    pub(crate) number: AtomicU64,
    /// No slot was free when last asked.
    pub full: AtomicU32,
    /// Slots whose data this process has mapped in both segments.
    pub(crate) slots: AtomicU32,
    /// Whether both segments have, and this process has mapped, what Virtual Interfaces need.
    pub(crate) via: AtomicU32,
    pub(crate) lock: Lock,
    pub(crate) inner: UnsafeCell<Inner>,
    pub(crate) conns: [AtomicU64; SLOTS],
    /// Which slots have the peer's big rings, +1.
    pub(crate) bigs: [AtomicU32; GROWN],
}

pub(crate) struct Inner {
    pub(super) mine: Map,
    pub(super) theirs: Peer,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    /// Our slots in use, and those given up by us but perhaps not yet by the peer.
    pub(super) taken: [u64; SLOTS / 64],
    pub(super) closing: [u64; SLOTS / 64],
}

// SAFETY: `inner` is under `lock`, the rest is atomic.
unsafe impl Sync for Link {}

pub(super) struct Guard<'a>(&'a Link, bool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.lock.unlock();
        }
    }
}

impl core::ops::Deref for Guard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        // SAFETY: the lock is held by this thread.
        unsafe { &*self.0.inner.get() }
    }
}

impl core::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: the lock is held by this thread.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Link {
    /// Whether it had no free slot when last asked. Now and then it is asked again: slots come back.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) != 0
    }

    pub(super) fn lock(&self) -> Option<Guard<'_>> {
        thread::lock(&self.lock, Place::Link).then_some(Guard(self, true))
    }

    /// Sends a message through the control queue; false if it is full.
    pub fn tell(&self, message: &[u8; MESSAGE]) -> bool {
        let Some(mut inner) = self.lock() else { return false };
        let (mine, theirs) = (inner.mine, inner.theirs);
        inner.producer.push(&theirs, layout::CTL, &mine, layout::CTL_BACK, message)
    }

    /// Whether this process waits for the answer to its HELLO.
    pub fn is_asked(&self) -> bool {
        self.state.load(Ordering::Acquire) == state::ASKED
            && self.owner.load(Ordering::Relaxed) == process::pid()
    }

    /// Takes a message from the control queue.
    pub fn hear(&self) -> Option<[u8; MESSAGE]> {
        if self.state.load(Ordering::Acquire) != state::READY
            || self.owner.load(Ordering::Relaxed) != process::pid()
        {
            return None;
        }
        let mut inner = self.lock()?;
        let (mine, theirs) = (inner.mine, inner.theirs);
        if !inner.consumer.ready(&mine, layout::CTL) {
            return None;
        }
        inner.consumer.pop(&mine, layout::CTL, &theirs, layout::CTL_BACK)
    }

    /// The two segments.
    pub fn maps(&self) -> Option<(Map, Peer)> {
        let inner = self.lock()?;
        Some((inner.mine, inner.theirs))
    }

    /// Our segment, without the lock: for links that have connections.
    pub fn mine(&self) -> Map {
        // SAFETY: `mine` is written before READY is set and changed only when no connection is on the link.
        unsafe { (*self.inner.get()).mine }
    }

    /// Takes one of our slots for a connection.
    pub fn take_slot(&self, conn: &'static Conn) -> Option<usize> {
        let ours = match self.parity.load(Ordering::Relaxed) {
            0 => 0x5555_5555_5555_5555,
            1 => 0xaaaa_aaaa_aaaa_aaaa,
            ALL => u64::MAX,
            _ => 0,
        };
        let mut inner = self.lock()?;
        for word in 0..SLOTS / 64 {
            // Given up by us: free once the peer has left it, too.
            let mut closing = inner.closing[word];
            while closing != 0 {
                let bit = closing.trailing_zeros() as usize;
                closing &= closing - 1;
                let header = layout::slot(word * 64 + bit);
                // A cancelled offer, too, is given up only when the peer has answered it: it may be reading it right now.
                if inner.mine.word(header + layout::NOTES) & layout::note::GONE != 0
                    || inner.mine.word(header + layout::STATE) & layout::REFUSED != 0
                {
                    inner.closing[word] &= !(1 << bit);
                    inner.taken[word] &= !(1 << bit);
                }
            }
            let free = !inner.taken[word] & ours;
            if free != 0 {
                let bit = free.trailing_zeros() as usize;
                let slot = word * 64 + bit;
                if !self.has_room_for(slot) {
                    return None;
                }
                inner.taken[word] |= 1 << bit;
                self.occupy(&inner.mine, slot, conn);
                return Some(slot);
            }
        }
        None
    }

    /// Puts a connection on a slot that the peer offered.
    pub fn use_slot(&self, slot: usize, conn: &'static Conn) {
        if let Some(inner) = self.lock() {
            self.occupy(&inner.mine, slot, conn);
        }
    }

    /// Takes one of the peer's big rings for a connection of ours, by its number; `None` if all are taken. Only the process that made the link gives
    /// them out, as its children have copies of this.
    pub fn take_big(&self, slot: usize) -> Option<u64> {
        if self.owner.load(Ordering::Relaxed) != process::pid() {
            return None;
        }
        let mine = self.mine();
        for (number, big) in (1..).zip(&self.bigs) {
            let had = big.load(Ordering::Acquire);
            // Both ends have left that slot.
            let over = had.checked_sub(1).is_none_or(|had| {
                let had = had as usize;
                had == slot
                    || self.conns[had].load(Ordering::Acquire) == 0
                        && mine.word(layout::slot(had) + layout::NOTES) & layout::note::GONE != 0
            });
            let slot = slot as u32 + 1;
            if over && big.compare_exchange(had, slot, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(number);
            }
        }
        None
    }

    fn occupy(&self, mine: &Map, slot: usize, conn: &'static Conn) {
        let header = layout::slot(slot);
        for big in &self.bigs {
            // Of a connection that both ends have left.
            let _ = big.compare_exchange(slot as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        for word in (0..layout::SLOT_BYTES).step_by(8) {
            mine.set_word(header + word, 0);
        }
        self.conns[slot].store(core::ptr::from_ref(conn) as u64, Ordering::Release);
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes a connection off its slot, as the last that is done with the slot: the peer may give it out again at once if it is
    /// the peer's. If it is ours, we may when the peer has left it, too.
    pub fn leave_slot(&self, slot: usize) {
        self.conns[slot].store(0, Ordering::Release);
        if let Some((_, theirs)) = self.maps() {
            theirs.or_word(layout::slot(slot) + layout::NOTES, layout::note::GONE);
        }
        if !self.is_peers_slot(slot)
            && let Some(mut inner) = self.lock()
        {
            inner.closing[slot / 64] |= 1 << (slot % 64);
        }
        self.not_before.store(ticks() + ticks_of(IN_HAND_NS), Ordering::Relaxed);
        self.live.fetch_sub(1, Ordering::AcqRel);
        self.full.store(0, Ordering::Relaxed);
    }

    /// Takes a connection off a slot that the peer offered and that is refused after all.
    pub fn unuse_slot(&self, slot: usize) {
        self.conns[slot].store(0, Ordering::Release);
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Refuses a slot that the peer has offered: it is the peer's to give out again.
    pub fn refuse(&self, slot: usize) {
        if let Some((_, theirs)) = self.maps() {
            theirs.or_word(layout::slot(slot) + layout::STATE, layout::REFUSED);
        }
    }

    /// The connection on a slot.
    pub fn conn(&self, slot: usize) -> Option<&'static Conn> {
        let at = self.conns[slot % SLOTS].load(Ordering::Acquire);
        // SAFETY: only `occupy` stores here, from a &'static Conn.
        (at != 0).then(|| unsafe { &*(at as *const Conn) })
    }

    /// Whether this connection is on the slot.
    pub fn holds(&self, slot: usize, conn: &Conn) -> bool {
        self.conns[slot % SLOTS].load(Ordering::Acquire) == core::ptr::from_ref(conn) as u64
    }

    /// Whether a slot number that a peer named may be offered by it.
    pub fn is_peers_slot(&self, slot: usize) -> bool {
        slot < SLOTS
            && match self.parity.load(Ordering::Relaxed) {
                ALL => false,
                NONE => true,
                parity => slot & 1 != parity as usize,
            }
    }

    /// Whether the data of a slot is mapped.
    pub fn has_room_for(&self, slot: usize) -> bool {
        slot < self.slots.load(Ordering::Relaxed) as usize
    }

    /// Whether bytes may go by Virtual Interfaces.
    pub fn has_via(&self) -> bool {
        self.via.load(Ordering::Relaxed) != 0
    }

    /// Whether the peer has our bells.
    pub fn rings(&self) -> bool {
        self.rings.load(Ordering::Relaxed) == BY_BELL
    }

    /// Whether it can ring the bell of this event queue.
    pub fn rings_queue(&self, queue: usize) -> bool {
        queue < self.heard.load(Ordering::Relaxed) as usize
    }

    /// Whether it can ring those of event queues by datagrams.
    pub fn rings_loud(&self) -> bool {
        self.rings.load(Ordering::Relaxed) == LOUD
    }

    /// Rings the bell of one of the peer's event queues by a datagram; false if that is not how it is rung.
    pub fn ring_loud(&self, number: u8) -> bool {
        let speaker = self.speaker.load(Ordering::Acquire) as i32 - 1;
        let [name, word] = [&self.loud[0], &self.loud[1]].map(|word| word.load(Ordering::Relaxed));
        if speaker < 0 || name == 0 || usize::from(number) >= layout::QUEUES {
            return false;
        }
        Loud { name, word }.ring(speaker, number);
        true
    }

    /// The peer's bell with this number.
    pub fn bell(&self, index: usize) -> Option<i32> {
        match self.bells.get(index)?.load(Ordering::Acquire) {
            0 => None,
            fd => Some(fd as i32 - 1),
        }
    }

    /// Between hosts, how what is put gets there.
    pub fn wire(&self) -> Option<&'static Wire> {
        let at = self.wire.load(Ordering::Acquire);
        // SAFETY: only `add_far` stores here, from a reference that lives for ever.
        (at != 0).then(|| unsafe { &*(at as *const Wire) })
    }

    /// Whether something waits in the control queue; without waiting for the lock.
    pub(crate) fn has_message(&self) -> bool {
        if self.state.load(Ordering::Acquire) != state::READY || !thread::try_lock(&self.lock, Place::Link) {
            return false;
        }
        let inner = Guard(self, true);
        inner.consumer.ready(&inner.mine, layout::CTL)
    }

    /// Whether the peer's process is gone.
    pub(crate) fn is_dead(&self) -> bool {
        if let Some(wire) = self.wire() {
            return wire.is_over();
        }
        let mut byte = 0;
        let (socket, flags) = (self.socket.load(Ordering::Relaxed), libc::MSG_PEEK | libc::MSG_DONTWAIT);
        !descriptors::intact(socket)
            || !matches!(sys::recv(socket, &mut byte, 1, flags), Err(Errno::EAGAIN) | Ok(1..))
    }
}

/// Of `rings`.
pub(crate) const BY_BELL: u32 = 1;

pub(crate) const LOUD: u32 = 2;

pub(crate) const NO_SOCKET: i32 = -1;

/// Whose the slots are of a link whose one end makes all offers.
pub(crate) const ALL: u32 = 2;

pub(crate) const NONE: u32 = 3;
