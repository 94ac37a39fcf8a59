//! fork(). The child has the same connections: their state is in shared memory, so both may use them; both wake by kicks from then
//! on. What belongs to the process alone (rendezvous, links for new connections, bells, event queues) the child makes anew.

use fabric::sync::Ordering;
use fabric::trip;

use crate::conn::{flag, state};
use crate::table::{self, Entry};
use crate::{epoll, home, link, process, rendezvous, thread, wait};

/// Before fork(), in the parent: every connection gets one more holder for each descriptor.
pub fn prepare() {
    table::for_each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            if conn.state() == state::OFFERED {
                let _ = rendezvous::withdraw(conn) || {
                    rendezvous::settle_answer(conn);
                    true
                };
            }
            conn.set(flag::SHARED);
            if conn.state() == state::PROMOTED && conn.epolls.load(Ordering::Acquire) != 0 {
                // Armed for an event queue that the child does not have: kicks wake both.
                wait::arm(conn, trip::RX | trip::TX, trip::KICK, 0);
            }
            conn.refs.fetch_add(1, Ordering::AcqRel);
        }
    });
}

/// In the child.
pub fn child() {
    thread::forget();
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
