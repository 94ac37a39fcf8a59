//! Links: what joins this process to another one. Made once per pair (or once per 384 connections) by a hand-shake over an
//! abstract UNIX socket, which stays open and tells of the peer's death. Everything here happens inside hooks, without blocking.

use fabric::bell::{self, Loud};
use fabric::lock::Lock;
use fabric::queue::{Consumer, MESSAGE, Producer};
use fabric::shm::Map;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, hints};
use options::Stream;
use stream::spin::{ticks, ticks_of};

use core::cell::UnsafeCell;

use crate::conn::Conn;
use crate::layout::{self, BELLS, GROWN, LINKS, SLOTS};
use crate::peering::desk;
use crate::peering::peer::Peer;
use crate::peering::wire::Wire;
use crate::reason::Reason;
use crate::thread::{self, Place};
use crate::{descriptors, process};

mod hello;

pub use hello::{answer, open, progress};

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
    owner: AtomicU32,
    /// The peer's bells, +1.
    pub bells: [AtomicU32; BELLS],
    /// How the peer can ring ours: not at all, by bells that it has got, or, of another user, by datagrams.
    rings: AtomicU32,
    /// So many of our event queues it can ring: those that it can not have their members on the link armed for kicks.
    heard: AtomicU32,
    /// How the bells of a peer of another user are rung, and by which socket, +1.
    loud: [AtomicU64; 2],
    speaker: AtomicU32,
    /// The cookie of our end of the connection by which it was proved.
    proof: AtomicU64,
    /// 0 if we opened the link, 1 if we answered: we hand out the slots of this parity. Between hosts [`ALL`] or [`NONE`], as one end makes all offers.
    parity: AtomicU32,
    /// When FAILED: not tried again before this time, in ticks. When READY: not unmapped before it.
    not_before: AtomicU64,
    pub live: AtomicU32,
    /// Event queues whose sleep words have been armed, as bits.
    armed: AtomicU32,
    /// Between hosts: its [`Wire`], and the carrier's number of it.
    wire: AtomicU64,
    number: AtomicU64,
    /// No slot was free when last asked.
    pub full: AtomicU32,
    /// Slots whose data this process has mapped in both segments.
    slots: AtomicU32,
    /// Whether both segments have, and this process has mapped, what Virtual Interfaces need.
    via: AtomicU32,
    lock: Lock,
    inner: UnsafeCell<Inner>,
    conns: [AtomicU64; SLOTS],
    /// Which slots have the peer's big rings, +1.
    bigs: [AtomicU32; GROWN],
}

struct Inner {
    mine: Map,
    theirs: Peer,
    producer: Producer,
    consumer: Consumer,
    /// Our slots in use, and those given up by us but perhaps not yet by the peer.
    taken: [u64; SLOTS / 64],
    closing: [u64; SLOTS / 64],
}

// SAFETY: `inner` is under `lock`, the rest is atomic.
unsafe impl Sync for Link {}

/// Links are mapped so many at a time, when the first of them is needed.
const AT_A_TIME: usize = 32;
static LINKS_AT: [AtomicU64; LINKS / AT_A_TIME] = [const { AtomicU64::new(0) }; LINKS / AT_A_TIME];
static USED: AtomicU32 = AtomicU32::new(0);
/// Guards making and freeing of links.
static REGISTRY: AtomicLock = AtomicLock(UnsafeCell::new(0));

#[repr(transparent)]
struct AtomicLock(UnsafeCell<u32>);
// SAFETY: only used as a Lock, whose zero state is unlocked.
unsafe impl Sync for AtomicLock {}

fn registry() -> &'static Lock {
    // SAFETY: Lock is a transparent 32-bit atomic, zero is unlocked.
    unsafe { &*REGISTRY.0.get().cast::<Lock>() }
}

/// The link with this number.
pub fn link(index: u32) -> &'static Link {
    let index = index as usize;
    let at = LINKS_AT[index / AT_A_TIME].load(Ordering::Acquire);
    assert!(at != 0);
    // SAFETY: a mapping of AT_A_TIME zeroed links, never unmapped; a zeroed link is a valid, free one.
    unsafe { &*(at as *const Link).add(index % AT_A_TIME) }
}

/// Numbers of all links ever used.
pub fn all() -> core::ops::Range<u32> {
    0..USED.load(Ordering::Acquire)
}

