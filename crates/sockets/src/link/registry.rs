//! All links of the process: made, found, and freed when their peer is gone and nobody uses them.

use fabric::Local;
use fabric::lock::Lock;
use fabric::shm::Map;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::words::{Array, Zeroed};
use options::Stream;
use stream::spin::{ticks, ticks_of};

use super::entry::{BY_BELL, Inner, Link, slots, state};
use super::passing;
use crate::conn::Conn;
use crate::descriptors::{Hidden, Kept};
use crate::layout::{self, FIRST_BELLS, LINKS, SLOTS};
use crate::peering::peer::Peer;
use crate::peering::{self, desk};
use crate::process;
use crate::reason::Reason;
use crate::thread::{self};

/// Links are mapped so many at a time, when the first of them is needed.
const AT_A_TIME: usize = 32;
static LINKS_AT: [Array<Link, AT_A_TIME>; LINKS / AT_A_TIME] = [const { Array::new() }; LINKS / AT_A_TIME];
static USED: AtomicU32 = AtomicU32::new(0);
/// Guards making and freeing of links.
static REGISTRY: Lock = Lock::unlocked();

/// The link with this number.
pub fn link(index: u32) -> &'static Link {
    &LINKS_AT[index as usize / AT_A_TIME].get()[index as usize % AT_A_TIME]
}

// SAFETY: a zeroed link is a valid, free one.
unsafe impl Zeroed for Link {}

/// Numbers of all links ever used.
pub fn all() -> core::ops::Range<u32> {
    0..USED.load(Ordering::Acquire)
}

/// All links ever used.
pub fn each() -> impl Iterator<Item = &'static Link> {
    all().map(link)
}

/// Before fork(): takes the locks of all links. False if that cannot be, as this thread has one of
/// them (it is in a signal handler).
pub fn freeze() -> bool {
    let tid = thread::tid();
    if !REGISTRY.lock(tid) {
        return false;
    }
    let had = each().position(|link| !link.lock.lock(tid));
    if let Some(had) = had {
        each().take(had).for_each(|before| before.lock.unlock());
        REGISTRY.unlock();
    }
    had.is_none()
}

/// After fork(), in the parent.
pub fn thaw() {
    each().for_each(|link| link.lock.unlock());
    REGISTRY.unlock();
}

/// In the child of fork(): inherited links serve inherited connections; no new ones on them.
pub fn forked() {
    REGISTRY.reset();
    SCANNERS.store(0, Ordering::Relaxed);
    for link in each() {
        link.lock.reset();
        link.token.store(0, Ordering::Relaxed);
        if !peering::facts(link).kept_by_children {
            link.peering.store(0, Ordering::Relaxed);
            // The parent's, with whose progress thread it goes.
            link.conns.iter().for_each(|conn| conn.store(0, Ordering::Relaxed));
            link.state.store(state::FREE, Ordering::Relaxed);
        }
    }
}

/// In the child of a guest's fork(), after [`forked`]: it has none of its parent's connections, so
/// none of the links either.
pub fn forget() {
    for link in each() {
        // The socket of one that has failed is closed already.
        if link.stands() {
            // What has come by it is the parent's to read.
            link.socket.close();
            release(link);
        }
        link.conns.iter().for_each(|conn| conn.store(0, Ordering::Relaxed));
        link.state.store(state::FREE, Ordering::Release);
    }
}

/// Whether there is any that has not failed.
pub fn any() -> bool {
    each().any(Link::stands)
}

/// Shares no segment with anybody any more, and has nobody's bells: what is mapped becomes private.
/// Who calls closes the descriptors.
pub(crate) fn renounce() {
    let _guard = Guard::take();
    for link in each().filter(|link| link.stands()) {
        link.token.store(0, Ordering::Release);
        link.descriptors().for_each(Kept::forget);
        if peering::facts(link).shares_memory {
            let (mine, theirs) = (link.mine(), link.theirs());
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
            // SAFETY: its connections are on tcp for good, and the peer writes nothing more for
            // them.
            unsafe {
                mine.unshare(layout::DATA, rings);
                theirs.map().unshare(0, core::iter::empty());
            }
        }
        // Its number is not given out again: connections that have been there still name it.
        link.state.store(state::RENOUNCED, Ordering::Release);
    }
}

