//! Event queues: each is one set's, and peers that put something for a member set a hint in it and
//! ring its bell.

use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::{self, Errno};
use fabric::{bell, hints, trip};

use super::edges::{BELL_DATA, ET};
use super::set::{Set, each_set};
use crate::conn::{Conn, flag};
use crate::layout::QUEUES;
use crate::wake::arm;
use crate::{bells, events, link};

pub(super) static QUEUES_TAKEN: AtomicU32 = AtomicU32::new(0);

/// Arms a member: by its set's event queue if it has one and is the only one that waits, else by
/// kicks.
pub(super) fn arm_member(conn: &'static Conn, interest: u64) {
    let queue = conn.queue.load(Ordering::Acquire);
    let alone = || {
        conn.epolls.load(Ordering::Acquire) == 1
            && conn.waiters.load(Ordering::Acquire) == 0
            && conn.queue.load(Ordering::Acquire) == queue
            && !conn.has(flag::SHARED)
            && heard(conn, queue)
    };
    if queue != 0 && alone() {
        arm::arm(conn, interest, trip::armed(0, trip::QUEUE, queue as u8 - 1));
        // The queue may have been another set's, which has ended meanwhile.
        if alone() {
            return;
        }
    }
    arm::arm(conn, interest, trip::KICK);
}

/// Whether the peer can ring the event queue with this number, less one.
pub(super) fn heard(conn: &Conn, queue: u32) -> bool {
    let Some(queue) = queue.checked_sub(1).map(|queue| queue as usize) else { return false };
    !conn.has(flag::NO_BELLS) && conn.link().gives(queue)
}

/// How many sets the program has.
pub(crate) fn sets_in_use() -> usize {
    let mut count = 0;
    each_set(|_| count += 1);
    count
}

/// Other users ring from now on: sets that have an event queue already hear them, too.
pub(crate) fn hear_others() {
    each_set(Set::hear_others);
}

impl Set {
    /// Puts the bell that other users ring beside its own, if there are such.
    pub(super) fn hear_others(&self) {
        let (queue, inner) = (self.queue.load(Ordering::Acquire), self.inner.load(Ordering::Acquire));
        if queue != 0 && inner != 0 {
            let queue = queue as usize - 1;
            let add = |bell| {
                let added = sys::epoll_ctl(inner - 1, libc::EPOLL_CTL_ADD, bell, events::IN | ET, BELL_DATA);
                matches!(added, Ok(()) | Err(Errno::EEXIST))
            };
            if let Some(loud) = bells::loud_fd(queue) {
                add(loud);
            }
            if !bells::make_far(queue).is_none_or(add) {
                bells::give_up_far(queue);
            }
        }
    }

    /// Arms its queue's sleep words.
    pub(super) fn arm_sleep(&self, scan: &link::Scan, queue: u32) {
        let disarmed = arm_sleep(scan, queue);
        if disarmed != 0 {
            self.owed.fetch_add(disarmed as i32, Ordering::Relaxed);
        }
    }

    /// Silences its bells, if need be. A bell tells of each ring, as it is edge-triggered, although
    /// no ring has been taken out before. Only where it stands among events of the kernel's must
    /// it be known whether it rings.
    pub(super) fn silence(&self, queue: usize) {
        if self.on_tcp.load(Ordering::Acquire) == 0 && bells::of_others(queue).next().is_none() {
            return;
        }
        let rung = silence(queue).min(i32::MAX as u64) as i32;
        let _ = self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |owed| {
            (owed > 0).then(|| (owed - rung).max(0))
        });
    }
}

/// Silences an event queue's bells; how often they were rung.
pub(super) fn silence(queue: usize) -> u64 {
    let own = bells::bell_fd(queue);
    let mut rung = own.map_or(0, bell::silence);
    for other in bells::of_others(queue) {
        let (more, silent) = bell::silence_loud(other);
        if !silent && let Some(own) = own {
            // Somebody rings without end. While it is full it cannot be rung: it is looked again.
            bell::ring(own);
        }
        rung += more;
    }
    rung
}

/// Whether one of an event queue's bells rings.
pub(super) fn rings(queue: usize) -> bool {
    bells::bell_fd(queue).into_iter().chain(bells::of_others(queue)).any(sys::readable)
}

/// Arms the queue's sleep words; says how many were disarmed; to be looked at once more before the
/// sleep. Always for the bell: what disarms them may be a late hint for a connection that is the
/// set's no more, or another set's hint from when the queue was its own, whose kick nobody here
/// would see.
pub(super) fn arm_sleep(scan: &link::Scan, queue: u32) -> u32 {
    let disarmed = scan.arm_sleep(queue as usize, trip::BELL, queue as u8);
    hints::fence_before_sleep();
    disarmed
}

/// Takes an event queue, if one is free.
pub(super) fn take_queue() -> Option<u32> {
    let free = |taken: u32| {
        let queue = (!taken).trailing_zeros();
        (queue < QUEUES as u32).then_some(taken | 1 << queue)
    };
    let taken = QUEUES_TAKEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
    Some((!taken).trailing_zeros())
}

pub(super) fn give_queue(queue: u32) {
    QUEUES_TAKEN.fetch_and(!(1 << queue), Ordering::AcqRel);
}
