//! A connection's state up to its promotion, under one lock: what was posted is taken down, offers
//! are answered or taken back, and whoever must stay on tcp says so.

use fabric::lock::Lock;
use fabric::sync::Ordering;
use fabric::{Local, sys};
use options::LogLevel;

use super::meeting;
use super::posted::{LISTENER, TOKEN, forget_posted, unregister, wait_longer};
use crate::conn::{Conn, flag, state};
use crate::layout::{self, ACCEPTED, CANCELLED, REFUSED, STATE};
use crate::link::{self, Link, Message, TAKE_BACK};
use crate::path::offer::{Answer, Stage};
use crate::peering::{self, desk};
use crate::reason::Reason;
use crate::signals::Blocked;
use crate::thread::{self, Place};
use crate::{board, epoll, log, process, report, table};

/// The answer to our offer, if it has come: from any call on a connection in state OFFERED. Does
/// not wait for the lock on states: whoever calls may hold an epoll set's, which a thread that
/// holds the states may be waiting for. False: it has come, but another thread has the lock; to be
/// called again.
#[cold]
pub fn answered(conn: &'static Conn) -> bool {
    if answer(conn).stage().is_none() {
        return true;
    }
    let Some(_states) = States::try_lock() else {
        // In a signal handler that interrupted the one who has it, nothing changes however often it
        // asks.
        return conn.state() != state::OFFERED || STATES.owner() == thread::tid();
    };
    if conn.state() == state::OFFERED {
        look_for_answer(conn);
    }
    true
}

/// What has become of the offer on the connection's slot.
fn answer(conn: &Conn) -> Answer {
    of_word(conn.word(STATE))
}

/// The same, as the word says it.
pub(super) fn of_word(word: u64) -> Answer {
    let has = |bit| word & bit != 0;
    Answer { accepted: has(ACCEPTED), refused: has(REFUSED), cancelled: has(CANCELLED) }
}

pub(super) fn look_for_answer(conn: &'static Conn) {
    // Several threads may see it; each step is idempotent but for the count.
    let note = |state| conn.step(state::OFFERED, state);
    match answer(conn).stage() {
        Some(Stage::Promoted) if note(state::PROMOTED) => promoted(conn),
        Some(Stage::Posted) if note(state::POSTED) => {
            leave_slot(conn);
            wait_longer(conn, Reason::Refused);
            meeting::refused(conn);
        }
        _ => {}
    }
}

/// An offer of ours has come to nothing.
pub(super) fn leave_slot(conn: &Conn) {
    conn.link().leave_slot(conn.slot());
    conn.unmanage();
}

/// Cancels an offer of ours. False if it has been accepted: then that stays so, and whoever looks
/// meanwhile sees nothing else.
pub(super) fn take_back(conn: &'static Conn) -> bool {
    let cancelled = if peering::facts(conn).shares_memory { cancel(conn) } else { ask_to_refuse(conn) };
    if cancelled && conn.plain(state::OFFERED) {
        leave_slot(conn);
    }
    cancelled
}

fn cancel(conn: &Conn) -> bool {
    let mut word = conn.word(STATE);
    // A peer answers once; one that does not keep to that must not keep us here (rule F2).
    for _ in 0..8 {
        if !of_word(word).may_cancel() {
            return false;
        }
        // A refusal stays, too: by it the slot is known to be free again.
        match conn.mine().replace_word(conn.at(STATE), word, word | CANCELLED) {
            Ok(()) => break,
            Err(now) => word = now,
        }
    }
    true
}

/// Between hosts the peer is asked to refuse, and answers at once.
fn ask_to_refuse(conn: &Conn) -> bool {
    let index = peering::introduced(conn).map_or(0, |other| other.index);
    let slot = conn.slot() as u32;
    conn.link().tell(&Message { kind: TAKE_BACK, slot, index, ..Message::default() });
    let start = sys::now();
    while answer(conn).stage().is_none() && !peering::is_over(conn) {
        if sys::now() - start > ANSWER_NS {
            peering::end_link(conn);
            break;
        }
        sys::yield_now();
    }
    answer(conn).may_cancel()
}

/// How long a peer may take for it before the link is given up.
const ANSWER_NS: u64 = 1_000_000_000;

/// Answers an offer that could not be taken yet: it is not going to be.
pub(super) fn refuse_pending(conn: &'static Conn) {
    take_pending(conn, |link, slot| link.refuse(slot));
}

/// Does something with an offer that could not be taken yet, and takes note of it no longer. It
/// counts among what is on its link, which stays as long. False if there is none.
pub(super) fn take_pending(conn: &'static Conn, act: impl FnOnce(&'static Link, usize)) -> bool {
    let pending = conn.pending.swap(0, Ordering::AcqRel);
    if pending != 0 {
        let link = link::link((pending >> 32) as u32);
        act(link, (pending & 0xffff_ffff) as usize - 1);
        link.let_go();
    }
    pending != 0
}

/// How that is noted.
pub(super) fn pending_word(link: &Link, slot: usize) -> u64 {
    u64::from(link.index()) << 32 | (slot as u64 + 1)
}

/// Both ends agree: from now on each writer changes over when it next writes.
pub(super) fn promoted(conn: &'static Conn) {
    conn.set_reason(Reason::None);
    log::connection(LogLevel::Info, conn, "in memory");
    conn.put(layout::FD, conn.descriptor() as u64 + 1);
    peering::promised(conn);
    unpost(conn);
    report::add(report::at::PROMOTED, 1);
}

