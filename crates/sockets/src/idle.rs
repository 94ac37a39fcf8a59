//! Memory of rings goes back to the kernel when their connections are idle, as a kernel's socket
//! keeps no memory when its buffers are empty.
//!
//! **Who writes into a ring gives it back.** It alone stores into what is free, and under its
//! direction's lock, when the reader has taken all, the whole ring is: pages that are taken away
//! then (MADV_REMOVE) read as zeroes and come again with the next bytes. The reader looks only at
//! what was written and not yet given back to the writer, so it need not be asked.
//!
//! **When.** There is no thread of ours that could look, and a send does nothing for it: a
//! connection has been idle if its position is what it was at the last look. Looks are made by
//! threads on their way to sleep, twice in a second at most, each at a piece of the connections;
//! one that would sleep for long gets up for them, until a round has found nothing to be given back
//! any more: then it sleeps for good. And where many connections come to rings one after the other,
//! those before them are looked at.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use stream::spin::{nanos_of, ticks, ticks_of};

use crate::conn::{Conn, path, state};
use crate::layout;
use crate::{link, peering};

/// A round takes so long at least: who is idle gives back within two.
const ROUND_NS: u64 = 400_000_000;
/// Connections that are looked at together.
const PIECE: u32 = 512;
/// After so many connections that came to rings there is a look as well.
const JOINED: u32 = 16;
/// What is unread is looked at ever more rarely, down to once in so many rounds.
const RARELY: u64 = 64;

/// When the next look is due, in ticks; and for those who have done nothing since a round that
/// found only what is unread.
static DUE: AtomicU64 = AtomicU64::new(0);
static RARE: AtomicU64 = AtomicU64::new(0);
/// When the last round began that found nothing to be done later, and the last that found nothing
/// but what is unread.
static CLEAN: AtomicU64 = AtomicU64::new(0);
static QUIET: AtomicU64 = AtomicU64::new(0);
/// Of the round that goes on: the link to begin with, when it began, and whether it has found any
/// that are to be looked at again.
static NEXT: AtomicU32 = AtomicU32::new(0);
static BEGAN: AtomicU64 = AtomicU64::new(0);
static FOUND: AtomicU32 = AtomicU32::new(0);
/// How many rounds to wait until what is unread is looked at again.
static PATIENCE: AtomicU64 = AtomicU64::new(1);
/// Connections that have come to rings.
static CAME: AtomicU32 = AtomicU32::new(0);
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// A bit of [`FOUND`]: used since the last round; or unread by the peer, which tells us nothing
/// when it reads.
const USED: u32 = 1;
const UNREAD: u32 = 2;

/// A thread is about to sleep, at most `left` nanoseconds, and has done nothing with connections
/// since `since`: looks if that is due, and says how long it may sleep before it comes here again.
pub(crate) fn before_sleep(left: Option<u64>, since: u64) -> Option<u64> {
    if link::all().is_empty() {
        return left;
    }
    let due = || if QUIET.load(Ordering::Acquire) >= since { &RARE } else { &DUE }.load(Ordering::Relaxed);
    if CLEAN.load(Ordering::Acquire) < since && ticks() >= due() {
        look();
    }
    if CLEAN.load(Ordering::Acquire) >= since {
        return left;
    }
    let wait = nanos_of(due().saturating_sub(ticks())) + 1_000_000;
    Some(left.map_or(wait, |left| left.min(wait)))
}

/// A thread is about to sleep in a call that cannot come here again.
pub(crate) fn look_if_due() {
    if ticks() >= DUE.load(Ordering::Relaxed) {
        look();
    }
}

/// A connection's bytes go by a ring from now on.
pub(crate) fn came() {
    if CAME.fetch_add(1, Ordering::Relaxed) % JOINED == JOINED - 1 {
        look();
    }
}

#[cold]
fn look() {
    if LOOKING.swap(1, Ordering::Acquire) != 0 {
        return;
    }
    let scan = link::scan();
    let (mut seen, mut index) = (0, NEXT.load(Ordering::Relaxed));
    if index == 0 {
        BEGAN.store(ticks(), Ordering::Relaxed);
        FOUND.store(0, Ordering::Relaxed);
    }
    let mut found = FOUND.load(Ordering::Relaxed);
    while seen < PIECE && link::all().contains(&index) {
        scan.each_conn(index, |conn| {
            seen += 1;
            found |= at(conn);
        });
        index += 1;
    }
    FOUND.store(found, Ordering::Relaxed);
    if link::all().contains(&index) {
        NEXT.store(index, Ordering::Relaxed);
        // The other pieces in the same time.
        DUE.store(ticks() + ticks_of(ROUND_NS / 8), Ordering::Relaxed);
    } else {
        NEXT.store(0, Ordering::Relaxed);
        if found == 0 {
            CLEAN.fetch_max(BEGAN.load(Ordering::Relaxed), Ordering::AcqRel);
        }
        DUE.store(ticks() + ticks_of(ROUND_NS), Ordering::Relaxed);
        if found == UNREAD {
            let rounds = PATIENCE.load(Ordering::Relaxed);
            PATIENCE.store((rounds * 2).min(RARELY), Ordering::Relaxed);
            RARE.store(ticks() + ticks_of(ROUND_NS) * rounds, Ordering::Relaxed);
            QUIET.fetch_max(BEGAN.load(Ordering::Relaxed), Ordering::AcqRel);
        } else {
            PATIENCE.store(1, Ordering::Relaxed);
        }
    }
    LOOKING.store(0, Ordering::Release);
}

/// Looks at one: what is to be done later.
fn at(conn: &'static Conn) -> u32 {
    // Of a process that is killed the sums have at least what it had moved by now.
    conn.count_moved();
    // One that is in use right now is not idle.
    let Some(mut tx) = conn.tx.try_lock() else { return USED };
    let ring = matches!(conn.tx.path(), path::SMALL | path::BIG);
    // Between hosts the memory is registered; after a step that was not ended nothing is certain.
    if conn.state() != state::PROMOTED
        || !ring
        || !peering::facts(conn).shares_memory
        || conn.is_via()
        || tx.step != 0
    {
        return 0;
    }
    let written = tx.ring.position();
    if tx.given == written + 1 || written == 0 {
        return 0;
    }
    if core::mem::replace(&mut tx.looked_at, written) != written {
        return USED;
    }
    if tx.ring.unread(&conn.ends()) != Ok(0) {
        return UNREAD;
    }
    let theirs = conn.theirs().map();
    theirs.discard(layout::small(conn.slot()), layout::SMALL);
    if conn.tx.path() == path::BIG {
        theirs.discard(layout::big(tx.big), layout::BIG);
    }
    tx.given = written + 1;
    0
}

/// In the child of fork(): no thread of its looks.
pub(crate) fn forked() {
    LOOKING.store(0, Ordering::Relaxed);
    NEXT.store(0, Ordering::Relaxed);
}
