//! A connection's state up to its promotion, under one lock: what was posted is taken down, offers are answered or taken back, and whoever
//! must stay on tcp says so.

use fabric::lock::Lock;
use fabric::queue::MESSAGE;
use fabric::sync::Ordering;
use fabric::{Local, sys};
use options::LogLevel;

use super::posted::{LISTENER, POSTED, POSTED_AT, TOKEN, posted, wait_longer};
use crate::conn::{Conn, flag, state};
use crate::layout::{self, ACCEPTED, CANCELLED, REFUSED, STATE};
use crate::link::{self, Link};
use crate::peering::{desk, wire};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::thread::{self, Place};
use crate::{board, descriptors, epoll, log, process, report};

/// An offer is to be refused if it has not been accepted.
pub(super) const TAKE_BACK: u32 = 2;

/// The answer to our offer, if it has come: from any call on a connection in state OFFERED. Does not wait for the lock on states:
/// whoever calls may hold an epoll set's, which a thread that holds the states may be waiting for. False: it has come, but another
/// thread has the lock; to be called again.
#[cold]
pub fn answered(conn: &'static Conn) -> bool {
    if conn.word(STATE) & (ACCEPTED | REFUSED) == 0 {
        return true;
    }
    let Some(_states) = States::try_lock() else {
        // In a signal handler that interrupted the one who has it, nothing changes however often it asks.
        return conn.state() != state::OFFERED || STATES.owner() == thread::tid();
    };
    if conn.state() == state::OFFERED {
        look_for_answer(conn);
    }
    true
}

