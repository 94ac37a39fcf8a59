//! fork(). The child has the same connections: their state is in shared memory, so both may use them; both wake by kicks from then
//! on. What belongs to the process alone (rendezvous, links for new connections, bells, event queues) the child makes anew.

use fabric::sync::{AtomicU32, Ordering};
use fabric::trip;

use crate::conn::{flag, state};
use crate::table::{self, Entry};
use crate::{descriptors, epoll, home, link, process, rendezvous, thread, wait};

/// Which of the process's own locks fork() holds, as bits.
static FROZEN: AtomicU32 = AtomicU32::new(0);
const STATES: u32 = 1;
const SETS: u32 = 2;
const LINKS: u32 = 4;
const LIMIT: u32 = 8;

/// Before fork(), in the parent: every connection gets one more holder for each descriptor, and the locks that lie in the process's
/// own memory are taken, so that the child does not get one that is held by a thread it does not have.
pub fn prepare() {
    let mut frozen = if rendezvous::freeze() { STATES } else { 0 };
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            conn.set(flag::SHARED);
            if conn.state() == state::PROMOTED && conn.epolls.load(Ordering::Acquire) != 0 {
                // Armed for an event queue that the child does not have: kicks wake both.
                wait::arm(conn, trip::RX | trip::TX, trip::KICK, 0);
            }
            conn.refs.fetch_add(1, Ordering::AcqRel);
        }
    });
    if epoll::freeze() {
        frozen |= SETS;
    }
    if link::freeze() {
        frozen |= LINKS;
    }
    if descriptors::freeze() {
        frozen |= LIMIT;
    }
    FROZEN.store(frozen, Ordering::Relaxed);
}

/// After it, in the parent.
pub fn parent() {
    let frozen = FROZEN.swap(0, Ordering::Relaxed);
    if frozen & LIMIT != 0 {
        descriptors::thaw();
    }
    if frozen & LINKS != 0 {
        link::thaw();
    }
    if frozen & SETS != 0 {
        epoll::thaw();
    }
    if frozen & STATES != 0 {
        rendezvous::thaw();
    }
}

/// In the child.
pub fn child() {
    FROZEN.store(0, Ordering::Relaxed);
    thread::forget();
    descriptors::forked();
    process::forked();
    rendezvous::forked();
    link::forked();
    epoll::forked();
    home::leave();
}

/// A process that shares connections ends without closing them (_exit): gives its holds back.
pub fn leave() {
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry
            && conn.has(flag::SHARED)
            && conn.refs.load(Ordering::Acquire) > 1
        {
            conn.refs.fetch_sub(1, Ordering::AcqRel);
        }
    });
}
