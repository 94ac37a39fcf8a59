//! An epoll set and its members: data, and the list of members that may be ready. Under the set's
//! lock, but for what is atomic.

use core::cell::UnsafeCell;
use fabric::lock::Lock;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use fabric::sys;

use crate::conn::Conn;
use crate::thread::{self, Place};

/// An epoll set.
pub struct Set {
    pub(super) used: AtomicU32,
    pub(super) refs: AtomicU32,
    pub(super) fd: AtomicI32,
    /// The inner set, +1.
    pub(super) inner: AtomicI32,
    /// Its event queue, +1, whose bell is in the inner set; without one its members are armed for
    /// kicks.
    pub(super) queue: AtomicU32,
    /// How often its bell was going to be rung (a sleep word was disarmed), less how often it has
    /// been.
    pub(super) owed: AtomicI32,
    /// Until when nobody is waited for who is about to ring it, in ticks.
    pub(super) impatient: AtomicU64,
    /// Members in the inner set.
    pub(super) moved: AtomicU32,
    /// Whether a member has been given back to the kernel's set since that was last looked at.
    pub(super) given_back: AtomicU32,
    /// Members that still get bytes by tcp: the kernel's, and those in the inner set whose peers
    /// have not changed over yet.
    pub(super) on_tcp: AtomicU32,
    /// Threads asleep on the set; being watched counts as one, that never ends.
    pub(super) sleepers: AtomicU32,
    /// Whether the set may be waited on from outside: through another set, or in poll.
    pub(super) watched: AtomicU32,
    /// Whether one of its members is a set of ours.
    pub(super) holds: AtomicU32,
    /// Whether it was made before fork(), by a parent that goes on with it.
    pub(super) inherited: AtomicU32,
    /// What makes a watched set readable while a promoted member is ready, +1; made when first lit.
    pub(super) lamp: AtomicI32,
    /// Whether a member has been found without room in its window of messages since the last sleep.
    pub(super) windows: AtomicU32,
    pub(super) kernel_asked: AtomicU64,
    /// The last call had no place left, or told only what it had told before: the kernel's members
    /// may be waiting.
    pub(super) crowded: AtomicU32,
    pub(super) learned: AtomicU64,
    /// The processor that its thread ran on when that was last looked at, plus one.
    pub(super) here: AtomicU64,
    /// Calls in a row that were answered without a sleep.
    pub(super) unslept: AtomicU32,
    /// Counts calls of epoll_wait().
    pub(super) calls: AtomicU64,
    /// Counts the kernel's registrations and the looks at its members; and when the last look began
    /// that left nothing to be told.
    pub(super) clock: AtomicU64,
    pub(super) emptied: AtomicU64,
    pub(super) lock: Lock,
    pub(super) state: UnsafeCell<State>,
}

pub(super) struct State {
    /// The members by descriptor, mapped in parts, each when it is first needed: what is mapped is
    /// the program's no more.
    pub(super) parts: Parts,
    /// What stands for those that are not mapped.
    pub(super) nobody: Member,
    /// Those that may be ready.
    pub(super) list: List,
    /// Those that the call under way has told of, level-triggered: they go back on the list at its
    /// end.
    pub(super) told: List,
    /// Those whose hints came while, or after, the kernel was asked: they are looked at when it has
    /// been asked again.
    pub(super) late: List,
    /// Connections whose peers had set a hint, when it was taken, but were not done with waking us,
    /// as far as there is room.
    pub(super) waking: [Option<&'static Conn>; WAKING],
    pub(super) neighbours: Neighbours,
}

impl State {
    pub(super) fn new(parts: Parts) -> State {
        State {
            parts,
            nobody: NOBODY,
            list: List::default(),
            told: List::default(),
            late: List::default(),
            waking: [None; WAKING],
            neighbours: Neighbours::default(),
        }
    }
}

/// Members in order, each of which has the next: the first and the last, +1, and how many.
#[derive(Clone, Copy, Default)]
pub(super) struct List {
    pub(super) first: u32,
    last: u32,
    pub(super) len: u32,
}

// SAFETY: `state` is under `lock`, the rest is atomic.
unsafe impl Sync for Set {}

#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) conn: Option<&'static Conn>,
    pub(super) data: u64,
    pub(super) events: u32,
    pub(super) flags: u32,
    pub(super) next: u32,
    /// When last reported. Edge-triggered: the peer's write position, and what was known of the
    /// connection's life. Level-triggered: how far the program had come. Of a member that is the
    /// kernel's: when it was registered, by the set's clock.
    pub(super) seen: u64,
    pub(super) life: u32,
    /// The call that last told of it: none tells twice.
    pub(super) told: u64,
    /// On which processor its peer was last told that we are, plus one.
    pub(super) cpu: u64,
}