pub(super) fn look_for_answer(conn: &'static Conn) {
    let answer = conn.word(STATE);
    if answer & ACCEPTED != 0 {
        // Several threads may see it; each step is idempotent but for the count.
        if conn
            .state
            .compare_exchange(state::OFFERED, state::PROMOTED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            promoted(conn);
        }
    } else if answer & REFUSED != 0
        && conn
            .state
            .compare_exchange(state::OFFERED, state::POSTED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    {
        link::link(conn.link.load(Ordering::Relaxed)).leave_slot(conn.slot.load(Ordering::Relaxed) as usize);
        conn.unmanage();
        wait_longer(conn, Reason::Refused);
    }
}

/// Cancels an offer of ours. False if it has been accepted: then that stays so, and whoever looks meanwhile sees nothing else.
pub(super) fn take_back(conn: &'static Conn) -> bool {
    if let Some(wire) = conn.wire() {
        return refused_on_demand(conn, wire);
    }
    let mut answer = conn.word(STATE);
    // A peer answers once; one that does not keep to that must not keep us here (rule F2).
    for _ in 0..8 {
        if answer & ACCEPTED != 0 {
            return false;
        }
        // A refusal stays, too: by it the slot is known to be free again.
        match conn.mine().replace_word(conn.at(STATE), answer, answer | CANCELLED) {
            Ok(()) => break,
            Err(now) => answer = now,
        }
    }
    if conn.plain(state::OFFERED) {
        link::link(conn.link.load(Ordering::Relaxed)).leave_slot(conn.slot.load(Ordering::Relaxed) as usize);
        conn.unmanage();
    }
    true
}

/// Between hosts the peer is asked to refuse, and answers at once. False if it has accepted.
fn refused_on_demand(conn: &'static Conn, wire: &wire::Wire) -> bool {
    let link = link::link(conn.link.load(Ordering::Relaxed));
    let mut message = [0; MESSAGE];
    message[0..4].copy_from_slice(&TAKE_BACK.to_ne_bytes());
    message[4..8].copy_from_slice(&conn.slot.load(Ordering::Relaxed).to_ne_bytes());
    message[8..12].copy_from_slice(&conn.far.index.load(Ordering::Relaxed).to_ne_bytes());
    link.tell(&message);
    let start = sys::now();
    while conn.word(STATE) & (ACCEPTED | REFUSED) == 0 {
        if wire.is_over() {
            break;
        }
        if sys::now() - start > ANSWER_NS {
            wire.end();
            break;
        }
        sys::yield_now();
    }
    if conn.word(STATE) & ACCEPTED != 0 {
        return false;
    }
    if conn.plain(state::OFFERED) {
        link.leave_slot(conn.slot.load(Ordering::Relaxed) as usize);
        conn.unmanage();
    }
    true
}

/// How long a peer may take for it before the link is given up.
const ANSWER_NS: u64 = 1_000_000_000;

/// Answers an offer that could not be taken yet: it is not going to be.
pub(super) fn refuse_pending(conn: &'static Conn) {
    if let Some((link, slot)) = pending(conn) {
        link.refuse(slot);
        link.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Takes note no longer of an offer that could not be taken yet. It counts among what is on its link, which stays as long.
pub(super) fn pending(conn: &'static Conn) -> Option<(&'static Link, usize)> {
    let pending = conn.pending.swap(0, Ordering::AcqRel);
    (pending != 0).then(|| (link::link((pending >> 32) as u32), (pending & 0xffff_ffff) as usize - 1))
}

/// Both ends agree: from now on each writer changes over when it next writes.
pub(super) fn promoted(conn: &'static Conn) {
    conn.set_reason(Reason::None);
    log::connection(LogLevel::Info, conn, "in memory");
    conn.put(layout::FD, conn.descriptor() as u64 + 1);
    unpost(conn);
    report::add(report::at::PROMOTED, 1);
}

/// Takes the connection's post down.
pub(super) fn unpost(conn: &'static Conn) {
    refuse_pending(conn);
    let place = conn.posted_at.swap(0, Ordering::AcqRel);
    if place != 0 {
        let (own, peer) = conn.addresses();
        board::remove(place - 1, board::key(own, peer));
    }
    let index = conn.posted_index.swap(0, Ordering::AcqRel);
    if index != 0 {
        desk::withdraw(conn, index as u32 - 1);
    }
    if index != 0
        && let Some(cell) = posted(index as usize - 1)
    {
        let _ =
            cell.compare_exchange(core::ptr::from_ref(conn) as u64, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Guards every change of a connection's state up to PROMOTED, and the end of a connection: any thread's housekeeping may take an
/// offer for a connection that another thread is closing.
static STATES: Lock = Lock::unlocked();

/// The lock on states, held or, if the thread had it already, not; and which signals were blocked before it was taken.
pub struct States(pub(super) bool, Option<u64>);

/// Keeps fork() out while the table of descriptors and the counts of who refers to a connection change together: a child that had an
/// entry which is not counted, or the other way round, would let go of a connection that others hold.
pub fn steady() -> States {
    // Taken again in a signal handler that interrupted the holder: the handler's call goes on without.
    States(thread::lock(&STATES, Place::States), None)
}

impl States {
    /// With all signals blocked, but not while it is waited for (its holder may have been stopped by a handler that waits for all threads):
    /// a handler that used the connection whose calls are just becoming ours would wait for the thread that it has interrupted, and one
    /// that never returns, or jumps away, would leave it so for all.
    pub(super) fn lock() -> States {
        let mut states = steady();
        states.1 = Some(sys::block_signals(u64::MAX));
        states
    }

    /// As [`States::lock`], if nobody has it.
    pub(super) fn try_lock() -> Option<States> {
        let taken = thread::try_lock(&STATES, Place::States);
        taken.then(|| States(true, Some(sys::block_signals(u64::MAX))))
    }
}

impl Drop for States {
    fn drop(&mut self) {
        if self.0 {
            STATES.unlock();
        }
        if let Some(blocked) = self.1 {
            sys::block_signals(blocked);
        }
    }
}

/// Halves of a connection (SHUT_RD, SHUT_WR) are about to be shut: it is not promoted any more. True if it is already, and the halves
/// are for the caller to note.
pub fn shut(conn: &'static Conn, halves: u32) -> bool {
    let _states = steady();
    if !agreed(conn) {
        conn.set(halves);
        return false;
    }
    true
}

/// Whether it is in memory. If not, an offer of ours that is out is taken back. Under the lock on states.
pub(super) fn agreed(conn: &'static Conn) -> bool {
    if conn.state() == state::OFFERED && !take_back(conn) {
        look_for_answer(conn);
    }
    conn.state() == state::PROMOTED
}

/// The end of a connection: it is not promoted any more. Says whether it has a slot (it was, or is, promoted).
pub fn close(conn: &'static Conn) -> bool {
    let _states = steady();
    unpost(conn);
    if conn.state() == state::OFFERED && !take_back(conn) {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    for from in [state::NEW, state::POSTED] {
        conn.plain(from);
    }
    conn.slot_taken()
}

/// The carrier ends: nothing that goes to another host is promoted any more. What a peer there has accepted is in memory, and ends as such.
pub(crate) fn end_far() {
    let _states = steady();
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry
            && conn.far.token.load(Ordering::Acquire) != 0
            && !matches!(conn.state(), state::PROMOTED | state::PLAIN)
        {
            conn.set(flag::NEVER);
            agreed(conn);
            refuse_pending(conn);
        }
    });
}

/// Stops following: the connection stays on tcp. False if it is in memory already.
pub fn give_up(conn: &'static Conn, reason: Reason) -> bool {
    let _states = steady();
    if agreed(conn) {
        return false;
    }
    stop(conn, reason);
    true
}

pub(super) fn stop(conn: &'static Conn, reason: Reason) {
    if !conn.has(flag::NEVER) {
        conn.set(flag::NEVER);
        conn.set_reason(reason);
        report::count_reason(reason);
        log::on_tcp(conn, reason);
    }
    unpost(conn);
    for from in [state::NEW, state::POSTED] {
        conn.plain(from);
    }
}

/// Before fork(): offers are taken back, and no state changes until [`thaw`]. False if the lock is this thread's already. A guest's child
/// has no part in the connections: they go on as they are.
pub fn freeze() -> bool {
    let frozen = thread::lock(&STATES, Place::States);
    if process::is_guest() {
        return frozen;
    }
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            agreed(conn);
            // The link is this process's alone.
            refuse_pending(conn);
        }
    });
    frozen
}

/// After fork(), in the parent.
pub fn thaw() {
    STATES.unlock();
}

/// In the child of fork(): a rendezvous socket of its own when it needs one.
pub fn forked() {
    STATES.reset();
    let listener = LISTENER.swap(0, Ordering::AcqRel);
    if listener > 0 {
        descriptors::unhide(listener - 1);
    }
    TOKEN.store(0, Ordering::Relaxed);
    let at = POSTED_AT.load(Ordering::Acquire);
    if at != 0 {
        sys::madvise(at as *mut u8, POSTED * 8, libc::MADV_DONTNEED);
    }
}

/// Nothing is posted any more, and nobody finds us; who calls closes the descriptor.
pub(crate) fn renounce() {
    let _states = steady();
    LISTENER.store(0, Ordering::Release);
    TOKEN.store(0, Ordering::Release);
    let at = POSTED_AT.load(Ordering::Acquire);
    if at != 0 {
        sys::madvise(at as *mut u8, POSTED * 8, libc::MADV_DONTNEED);
    }
}

/// Whether all descriptors of a connection that was shared by fork() are this process's now.
pub(crate) fn owned(conn: &'static Conn) -> bool {
    let mut own = 0;
    table::for_each(|_, entry| {
        if matches!(entry, Entry::Conn(other) if core::ptr::eq(other, conn)) {
            own += 1;
        }
    });
    if own != conn.refs.load(Ordering::Acquire) {
        return false;
    }
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.clear(flag::SHARED);
    epoll::count_members(conn);
    true
}
