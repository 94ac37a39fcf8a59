//! How a connection finds its other half: posting, linking, offering and taking a slot. All of it is *housekeeping* that calls on
//! a connection do on the way while it is still on tcp; nothing waits, and each step may fail and be taken up again later.

use fabric::credentials::{self, User};
use fabric::lock::Lock;
use fabric::queue::MESSAGE;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::{Local, Remote, sys, trip};
use host::addr::Addr;
use host::diag;
use options::{LogLevel, Role, Stream};
use stream::ring::{Consumer, Producer};
use stream::sovia::{self, Manner, Receiver, Sender};
use stream::spin::{nanos_of, ticks, ticks_of};

use crate::board::{self, Post};
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::layout::{self, ACCEPTED, CANCELLED, NARROWED, REFUSED, STATE, note};
use crate::link::{self, Link};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::thread::{self, Place};
use crate::{close, descriptors, epoll, far, interface, log, narrow, process, report, rules, seen, wait};

mod pairing;
mod posting;

pub(crate) use pairing::try_serve;
pub use pairing::{answered, serve_offered};
use pairing::{approach, look_for_answer, pending, refuse_pending, serve, take, take_back};
use posting::{LISTENER, POSTED, POSTED_AT, TOKEN, check, post, posted, unpost, wait_longer, wait_no_longer};
pub use posting::{SO_COOKIE, address, hurry, own_token, posted_conn};

/// Between two looks for links and offers, in ns.
const SERVE_NS: u64 = 200_000;

/// Guards every change of a connection's state up to PROMOTED, and the end of a connection: any thread's housekeeping may take an
/// offer for a connection that another thread is closing.
static STATES: Lock = Lock::unlocked();

