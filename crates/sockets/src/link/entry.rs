//! One link: its segments, control queues, bells and slots.

use core::cell::UnsafeCell;
use fabric::bell::Loud;
use fabric::credentials::User;
use fabric::lock::Lock;
use fabric::queue::{Consumer, Producer};
use fabric::shm::Map;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys;
use fabric::words::bits;
use fabric::{Local, Plain, Remote};
use stream::spin::{ticks, ticks_of};

use super::message::Message;
use crate::conn::Conn;
use crate::descriptors::Kept;
use crate::layout::{self, BELLS, GROWN, SLOTS};
use crate::peering::kind::{self, Peered, Peering};
use crate::peering::peer::Peer;
use crate::thread::{self, Place};
use crate::{peering, process};

/// How long a segment stays mapped after the last connection has left it: a thread whose call was
/// under way may still look there. The fuzzer has one thread, and counts descriptors after each
/// input.
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

/// Which slots an end of a link hands out, of each 64, as bits.
pub(crate) mod slots {
    /// Those of the end that opened the link, and of the one that answered.
    pub(crate) const EVEN: u64 = 0x5555_5555_5555_5555;
    pub(crate) const ODD: u64 = !EVEN;
    /// Between hosts one end makes all offers.
    pub(crate) const ALL: u64 = u64::MAX;
    pub(crate) const NONE: u64 = 0;
}

/// One link.
pub struct Link {
    pub(super) state: AtomicU32,
    /// Its place among all links.
    pub(super) index: AtomicU32,
    pub(crate) socket: Kept,
    pub(crate) token: AtomicU64,
    pub(crate) peer_uid: AtomicU32,
    pub peer_pid: AtomicU32,
    /// The process of ours that made it: in children of fork() its event queues are the parent's.
    pub(crate) owner: AtomicU32,
    /// The peer's bells.
    pub(crate) bells: [Kept; BELLS],
    /// How the peer can ring ours: not at all, by bells that it has got, or, of another user, by
    /// datagrams.
    pub(crate) rings: AtomicU32,
    /// Which of our bells it can ring, as bits: whoever it can not wake so is kicked.
    pub(crate) given: AtomicU32,
    /// How the bells of a peer of another user are rung, and by which socket.
    pub(crate) loud: [AtomicU64; 2],
    pub(crate) speaker: Kept,
    /// Of a peer in another network namespace: the token of its sockets in the folder.
    pub(crate) folder: AtomicU64,
    /// The cookie of our end of the connection by which it was proved.
    pub(crate) proof: AtomicU64,
    /// Which slots we hand out, of each 64: [`slots`].
    pub(crate) ours: AtomicU64,
    /// When FAILED: not tried again before this time, in ticks. When READY: not unmapped before it.
    pub(crate) not_before: AtomicU64,
    /// Connections that are on it, or may come.
    pub(super) live: AtomicU32,
    /// Event queues whose sleep words have been armed, as bits.
    pub(crate) armed: AtomicU32,
    /// Its [`Peering`], as a word; and, between hosts, the progress thread's number of it.
    pub(crate) peering: AtomicU64,
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
    /// Our slots in use, by us or still by the peer.
    pub(super) taken: [u64; SLOTS / 64],
}

impl Inner {
    /// Of a link whose peer's segment is not there yet.
    pub(super) fn new(mine: Map) -> Inner {
        let (producer, consumer) = (Producer::default(), Consumer::default());
        Inner { mine, theirs: Peer::NONE, producer, consumer, taken: [0; SLOTS / 64] }
    }
}

// SAFETY: `inner` is under `lock`, the rest is atomic.
unsafe impl Sync for Link {}

impl Link {
    /// Where it stands: a [`state`].
    pub fn state(&self) -> u32 {
        // Sequentially consistent: who sweeps stores it, and looks for those who look through the
        // links.
        self.state.load(Ordering::SeqCst)
    }

    /// Its place among all links.
    pub(crate) fn index(&self) -> u32 {
        self.index.load(Ordering::Relaxed)
    }