/// What epoll_ctl() is called for, on a connection.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) op: i32,
    pub(super) fd: i32,
    pub(super) conn: &'static Conn,
    pub(super) events: u32,
    pub(super) data: u64,
}

impl Member {
    /// Whether it is in the set, and stands for the connection.
    pub(super) fn is(&self, conn: &Conn) -> bool {
        self.flags & PRESENT != 0 && conn.is(self.conn)
    }

    /// As registered anew: but for its place on a list, and the call that told of it.
    pub(super) fn anew(&self, asked: Asked, flags: u32) -> Member {
        let Asked { conn, events, data, .. } = asked;
        Member { conn: Some(conn), events, data, flags, next: self.next, told: self.told, ..NOBODY }
    }
}

/// The member is in the set; it is in the inner set; it is on the list; its one shot is fired; what
/// it is ready for is an edge.
pub(super) const PRESENT: u32 = 1;

pub(super) const MOVED: u32 = 2;

pub(super) const LISTED: u32 = 4;

pub(super) const SPENT: u32 = 8;

pub(super) const FRESH: u32 = 16;

/// Its descriptor is registered in the inner set, which outlives EPOLL_CTL_DEL: programs take
/// members out and put them in again for every request.
pub(super) const INNER: u32 = 32;

/// In the inner set, and not seen on a ring yet.
pub(super) const EARLY: u32 = 64;

pub(super) const NOBODY: Member =
    Member { conn: None, data: 0, events: 0, flags: 0, next: 0, seen: 0, life: 0, told: 0, cpu: 0 };

/// Members by descriptor: higher ones are not promoted.
pub(super) const MEMBERS: usize = 1 << 16;

/// The first part has so many, each other one as many as all before it.
pub(super) const PART: usize = 1 << 10;

pub(super) const PARTS: usize = 1 + (MEMBERS / PART).ilog2() as usize;

pub(super) type Parts = [*mut Member; PARTS];

/// Which part a descriptor's place is in, and where that begins.
#[inline(always)]
pub(super) fn part_of(fd: usize) -> (usize, usize) {
    match fd / PART {
        0 => (0, 0),
        ahead => (1 + ahead.ilog2() as usize, PART << ahead.ilog2()),
    }
}

/// How many places a part has.
pub(super) fn places_of(part: usize) -> usize {
    PART << part.saturating_sub(1)
}

pub(super) const SETS: usize = 1024;

/// Of so many peers at a time it is known that they are about to ring the bell.
pub(super) const WAKING: usize = 4;

pub(super) static SETS_AT: AtomicU64 = AtomicU64::new(0);

/// How many of the array's places were ever used: the first ones.
pub(super) static SETS_MADE: AtomicUsize = AtomicUsize::new(0);

/// Calls `each` for every set that the program has. Connections close, and are promoted, by the
/// thousand: not by way of the table.
pub(super) fn each_set(mut each: impl FnMut(&'static Set)) {
    for set in (0..sets_made()).filter_map(set) {
        if set.refs.load(Ordering::Acquire) != 0 {
            each(set);
        }
    }
}

pub(super) fn sets_made() -> usize {
    SETS_MADE.load(Ordering::Acquire)
}

pub(super) struct Guard<'a>(pub(super) &'a Set);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}