/// The lock on states, held or, if the thread had it already, not; and which signals were blocked before it was taken.
pub struct States(bool, Option<u64>);

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
    fn lock() -> States {
        let mut states = steady();
        states.1 = Some(sys::block_signals(u64::MAX));
        states
    }

    /// As [`States::lock`], if nobody has it.
    fn try_lock() -> Option<States> {
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

/// Begins to follow a connection that the program has just made (`client`) or accepted. `family`: of the peer's address, if it is
/// known; what need not be asked for makes short connections cheaper.
pub fn track(fd: i32, client: bool, family: Option<i32>) {
    if !process::active() || far::is_carrier() {
        return;
    }
    let family = family.or_else(|| sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok());
    // What accept() gives is nearly always TCP, and asked about before it is posted; connect() is much used for datagrams.
    if !matches!(family, Some(libc::AF_INET | libc::AF_INET6)) || client && !is_tcp(fd) {
        return;
    }
    let _steady = steady();
    let Some(conn) = crate::home::take() else {
        report::count_reason(Reason::TableFull);
        return;
    };
    conn.reset();
    conn.refs.store(1, Ordering::Relaxed);
    conn.fd.store(fd as u32, Ordering::Relaxed);
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.flags.store(if client { flag::CLIENT } else { 0 }, Ordering::Relaxed);
    conn.set_reason(Reason::Young);
    conn.state.store(state::NEW, Ordering::Release);
    report::add(report::at::TRACKED, 1);
    match table::swap(fd, Entry::Conn(conn)) {
        Some(Entry::None) => {}
        // A descriptor that was closed behind our back (by a call that we do not see) and given out again.
        Some(Entry::Conn(old)) => crate::close::abandon(old),
        Some(_) => {}
        None => {
            report::count_reason(Reason::TableFull);
            crate::home::give(conn);
        }
    }
}

/// Begins to follow a socket that gets a second number, or becomes a member of an epoll set, before it is connected: by connect() only
/// one number would be known, and no set.
pub fn track_unconnected(fd: i32) {
    let fresh = process::active()
        && is_tcp(fd)
        && matches!(sys::getpeername(fd), Err(sys::Errno::ENOTCONN))
        && sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(0);
    if fresh {
        track(fd, true, None);
    }
}

/// Whether a descriptor is a socket of TCP.
pub fn is_tcp(fd: i32) -> bool {
    sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

/// Housekeeping, on the way into a call on a connection that is still on tcp. True if the call, should it be a write, is to be late ([`nap`]).
#[inline]
pub fn tick(conn: &'static Conn, fd: i32) -> bool {
    match conn.state() {
        state::NEW if worthwhile(conn) => {
            let seen = seen::waits(conn, fd);
            if !seen && !tell_unseen(conn, fd) {
                return false;
            }
            let states = States::lock();
            if states.0 && conn.state() == state::NEW {
                post(conn, fd, seen);
            }
            false
        }
        state::POSTED if ticks() >= conn.due.load(Ordering::Relaxed) || arming_it(conn) => {
            let states = States::lock();
            let late = states.0 && conn.state() == state::POSTED && check(conn);
            drop(states);
            far::start_if_wanted();
            late
        }
        _ => false,
    }
}

/// Counts a call on a connection in state NEW: whether it has been used enough, and not too seldom, to gain by memory.
fn worthwhile(conn: &Conn) -> bool {
    let (after, rate) = (process::options().promote_after, process::options().calls_per_second());
    let calls = conn.ops.fetch_add(1, Ordering::Relaxed);
    if calls == 0 {
        // Not in use before it is posted: when the count began.
        conn.due.store(ticks(), Ordering::Relaxed);
    }
    if calls < after {
        return false;
    }
    if rate == 0 || process::busy() {
        return true;
    }
    let most = after.max(RATE_CALLS);
    if calls < most {
        return false;
    }
    let time = nanos_of(ticks().saturating_sub(conn.due.load(Ordering::Relaxed)));
    if u128::from(time) * u128::from(rate) <= u128::from(most) * 1_000_000_000 {
        return true;
    }
    if conn.reason.load(Ordering::Relaxed) != Reason::Rare as u32 {
        conn.set_reason(Reason::Rare);
        report::count_reason(Reason::Rare);
    }
    conn.ops.store(0, Ordering::Relaxed);
    false
}

/// The program has not been seen to wait for it, which is looked at again with its next call, or, as its sets have to be asked, after some.
/// True: the other end is to be told of it now (see [`nap`]).
fn tell_unseen(conn: &Conn, fd: i32) -> bool {
    let first = conn.reason.load(Ordering::Relaxed) != Reason::Unseen as u32;
    if first {
        conn.set_reason(Reason::Unseen);
        report::count_reason(Reason::Unseen);
    }
    if conn.epolls.load(Ordering::Relaxed) != 0 {
        conn.ops.store(0, Ordering::Relaxed);
        return false;
    }
    first && seen::reads_blocking(conn, fd)
}

/// A write on tcp to a program that has not been seen to wait comes about 100 us late. One that reads what is there each time waits for
/// nothing as long as its peer runs first whenever it is written to, as on a busy processor. Bytes that are late once are waited for: by a call that
/// we see, or by one that we do not.
#[cold]
pub fn nap(conn: &Conn) {
    conn.clear(flag::NAP);
    let due = conn.due.load(Ordering::Acquire);
    if conn.state() == state::POSTED {
        let next = ticks() + conn.pause.load(Ordering::Relaxed);
        let _ = conn.due.compare_exchange(due, next, Ordering::AcqRel, Ordering::Relaxed);
    }
    let nobody = 0;
    sys::futex_wait(&nobody, 0, NAP_NS);
}

const NAP_NS: i64 = 50_000;

/// So many calls make a rate: in fewer, one request and its answer may look like many.
const RATE_CALLS: u32 = 16;

/// Whether this is the moment that a one-shot member waited for (see [`crate::epoll::untimely`]).
fn arming_it(conn: &Conn) -> bool {
    conn.arming.load(Ordering::Relaxed) != 0 && conn.reason.load(Ordering::Relaxed) == Reason::Busy as u32
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
fn agreed(conn: &'static Conn) -> bool {
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

fn stop(conn: &'static Conn, reason: Reason) {
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
