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
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::{bell, hints, trip};
use stream::spin::{Learned, NO_CPU, Spun, nanos_of, ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::layout::{QUEUES, W};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::{demote, descriptors, link, process, ready, real, rendezvous, thread, wait};

/// An epoll set.
pub struct Set {
    used: AtomicU32,
    refs: AtomicU32,
    fd: AtomicI32,
    /// The inner set, +1.
    inner: AtomicI32,
    /// Its event queue, +1; without one its members are armed for kicks.
    queue: AtomicU32,
    /// Whether the process's bell 0 is in the inner set.
    has_bell: AtomicU32,
    /// Members in the inner set.
    moved: AtomicU32,
    /// Threads asleep on the set; being watched counts as one, that never ends.
    sleepers: AtomicU32,
    /// Whether the set may be waited on from outside: through another set, or in poll.
    watched: AtomicU32,
    /// Whether one of its members is a set of ours.
    holds: AtomicU32,
    /// What makes a watched set readable while a promoted member is ready, +1; made when first lit.
    lamp: AtomicI32,
    kernel_asked: AtomicU64,
    /// The last call had no place left, or told only what it had told before: the kernel's members may be waiting.
    crowded: AtomicU32,
    learned: AtomicU64,
    /// Counts the kernel's registrations and the looks at its members; and when the last look began that left nothing to be told.
    clock: AtomicU64,
    emptied: AtomicU64,
    lock: Lock,
    state: UnsafeCell<State>,
}

struct State {
    members: *mut Member,
    head: u32,
    tail: u32,
    listed: u32,
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

/// Members by descriptor: higher ones are not promoted.
const MEMBERS: usize = 1 << 16;
/// What a companion is watched for in an inner set. It is writable at once, so that adding (or changing) it is an event.
const EDGES: u32 = ready::IN | ready::OUT | ready::RDHUP | libc::EPOLLPRI as u32 | ET;
const SETS: usize = 1024;
const ET: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
/// The kernel's part of a set is asked at least this often while rings keep it busy.
const KERNEL_NS: u64 = 50_000;
/// How often the promotion of an edge-triggered member with unread bytes is put off.
const PUT_OFF_MOST: u32 = 16;
/// Data of the bell in an inner set; descriptors are smaller.
const BELL_DATA: u64 = u64::MAX;
/// Data of the lamp there.
const LAMP_DATA: u64 = u64::MAX - 1;
/// How often a set is looked at while the answer to an offer is being taken by another thread.
const SETTLE_TRIES: u32 = 1000;

static SETS_AT: AtomicU64 = AtomicU64::new(0);
static QUEUES_TAKEN: AtomicU32 = AtomicU32::new(0);
/// How many sets are watched.
static WATCHED: AtomicU32 = AtomicU32::new(0);

/// The program has made an epoll set.
pub fn created(fd: i32) {
    if !process::active() {
        return;
    }
    let Some(set) = take_set() else { return };
    set.refs.store(1, Ordering::Relaxed);
    set.fd.store(fd, Ordering::Relaxed);
    if let Some(Entry::Set(old)) = table::swap(fd, Entry::Set(set)) {
        old.release();
    }
}

/// A descriptor of the set is another one's duplicate.
pub fn duplicated(set: &'static Set) {
    set.refs.fetch_add(1, Ordering::AcqRel);
}

/// A descriptor of the set is about to be closed.
pub fn closed(set: &'static Set) {
    set.release();
}

/// Before fork(): takes the locks of all sets. False if that cannot be, as this thread has one of them (it is in a signal handler).
pub fn freeze() -> bool {
    let tid = thread::tid();
    for index in 0..SETS {
        if !set(index).is_none_or(|set| set.lock.lock(tid)) {
            (0..index).filter_map(set).for_each(|before| before.lock.unlock());
            return false;
        }
    }
    true
}

/// After fork(), in the parent.
pub fn thaw() {
    (0..SETS).filter_map(set).for_each(|set| set.lock.unlock());
}

/// In the child of fork(): event queues and the bell are the parent's.
pub fn forked() {
    (0..SETS).filter_map(set).for_each(|set| set.lock.reset());
    table::for_each(|_, entry| {
        if let Entry::Set(set) = entry {
            set.queue.store(0, Ordering::Relaxed);
            set.list_all();
        }
    });
    QUEUES_TAKEN.store(0, Ordering::Relaxed);
}

/// epoll_ctl() on a connection; `None`: the kernel's call, as it is.
pub fn control(set_fd: i32, op: i32, fd: i32, event: Option<libc::epoll_event>) -> Option<Result<(), Errno>> {
    let conn = table::conn(fd)?;
    let Some(set) = table::set(set_fd) else {
        // A set that we do not know (inherited through exec, or passed): its members must stay the kernel's.
        demote::now(conn, fd, Reason::Shared);
        return None;
    };
    if fd as usize >= MEMBERS {
        demote::now(conn, fd, Reason::TableFull);
        return None;
    }
    Some(set.control(op, fd, conn, event))
}

/// epoll_ctl() on what is no connection, before the kernel does it: a set inside a set is noted.
pub fn nest(set_fd: i32, fd: i32) {
    if let Some(outer) = table::set(set_fd)
        && watch(fd)
    {
        outer.holds.store(1, Ordering::SeqCst);
        settle();
    }
}

/// The descriptor is going to be waited on from outside, if it is one of our sets; says whether it is.
pub fn watch(fd: i32) -> bool {
    let Some(set) = table::set(fd) else { return false };
    if set.watched.swap(1, Ordering::SeqCst) == 0 {
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        WATCHED.fetch_add(1, Ordering::SeqCst);
    }
    true
}

/// Settles all watched sets: what the kernel says of them is right then, and what comes later wakes whoever waits on them.
pub fn settle() {
    let mut left = WATCHED.load(Ordering::SeqCst);
    for set in (0..SETS).map_while(set) {
        if left == 0 {
            return;
        }
        if set.watched.load(Ordering::SeqCst) != 0 {
            left -= 1;
            set.settle();
        }
    }
}

/// A connection was promoted: sets that have it as a member take it over.
pub fn adopt(conn: &'static Conn) {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    each_membership(conn, |set, fd| set.move_in(fd, false));
}

/// Whether now is a bad time to promote the connection, because only the kernel knows what its sets are owed: whether the shot of a
/// one-shot member is fired (it is not while the program arms it), and whether an edge-triggered one was told of the bytes that are
/// there. The latter is put off a few times only: an edge told twice is what a program must cope with, as more bytes could have come.
pub fn untimely(conn: &'static Conn) -> bool {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return false;
    }
    let arming = conn.arming.load(Ordering::Acquire);
    let (mut unknown, mut edge) = (false, false);
    each_membership(conn, |set, fd| {
        let events = set.lock().map_or(0, |mut guard| guard.member(fd).events);
        unknown |= events & ONESHOT != 0
            && (arming >> 32 != u64::from(thread::tid())
                || arming as u32 as i32 != set.fd.load(Ordering::Relaxed));
        edge |= events & ET != 0;
    });
    unknown
        || edge
            && sys::ioctl_int(conn.descriptor(), libc::FIONREAD).unwrap_or(0) > 0
            && conn.put_off.fetch_add(1, Ordering::Relaxed) < PUT_OFF_MOST
}

/// The descriptor of a connection is about to be closed.
pub fn forget(conn: &'static Conn, fd: i32) {
    if conn.epolls.load(Ordering::Acquire) == 0 && !conn.has(flag::PARKED) {
        return;
    }
    // A member stays in its sets while another number stands for the connection (epoll(7), question 6). Only the kernel can
    // keep a member whose number is closed.
    let mut others = false;
    table_fds(conn, |other| others |= other != fd);
    if others {
        demote::hand_over(conn, fd, Reason::Duplicated);
    }
    table::for_each(|_, entry| {
        if let Entry::Set(set) = entry {
            set.forget(conn, fd, others);
        }
    });
}

/// A write found no room: the set must learn when there is some.
pub fn want_room(conn: &'static Conn) {
    conn.set(flag::TX_FULL);
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    let seen = wait::Seen::now(conn);
    arm(conn, trip::RX | trip::TX);
    if wait::Seen::now(conn) != seen {
        each_membership(conn, |set, fd| set.list_and_wake(fd));
    }
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
    table::for_each(|_, entry| {
        if let Entry::Set(set) = entry {
            let mut fds = [0; 8];
            let mut found = 0;
            table_fds(conn, |fd| {
                if found < fds.len() {
                    fds[found] = fd;
                    found += 1;
                }
            });
            for &fd in &fds[..found] {
                if set.has(conn, fd) {
                    each(set, fd);
                }
            }
        }
    });
}

/// The descriptors of a connection: nearly always the one it was made with.
fn table_fds(conn: &'static Conn, mut each: impl FnMut(i32)) {
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
    let alone = conn.epolls.load(Ordering::Acquire) == 1 && conn.waiters.load(Ordering::Acquire) == 0;
    if queue != 0 && alone && !conn.has(flag::SHARED) {
        wait::arm(conn, interest, trip::QUEUE, queue as u8 - 1);
    } else {
        wait::arm(conn, interest, trip::KICK, 0);
    }
}

struct Guard<'a>(&'a Set);
impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}
impl Guard<'_> {
    fn member(&mut self, fd: i32) -> &mut Member {
        debug_assert!((fd as usize) < MEMBERS);
        // SAFETY: the array has MEMBERS places, callers check fd; the lock is held.
        unsafe { &mut *(*self.0.state.get()).members.add(fd as usize) }
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
    fn lock(&self) -> Option<Guard<'_>> {
        self.lock.lock(thread::tid()).then_some(Guard(self))
    }

    fn has(&self, conn: &'static Conn, fd: i32) -> bool {
        (fd as usize) < MEMBERS
            && self.lock().is_some_and(|mut guard| {
                let member = guard.member(fd);
                member.flags & PRESENT != 0 && member.conn.is_some_and(|other| core::ptr::eq(other, conn))
            })
    }

    fn control(
        &'static self,
        op: i32,
        fd: i32,
        conn: &'static Conn,
        event: Option<libc::epoll_event>,
    ) -> Result<(), Errno> {
        let set = self.fd.load(Ordering::Relaxed);
        let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
        if op == libc::EPOLL_CTL_MOD && events & ONESHOT != 0 && !conn.is_managed() {
            conn.arming.store(u64::from(thread::tid()) << 32 | set as u64, Ordering::Release);
            rendezvous::tick(conn, fd);
            conn.arming.store(0, Ordering::Release);
        }
        {
            let mut guard = self.lock().ok_or(Errno::EINTR)?;
            let member = guard.member(fd);
            let known =
                member.flags & PRESENT != 0 && member.conn.is_some_and(|other| core::ptr::eq(other, conn));
            if known && member.flags & MOVED != 0 {
                match op {
                    libc::EPOLL_CTL_ADD => return Err(Errno::EEXIST),
                    libc::EPOLL_CTL_MOD => {
                        member.events = events;
                        member.data = data;
                        member.flags = member.flags & !SPENT | FRESH;
                        guard.list(fd);
                        drop(guard);
                        if self.sleepers.load(Ordering::Acquire) != 0 {
                            self.nudge(fd);
                        }
                        return Ok(());
                    }
                    libc::EPOLL_CTL_DEL => {
                        self.park(&mut guard, fd, conn);
                        return Ok(());
                    }
                    _ => return Err(Errno::EINVAL),
                }
            }
            if !known && op == libc::EPOLL_CTL_ADD && conn.is_managed() {
                return self.add_moved(guard, fd, conn, events, data);
            }
            if !known && op != libc::EPOLL_CTL_ADD && member.flags & INNER != 0 {
                return Err(Errno::ENOENT);
            }
            sys::epoll_ctl(set, op, fd, events, data)?;
            let registered = self.clock.fetch_add(1, Ordering::AcqRel);
            let member = guard.member(fd);
            if op == libc::EPOLL_CTL_DEL {
                if known {
                    // Still in the inner set, if an offer was taken back: until it is promoted again, or closed.
                    member.flags &= LISTED | INNER;
                    if member.flags & INNER == 0 {
                        member.conn = None;
                    } else {
                        conn.set(flag::PARKED);
                    }
                    conn.epolls.fetch_sub(1, Ordering::AcqRel);
                }
                return Ok(());
            }
            if !known {
                conn.epolls.fetch_add(1, Ordering::AcqRel);
            }
            *member = Member {
                conn: Some(conn),
                data,
                events,
                flags: member.flags & (LISTED | INNER) | PRESENT,
                next: member.next,
                seen: registered,
                life: 0,
            };
        }
        if conn.is_managed() {
            self.move_in(fd, true);
        }
        Ok(())
    }

    /// EPOLL_CTL_ADD of a connection that is managed already.
    fn add_moved(
        &'static self,
        mut guard: Guard<'_>,
        fd: i32,
        conn: &'static Conn,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let inner = self.inner()?;
        let member = *guard.member(fd);
        let parked = member.flags & INNER != 0 && member.conn.is_some_and(|other| core::ptr::eq(other, conn));
        if !parked {
            sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, fd, EDGES, fd as u64)?;
        }
        let flags = member.flags & LISTED | PRESENT | MOVED | FRESH | INNER;
        *guard.member(fd) =
            Member { conn: Some(conn), data, events, flags, next: member.next, seen: 0, life: 0 };
        conn.epolls.fetch_add(1, Ordering::AcqRel);
        conn.queue.store(self.queue.load(Ordering::Acquire), Ordering::Release);
        self.moved.fetch_add(1, Ordering::AcqRel);
        guard.list(fd);
        drop(guard);
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            self.nudge(fd);
        }
        Ok(())
    }

    /// EPOLL_CTL_DEL of a promoted member: it stays in the inner set, where its events are nobody's.
    fn park(&self, guard: &mut Guard<'_>, fd: i32, conn: &'static Conn) {
        let member = guard.member(fd);
        member.flags &= LISTED | INNER;
        conn.set(flag::PARKED);
        self.moved.fetch_sub(1, Ordering::AcqRel);
        if conn.epolls.fetch_sub(1, Ordering::AcqRel) == 1 {
            conn.queue.store(0, Ordering::Release);
        }
    }

    /// Takes a member out of the kernel's set and into the inner one. `armed`: the program has just registered it.
    fn move_in(&'static self, fd: i32, armed: bool) {
        let Some(mut guard) = self.lock() else { return };
        let member = *guard.member(fd);
        let Some(conn) = member.conn else { return };
        if member.flags & PRESENT == 0 {
            return;
        }
        if member.flags & MOVED != 0 {
            // It has another slot now, whose tripwire nobody has armed.
            guard.list(fd);
            drop(guard);
            if self.sleepers.load(Ordering::SeqCst) != 0 {
                self.nudge(fd);
            }
            return;
        }
        let Ok(inner) = self.inner() else {
            drop(guard);
            return demote::now(conn, fd, Reason::NoDescriptors);
        };
        // Writable at once, so adding (or changing) it wakes whoever sleeps on the set: they look at the list.
        let op = if member.flags & INNER != 0 { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        if sys::epoll_ctl(inner, op, fd, EDGES, fd as u64).is_err() {
            drop(guard);
            return demote::now(conn, fd, Reason::NoDescriptors);
        }
        let _ = sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, fd, 0, 0);
        // The kernel may have had an edge for it that nobody has taken yet.
        let untold = armed
            || member.seen >= self.emptied.load(Ordering::Acquire)
            || sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) > 0;
        let place = guard.member(fd);
        place.flags |= INNER | if untold { MOVED | FRESH } else { MOVED };
        place.seen = 0;
        conn.queue.store(self.queue.load(Ordering::Acquire), Ordering::Release);
        self.moved.fetch_add(1, Ordering::AcqRel);
        guard.list(fd);
    }

    /// Gives a member back to the kernel's set: its connection is on tcp for good.
    fn move_out(&self, guard: &mut Guard<'_>, fd: i32) {
        let member = *guard.member(fd);
        if member.flags & MOVED == 0 {
            return;
        }
        let _ = sys::epoll_ctl(self.inner.load(Ordering::Acquire) - 1, libc::EPOLL_CTL_DEL, fd, 0, 0);
        let events = if member.flags & SPENT != 0 { ONESHOT } else { member.events };
        let _ = sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, fd, events, member.data);
        guard.member(fd).flags &= !(MOVED | SPENT | INNER);
        self.moved.fetch_sub(1, Ordering::AcqRel);
    }

    fn drop_member(&self, guard: &mut Guard<'_>, fd: i32) {
        let member = *guard.member(fd);
        if member.flags & INNER != 0 {
            let _ = sys::epoll_ctl(self.inner.load(Ordering::Acquire) - 1, libc::EPOLL_CTL_DEL, fd, 0, 0);
        }
        if member.flags & MOVED != 0 {
            self.moved.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(conn) = member.conn {
            conn.epolls.fetch_sub(1, Ordering::AcqRel);
            conn.queue.store(0, Ordering::Release);
        }
        let place = guard.member(fd);
        place.flags &= LISTED;
        place.conn = None;
    }

    fn forget(&self, conn: &'static Conn, fd: i32, stays: bool) {
        if fd as usize >= MEMBERS {
            return;
        }
        let Some(mut guard) = self.lock() else { return };
        let member = *guard.member(fd);
        if member.flags & (PRESENT | INNER) == INNER {
            let _ = sys::epoll_ctl(self.inner.load(Ordering::Acquire) - 1, libc::EPOLL_CTL_DEL, fd, 0, 0);
            guard.member(fd).flags &= LISTED;
            guard.member(fd).conn = None;
            return;
        }
        if member.flags & PRESENT != 0 && member.conn.is_some_and(|other| core::ptr::eq(other, conn)) {
            if stays {
                self.move_out(&mut guard, fd);
            }
            if conn.has(flag::SHARED)
                && conn.refs.load(Ordering::Acquire) > 1
                && guard.member(fd).flags & MOVED != 0
            {
                // The other process may go on with the same kernel set: its registration stays, as with tcp.
                guard.member(fd).flags &= !(MOVED | INNER);
                self.moved.fetch_sub(1, Ordering::AcqRel);
            }
            self.drop_member(&mut guard, fd);
        }
    }

    /// The inner set, made when first needed. Under the lock.
    fn inner(&'static self) -> Result<i32, Errno> {
        let known = self.inner.load(Ordering::Acquire);
        if known != 0 {
            return Ok(known - 1);
        }
        let inner = descriptors::hide(descriptors::made(sys::epoll_create)?);
        let at = core::ptr::from_ref(self) as u64;
        if let Err(errno) =
            sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, inner, ready::IN, at)
        {
            descriptors::unhide(inner);
            return Err(errno);
        }
        if let Some(bell) = process::claim_bell(0) {
            let added = sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, bell, ready::IN | ET, BELL_DATA);
            self.has_bell.store(u32::from(added.is_ok()), Ordering::Release);
        }
        let taken = QUEUES_TAKEN.load(Ordering::Relaxed);
        if let Some(queue) = (0..QUEUES as u32).find(|queue| taken & 1 << queue == 0)
            && QUEUES_TAKEN
                .compare_exchange(taken, taken | 1 << queue, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        {
            self.queue.store(queue + 1, Ordering::Release);
        }
        self.inner.store(inner + 1, Ordering::Release);
        Ok(inner)
    }

    fn release(&'static self) {
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut held = self.lock();
        if let Some(guard) = &mut held {
            let members = guard.state().members;
            if self.inner.load(Ordering::Acquire) != 0 || !members.is_null() {
                for fd in 0..table::top().min(MEMBERS as i32) {
                    if guard.member(fd).flags & PRESENT != 0 {
                        self.drop_member(guard, fd);
                    }
                }
            }
            *guard.state() = State { members, head: 0, tail: 0, listed: 0 };
            sys::madvise(members.cast(), MEMBERS * size_of::<Member>(), libc::MADV_DONTNEED);
        }
        // Under the lock, as those who settle all sets may come by.
        for own in [&self.inner, &self.lamp] {
            let fd = own.swap(0, Ordering::AcqRel);
            if fd != 0 {
                descriptors::unhide(fd - 1);
            }
        }
        drop(held);
        if self.watched.swap(0, Ordering::SeqCst) != 0 {
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            WATCHED.fetch_sub(1, Ordering::SeqCst);
        }
        self.holds.store(0, Ordering::SeqCst);
        if self.has_bell.swap(0, Ordering::AcqRel) != 0 {
            process::release_bell(0);
        }
        let queue = self.queue.swap(0, Ordering::AcqRel);
        if queue != 0 {
            QUEUES_TAKEN.fetch_and(!(1 << (queue - 1)), Ordering::AcqRel);
        }
        self.moved.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Release);
    }

    fn list_and_wake(&self, fd: i32) {
        if let Some(mut guard) = self.lock()
            && guard.member(fd).flags & MOVED != 0
        {
            guard.list(fd);
        }
        if self.sleepers.load(Ordering::Acquire) != 0 {
            self.nudge(fd);
        }
    }

    /// Puts all promoted members on the list.
    fn list_all(&self) {
        let Some(mut guard) = self.lock() else { return };
        if self.moved.load(Ordering::Acquire) == 0 {
            return;
        }
        for fd in 0..table::top().min(MEMBERS as i32) {
            if guard.member(fd).flags & MOVED != 0 {
                guard.list(fd);
            }
        }
    }

    /// Wakes a thread that sleeps on the set: re-arming an edge that is there (writable) is an event.
    fn nudge(&self, fd: i32) {
        let edges = ready::IN | ready::OUT | ready::RDHUP | libc::EPOLLPRI as u32 | ET;
        let _ =
            sys::epoll_ctl(self.inner.load(Ordering::Acquire) - 1, libc::EPOLL_CTL_MOD, fd, edges, fd as u64);
    }

    fn wait(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Errno> {
        let deadline = match nanos {
            None | Some(0) => None,
            Some(nanos) => Some(ticks().saturating_add(ticks_of(nanos))),
        };
        loop {
            let moved = self.moved.load(Ordering::Acquire) != 0;
            if moved {
                // The kernel's members come first when their turn has come, for at most half of the places (with one place:
                // for all of it), so that neither kind keeps the other waiting.
                let mut count = 0;
                let asked = ticks() - self.kernel_asked.load(Ordering::Relaxed);
                if self.crowded.swap(0, Ordering::Relaxed) != 0 || asked > ticks_of(KERNEL_NS) {
                    let half = places.len().div_ceil(2);
                    count = self.ask_kernel(&mut places[..half], Some(0), core::ptr::null())?.0;
                }
                let scan = link::scan();
                count += self.collect(&scan, &mut places[count..])?;
                if count > 0 {
                    drop(scan);
                    if count == places.len() {
                        self.crowded.store(1, Ordering::Relaxed);
                    }
                    self.pass_on();
                    return Ok(count);
                }
                if nanos != Some(0) && self.spin(&scan) {
                    continue;
                }
            }
            let (count, inner) = self.sleep(places, nanos, deadline, mask)?;
            if count > 0 {
                self.pass_on();
                return Ok(count);
            }
            if nanos == Some(0) || deadline.is_some_and(|deadline| ticks() >= deadline) {
                let count = if moved || inner { self.collect(&link::scan(), places)? } else { 0 };
                self.pass_on();
                return Ok(count);
            }
        }
    }

    fn spin(&self, scan: &link::Scan) -> bool {
        let queue = self.queue.load(Ordering::Acquire);
        if queue == 0 {
            return false;
        }
        let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
        let spun = learned.spin(process::spin_ticks(), self.peer_cpu(), || scan.any(queue as usize - 1));
        self.learned.store(learned.to_bits(), Ordering::Relaxed);
        spun == Spun::Won
    }

    /// With one member, where its peer waits.
    fn peer_cpu(&self) -> u64 {
        if self.moved.load(Ordering::Relaxed) != 1 {
            return NO_CPU;
        }
        self.lock().and_then(|mut guard| guard.sole()).map_or(NO_CPU, wait::meet)
    }

    /// Sleeps in the kernel; events of the kernel's members are put in `places`.
    fn sleep(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        deadline: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, bool), Errno> {
        let queue = self.queue.load(Ordering::Acquire);
        let scan = link::scan();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            let mode = if self.has_bell.load(Ordering::Acquire) != 0 { trip::BELL } else { trip::KICK };
            scan.arm_sleep(queue as usize - 1, mode, 0);
            hints::fence_before_sleep();
        }
        if self.lamp.load(Ordering::Acquire) != 0 && nanos != Some(0) {
            // Nothing was ready just now: a lamp that is still lit would keep us awake.
            self.settle();
        }
        // Another thread may have put a member on the list after we looked and before we counted as a sleeper.
        let listed = self.lock().is_some_and(|mut guard| guard.state().listed > 0);
        let waiting = listed || queue != 0 && scan.any(queue as usize - 1);
        drop(scan);
        let before = ticks();
        let left = match nanos {
            Some(0) => Some(0),
            _ if waiting => Some(0),
            _ => deadline.map(|deadline| nanos_of(deadline.saturating_sub(ticks()))),
        };
        let result = self.ask_kernel(places, left, mask);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            // The sleep words stay armed: to disarm them could undo the arming of a thread that begins to sleep just now. A
            // stale one costs one bell.
            let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
            learned.slept(ticks() - before, process::spin_ticks());
            self.learned.store(learned.to_bits(), Ordering::Relaxed);
        }
        result
    }

    /// On the way out: if others sleep on the set while there is more to do, one of them is woken.
    fn pass_on(&self) {
        // Those who watch from outside settle the set themselves.
        if self.sleepers.load(Ordering::SeqCst) <= self.watched.load(Ordering::SeqCst) {
            return;
        }
        let queue = self.queue.load(Ordering::Acquire);
        let mut more = None;
        if let Some(mut guard) = self.lock()
            && guard.state().listed > 0
        {
            more = Some(guard.state().head as i32 - 1);
        }
        if queue != 0 {
            let scan = link::scan();
            let mode = if self.has_bell.load(Ordering::Acquire) != 0 { trip::BELL } else { trip::KICK };
            scan.arm_sleep(queue as usize - 1, mode, 0);
            hints::fence_before_sleep();
            if more.is_none() && scan.any(queue as usize - 1) {
                drop(scan);
                self.take_hints();
                if let Some(mut guard) = self.lock()
                    && guard.state().listed > 0
                {
                    more = Some(guard.state().head as i32 - 1);
                }
            }
        }
        if let Some(fd) = more {
            self.nudge(fd);
        }
    }

    fn take_hints(&self) {
        let scan = link::scan();
        if let Some(mut guard) = self.lock() {
            self.list_hinted(&scan, &mut guard);
        }
    }

    fn list_hinted(&self, scan: &link::Scan, guard: &mut Guard<'_>) {
        let queue = self.queue.load(Ordering::Acquire);
        if queue == 0 {
            return;
        }
        scan.take(queue as usize - 1, |conn| {
            table_fds(conn, |fd| {
                if (fd as usize) < MEMBERS && guard.member(fd).flags & MOVED != 0 {
                    guard.list(fd);
                }
            });
        });
    }

    /// Takes hints, goes once through the list, and reports what is ready.
    fn collect(&self, scan: &link::Scan, places: &mut [libc::epoll_event]) -> Result<usize, Errno> {
        let mut guard = self.lock().ok_or(Errno::EINTR)?;
        Ok(self.go_through(scan, &mut guard, Some(places)).0)
    }

    /// For sets that are watched: puts right whether the kernel thinks that the set is readable, and sees to it that whatever comes
    /// from now on wakes those who wait on it from outside.
    #[cold]
    fn settle(&'static self) {
        for _ in 0..SETTLE_TRIES {
            let scan = link::scan();
            let Some(mut guard) = self.lock() else { return };
            let inner = self.inner.load(Ordering::Acquire);
            if inner == 0 {
                return;
            }
            self.drain_inner(&mut guard);
            let queue = self.queue.load(Ordering::Acquire);
            if queue != 0 {
                let mode = if self.has_bell.load(Ordering::Acquire) != 0 { trip::BELL } else { trip::KICK };
                scan.arm_sleep(queue as usize - 1, mode, 0);
                hints::fence_before_sleep();
            }
            let (ready, undecided) = self.go_through(&scan, &mut guard, None);
            if ready > 0 || !undecided {
                return self.light(&mut guard, inner - 1, ready > 0);
            }
            drop(guard);
            drop(scan);
            sys::yield_now();
        }
    }

    /// Lights the lamp, or puts it out. That it is lit is asked of the kernel: parent and child of fork() have the same one.
    fn light(&self, guard: &mut Guard<'_>, inner: i32, ready: bool) {
        if self.lamp.load(Ordering::Acquire) == 0 {
            if !ready {
                return;
            }
            let made = bell::create().map(descriptors::hide).and_then(|lamp| {
                sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, lamp, ready::IN, LAMP_DATA)
                    .map(|()| lamp)
                    .inspect_err(|_| descriptors::unhide(lamp))
            });
            match made {
                Ok(lamp) => self.lamp.store(lamp + 1, Ordering::Release),
                // Without one an edge has to do, until somebody takes it.
                Err(_) => return self.nudge(guard.state().head as i32 - 1),
            }
        }
        let lamp = self.lamp.load(Ordering::Acquire) - 1;
        let mut poll = [libc::pollfd { fd: lamp, events: libc::POLLIN, revents: 0 }];
        let lit = sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0;
        if ready && !lit {
            bell::ring(lamp);
        } else if lit && !ready {
            bell::silence(lamp);
        }
    }

    /// Takes hints and goes once through the list. With `places`: reports there what is ready. Without: looks only; what is ready stays
    /// on the list as it is, but armed, as those who watch from outside are to learn of more. Says how many are ready, and whether
    /// there was one of which that is being decided.
    fn go_through(
        &self,
        scan: &link::Scan,
        guard: &mut Guard<'_>,
        mut places: Option<&mut [libc::epoll_event]>,
    ) -> (usize, bool) {
        self.list_hinted(scan, guard);
        let mut count = 0;
        let mut undecided = false;
        for _ in 0..guard.state().listed {
            if places.as_ref().is_some_and(|places| count == places.len()) {
                break;
            }
            let Some(fd) = guard.unlist_first() else { break };
            let member = *guard.member(fd);
            let Some(conn) = member.conn else { continue };
            if member.flags & MOVED == 0 || member.flags & SPENT != 0 {
                continue;
            }
            if !matches!(table::entry(fd), Entry::Conn(other) if core::ptr::eq(other, conn)) {
                self.drop_member(guard, fd);
                continue;
            }
            let edge = member.events & ET != 0;
            let want = member.events & MASK;
            let mut seen = 0;
            let got = if edge {
                // Armed before we look: what comes before is an edge to report now, what comes later fires.
                let room = want & ready::OUT != 0 && conn.has(flag::TX_FULL);
                arm(conn, if room { trip::RX | trip::TX } else { trip::RX });
                seen = conn.word(W);
                match ready::events(conn, fd, want) {
                    // No room although nobody told us so (filled before it became a member): its edge is awaited, too.
                    Some(got) if want & !got & ready::OUT != 0 && !room => {
                        conn.set(flag::TX_FULL);
                        arm(conn, trip::RX | trip::TX);
                        ready::events(conn, fd, want)
                    }
                    got => got,
                }
            } else {
                let interest = if want & ready::OUT != 0 { trip::RX | trip::TX } else { trip::RX };
                if places.is_none() {
                    arm(conn, interest);
                }
                match ready::events(conn, fd, want) {
                    Some(0) => {
                        arm(conn, interest);
                        ready::events(conn, fd, want)
                    }
                    got => got,
                }
            };
            let Some(got) = got else {
                self.move_out(guard, fd);
                continue;
            };
            if got & ready::AGAIN != 0 {
                undecided = true;
                guard.list(fd);
                continue;
            }
            if got == 0 {
                continue;
            }
            if edge {
                // What the peer has sent by tcp after the ring is new, too, and shows in no write position.
                seen |= u64::from(conn.rx.path() == path::LAST) << 63;
                let life = conn.flags.load(Ordering::Acquire) & (flag::PEER_FIN | flag::PEER_HUP);
                let room = got & ready::OUT != 0 && conn.has(flag::TX_FULL);
                let fresh = member.flags & FRESH != 0 || room || seen != member.seen || life != member.life;
                if !fresh {
                    continue;
                }
                if places.is_none() {
                    guard.list(fd);
                    count += 1;
                    continue;
                }
                if room {
                    conn.clear(flag::TX_FULL);
                }
                let place = guard.member(fd);
                (place.seen, place.life) = (seen, life);
                place.flags &= !FRESH;
            }
            count += 1;
            let Some(places) = &mut places else {
                guard.list(fd);
                continue;
            };
            places[count - 1] = libc::epoll_event { events: got, u64: member.data };
            if member.events & ONESHOT != 0 {
                guard.member(fd).flags |= SPENT;
            } else if !edge {
                // Told again although the program has not read or written since: the kernel's members are asked next.
                let came = 1
                    + conn.counters.ring_in.load(Ordering::Relaxed)
                    + conn.counters.ring_out.load(Ordering::Relaxed);
                if core::mem::replace(&mut guard.member(fd).seen, came) == came {
                    self.crowded.store(1, Ordering::Relaxed);
                }
                guard.list(fd);
            }
        }
        (count, undecided)
    }

    /// The kernel's part of the set: events of its own members go to `places`, those of the inner set onto the list. Says how many
    /// there are, and whether the inner set had any.
    fn ask_kernel(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, bool), Errno> {
        let mut nanos = nanos;
        if self.holds.load(Ordering::SeqCst) != 0 {
            self.meet_nested(nanos, mask)?;
            nanos = Some(0);
        }
        let began = self.clock.fetch_add(1, Ordering::AcqRel);
        let millis = nanos.map_or(-1, |nanos| nanos.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
        // SAFETY: the places are the program's, the mask too.
        let got = unsafe {
            real::epoll_pwait()(
                self.fd.load(Ordering::Relaxed),
                places.as_mut_ptr(),
                places.len().min(i32::MAX as usize) as i32,
                millis,
                mask,
            )
        };
        self.kernel_asked.store(ticks(), Ordering::Relaxed);
        if got < 0 {
            return Err(Errno::new(real::errno()));
        }
        let mut count = got as usize;
        if count < places.len() {
            self.emptied.fetch_max(began, Ordering::AcqRel);
        }
        let ours = core::ptr::from_ref(self) as u64;
        let place = places[..count].iter().position(|event| event.u64 == ours);
        if let Some(place) = place {
            places.copy_within(place + 1..count, place);
            count -= 1;
            self.ask_inner();
        }
        Ok((count, place.is_some()))
    }

    /// With sets inside: sleeps in poll instead of epoll_wait, which would report a set that only seems to be ready, and take the edge
    /// or the one shot of its registration.
    #[cold]
    fn meet_nested(&self, nanos: Option<u64>, mask: *const libc::sigset_t) -> Result<(), Errno> {
        settle();
        if nanos == Some(0) {
            return Ok(());
        }
        let mut poll = libc::pollfd { fd: self.fd.load(Ordering::Relaxed), events: libc::POLLIN, revents: 0 };
        let timeout = nanos.map(sys::timespec);
        let at = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: one place, the timeout is null or valid, the mask is the program's.
        if unsafe { real::ppoll()(&raw mut poll, 1, at, mask) } < 0 {
            return Err(Errno::new(real::errno()));
        }
        settle();
        Ok(())
    }

    fn ask_inner(&self) {
        if let Some(mut guard) = self.lock() {
            self.drain_inner(&mut guard);
        }
    }

    /// Takes what is pending in the inner set: members go onto the list.
    fn drain_inner(&self, guard: &mut Guard<'_>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let inner = self.inner.load(Ordering::Acquire) - 1;
        loop {
            let count = sys::epoll_wait(inner, events.as_mut_ptr(), 64, 0).unwrap_or(0);
            for event in &events[..count] {
                let data = event.u64;
                if data == BELL_DATA {
                    if let Some(fd) = process::bell_fd(0) {
                        bell::silence(fd);
                    }
                    continue;
                }
                let fd = data as i32;
                if fd as usize >= MEMBERS {
                    continue;
                }
                if let Some(conn) = table::conn(fd) {
                    ready::absorb(conn, fd);
                    if conn.state() == state::OFFERED {
                        rendezvous::answered(conn);
                    }
                }
                let member = guard.member(fd);
                if member.flags & MOVED != 0 {
                    if member.conn.is_some_and(|conn| is_edge(conn, event.events)) {
                        member.flags |= FRESH;
                    }
                    guard.list(fd);
                }
            }
            if count < 64 {
                return;
            }
        }
    }
}