/// Before fork(): takes the locks of all links. False if that cannot be, as this thread has one of them (it is in a signal handler).
pub fn freeze() -> bool {
    let tid = thread::tid();
    if !registry().lock(tid) {
        return false;
    }
    for index in all() {
        if !link(index).lock.lock(tid) {
            all().take_while(|&before| before < index).for_each(|before| link(before).lock.unlock());
            registry().unlock();
            return false;
        }
    }
    true
}

/// After fork(), in the parent.
pub fn thaw() {
    all().for_each(|index| link(index).lock.unlock());
    registry().unlock();
}

/// In the child of fork(): inherited links serve inherited connections; no new ones on them.
pub fn forked() {
    registry().reset();
    hello::send_all_away();
    SCANNERS.store(0, Ordering::Relaxed);
    for index in all() {
        let link = link(index);
        link.lock.reset();
        link.token.store(0, Ordering::Relaxed);
        if link.wire.swap(0, Ordering::Relaxed) != 0 {
            // The parent's, with whose carrier it goes.
            link.conns.iter().for_each(|conn| conn.store(0, Ordering::Relaxed));
            link.state.store(state::FREE, Ordering::Relaxed);
        }
    }
}

/// In the child of a guest's fork(), after [`forked`]: it has none of its parent's connections, so none of the links either.
pub fn forget() {
    for link in all().map(link) {
        // The socket of one that has failed is closed already.
        if matches!(link.state.load(Ordering::Acquire), state::ASKED | state::READY | state::DYING) {
            release(link);
        }
        link.conns.iter().for_each(|conn| conn.store(0, Ordering::Relaxed));
        link.state.store(state::FREE, Ordering::Release);
    }
}

/// Whether there is any that has not failed.
pub fn any() -> bool {
    all()
        .map(link)
        .any(|link| matches!(link.state.load(Ordering::Acquire), state::ASKED | state::READY | state::DYING))
}

/// Shares no segment with anybody any more, and has nobody's bells: what is mapped becomes private. Who calls closes the descriptors.
pub(crate) fn renounce() {
    let _guard = RegistryGuard::take();
    hello::send_all_away();
    for link in all().map(link) {
        if !matches!(link.state.load(Ordering::Acquire), state::ASKED | state::READY | state::DYING) {
            continue;
        }
        link.token.store(0, Ordering::Release);
        link.socket.store(NO_SOCKET, Ordering::Release);
        link.bells.iter().chain([&link.speaker]).for_each(|bell| bell.store(0, Ordering::Release));
        if link.wire().is_none()
            && let Some((mine, theirs)) = link.maps()
        {
            // What a connection has not read yet is still there for it.
            let slots = (0..SLOTS).filter(|&slot| link.conns[slot].load(Ordering::Relaxed) != 0);
            let rings = slots.flat_map(|slot| {
                let small = layout::small(slot);
                let big = match mine.word(layout::slot(slot) + layout::BIG_RING) {
                    0 => 0..0,
                    number => layout::big(number)..layout::big(number) + layout::BIG,
                };
                // Virtual Interfaces' only where the segment has them.
                let via = layout::via(slot)..layout::via(slot) + layout::VIA;
                [small..small + layout::SMALL, big, via]
            });
            // SAFETY: its connections are on tcp for good, and the peer writes nothing more for them.
            unsafe {
                mine.unshare(layout::DATA, rings);
                theirs.map().unshare(0, core::iter::empty());
            }
        }
        // Its number is not given out again: connections that have been there still name it.
        link.state.store(state::RENOUNCED, Ordering::Release);
    }
}

struct Guard<'a>(&'a Link, bool);
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

    fn lock(&self) -> Option<Guard<'_>> {
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
    fn is_dead(&self) -> bool {
        if let Some(wire) = self.wire() {
            return wire.is_over();
        }
        let mut byte = 0;
        let (socket, flags) = (self.socket.load(Ordering::Relaxed), libc::MSG_PEEK | libc::MSG_DONTWAIT);
        !descriptors::intact(socket)
            || !matches!(sys::recv(socket, &mut byte, 1, flags), Err(Errno::EAGAIN) | Ok(1..))
    }
}