/// Takes the connection's post down.
pub(super) fn unpost(conn: &'static Conn) {
    refuse_pending(conn);
    meeting::unpost(conn);
    let place = conn.posted_at.swap(0, Ordering::AcqRel);
    if place != 0 {
        let (own, peer) = conn.addresses();
        board::remove(place - 1, board::key(own, peer));
    }
    let index = conn.posted_index.swap(0, Ordering::AcqRel);
    if index != 0 {
        desk::withdraw(conn, index as u32 - 1);
        unregister(conn, index as u32 - 1);
    }
}

/// Guards every change of a connection's state up to PROMOTED, and the end of a connection: any
/// thread's housekeeping may take an offer for a connection that another thread is closing.
static STATES: Lock = Lock::unlocked();

/// The lock on states, held or, if the thread had it already, not; perhaps with signals blocked.
pub struct States {
    held: bool,
    /// Given back after the lock.
    _blocked: Option<Blocked>,
}

/// Keeps fork() out while the table of descriptors and the counts of who refers to a connection
/// change together: a child that had an entry which is not counted, or the other way round, would
/// let go of a connection that others hold.
pub fn steady() -> States {
    // Taken again in a signal handler that interrupted the holder: the handler's call goes on
    // without.
    States { held: thread::lock(&STATES, Place::States), _blocked: None }
}

impl States {
    /// `None` if the thread has it already. With all signals blocked, but not while it is waited
    /// for (its holder may have been stopped by a handler that waits for all threads): a handler
    /// that used the connection whose calls are just becoming ours would wait for the thread that
    /// it has interrupted, and one that never returns, or jumps away, would leave it so for all.
    pub(super) fn lock() -> Option<States> {
        let mut states = steady();
        states._blocked = Some(Blocked::all());
        Some(states).filter(|states| states.held)
    }

    /// As [`States::lock`], if nobody has it.
    pub(super) fn try_lock() -> Option<States> {
        let taken = thread::try_lock(&STATES, Place::States);
        taken.then(|| States { held: true, _blocked: Some(Blocked::all()) })
    }
}

impl Drop for States {
    fn drop(&mut self) {
        if self.held {
            STATES.unlock();
        }
    }
}

/// Halves of a connection (SHUT_RD, SHUT_WR) are about to be shut: it is not promoted any more.
/// True if it is already, and the halves are for the caller to note.
pub fn shut(conn: &'static Conn, halves: u32) -> bool {
    let _states = steady();
    if !agreed(conn) {
        conn.set(halves);
        return false;
    }
    true
}

/// Whether it is in memory. If not, an offer of ours that is out is taken back. Under the lock on
/// states.
pub(super) fn agreed(conn: &'static Conn) -> bool {
    if conn.state() == state::OFFERED && !take_back(conn) {
        look_for_answer(conn);
    }
    conn.state() == state::PROMOTED
}

/// The end of a connection: it is not promoted any more. Says whether it has a slot (it was, or is,
/// promoted).
pub fn close(conn: &'static Conn) -> bool {
    let _states = steady();
    unpost(conn);
    if conn.state() == state::OFFERED && !take_back(conn) {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    conn.plain_if_not_offered();
    conn.slot_taken()
}

/// The progress thread ends: nothing that goes to another host is promoted any more. What a peer
/// there has accepted is in memory, and ends as such.
pub(crate) fn end_remote() {
    let _states = steady();
    table::each_conn(|_, conn| {
        let by_agents = peering::introduced(conn).is_some_and(|other| !other.by_proof);
        if by_agents && !matches!(conn.state(), state::PROMOTED | state::PLAIN) {
            conn.set(flag::NEVER);
            agreed(conn);
            refuse_pending(conn);
        }
    });
}

/// Its process ends without closing it: it is not promoted any more. Whether it is.
pub(crate) fn is_agreed_at_exit(conn: &'static Conn) -> bool {
    let _states = steady();
    if conn.state() == state::OFFERED {
        conn.set(flag::NEVER);
    }
    agreed(conn)
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
        conn.goes_by_tcp(reason);
    }
    unpost(conn);
    conn.plain_if_not_offered();
}

/// Before fork(): offers are taken back, and no state changes until [`thaw`]. False if the lock is
/// this thread's already. A guest's child has no part in the connections: they go on as they are.
pub fn freeze() -> bool {
    let frozen = thread::lock(&STATES, Place::States);
    if process::is_guest() {
        return frozen;
    }
    table::each_conn(|_, conn| {
        agreed(conn);
        meeting::before_fork(conn);
        // The link is this process's alone.
        refuse_pending(conn);
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
    LISTENER.close();
    meeting::forked();
    TOKEN.store(0, Ordering::Relaxed);
    forget_posted();
}

/// Nothing is posted any more, and nobody finds us; who calls closes the descriptor.
pub(crate) fn renounce() {
    let _states = steady();
    LISTENER.forget();
    meeting::renounce();
    TOKEN.store(0, Ordering::Release);
    forget_posted();
}

/// Whether all descriptors of a connection that was shared by fork() are this process's now.
pub(crate) fn owned(conn: &'static Conn) -> bool {
    let mut own = 0;
    table::each_conn(|_, other| own += u32::from(core::ptr::eq(other, conn)));
    if own != conn.refs.load(Ordering::Acquire) {
        return false;
    }
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.clear(flag::SHARED);
    epoll::count_members(conn);
    true
}