impl Guard<'_> {
    /// A member's place; of one for which none is mapped, as nobody has been added there, one that
    /// is empty.
    #[inline(always)]
    pub(super) fn member(&mut self, fd: i32) -> &mut Member {
        let (part, begin) = part_of(fd as usize);
        let at = self.state().parts[part];
        if at.is_null() {
            return self.nobody();
        }
        // SAFETY: the part has places from `begin` to twice that, or PART of them, and stays mapped
        // as long as the set; the lock is held.
        unsafe { &mut *at.add(fd as usize - begin) }
    }
    #[cold]
    pub(super) fn nobody(&mut self) -> &mut Member {
        self.state().nobody = NOBODY;
        &mut self.state().nobody
    }
    /// Maps a place for a member, if it has none; false without memory.
    pub(super) fn make_place(&mut self, fd: i32) -> bool {
        let part = part_of(fd as usize).0;
        if self.state().parts[part].is_null()
            && let Ok(at) = sys::mmap_private(places_of(part) * size_of::<Member>())
        {
            self.state().parts[part] = at.cast();
        }
        !self.state().parts[part].is_null()
    }
    pub(super) fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.state.get() }
    }
    /// A member may be ready.
    pub(super) fn list(&mut self, fd: i32) {
        self.put(fd, |state| &mut state.list);
    }
    /// Puts a member at the end of a list, unless it is on one.
    pub(super) fn put(&mut self, fd: i32, which: fn(&mut State) -> &mut List) {
        let place = fd as u32 + 1;
        let member = self.member(fd);
        if member.flags & LISTED != 0 {
            return;
        }
        member.flags |= LISTED;
        member.next = 0;
        match which(self.state()).last {
            0 => which(self.state()).first = place,
            last => self.member(last as i32 - 1).next = place,
        }
        let list = which(self.state());
        list.last = place;
        list.len += 1;
    }
    /// Takes the first one off.
    pub(super) fn take_first(&mut self, which: fn(&mut State) -> &mut List) -> Option<i32> {
        let fd = which(self.state()).first.checked_sub(1)? as i32;
        let member = self.member(fd);
        member.flags &= !LISTED;
        let next = member.next;
        let list = which(self.state());
        list.first = next;
        list.len -= 1;
        if next == 0 {
            list.last = 0;
        }
        Some(fd)
    }
    /// Puts those of another list back on that of candidates.
    pub(super) fn relist(&mut self, which: fn(&mut State) -> &mut List) {
        let mut next = core::mem::take(which(self.state())).first;
        while next != 0 {
            let fd = next as i32 - 1;
            let member = self.member(fd);
            next = member.next;
            member.flags &= !LISTED;
            if member.flags & MOVED != 0 {
                self.list(fd);
            }
        }
    }
    /// A peer had set a hint when it was taken, but was not done with waking us.
    #[cold]
    pub(super) fn note_waking(&mut self, conn: &'static Conn) {
        if let Some(place) = self.state().waking.iter_mut().find(|place| place.is_none()) {
            *place = Some(conn);
        }
    }
    /// One that is to be looked at, now or when the kernel has been asked again, if there is one.
    pub(super) fn next(&mut self) -> Option<i32> {
        let state = self.state();
        let first = if state.list.first != 0 { state.list.first } else { state.late.first };
        (first != 0).then(|| first as i32 - 1)
    }
}

/// The set with this number, in use or not; `None` before the first was made.
pub(super) fn set(index: usize) -> Option<&'static Set> {
    let base = SETS_AT.load(Ordering::Acquire) as *const Set;
    // SAFETY: the array has SETS places, zeroed memory is a valid unused Set, it is never unmapped;
    // callers stay below SETS.
    (!base.is_null()).then(|| unsafe { &*base.add(index) })
}

pub(super) fn take_set() -> Option<&'static Set> {
    if SETS_AT.load(Ordering::Acquire) == 0 {
        let at = sys::mmap_private(SETS * size_of::<Set>()).ok()? as u64;
        if SETS_AT.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at as *mut u8, SETS * size_of::<Set>());
        }
    }
    for index in 0..SETS {
        let set = set(index)?;
        if set.used.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            SETS_MADE.fetch_max(index + 1, Ordering::AcqRel);
            let mut guard = set.lock()?;
            if !guard.make_place(0) {
                set.used.store(0, Ordering::Release);
                return None;
            }
            drop(guard);
            return Some(set);
        }
    }
    None
}

/// Whether a member's peer waits on the processor that we run on, who would wait for as long as we
/// spin: looked at now and then, some members at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Neighbours {
    /// When that is looked at next, and until when one counts that was found, in ticks.
    pub(super) due: u64,
    pub(super) until: u64,
    /// Where the next look begins.
    pub(super) next: i32,
}

impl Set {
    pub(super) fn in_use(&self) -> bool {
        self.used.load(Ordering::Acquire) != 0
    }

    pub(super) fn lock(&self) -> Option<Guard<'_>> {
        // Not one that is made and thrown away: to drop it would unlock.
        if thread::lock(&self.lock, Place::Set) { Some(Guard(self)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_descriptor_has_a_place_of_its_own_once_it_is_made() {
        let set = take_set().unwrap();
        let mut guard = set.lock().unwrap();
        let all = [
            0,
            1,
            PART as i32 - 1,
            PART as i32,
            2 * PART as i32 - 1,
            2 * PART as i32,
            5000,
            MEMBERS as i32 - 1,
        ];
        guard.member(5000).data = 1;
        assert_eq!(guard.member(5000).data, 0);
        for fd in all {
            assert!(guard.make_place(fd));
            guard.member(fd).data = fd as u64 + 1;
        }
        for fd in all {
            assert_eq!(guard.member(fd).data, fd as u64 + 1);
        }
        let all_places = (0..PARTS).map(places_of).sum::<usize>();
        assert_eq!(all_places, MEMBERS);
    }

    #[test]
    fn a_handler_leaves_the_lock_to_the_call_that_it_interrupts() {
        let set = take_set().unwrap();
        let held = set.lock();
        let owner = set.lock.owner();
        assert!(held.is_some() && owner != 0);
        assert!(set.lock().is_none());
        assert_eq!(set.lock.owner(), owner);
    }
}
