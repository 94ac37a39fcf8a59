//! All links of the process: made, found, and freed when their peer is gone and nobody uses them.

use fabric::Local;
use fabric::lock::Lock;
use fabric::queue::{Consumer, Producer};
use fabric::shm::Map;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use options::Stream;
use stream::spin::{ticks, ticks_of};

use core::cell::UnsafeCell;

use super::entry::{ALL, BY_BELL, Inner, Link, NO_SOCKET, NONE, state};
use crate::conn::Conn;
use crate::layout::{self, BELLS, LINKS, SLOTS};
use crate::peering::desk;
use crate::peering::peer::Peer;
use crate::reason::Reason;
use crate::thread::{self};
use crate::{descriptors, process};

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
    let _guard = Guard::take();
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
    let Some(_guard) = Guard::take() else { return };
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

/// The right to make and free links.
pub(crate) struct Guard;
impl Guard {
    pub(crate) fn take() -> Option<Guard> {
        registry().lock(thread::tid()).then_some(Guard)
    }
}
impl Drop for Guard {
    fn drop(&mut self) {
        registry().unlock();
    }
}

/// Bytes of a segment that this process maps: all of it, unless its address space is limited (setrlimit(RLIMIT_AS)).
pub(crate) fn room() -> Result<usize, Errno> {
    match layout::slots_within(sys::address_space_limit()) {
        // One for each parity.
        0 | 1 => Err(Errno::ENOMEM),
        SLOTS => Ok(length()),
        slots => Ok(layout::mapped(slots)),
    }
}

/// How long our segments are.
pub(crate) fn length() -> usize {
    // The fuzzer's peer offers both ways.
    let via = process::options().stream == Stream::Via || cfg!(fuzzing);
    if via { layout::SEGMENT_VIA } else { layout::SEGMENT }
}

pub(crate) fn add(token: u64, socket: i32, parity: u32, peer: (u32, u32), mine: Map) -> Result<u32, Reason> {
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

pub(crate) fn ready(index: u32, theirs: Peer, fds: &[i32; 1 + BELLS]) {
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
    let _guard = Guard::take().ok_or(Reason::Busy)?;
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

const SOON_AGAIN_NS: u64 = 500_000;

/// Called with the registry locked.
pub(crate) fn fail(index: u32, reason: Reason) {
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
