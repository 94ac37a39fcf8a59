//! fork(). The child has the same connections: their state is in shared memory, so both may use
//! them; both wake by kicks from then on. What belongs to the process alone (rendezvous, links for
//! new connections, bells, event queues) the child makes anew. A guest's connections
//! ([`process::is_guest`]) are not shared: its child has none.
//!
//! The queues in the segments of inherited links are the parent's, and the child must not read
//! them. fork() holds the locks that lie in the process's own memory (states, sets, links,
//! descriptors), so that in the child none is held by a thread that the child does not have.
//!
//! The kernel's registrations in inner epoll sets are the parent's as well: close() takes none of
//! them out (`Set::drop_unregistered`), as with tcp. An event of an inner set names the connection,
//! as the descriptor may be another one's by then. `Conn::epolls` counts the sets of all processes.
//! Holders of locks and sleepers are known by their threads' ids, so before a fork() into another
//! PID namespace connections go back to tcp ([`part`]).

use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::{sys, trip};

use crate::conn::{Conn, flag, state};
use crate::peering::{desk, progress};
use crate::reason::Reason;
use crate::relay;
use crate::table::{self, Entry};
use crate::wake::{arm, call_bell};
use crate::{bells, close, descriptors, epoll, folder, home, idle, link, process, rendezvous, thread};

type FreezeThaw = (fn() -> bool, fn());
/// The process's own locks that fork() holds, in their order.
const LOCKS: [FreezeThaw; 4] = [
    (rendezvous::freeze, rendezvous::thaw),
    (epoll::freeze, epoll::thaw),
    (link::freeze, link::thaw),
    (descriptors::freeze, descriptors::thaw),
];
const STATES: usize = 0;
const SETS: usize = 1;
const LINKS: usize = 2;
const LIMIT: usize = 3;
/// Which of them it holds, as bits.
static FROZEN: AtomicU32 = AtomicU32::new(0);
/// With [`STATES`]: the signals that were blocked before. A handler could jump away with all of
/// that locked.
static BLOCKED: AtomicU64 = AtomicU64::new(0);
/// Whether children are in another PID namespace than this process.
static PARTED: AtomicBool = AtomicBool::new(false);

/// Children of this process are in another PID namespace from now on.
pub fn children_part() {
    PARTED.store(true, Ordering::Relaxed);
}

/// Before a fork() whose child is in another PID namespace: connections go back to tcp. Those who
/// share one know each other by their threads' ids, which say nothing there: two processes may both
/// be number 1, and whether a thread lives cannot be asked.
pub fn part() {
    table::each_conn(|fd, conn| {
        let start = sys::now();
        loop {
            relay::hand_over(conn, fd, Reason::PidNamespace, false);
            // Its calls are to be the kernel's, under no lock of ours: an offer may be on its way,
            // or the peer slow.
            if !conn.is_managed_now() || sys::now() - start > PART_NS {
                break;
            }
            let _ = sys::ppoll(&mut [], Some(POLL_NS));
        }
    });
}

/// A peer gets so long to agree.
const PART_NS: u64 = 1_000_000_000;
const POLL_NS: u64 = 200_000;

/// Before fork(), in the parent: every connection gets one more holder for each descriptor, and the
/// locks that lie in the process's own memory are taken, so that the child does not get one that is
/// held by a thread it does not have.
pub fn prepare() {
    progress::before_fork();
    if PARTED.load(Ordering::Relaxed) && !process::is_guest() {
        part();
    }
    let mut states = LOCKS[STATES].0();
    for _ in 0..OFFERS_MOST {
        if !(states && progress::has_moved_since()) {
            break;
        }
        // The answer to an offer came meanwhile.
        LOCKS[STATES].1();
        progress::before_fork();
        states = LOCKS[STATES].0();
    }
    // Under that lock: another thread may be at this, too.
    FROZEN.store(u32::from(states) << STATES, Ordering::Relaxed);
    if states {
        BLOCKED.store(sys::block_signals(u64::MAX), Ordering::Relaxed);
    }
    table::each_conn(|_, conn| {
        if !process::is_guest() {
            conn.set(flag::SHARED);
            if conn.state() == state::PROMOTED && conn.epolls.load(Ordering::Acquire) != 0 {
                // Armed for an event queue that the child does not have: kicks wake both.
                arm::arm(conn, trip::RX | trip::TX, trip::KICK);
            }
            conn.refs.fetch_add(1, Ordering::AcqRel);
        }
    });
    freeze(SETS);
    epoll::share_members(true);
    freeze(LINKS);
    freeze(LIMIT);
}