/// A ready link to the process with this token that may have a free slot, or one that is being made
/// or has failed just now.
pub fn find(token: u64) -> Option<&'static Link> {
    let mut making = None;
    for link in each().filter(|link| link.token.load(Ordering::Acquire) == token) {
        match link.state() {
            state::READY if !link.is_full() && peering::is_whole(link, link.socket()) => return Some(link),
            state::ASKED => making = Some(link),
            state::FAILED if ticks() < link.not_before.load(Ordering::Relaxed) => {
                making = making.or(Some(link));
            }
            _ => {}
        }
    }
    making
}

/// Between two looks for links that are over, in ns.
const SWEEP_NS: u64 = 100_000_000;
static SWEEP_DUE: AtomicU64 = AtomicU64::new(0);

/// As [`sweep`], but not too often: on the way of whoever posts or looks after a connection, so
/// that no peer that has gone holds anything for long.
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
    for link in each() {
        let over = match link.state() {
            state::READY => {
                !link.is_used() && ticks() >= link.not_before.load(Ordering::Relaxed) && link.is_dead()
            }
            state::ASKED => link.is_dead(),
            _ => false,
        };
        if over {
            link.state.store(state::DYING, Ordering::SeqCst);
        }
        // Whoever began to look through the links before may still have the segment in hand: then
        // another time.
        if link.state() == state::DYING && SCANNERS.load(Ordering::SeqCst) == 0 {
            release(link);
            link.state.store(state::FREE, Ordering::Release);
        }
    }
}

/// The right to make and free links.
pub(crate) struct Guard;
impl Guard {
    pub(crate) fn take() -> Option<Guard> {
        // Not one that is made and thrown away: to drop it would unlock.
        if REGISTRY.lock(thread::tid()) { Some(Guard) } else { None }
    }
}
impl Drop for Guard {
    fn drop(&mut self) {
        REGISTRY.unlock();
    }
}

/// Bytes of a segment that this process maps: all of it, unless its address space is limited
/// (setrlimit(RLIMIT_AS)).
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

pub(crate) fn add(token: u64, ours: u64, peer: (u32, u32), mine: Map) -> Result<&'static Link, Reason> {
    let now = ticks();
    let index = all()
        .find(|&index| match link(index).state() {
            state::FREE => true,
            state::FAILED => now >= link(index).not_before.load(Ordering::Relaxed),
            _ => false,
        })
        .unwrap_or(USED.load(Ordering::Acquire));
    let place = LINKS_AT.get(index as usize / AT_A_TIME).ok_or(Reason::LinkLimit)?;
    place.make().map_err(|_| Reason::NoMemory)?;
    USED.fetch_max(index + 1, Ordering::AcqRel);
    let link = link(index);
    link.locked(|inner| *inner = Inner::new(mine)).ok_or(Reason::Busy)?;
    link.ours.store(ours, Ordering::Relaxed);
    link.peer_uid.store(peer.0, Ordering::Relaxed);
    link.peer_pid.store(peer.1, Ordering::Relaxed);
    link.owner.store(process::pid(), Ordering::Relaxed);
    zero!(link: peering live armed full rings given proof folder);
    link.loud.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    link.bigs.iter().for_each(|big| big.store(0, Ordering::Relaxed));
    link.index.store(index, Ordering::Relaxed);
    link.token.store(token, Ordering::Release);
    link.state.store(state::ASKED, Ordering::Release);
    Ok(link)
}

pub(crate) fn ready(link: &Link, theirs: Peer, bells: [Option<Hidden>; FIRST_BELLS]) {
    // In the order in which they are sent.
    let order = core::iter::once(layout::CALL_BELL).chain(0..layout::QUEUES);
    for (index, bell) in order.zip(bells) {
        bell.into_iter().for_each(|bell| link.bells[index].set(bell.keep()));
    }
    link.locked(|inner| {
        inner.theirs = theirs;
        let mapped = inner.mine.len().min(theirs.map().len());
        let slots = ((mapped - layout::DATA) / layout::SMALL).min(SLOTS);
        link.slots.store(slots as u32, Ordering::Relaxed);
        link.via.store(u32::from(mapped == layout::SEGMENT_VIA), Ordering::Relaxed);
    });
    link.state.store(state::READY, Ordering::Release);
}