impl Guard<'_> {
    /// A promoted member, when there is one on the list's memory: for guessing where its peer runs.
    fn sole(&mut self) -> Option<&'static Conn> {
        (0..table::top().min(MEMBERS as i32))
            .map(|fd| *self.member(fd))
            .find(|member| member.flags & MOVED != 0)
            .and_then(|member| member.conn)
            .filter(|conn| conn.tx.path() != path::LAST)
    }
}

/// Whether what the kernel tells of a companion is an edge of the connection: not where the bytes go by rings.
fn is_edge(conn: &Conn, events: u32) -> bool {
    let ring = |path| matches!(path, path::SMALL | path::BIG);
    events & libc::EPOLLPRI as u32 != 0
        || events & ready::IN != 0 && !ring(conn.rx.path())
        || events & ready::OUT != 0 && !ring(conn.tx.path()) && conn.has(flag::TX_FULL)
}

/// Event bits that are conditions, not modes.
const MASK: u32 = 0x0fff_ffff & !(1 << 28 | ONESHOT);

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
            let mut guard = set.lock()?;
            if guard.state().members.is_null() {
                guard.state().members = sys::mmap_private(MEMBERS * size_of::<Member>()).ok()?.cast();
            }
            drop(guard);
            return Some(set);
        }
    }
    None
}