    /// Whether this process has made it, and no parent of it.
    fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == process::pid()
    }

    /// Whether it is ready, and its queues are this process's.
    pub(super) fn serves(&self) -> bool {
        self.state() == state::READY && self.is_own()
    }

    /// Whether it has, or will have, anything in common with its peer.
    pub(super) fn stands(&self) -> bool {
        matches!(self.state(), state::ASKED | state::READY | state::DYING)
    }

    /// Whether connections are on it, or may come.
    pub(crate) fn is_used(&self) -> bool {
        self.live.load(Ordering::Acquire) != 0
    }

    /// Keeps it until [`Link::let_go`].
    pub(crate) fn hold(&self) {
        self.live.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn let_go(&self) {
        self.live.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether it had no free slot when last asked. Now and then it is asked again: slots come
    /// back.
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed) != 0
    }

    /// Does something under the lock; `None` if this thread has it already, in a call that a signal
    /// handler has interrupted.
    pub(super) fn locked<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> Option<R> {
        thread::lock(&self.lock, Place::Link).then(|| self.unlocking(act))
    }

    fn unlocking<R>(&self, act: impl FnOnce(&mut Inner) -> R) -> R {
        // SAFETY: the lock is held by this thread.
        let done = act(unsafe { &mut *self.inner.get() });
        self.lock.unlock();
        done
    }

    /// Sends a message through the control queue; false if it is full.
    pub(crate) fn tell(&self, message: &Message) -> bool {
        let Some(message) = message.bytes().first_chunk() else { return false };
        let told = self.locked(|inner| {
            inner.producer.push(&inner.theirs, layout::CTL, &inner.mine, layout::CTL_BACK, message)
        });
        told == Some(true)
    }

    /// Whether this process waits for the answer to its HELLO.
    pub fn is_asked(&self) -> bool {
        self.state() == state::ASKED && self.is_own()
    }

    /// Takes a message from the control queue.
    pub(crate) fn hear(&self) -> Option<Message> {
        if !self.serves() {
            return None;
        }
        let heard = self.locked(|Inner { mine, theirs, consumer, .. }| {
            let ready = consumer.ready(mine, layout::CTL);
            if ready { consumer.pop(mine, layout::CTL, theirs, layout::CTL_BACK) } else { None }
        });
        Message::of(&heard??)
    }

    /// Our segment.
    pub fn mine(&self) -> Map {
        // SAFETY: both are written before READY is set, and changed only when no connection is on
        // the link.
        unsafe { (*self.inner.get()).mine }
    }

    /// The peer's.
    pub fn theirs(&self) -> Peer {
        // SAFETY: as above.
        unsafe { (*self.inner.get()).theirs }
    }

    /// Takes one of our slots for a connection.
    pub fn take_slot(&self, conn: &'static Conn) -> Option<usize> {
        let taken = self.locked(|inner| {
            let slot = self.free_slot(inner)?;
            self.occupy(&inner.mine, slot, conn);
            Some(slot)
        });
        taken?
    }

    fn free_slot(&self, inner: &mut Inner) -> Option<usize> {
        let ours = self.ours.load(Ordering::Relaxed);
        for word in 0..SLOTS / 64 {
            for bit in bits(inner.taken[word]) {
                let slot = word * 64 + bit;
                let has = |at, bits| inner.mine.word(layout::slot(slot) + at) & bits != 0;
                // Given up by us: free once the peer has left it, too. A cancelled offer, too, is
                // given up only when the peer has answered it: it may be reading it right now.
                if self.conn(slot).is_none()
                    && (has(layout::NOTES, layout::note::GONE) || has(layout::STATE, layout::REFUSED))
                {
                    inner.taken[word] &= !(1 << bit);
                }
            }
            if let Some(bit) = bits(!inner.taken[word] & ours).next() {
                let slot = word * 64 + bit;
                if !self.has_room_for(slot) {
                    return None;
                }
                inner.taken[word] |= 1 << bit;
                return Some(slot);
            }
        }
        None
    }

    /// Puts a connection on a slot that the peer offered.
    pub fn use_slot(&self, slot: usize, conn: &'static Conn) {
        self.occupy(&self.mine(), slot, conn);
    }

    /// Takes one of the peer's big rings for a connection of ours, by its number; `None` if all are
    /// taken. Only the process that made the link gives them out, as its children have copies of
    /// this.
    pub fn take_big(&self, slot: usize) -> Option<u64> {
        if !self.is_own() {
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
        self.hold();
    }

    /// Takes a connection off its slot, as the last that is done with the slot. Without the lock: a
    /// signal handler may have interrupted the thread that has it.
    pub fn leave_slot(&self, slot: usize) {
        let tell = || self.theirs().or_word(layout::slot(slot) + layout::NOTES, layout::note::GONE);
        let clear = || self.conns[slot].store(0, Ordering::Release);
        // Who owns the slot gives it out again when both have happened: the peer, which sees but
        // one of them, at once.
        if self.is_peers_slot(slot) {
            clear();
            tell();
        } else {
            tell();
            clear();
        }
        self.not_before.store(ticks() + ticks_of(IN_HAND_NS), Ordering::Relaxed);
        self.let_go();
        self.full.store(0, Ordering::Relaxed);
    }

    /// Takes a connection off a slot that the peer offered, and refuses that after all.
    pub fn unuse_slot(&self, slot: usize) {
        self.conns[slot].store(0, Ordering::Release);
        self.let_go();
        self.refuse(slot);
    }

    /// Refuses a slot that the peer has offered: it is the peer's to give out again.
    pub fn refuse(&self, slot: usize) {
        self.theirs().or_word(layout::slot(slot) + layout::STATE, layout::REFUSED);
    }

    /// The connection on a slot.
    pub fn conn(&self, slot: usize) -> Option<&'static Conn> {
        let at = self.conns[slot % SLOTS].load(Ordering::Acquire);
        // SAFETY: only `occupy` stores here, from a &'static Conn.
        (at != 0).then(|| unsafe { &*(at as *const Conn) })
    }

    /// Whether this connection is on the slot.
    pub fn holds(&self, slot: usize, conn: &Conn) -> bool {
        self.conn(slot).is_some_and(|other| core::ptr::eq(other, conn))
    }

    /// Whether a slot number that a peer named may be offered by it.
    pub fn is_peers_slot(&self, slot: usize) -> bool {
        slot < SLOTS && self.ours.load(Ordering::Relaxed) >> (slot % 64) & 1 == 0
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

    /// Whether it can ring them by datagrams.
    pub fn rings_loud(&self) -> bool {
        self.rings.load(Ordering::Relaxed) == LOUD
    }

    /// Whether the peer's bells are rung by datagrams.
    pub fn is_loud(&self) -> bool {
        self.speaker.get().is_some() && self.loud[0].load(Ordering::Relaxed) != 0
    }

    /// Rings one of the peer's bells by a datagram; false if that is not how it is rung.
    pub fn ring_loud(&self, number: u8) -> bool {
        let Some(speaker) = self.speaker.get() else { return false };
        let [name, word] = [&self.loud[0], &self.loud[1]].map(|word| word.load(Ordering::Relaxed));
        let known = name != 0 && usize::from(number) < layout::BELLS;
        if known {
            Loud { name, word }.ring(speaker, number);
        }
        known
    }

    /// Whether something waits in the control queue; without waiting for the lock.
    pub(crate) fn has_message(&self) -> bool {
        self.state() == state::READY
            && thread::try_lock(&self.lock, Place::Link)
            && self.unlocking(|inner| inner.consumer.ready(&inner.mine, layout::CTL))
    }

    /// Whether the peer's process is gone.
    pub(crate) fn is_dead(&self) -> bool {
        // Whatever it has passed may still be unread.
        let socket = self.socket();
        !peering::is_whole(self, socket)
            || peering::facts(self).shares_memory && sys::ready_for(socket, libc::POLLRDHUP) != 0
    }

    /// Whose process it leads to.
    pub(crate) fn peer_user(&self) -> Option<User> {
        if peering::facts(self).shows_end {
            User::of(self.peer_uid.load(Ordering::Relaxed))
        } else {
            Some(User::STRANGER)
        }
    }

    /// All descriptors that it has.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Kept> {
        self.bells.iter().chain([&self.speaker, &self.socket])
    }

    /// The socket by which it was made, or [`NO_SOCKET`].
    pub(super) fn socket(&self) -> i32 {
        self.socket.get().unwrap_or(NO_SOCKET)
    }
}

impl Peered for Link {
    fn peering(&self) -> Peering {
        // SAFETY: only what its `word` makes is stored here.
        unsafe { kind::of_word(self.peering.load(Ordering::Acquire)) }
    }
}

/// Of `rings`.
pub(crate) const BY_BELL: u32 = 1;

pub(crate) const LOUD: u32 = 2;

const NO_SOCKET: i32 = -1;