/// Enters a link between hosts, which stands.
pub(crate) fn add_remote(
    token: u64,
    uid: u32,
    mine: Map,
    theirs: Peer,
    offers: bool,
    number: u64,
) -> Result<u32, Reason> {
    let _guard = Guard::take().ok_or(Reason::Busy)?;
    let link = add(token, if offers { slots::ALL } else { slots::NONE }, (uid, 0), mine)?;
    link.number.store(number, Ordering::Relaxed);
    // Its progress thread does.
    link.rings.store(BY_BELL, Ordering::Relaxed);
    link.given.store(u32::MAX, Ordering::Relaxed);
    link.peering.store(theirs.peering().word(), Ordering::Release);
    ready(link, theirs, [const { None }; FIRST_BELLS]);
    Ok(link.index())
}

const SOON_AGAIN_NS: u64 = 500_000;

/// Called with the registry locked.
pub(crate) fn fail(link: &Link, reason: Reason) {
    release(link);
    // The connection that was to prove it may have ended before it was looked at: the next one
    // proves another.
    let pause = if reason == Reason::PeerGone { SOON_AGAIN_NS } else { 1_000_000_000 };
    link.not_before.store(ticks() + ticks_of(pause), Ordering::Relaxed);
    link.state.store(state::FAILED, Ordering::Release);
}

fn release(link: &Link) {
    if let Some(socket) = link.socket.take() {
        passing::close(socket, link.peer_user());
    }
    link.descriptors().for_each(Kept::close);
    link.locked(|inner| {
        let Inner { mine, theirs, .. } = core::mem::replace(inner, Inner::new(Map::NONE));
        if !peering::facts(link).shares_memory {
            link.peering.store(0, Ordering::Release);
            // The progress thread's memory.
            return desk::release(link.number.load(Ordering::Relaxed));
        }
        // SAFETY: no connection is on the link, so nobody has a copy of the maps in use.
        unsafe {
            mine.unmap();
            theirs.map().unmap();
        }
    });
}

impl Conn {
    /// The link that it is on, or was last.
    pub(crate) fn link(&self) -> &'static Link {
        link(self.link.load(Ordering::Relaxed))
    }

    /// Whether it is, or was until it went back to tcp, on a slot of a link of this process. Once a
    /// child of fork() has let go of a connection, its parent may put it on a slot of a link that
    /// the child does not have.
    pub fn slot_taken(&self) -> bool {
        let (slot, index) = (self.slot(), self.link.load(Ordering::Relaxed));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As long as the process, as links are.
    fn fresh() -> &'static Link {
        let memory = sys::mmap_private(size_of::<Link>()).unwrap();
        // SAFETY: a zeroed link is a valid, free one.
        unsafe { &*memory.cast::<Link>() }
    }

    #[test]
    fn who_does_not_get_a_links_lock_leaves_it_to_its_holder() {
        let link = fresh();
        let got = link.locked(|_| {
            assert!(link.locked(|_| ()).is_none());
            link.lock.owner()
        });
        assert_eq!(got, Some(thread::tid()));
    }

    #[test]
    fn a_slot_is_left_while_the_links_lock_is_held() {
        let link = fresh();
        let [mine, theirs] = [(); 2].map(|()| Map::create(c"shunt:link", layout::SEGMENT).unwrap().0);
        link.locked(|inner| *inner = Inner { theirs: Peer::near(theirs), ..Inner::new(mine) });
        link.ours.store(slots::EVEN, Ordering::Relaxed);
        link.slots.store(SLOTS as u32, Ordering::Relaxed);
        let conn = crate::home::take(|_| ()).unwrap();
        assert_eq!(link.take_slot(conn), Some(0));
        assert_eq!(link.take_slot(conn), Some(2));
        link.locked(|_| link.leave_slot(0));
        assert_eq!(link.take_slot(conn), Some(4), "the peer has not left it");
        assert_eq!(theirs.word(layout::slot(0) + layout::NOTES), layout::note::GONE);
        mine.set_word(layout::slot(0) + layout::NOTES, layout::note::GONE);
        assert_eq!(link.take_slot(conn), Some(0));
    }

    #[test]
    fn who_may_not_make_links_leaves_that_to_who_does() {
        let held = Guard::take();
        assert!(held.is_some() && Guard::take().is_none());
        assert!(Guard::take().is_none(), "the first one's lock was given back");
    }
}
