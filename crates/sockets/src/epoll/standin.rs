//! Stand-ins. A member whose number is closed, while another number stands for the connection, is
//! the kernel's from then on. But where nobody may copy the peer's descriptor, and the peer is in
//! no call of ours, its unread bytes stay in the ring (`keep_rest` in `handover.rs`), of which the
//! kernel knows nothing. Then a readable eventfd is a member beside it, with the same events and
//! data, until these bytes are read.
//!
//! While bytes have come by tcp as well, the kernel tells of both: one event more, with the same
//! data.

use fabric::sync::{AtomicI32, AtomicU64, Ordering};
use fabric::{bell, sys};

use super::edges::ONESHOT;
use super::set::{Member, SPENT, Set};
use crate::conn::{Conn, flag, path};
use crate::layout::W;
use crate::{descriptors, events};

/// A connection's address and its eventfd's number, +1; a connection may have several, one for each
/// membership: the set's number, and the one that the kernel knows it by there.
struct StandIn {
    conn: AtomicU64,
    lamp: AtomicI32,
    set: AtomicI32,
    number: AtomicI32,
}

/// Seldom more than one is needed at a time. A membership that finds none free is told of what
/// comes next.
const MOST: usize = 64;
static STAND_INS: [StandIn; MOST] = [const {
    StandIn {
        conn: AtomicU64::new(0),
        lamp: AtomicI32::new(0),
        set: AtomicI32::new(0),
        number: AtomicI32::new(0),
    }
}; MOST];

/// Whether the kernel does not know of all that is unread.
fn is_needed(conn: &'static Conn, fd: i32) -> bool {
    conn.has(flag::REST)
        && conn.lock_rx(fd).is_some_and(|rx| {
            matches!(conn.rx.path(), path::SMALL | path::BIG) && conn.word(W) != rx.ring.position()
        })
}

impl Set {
    /// For a member that has just been given to the kernel's set.
    pub(super) fn put_stand_in(&self, conn: &'static Conn, fd: i32, member: &Member) {
        if member.events & (events::IN | libc::EPOLLRDNORM as u32) == 0
            || member.flags & SPENT != 0
            || !is_needed(conn, fd)
        {
            return;
        }
        let address = core::ptr::from_ref(conn) as u64;
        let free = |place: &&StandIn| {
            place.conn.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = STAND_INS.iter().find(free) else { return };
        let Ok(lamp) = bell::create().map(descriptors::hide) else {
            return place.conn.store(0, Ordering::Release);
        };
        bell::ring(lamp);
        let set = self.fd.load(Ordering::Relaxed);
        let stands = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, lamp, member.events, member.data).is_ok();
        if stands && member.events & ONESHOT != 0 {
            // The stand-in has its shot.
            let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, ONESHOT, member.data);
        }
        place.set.store(set, Ordering::Relaxed);
        place.number.store(fd, Ordering::Relaxed);
        place.lamp.store(lamp + 1, Ordering::Release);
        // Another thread may have read all of it meanwhile.
        if !is_needed(conn, fd) {
            drop_stand_ins(conn);
        }
    }
}

/// What was unread in the ring is read, or the connection closed.
#[cold]
pub(crate) fn drop_stand_ins(conn: &Conn) {
    drop_those(conn, |_| true);
}

/// The number stands for the connection again, and the program has changed or ended its membership.
pub(super) fn drop_stand_in(conn: &Conn, set: i32, number: i32) {
    if conn.has(flag::REST) {
        drop_those(conn, |place| {
            place.set.load(Ordering::Relaxed) == set && place.number.load(Ordering::Relaxed) == number
        });
    }
}

fn drop_those(conn: &Conn, these: impl Fn(&StandIn) -> bool) {
    let address = core::ptr::from_ref(conn) as u64;
    let ours = |place: &&StandIn| place.conn.load(Ordering::Acquire) == address && these(place);
    for place in STAND_INS.iter().filter(ours) {
        let lamp = place.lamp.swap(0, Ordering::AcqRel);
        if lamp != 0 {
            // A parent or child may have it, too, and with it the registration.
            bell::silence(lamp - 1);
            descriptors::unhide(lamp - 1);
            place.conn.store(0, Ordering::Release);
        }
    }
}

/// Whether a descriptor of ours is one.
pub(super) fn is_stand_in(fd: i32) -> bool {
    STAND_INS.iter().any(|place| place.lamp.load(Ordering::Acquire) == fd + 1)
}