/// A ready link to the process with this token that may have a free slot, or the state of making one.
pub fn find(token: u64, skip_full: impl Fn(&Link) -> bool) -> Option<(u32, u32)> {
    let mut making = None;
    for index in all() {
        let link = link(index);
        if link.token.load(Ordering::Acquire) != token {
            continue;
        }
        // For the peer, who sees the end of its socket, it is over.
        let whole = match link.wire() {
            Some(wire) => !wire.is_over(),
            None => descriptors::intact(link.socket.load(Ordering::Relaxed)),
        };
        if !whole && link.state.load(Ordering::Acquire) == state::READY {
            continue;
        }
        match link.state.load(Ordering::Acquire) {
            state::READY if !skip_full(link) => return Some((index, state::READY)),
            state::ASKED => making = Some((index, state::ASKED)),
            state::FAILED if ticks() < link.not_before.load(Ordering::Relaxed) => {
                making = making.or(Some((index, state::FAILED)));
            }
            _ => {}
        }
    }
    making
}

/// Between two looks for links that are over, in ns.
const SWEEP_NS: u64 = 100_000_000;
static SWEEP_DUE: AtomicU64 = AtomicU64::new(0);

/// As [`sweep`], but not too often: on the way of whoever posts or looks after a connection, so that no peer that has gone holds anything for long.
pub fn sweep_when_due() {
    let (now, due) = (ticks(), SWEEP_DUE.load(Ordering::Relaxed));
    if now >= due
        && SWEEP_DUE
            .compare_exchange(due, now + ticks_of(SWEEP_NS), Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
    {
        sweep();
    }
}

/// Frees links whose peer is gone and that carry no connection.
pub fn sweep() {
    let Some(_guard) = RegistryGuard::take() else { return };
    for index in all() {
        let link = link(index);
        let over = match link.state.load(Ordering::Acquire) {
            state::READY => {
                link.live.load(Ordering::Acquire) == 0
                    && ticks() >= link.not_before.load(Ordering::Relaxed)
                    && link.is_dead()
            }
            state::ASKED => link.is_dead(),
            _ => false,
        };
        if over {
            link.state.store(state::DYING, Ordering::SeqCst);
        }
        // Whoever began to look through the links before may still have the segment in hand: then another time.
        if link.state.load(Ordering::SeqCst) == state::DYING && SCANNERS.load(Ordering::SeqCst) == 0 {
            release(link);
            link.state.store(state::FREE, Ordering::Release);
        }
    }
}

struct RegistryGuard;
impl RegistryGuard {
    fn take() -> Option<RegistryGuard> {
        registry().lock(thread::tid()).then_some(RegistryGuard)
    }
}
impl Drop for RegistryGuard {
    fn drop(&mut self) {
        registry().unlock();
    }
}

/// Bytes of a segment that this process maps: all of it, unless its address space is limited (setrlimit(RLIMIT_AS)).
fn room() -> Result<usize, Errno> {
    match layout::slots_within(sys::address_space_limit()) {
        // One for each parity.
        0 | 1 => Err(Errno::ENOMEM),
        SLOTS => Ok(length()),
        slots => Ok(layout::mapped(slots)),
    }
}

/// How long our segments are.
fn length() -> usize {
    // The fuzzer's peer offers both ways.
    let via = process::options().stream == Stream::Via || cfg!(fuzzing);
    if via { layout::SEGMENT_VIA } else { layout::SEGMENT }
}

fn add(token: u64, socket: i32, parity: u32, peer: (u32, u32), mine: Map) -> Result<u32, Reason> {
    let now = ticks();
    let index = all()
        .find(|&index| match link(index).state.load(Ordering::Acquire) {
            state::FREE => true,
            state::FAILED => now >= link(index).not_before.load(Ordering::Relaxed),
            _ => false,
        })
        .unwrap_or(USED.load(Ordering::Acquire));
    let place = LINKS_AT.get(index as usize / AT_A_TIME).ok_or(Reason::LinkLimit)?;
    if place.load(Ordering::Acquire) == 0 {
        // Under the registry's lock.
        let at = sys::mmap_private(AT_A_TIME * size_of::<Link>()).map_err(|_| Reason::NoMemory)?;
        place.store(at as u64, Ordering::Release);
    }
    USED.fetch_max(index + 1, Ordering::AcqRel);
    let link = link(index);
    {
        let mut inner = link.lock().ok_or(Reason::Busy)?;
        *inner = Inner {
            mine,
            theirs: Peer::NONE,
            producer: Producer::default(),
            consumer: Consumer::default(),
            taken: [0; SLOTS / 64],
            closing: [0; SLOTS / 64],
        };
    }
    link.socket.store(socket, Ordering::Relaxed);
    link.wire.store(0, Ordering::Relaxed);
    link.parity.store(parity, Ordering::Relaxed);
    link.peer_uid.store(peer.0, Ordering::Relaxed);
    link.peer_pid.store(peer.1, Ordering::Relaxed);
    link.owner.store(process::pid(), Ordering::Relaxed);
    link.live.store(0, Ordering::Relaxed);
    link.armed.store(0, Ordering::Relaxed);
    link.full.store(0, Ordering::Relaxed);
    link.rings.store(0, Ordering::Relaxed);
    link.speaker.store(0, Ordering::Relaxed);
    link.loud.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    link.proof.store(0, Ordering::Relaxed);
    for bell in &link.bells {
        bell.store(0, Ordering::Relaxed);
    }
    for big in &link.bigs {
        big.store(0, Ordering::Relaxed);
    }
    link.token.store(token, Ordering::Release);
    link.state.store(state::ASKED, Ordering::Release);
    Ok(index)
}

fn ready(index: u32, theirs: Peer, fds: &[i32; 1 + BELLS]) {
    let link = link(index);
    // In the order in which they are sent.
    let order = core::iter::once(layout::CALL_BELL).chain(0..layout::QUEUES);
    for (index, &fd) in order.zip(&fds[1..]) {
        if fd >= 0
            && let Some(bell) = link.bells.get(index)
        {
            bell.store(fd as u32 + 1, Ordering::Relaxed);
        }
    }
    if let Some(mut inner) = link.lock() {
        inner.theirs = theirs;
        let mapped = inner.mine.len().min(theirs.map().len());
        let slots = ((mapped - layout::DATA) / layout::SMALL).min(SLOTS);
        link.slots.store(slots as u32, Ordering::Relaxed);
        link.via.store(u32::from(mapped == layout::SEGMENT_VIA), Ordering::Relaxed);
    }
    link.state.store(state::READY, Ordering::Release);
}

/// Enters a link between hosts, which stands.
pub(crate) fn add_far(
    token: u64,
    uid: u32,
    mine: Map,
    theirs: Peer,
    offers: bool,
    number: u64,
) -> Result<u32, Reason> {
    let _guard = RegistryGuard::take().ok_or(Reason::Busy)?;
    let index = add(token, NO_SOCKET, if offers { ALL } else { NONE }, (uid, 0), mine)?;
    let link = link(index);
    link.number.store(number, Ordering::Relaxed);
    // Its carrier does.
    link.rings.store(BY_BELL, Ordering::Relaxed);
    link.heard.store(layout::QUEUES as u32, Ordering::Relaxed);
    link.wire.store(theirs.wire().map_or(0, |wire| core::ptr::from_ref(wire) as u64), Ordering::Release);
    ready(index, theirs, &[NO_SOCKET; 1 + BELLS]);
    Ok(index)
}

/// Of `rings`.
const BY_BELL: u32 = 1;
const LOUD: u32 = 2;

const NO_SOCKET: i32 = -1;
/// Whose the slots are of a link whose one end makes all offers.
const ALL: u32 = 2;
const NONE: u32 = 3;

const SOON_AGAIN_NS: u64 = 500_000;

/// Called with the registry locked.
fn fail(index: u32, reason: Reason) {
    let link = link(index);
    release(link);
    // The connection that was to prove it may have ended before it was looked at: the next one proves another.
    let pause = if reason == Reason::PeerGone { SOON_AGAIN_NS } else { 1_000_000_000 };
    link.not_before.store(ticks() + ticks_of(pause), Ordering::Relaxed);
    link.state.store(state::FAILED, Ordering::Release);
}

fn release(link: &Link) {
    let socket = link.socket.load(Ordering::Relaxed);
    if socket != NO_SOCKET {
        descriptors::unhide(socket);
    }
    for bell in link.bells.iter().chain([&link.speaker]) {
        let fd = bell.swap(0, Ordering::AcqRel);
        if fd != 0 {
            descriptors::unhide(fd as i32 - 1);
        }
    }
    if let Some(mut inner) = link.lock() {
        let (mine, theirs) = (inner.mine, inner.theirs);
        (inner.mine, inner.theirs) = (Map::NONE, Peer::NONE);
        if link.wire.swap(0, Ordering::AcqRel) != 0 {
            // The carrier's memory.
            return desk::release(link.number.load(Ordering::Relaxed));
        }
        // SAFETY: no connection is on the link, so nobody has a copy of the maps in use.
        unsafe {
            mine.unmap();
            theirs.map().unmap();
        }
    }
}

impl Conn {
    /// Whether it is, or was until it went back to tcp, on a slot of a link of this process. Once a child of fork() has let go of a
    /// connection, its parent may put it on a slot of a link that the child does not have.
    pub fn slot_taken(&self) -> bool {
        let (slot, index) = (self.slot.load(Ordering::Relaxed) as usize, self.link.load(Ordering::Relaxed));
        slot < layout::SLOTS && all().contains(&index) && link(index).holds(slot, self)
    }
}

/// Threads that are looking through the links' segments: while there are any, none is unmapped.
static SCANNERS: AtomicU32 = AtomicU32::new(0);

/// The right to look through the links' segments.
pub struct Scan(());

/// Begins to look through the links.
pub fn scan() -> Scan {
    SCANNERS.fetch_add(1, Ordering::SeqCst);
    Scan(())
}

impl Drop for Scan {
    fn drop(&mut self) {
        SCANNERS.fetch_sub(1, Ordering::Release);
    }
}

impl Scan {
    /// Takes the hints of event queue `queue` from all links and gives each connection to `each`, with when its hint was set.
    pub fn take(&self, queue: usize, mut each: impl FnMut(&'static Conn, u64)) {
        self.each_link(queue, |link, mine, base| {
            let header = |slot| mine.foresee(layout::slot(slot));
            hints::take(&mine, base, header, |slot| {
                if let Some(conn) = link.conn(slot) {
                    each(conn, mine.word(layout::slot(slot) + layout::HINTED));
                }
            });
        });
    }

    /// Whether any link has a hint for event queue `queue`.
    pub fn any(&self, queue: usize) -> bool {
        let mut any = false;
        self.each_link(queue, |_, mine, base| any |= hints::any(&mine, base));
        any
    }

    /// Calls `each` for the connections on one link between processes of this host, if the link is this process's.
    pub fn each_conn(&self, index: u32, mut each: impl FnMut(&'static Conn)) {
        let link = link(index);
        if link.state.load(Ordering::SeqCst) != state::READY
            || link.live.load(Ordering::Acquire) == 0
            || link.owner.load(Ordering::Relaxed) != process::pid()
            || link.wire().is_some()
        {
            return;
        }
        (0..SLOTS).filter_map(|slot| link.conn(slot)).for_each(&mut each);
    }

    /// Arms the sleep words of event queue `queue`; says how many peers have disarmed them since, and ring or have rung.
    pub fn arm_sleep(&self, queue: usize, mode: u64, id: u8) -> u32 {
        let mut disarmed = 0;
        self.each_link(queue, |link, mine, base| {
            let before = link.armed.fetch_or(1 << queue, Ordering::Relaxed);
            disarmed += u32::from(!hints::arm_sleep(&mine, base, mode, id) && before & 1 << queue != 0);
        });
        disarmed
    }

    /// Whether a peer has disarmed a sleep word of event queue `queue`.
    pub fn disarmed(&self, queue: usize) -> bool {
        let mut any = false;
        self.each_link(queue, |link, mine, base| {
            any |= !hints::sleeps(&mine, base) && link.armed.load(Ordering::Relaxed) & 1 << queue != 0;
        });
        any
    }

    #[inline]
    fn each_link(&self, queue: usize, mut each: impl FnMut(&Link, Map, usize)) {
        for index in all() {
            let link = link(index);
            if link.state.load(Ordering::SeqCst) == state::READY
                && link.live.load(Ordering::Acquire) != 0
                && link.owner.load(Ordering::Relaxed) == process::pid()
            {
                each(link, link.mine(), layout::HINTS + queue * hints::BYTES);
            }
        }
    }
}
