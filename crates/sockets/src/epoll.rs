//! epoll sets with promoted members. The program's set E stays the kernel's. A promoted connection is taken out of E and put into an
//! inner set, itself a member of E, edge-triggered, for kicks and the end of the connection; so whoever waits on E from outside
//! (a set that holds E, a poll) still wakes. epoll_wait() on E serves promoted members from a list of candidates: a member is on
//! the list, or its tripwire is armed. Hints in the links' segments put members on the list, so the work is O(ready).
//!
//! Level-triggered members stay on the list while they are ready. Edge-triggered ones leave it when reported and are armed at once;
//! one-shot ones leave it and are not armed until EPOLL_CTL_MOD.
//!
//! Whoever waits on E from outside asks the kernel, which sees the inner set only: kicks that were taken long ago, edges of adding,
//! the bell, but not that a member on the list is still ready. So sets that are *watched* (they are, or were, members of another
//! set or given to poll) are *settled* before the kernel is asked about them: what is pending in the inner set is taken out, and
//! a lamp, an eventfd in the inner set, is lit if a member is ready and put out if none is.

use core::cell::UnsafeCell;
use fabric::lock::Lock;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, spin_hint};
use fabric::sys::{self, Errno};
use fabric::{bell, hints, trip};
use stream::spin::{Learned, NO_CPU, Spun, cpu, nanos_of, ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::kicks::By;
use crate::layout::{QUEUES, TCP_AT, W};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::thread::{self, Place};
use crate::{bells, demote, descriptors, idle, link, overdue, process, ready, real, rendezvous, wait};

/// An epoll set.
pub struct Set {
    used: AtomicU32,
    refs: AtomicU32,
    fd: AtomicI32,
    /// The inner set, +1.
    inner: AtomicI32,
    /// Its event queue, +1, whose bell is in the inner set; without one its members are armed for kicks.
    queue: AtomicU32,
    /// How often its bell was going to be rung (a sleep word was disarmed), less how often it has been.
    owed: AtomicI32,
    /// Until when nobody is waited for who is about to ring it, in ticks.
    impatient: AtomicU64,
    /// Members in the inner set.
    moved: AtomicU32,
    /// Whether a member has been given back to the kernel's set since that was last looked at.
    given_back: AtomicU32,
    /// Members that still get bytes by tcp: the kernel's, and those in the inner set whose peers have not changed over yet.
    on_tcp: AtomicU32,
    /// Threads asleep on the set; being watched counts as one, that never ends.
    sleepers: AtomicU32,
    /// Whether the set may be waited on from outside: through another set, or in poll.
    watched: AtomicU32,
    /// Whether one of its members is a set of ours.
    holds: AtomicU32,
    /// Whether it was made before fork(), by a parent that goes on with it.
    inherited: AtomicU32,
    /// What makes a watched set readable while a promoted member is ready, +1; made when first lit.
    lamp: AtomicI32,
    /// Whether a member has been found without room in its window of messages since the last sleep.
    windows: AtomicU32,
    kernel_asked: AtomicU64,
    /// The last call had no place left, or told only what it had told before: the kernel's members may be waiting.
    crowded: AtomicU32,
    learned: AtomicU64,
    /// The processor that its thread ran on when that was last looked at, plus one.
    here: AtomicU64,
    /// Calls in a row that were answered without a sleep.
    unslept: AtomicU32,
    /// Counts calls of epoll_wait().
    calls: AtomicU64,
    /// Counts the kernel's registrations and the looks at its members; and when the last look began that left nothing to be told.
    clock: AtomicU64,
    emptied: AtomicU64,
    lock: Lock,
    state: UnsafeCell<State>,
}

struct State {
    /// The members by descriptor, mapped in parts, each when it is first needed: what is mapped is the program's no more.
    parts: Parts,
    /// What stands for those that are not mapped.
    nobody: Member,
    head: u32,
    tail: u32,
    listed: u32,
    /// Those that the call under way has told of, level-triggered: they go back on the list at its end.
    told: Aside,
    /// Those whose hints came while, or after, the kernel was asked: they are looked at when it has been asked again.
    late: Aside,
    /// Connections whose peers had set a hint, when it was taken, but were not done with waking us, as far as there is room.
    waking: [Option<&'static Conn>; WAKING],
    neighbours: Neighbours,
}

impl State {
    fn new(parts: Parts) -> State {
        State {
            parts,
            nobody: NOBODY,
            head: 0,
            tail: 0,
            listed: 0,
            told: Aside::default(),
            late: Aside::default(),
            waking: [None; WAKING],
            neighbours: Neighbours::default(),
        }
    }
}

/// Members that are kept off the list for a while, in order: the first and the last, +1.
#[derive(Clone, Copy, Default)]
struct Aside {
    first: u32,
    last: u32,
}

// SAFETY: `state` is under `lock`, the rest is atomic.
unsafe impl Sync for Set {}

#[derive(Clone, Copy)]
struct Member {
    conn: Option<&'static Conn>,
    data: u64,
    events: u32,
    flags: u32,
    next: u32,
    /// When last reported. Edge-triggered: the peer's write position, and what was known of the connection's life. Level-triggered: how
    /// far the program had come. Of a member that is the kernel's: when it was registered, by the set's clock.
    seen: u64,
    life: u32,
    /// The call that last told of it: none tells twice.
    told: u64,
    /// On which processor its peer was last told that we are, plus one.
    cpu: u64,
}

/// The member is in the set; it is in the inner set; it is on the list; its one shot is fired; what it is ready for is an edge.
const PRESENT: u32 = 1;
const MOVED: u32 = 2;
const LISTED: u32 = 4;
const SPENT: u32 = 8;
const FRESH: u32 = 16;
/// Its descriptor is registered in the inner set, which outlives EPOLL_CTL_DEL: programs take members out and put them in again for
/// every request.
const INNER: u32 = 32;
/// In the inner set, and not seen on a ring yet.
const EARLY: u32 = 64;

const NOBODY: Member =
    Member { conn: None, data: 0, events: 0, flags: 0, next: 0, seen: 0, life: 0, told: 0, cpu: 0 };

/// Members by descriptor: higher ones are not promoted.
const MEMBERS: usize = 1 << 16;
/// The first part has so many, each other one as many as all before it.
const PART: usize = 1 << 10;
const PARTS: usize = 1 + (MEMBERS / PART).ilog2() as usize;
type Parts = [*mut Member; PARTS];

/// Which part a descriptor's place is in, and where that begins.
#[inline(always)]
fn part_of(fd: usize) -> (usize, usize) {
    match fd / PART {
        0 => (0, 0),
        ahead => (1 + ahead.ilog2() as usize, PART << ahead.ilog2()),
    }
}

/// How many places a part has.
fn places_of(part: usize) -> usize {
    PART << part.saturating_sub(1)
}

/// What a companion is watched for in an inner set. It is writable at once, so that adding (or changing) it is an event.
const EDGES: u32 = ready::IN | ready::OUT | ready::RDHUP | libc::EPOLLPRI as u32 | ET;
const SETS: usize = 1024;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// What an exclusive member may ask for.
const EXCLUSIVE_OK: u32 = ready::IN
    | ready::OUT
    | (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32
    | ET;
/// Of so many peers at a time it is known that they are about to ring the bell.
const WAKING: usize = 4;
/// How often the promotion of a member with unread bytes is put off.
const PUT_OFF_MOST: u32 = 16;
/// Data of the queue's bell in an inner set; descriptors are smaller.
const BELL_DATA: u64 = u64::MAX;
/// Data of the lamp there.
const LAMP_DATA: u64 = u64::MAX - 1;

mod members;
mod neighbours;
mod standin;
mod waiting;
mod watching;

use neighbours::Neighbours;
pub(crate) use standin::drop_stand_ins;
pub use watching::{nest, settle, watch};

static SETS_AT: AtomicU64 = AtomicU64::new(0);
/// How many of the array's places were ever used: the first ones.
static SETS_MADE: AtomicUsize = AtomicUsize::new(0);
static QUEUES_TAKEN: AtomicU32 = AtomicU32::new(0);

/// The program has made an epoll set.
pub fn created(fd: i32) {
    if !process::active() {
        return;
    }
    let Some(set) = take_set() else { return };
    set.fd.store(fd, Ordering::Relaxed);
    set.inherited.store(0, Ordering::Relaxed);
    set.refs.store(1, Ordering::Release);
    match table::swap(fd, Entry::Set(set)) {
        Some(Entry::Set(old)) => old.release(),
        Some(_) => {}
        None => set.release(),
    }
}

/// A descriptor of the set is another one's duplicate.
pub fn duplicated(set: &'static Set) {
    set.refs.fetch_add(1, Ordering::AcqRel);
}

/// A descriptor of the set is about to be closed.
pub fn closed(set: &'static Set, fd: i32) {
    if set.fd.load(Ordering::Relaxed) == fd && set.refs.load(Ordering::Acquire) > 1 {
        // Another number stands for it from now on, if there is one.
        table::for_each(|other, entry| {
            if matches!(entry, Entry::Set(same) if core::ptr::eq(same, set)) {
                set.fd.store(other, Ordering::Relaxed);
            }
        });
    }
    set.release();
}

/// Before fork(): takes the locks of all sets. False if that cannot be, as this thread has one of them (it is in a signal handler).
pub fn freeze() -> bool {
    let tid = thread::tid();
    for index in 0..sets_made() {
        if !set(index).is_none_or(|set| !set.in_use() || set.lock.lock(tid)) {
            thaw_below(index);
            return false;
        }
    }
    true
}

/// After fork(), in the parent.
pub fn thaw() {
    thaw_below(sets_made());
}

/// Releases what this thread has; a set that was made meanwhile is another one's.
fn thaw_below(end: usize) {
    let tid = thread::tid();
    for set in (0..end).filter_map(set).filter(|set| set.lock.owner() == tid) {
        set.lock.unlock();
    }
}

/// Counts the memberships of this process once more for another one that has copies of its sets ([`Conn::epolls`] counts all of them), or no longer.
pub fn share_members(more: bool) {
    each_set(|set| {
        // At fork() this thread has the lock already.
        let held = (set.lock.owner() != thread::tid()).then(|| set.lock());
        let mut guard = core::mem::ManuallyDrop::new(Guard(set));
        if !matches!(held, Some(None)) && !guard.state().parts[0].is_null() {
            for fd in 0..table::top().min(MEMBERS as i32) {
                let member = *guard.member(fd);
                if let Some(conn) = member.conn.filter(|_| member.flags & PRESENT != 0)
                    && conn.has(flag::SHARED)
                {
                    if more {
                        conn.epolls.fetch_add(1, Ordering::AcqRel);
                    } else {
                        conn.epolls.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            }
        }
    });
}

/// The sets of others that a connection was in are gone: it is in those of this process only.
pub(crate) fn count_members(conn: &'static Conn) {
    let mut count = 0;
    each_membership(conn, |_, _| count += 1);
    conn.epolls.store(count, Ordering::Release);
}

/// In the child of fork(): event queues and bells are the parent's.
pub fn forked() {
    // In use or not: one may have been given up by another thread since it was frozen.
    (0..sets_made()).filter_map(set).filter(|set| set.lock.owner() != 0).for_each(|set| set.lock.reset());
    each_set(|set| {
        set.inherited.store(1, Ordering::Relaxed);
        set.queue.store(0, Ordering::Relaxed);
        set.list_all();
    });
    QUEUES_TAKEN.store(0, Ordering::Relaxed);
}

/// The process has given up its bells: its sets are woken by kicks from then on.
pub(crate) fn renounce() {
    each_set(|set| {
        set.queue.store(0, Ordering::Relaxed);
        set.list_all();
    });
    QUEUES_TAKEN.store(0, Ordering::Relaxed);
}

/// Whether a descriptor of ours belongs to a set of the program's.
pub(crate) fn uses(fd: i32) -> bool {
    let mut any = standin::is_stand_in(fd);
    each_set(|set| any |= [&set.inner, &set.lamp].iter().any(|own| own.load(Ordering::Acquire) == fd + 1));
    any
}

/// epoll_ctl() on a connection; `None`: the kernel's call, as it is.
pub fn control(set_fd: i32, op: i32, fd: i32, event: Option<libc::epoll_event>) -> Option<Result<(), Errno>> {
    let conn = table::conn(fd)?;
    let Some(set) = table::set(set_fd) else {
        // A set that we do not know (inherited through exec, or passed): its members must stay the kernel's.
        demote::now(conn, fd, Reason::Shared);
        return None;
    };
    let done = if (fd as usize) < MEMBERS { set.control(op, fd, conn, event) } else { None };
    if done.is_none() {
        demote::now(conn, fd, Reason::TableFull);
    }
    done
}

/// A connection was promoted: sets that have it as a member take it over.
pub fn adopt(conn: &'static Conn) {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    each_membership(conn, |set, fd| set.move_in(fd, false));
}

/// Whether now is a bad time to promote the connection, because only the kernel knows what its sets are owed: whether the shot of a
/// one-shot member is fired (it is not while the program arms it), whether an edge-triggered one was told of the bytes that are there,
/// and what came before them. The latter two are put off a few times only: an edge told twice is what a program must cope with, as more
/// bytes could have come.
pub fn untimely(conn: &'static Conn) -> bool {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return false;
    }
    let arming = conn.arming.load(Ordering::Acquire);
    let mut unknown = false;
    each_membership(conn, |set, fd| {
        let events = set.lock().map_or(0, |mut guard| guard.member(fd).events);
        unknown |= events & ONESHOT != 0
            && (arming >> 32 != u64::from(thread::tid())
                || arming as u32 as i32 != set.fd.load(Ordering::Relaxed));
    });
    unknown
        || sys::ioctl_int(conn.descriptor(), libc::FIONREAD).unwrap_or(0) > 0
            && conn.put_off.fetch_add(1, Ordering::Relaxed) < PUT_OFF_MOST
}

/// Whether the program has been seen to wait for all sets that the connection is in, be it from outside.
pub(crate) fn waited_for(conn: &'static Conn) -> bool {
    let mut all = true;
    each_membership(conn, |set, _| {
        all &= set.calls.load(Ordering::Relaxed) != 0 || set.watched.load(Ordering::Relaxed) != 0;
    });
    all
}

/// The descriptor of a connection is about to be closed, and has left the table; `last`: no other one stands for it.
pub fn forget(conn: &'static Conn, fd: i32, last: bool) {
    if conn.epolls.load(Ordering::Acquire) == 0 && !conn.has(flag::PARKED) {
        return;
    }
    // A member stays in its sets while another number stands for the connection (epoll(7), question 6). Only the kernel can
    // keep a member whose number is closed.
    let mut others = false;
    if !last {
        table_fds(conn, |other| others |= other != fd);
    }
    if others {
        demote::hand_over(conn, fd, Reason::Duplicated, false);
    }
    each_set(|set| set.forget(conn, fd, others));
}

/// A descriptor is not followed any more: sets that have it as a member give it back to the kernel's.
pub fn leave(conn: &'static Conn, fd: i32) {
    if conn.epolls.load(Ordering::Acquire) != 0 {
        each_set(|set| set.forget(conn, fd, true));
    }
}

/// A write found no room: the set must learn when there is some.
pub fn want_room(conn: &'static Conn) {
    conn.set(flag::TX_FULL);
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    let seen = wait::Seen::now(conn);
    arm(conn, trip::RX | trip::TX);
    // By tcp another thread may have taken the kernel's edge before it was known that it is one.
    let by_tcp = || matches!(conn.tx.path(), path::TCP | path::LAST) && sys::writable(conn.descriptor());
    if wait::Seen::now(conn) != seen || by_tcp() {
        each_membership(conn, |set, fd| set.list_and_wake(fd));
    }
}

/// Something has come that may have been for sets, too, and the kernel has no edge of it, or has it no more (a kick that was taken): they get one. Under the lock of a
/// direction, so without the sets' own; a set that the connection is not in refuses.
#[cold]
pub(crate) fn another_edge(conn: &Conn) {
    each_set(|set| {
        if set.inner.load(Ordering::Acquire) != 0 {
            table_fds(conn, |fd| set.nudge(fd));
        }
    });
}

/// epoll_wait(); `None`: the set is not one of ours, or the arguments are the kernel's to refuse.
///
/// # Safety
/// `events` is null or has room for `max` events.
pub unsafe fn wait(
    set_fd: i32,
    events: *mut libc::epoll_event,
    max: i32,
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Option<Result<usize, Errno>> {
    let set = table::set(set_fd)?;
    // Sets without promoted members, too: one may be promoted while we sleep, and its event is not the program's.
    if max <= 0 || events.is_null() {
        return None;
    }
    // SAFETY: the program vouches for max places.
    let places = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    Some(set.wait(places, nanos, mask))
}

fn each_membership(conn: &'static Conn, mut each: impl FnMut(&'static Set, i32)) {
    let mut fds = [0; 8];
    let mut found = 0;
    table_fds(conn, |fd| {
        if found < fds.len() {
            fds[found] = fd;
            found += 1;
        }
    });
    each_set(|set| {
        for &fd in &fds[..found] {
            if set.has(conn, fd) {
                each(set, fd);
            }
        }
    });
}

/// Calls `each` for every set that the program has. Connections close, and are promoted, by the thousand: not by way of the table.
fn each_set(mut each: impl FnMut(&'static Set)) {
    for set in (0..sets_made()).filter_map(set) {
        if set.refs.load(Ordering::Acquire) != 0 {
            each(set);
        }
    }
}

fn sets_made() -> usize {
    SETS_MADE.load(Ordering::Acquire)
}

/// The descriptors of a connection: nearly always the one it was made with.
fn table_fds(conn: &Conn, mut each: impl FnMut(i32)) {
    let first = conn.descriptor();
    let is = |fd: i32| matches!(table::entry(fd), Entry::Conn(other) if core::ptr::eq(other, conn));
    if conn.refs.load(Ordering::Acquire) == 1 && is(first) {
        return each(first);
    }
    table::for_each(|fd, _| {
        if is(fd) {
            each(fd);
        }
    });
}

/// Arms a member: by its set's event queue if it has one and is the only one that waits, else by kicks.
fn arm(conn: &'static Conn, interest: u64) {
    let queue = conn.queue.load(Ordering::Acquire);
    let alone = || {
        conn.epolls.load(Ordering::Acquire) == 1
            && conn.waiters.load(Ordering::Acquire) == 0
            && conn.queue.load(Ordering::Acquire) == queue
            && !conn.has(flag::SHARED)
            && heard(conn, queue)
    };
    if queue != 0 && alone() {
        wait::arm(conn, interest, trip::QUEUE, queue as u8 - 1);
        // The queue may have been another set's, which has ended meanwhile.
        if alone() {
            return;
        }
    }
    wait::arm(conn, interest, trip::KICK, 0);
}

/// Whether the peer can ring the event queue with this number, less one.
fn heard(conn: &Conn, queue: u32) -> bool {
    let Some(queue) = queue.checked_sub(1).map(|queue| queue as usize) else { return false };
    if conn.has(flag::NO_BELLS) {
        return conn.has(flag::LOUD) && bells::loud_fd(queue).is_some();
    }
    link::link(conn.link.load(Ordering::Relaxed)).rings_queue(queue)
}

/// How many sets the program has.
pub(crate) fn sets_in_use() -> usize {
    let mut count = 0;
    each_set(|_| count += 1);
    count
}

/// Other users ring from now on: sets that have an event queue already hear them, too.
pub(crate) fn hear_others() {
    each_set(Set::hear_others);
}

impl Set {
    /// Puts the bell that other users ring beside its own, if there are such.
    fn hear_others(&self) {
        let (queue, inner) = (self.queue.load(Ordering::Acquire), self.inner.load(Ordering::Acquire));
        if queue != 0
            && inner != 0
            && let Some(loud) = bells::loud_fd(queue as usize - 1)
        {
            let _ = sys::epoll_ctl(inner - 1, libc::EPOLL_CTL_ADD, loud, ready::IN | ET, BELL_DATA);
        }
    }

    /// Arms its queue's sleep words.
    fn arm_sleep(&self, scan: &link::Scan, queue: u32) {
        let disarmed = arm_sleep(scan, queue);
        if disarmed != 0 {
            self.owed.fetch_add(disarmed as i32, Ordering::Relaxed);
        }
    }

    /// Silences its bells.
    fn silence(&self, queue: usize) {
        let rung = silence(queue).min(i32::MAX as u64) as i32;
        let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| {
            (owed > 0).then(|| (owed - rung).max(0))
        });
    }
}

/// Silences an event queue's bells; how often they were rung.
fn silence(queue: usize) -> u64 {
    let own = bells::bell_fd(queue);
    let rung = own.map_or(0, bell::silence);
    let Some(loud) = bells::loud_fd(queue) else { return rung };
    let (more, silent) = bell::silence_loud(loud);
    if !silent && let Some(own) = own {
        // Somebody rings without end. While it is full it cannot be rung: it is looked again.
        bell::ring(own);
    }
    rung + more
}

/// Whether one of an event queue's bells rings.
fn rings(queue: usize) -> bool {
    bells::bell_fd(queue).is_some_and(sys::readable) || bells::loud_fd(queue).is_some_and(sys::readable)
}

/// Arms the queue's sleep words; says how many were disarmed; to be looked at once more before the sleep. Always for the bell: what disarms them may be a late hint
/// for a connection that is the set's no more, or another set's hint from when the queue was its own, whose kick nobody here would see.
fn arm_sleep(scan: &link::Scan, queue: u32) -> u32 {
    let disarmed = scan.arm_sleep(queue as usize, trip::BELL, queue as u8);
    hints::fence_before_sleep();
    disarmed
}

struct Guard<'a>(&'a Set);
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
impl Guard<'_> {
    /// A member's place; of one for which none is mapped, as nobody has been added there, one that is empty.
    #[inline(always)]
    fn member(&mut self, fd: i32) -> &mut Member {
        let (part, begin) = part_of(fd as usize);
        let at = self.state().parts[part];
        if at.is_null() {
            return self.nobody();
        }
        // SAFETY: the part has places from `begin` to twice that, or PART of them, and stays mapped as long as the set; the lock is held.
        unsafe { &mut *at.add(fd as usize - begin) }
    }
    #[cold]
    fn nobody(&mut self) -> &mut Member {
        self.state().nobody = NOBODY;
        &mut self.state().nobody
    }
    /// Maps a place for a member, if it has none; false without memory.
    fn make_place(&mut self, fd: i32) -> bool {
        let part = part_of(fd as usize).0;
        if self.state().parts[part].is_null()
            && let Ok(at) = sys::mmap_private(places_of(part) * size_of::<Member>())
        {
            self.state().parts[part] = at.cast();
        }
        !self.state().parts[part].is_null()
    }
    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.state.get() }
    }
    fn list(&mut self, fd: i32) {
        let member = self.member(fd);
        if member.flags & LISTED != 0 {
            return;
        }
        member.flags |= LISTED;
        member.next = 0;
        let (tail, state) = (self.state().tail, fd as u32 + 1);
        if tail == 0 {
            self.state().head = state;
        } else {
            self.member(tail as i32 - 1).next = state;
        }
        self.state().tail = state;
        self.state().listed += 1;
    }
    /// Keeps a member off the list until [`Guard::relist`].
    fn set_aside(&mut self, fd: i32, which: fn(&mut State) -> &mut Aside) {
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
        which(self.state()).last = place;
    }
    /// A peer had set a hint when it was taken, but was not done with waking us.
    #[cold]
    fn note_waking(&mut self, conn: &'static Conn) {
        if let Some(place) = self.state().waking.iter_mut().find(|place| place.is_none()) {
            *place = Some(conn);
        }
    }
    /// Puts those that were set aside on the list.
    fn relist(&mut self, which: fn(&mut State) -> &mut Aside) {
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
    /// One that is to be looked at, now or when the kernel has been asked again, if there is one.
    fn next(&mut self) -> Option<i32> {
        let state = self.state();
        let first = if state.head != 0 { state.head } else { state.late.first };
        (first != 0).then(|| first as i32 - 1)
    }
    fn unlist_first(&mut self) -> Option<i32> {
        let head = self.state().head;
        if head == 0 {
            return None;
        }
        let fd = head as i32 - 1;
        let member = self.member(fd);
        member.flags &= !LISTED;
        let next = member.next;
        let state = self.state();
        state.head = next;
        if next == 0 {
            state.tail = 0;
        }
        state.listed -= 1;
        Some(fd)
    }
}

impl Set {
    fn in_use(&self) -> bool {
        self.used.load(Ordering::Acquire) != 0
    }

    fn lock(&self) -> Option<Guard<'_>> {
        // Not one that is made and thrown away: to drop it would unlock.
        if thread::lock(&self.lock, Place::Set) { Some(Guard(self)) } else { None }
    }
}

/// A jump out of a signal handler has ended the call that had the lock of a set: the set is put in order and the lock given back. False
/// if it is no set's.
#[cold]
pub fn abandoned(lock: &Lock) -> bool {
    let Some(set) = (0..sets_made()).filter_map(set).find(|set| core::ptr::eq(&raw const set.lock, lock))
    else {
        return false;
    };
    set.put_in_order(Guard(set));
    set.pass_on();
    true
}

/// The set with this number, in use or not; `None` before the first was made.
fn set(index: usize) -> Option<&'static Set> {
    let base = SETS_AT.load(Ordering::Acquire) as *const Set;
    // SAFETY: the array has SETS places, zeroed memory is a valid unused Set, it is never unmapped; callers stay below SETS.
    (!base.is_null()).then(|| unsafe { &*base.add(index) })
}

fn take_set() -> Option<&'static Set> {
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
