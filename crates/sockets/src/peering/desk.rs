//! The desk: how the thread that serves links between hosts is asked for, started and ended, and
//! what it is told that is not of one link.

use fabric::outbox::{Outbox, WorkRequest};
use fabric::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use fabric::sys;
use stream::spin::{ticks, ticks_of};

use super::wire::{self, ring, task, wait_for_room};
use crate::conn::Conn;
use crate::{process, rules, signals};
use host::addr::Addr;

/// How a progress thread is started and ended, how it does what waits in the outboxes, and what is
/// done in children.
static START: AtomicUsize = AtomicUsize::new(0);

static STOP: AtomicUsize = AtomicUsize::new(0);

static IN_CHILD: AtomicUsize = AtomicUsize::new(0);

/// What is to be done that is not of one link.
static DESK: AtomicUsize = AtomicUsize::new(0);

/// Whether a progress thread has been asked for.
static WANTED: AtomicU32 = AtomicU32::new(0);

const NOT_YET: u32 = 0;

const ASKED: u32 = 1;

const STARTED: u32 = 2;

/// A child of a process that has one: what libfabric has locked meanwhile stays so.
const NEVER: u32 = 3;

/// Whether this host belongs to a cluster.
pub fn is_asked_for() -> bool {
    !process::options().cluster.is_empty()
}

/// There can be progress threads in this process, started by `start` when one is wanted, and ended
/// by `stop`; `forked` is called in children.
pub fn offer_progress_thread(start: fn(), stop: fn(), forked: fn()) {
    IN_CHILD.store(forked as usize, Ordering::Release);
    STOP.store(stop as usize, Ordering::Release);
    START.store(start as usize, Ordering::Release);
}

/// Ends the progress thread, for good: nothing goes between hosts any more.
pub fn stop() {
    if WANTED.swap(NEVER, Ordering::AcqRel) == STARTED {
        let stop = STOP.load(Ordering::Acquire);
        // SAFETY: only `offer_progress_thread` stores here, and there is a progress thread.
        unsafe { core::mem::transmute::<usize, fn()>(stop)() };
    }
}

fn desk() -> Option<&'static Outbox> {
    let at = DESK.load(Ordering::Acquire);
    // SAFETY: only `begin` stores here, an outbox that stays mapped.
    (at != 0).then(|| unsafe { &*(at as *const Outbox) })
}

/// The next thing to do that is not of one link.
pub fn next() -> Option<WorkRequest> {
    desk()?.take()
}

/// Whether the other end of a connection may be on another host that counts as this cluster's.
pub fn may_be(own: Addr, peer: Addr) -> bool {
    START.load(Ordering::Relaxed) != 0
        && WANTED.load(Ordering::Relaxed) != NEVER
        && rules::in_cluster(own)
        && rules::in_cluster(peer)
        && sys::address_space_limit() == u64::MAX
}

/// A connection has been posted that may be one between hosts.
pub(crate) fn post(conn: &Conn, index: u32) {
    conn.remote.is_asked_for.store(1, Ordering::Relaxed);
    if DESK.load(Ordering::Acquire) == 0 {
        let Ok(at) = sys::mmap_common(size_of::<Outbox>()) else { return };
        if DESK.compare_exchange(0, at as usize, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at, size_of::<Outbox>());
        }
    }
    let (own, _) = conn.addresses();
    if first_address().is_none() {
        let half = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| own.ip[at + i]));
        FIRST[0].store(half(0), Ordering::Release);
        FIRST[1].store(half(8), Ordering::Release);
    }
    if WANTED.compare_exchange(NOT_YET, ASKED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        ASKED_AT.store(ticks(), Ordering::Release);
    }
    tell_desk(task::POST, index, conn.cookie.load(Ordering::Relaxed));
}

/// It is not to be introduced any more.
pub(crate) fn withdraw(conn: &Conn, index: u32) {
    if desk().is_some() && conn.remote.is_asked_for.load(Ordering::Relaxed) != 0 {
        tell_desk(task::WITHDRAW, index, conn.cookie.load(Ordering::Relaxed));
    }
}

fn tell_desk(what: u64, index: u32, cookie: u64) {
    // Without a progress thread nobody makes room: then it is not known, and stays on tcp.
    if let Some(desk) = desk()
        && desk.has_room()
    {
        desk.post(WorkRequest { what, at: index.into(), value: cookie }, wait_for_room);
        ring();
    }
}

/// Nobody uses a link any more, the progress thread's with this number.
pub(crate) fn release(number: u64) {
    if let Some(desk) = desk() {
        desk.post(WorkRequest { what: task::RELEASE, at: number, value: 0 }, wait_for_room);
        ring();
    }
}

/// When a progress thread was asked for, in ticks, and for how long a connection must have wanted
/// it: to open libfabric takes longer than many a program.
static ASKED_AT: AtomicU64 = AtomicU64::new(0);

const WANTED_NS: u64 = 100_000_000;

/// Starts the progress thread if one has been asked for some time ago: under no lock. To start a
/// thread allocates, which a signal handler must not that has interrupted it.
pub(crate) fn start_if_wanted() {
    if WANTED.load(Ordering::Relaxed) != ASKED
        || ticks().wrapping_sub(ASKED_AT.load(Ordering::Acquire)) < ticks_of(WANTED_NS)
        || process::borrowed()
        || signals::may_be_in_handler()
    {
        return;
    }
    if WANTED.compare_exchange(ASKED, STARTED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let start = START.load(Ordering::Acquire);
        // SAFETY: only `offer_progress_thread` stores here, and `may_be` has seen that it has.
        unsafe { core::mem::transmute::<usize, fn()>(start)() };
    }
}

/// In its child.
pub fn forked() {
    if WANTED.load(Ordering::Acquire) == STARTED {
        // What there is still to bring to a peer, the parent's progress thread brings.
        WANTED.store(NEVER, Ordering::Release);
        let forked = IN_CHILD.load(Ordering::Acquire);
        // SAFETY: only `offer_progress_thread` stores here, and there was a progress thread.
        unsafe { core::mem::transmute::<usize, fn()>(forked)() };
    } else {
        WANTED.store(NOT_YET, Ordering::Release);
        wire::silence();
    }
    wire::forget_progress_thread();
    DESK.store(0, Ordering::Release);
}

/// Whether something waits at the desk.
pub fn has_requests() -> bool {
    desk().is_some_and(|desk| !desk.is_empty())
}

/// There is no progress thread, and will be none.
pub fn unavailable() {
    WANTED.store(NEVER, Ordering::Release);
}

/// An address of ours that the cluster reaches: that of the first connection that may go there.
pub fn first_address() -> Option<[u8; 16]> {
    let ip = [FIRST[0].load(Ordering::Acquire), FIRST[1].load(Ordering::Acquire)];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&ip[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&ip[1].to_ne_bytes());
    (ip != [0, 0]).then_some(bytes)
}

static FIRST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether there is a progress thread.
pub(crate) fn is_started() -> bool {
    WANTED.load(Ordering::Acquire) == STARTED
}