/// So often connections may move to memory just before a fork() until it goes on with them.
const OFFERS_MOST: usize = 3;

fn freeze(which: usize) {
    let frozen = LOCKS[which].0();
    FROZEN.fetch_or(u32::from(frozen) << which, Ordering::Relaxed);
}

/// After it, in the parent.
pub fn parent() {
    let frozen = FROZEN.swap(0, Ordering::Relaxed);
    let blocked = BLOCKED.load(Ordering::Relaxed);
    for (which, (_, thaw)) in LOCKS.iter().enumerate().rev() {
        if frozen & 1 << which != 0 {
            thaw();
        }
    }
    give_signals_back(frozen, blocked);
}

fn give_signals_back(frozen: u32, blocked: u64) {
    if frozen & 1 << STATES != 0 {
        sys::block_signals(blocked);
    }
}

/// In the child.
pub fn child() {
    let frozen = FROZEN.swap(0, Ordering::Relaxed);
    thread::forget();
    descriptors::forked();
    process::forked();
    bells::forked();
    call_bell::forked();
    rendezvous::forked();
    link::forked();
    rendezvous::send_all_away();
    idle::forked();
    epoll::forked();
    desk::forked();
    home::leave();
    if process::is_guest() {
        // Its parent's connections are not the child's: it is as if it had never had them. Their
        // descriptors are closed by who made them.
        for fd in 0..table::top() {
            if matches!(table::entry(fd), Entry::Conn(_)) {
                table::swap(fd, Entry::None);
            }
        }
        link::forget();
    }
    give_signals_back(frozen, BLOCKED.load(Ordering::Relaxed));
}

/// A process ends without closing its descriptors: gives its holds on connections back that others
/// have, too, or that lie in another process's memory. Not those that are in memory and its alone,
/// as its last calls may still come: [`home::take`] finds these later.
pub fn leave() {
    progress::leave();
    close::all_kicks_at_exit();
    epoll::share_members(false);
    table::each_conn(|fd, conn| {
        if !give_back(conn) {
            let_go(conn, fd);
        }
    });
}

/// As [`leave`], before exec(), which closes some descriptors without us: these holds can be taken
/// back if it fails ([`Left::stay`]). What it does not close is on tcp for good by now: nobody need
/// know of it any more, whether it fails or not.
pub fn leave_by_exec() -> Left {
    folder::leave(folder::Leave::InUse);
    epoll::share_members(false);
    let left = Left { given: sys::mmap_private(table::LEN).ok() };
    table::each_conn(|fd, conn| {
        let closes = sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
        if !closes {
            if !conn.is_managed() {
                // If it fails, the kernel's sets go on with what they have.
                epoll::leave(conn, fd);
                close::closing(fd);
            }
            return;
        }
        match left.given {
            Some(given) if give_back(conn) => {
                // SAFETY: one byte for each descriptor that the table has room for.
                unsafe { *given.add(fd as usize) = 1 };
            }
            Some(_) => let_go(conn, fd),
            None => {}
        }
    });
    left
}

/// What [`leave_by_exec`] gave back.
pub struct Left {
    given: Option<*mut u8>,
}

impl Left {
    /// exec() has failed: all of it is ours again.
    pub fn stay(self) {
        folder::stay();
        epoll::share_members(true);
        let Some(given) = self.given else { return };
        table::each_conn(|fd, conn| {
            // SAFETY: as above.
            if unsafe { *given.add(fd as usize) } != 0 {
                conn.set(flag::SHARED);
                conn.refs.fetch_add(1, Ordering::AcqRel);
            }
        });
        sys::munmap(given, table::LEN);
    }
}

/// Gives a hold back, if others have the connection, too.
pub(crate) fn give_back(conn: &'static Conn) -> bool {
    let more = |refs: u32| (refs > 1 && conn.has(flag::SHARED)).then(|| refs - 1);
    conn.refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// Knows no more of a connection of another process's memory that nobody else has. One that is in
/// memory may still be used: it is marked as this process's, for [`home::take`].
fn let_go(conn: &'static Conn, fd: i32) {
    if home::is_ours(conn) {
        return;
    }
    if conn.is_managed() {
        rendezvous::owned(conn);
    } else {
        close::closing(fd);
    }
}
