//! Sets that are waited on from outside, through another set or in poll: settled before the kernel
//! is asked about them.

use fabric::bell;
use fabric::sync::Ordering;
use fabric::sys::{self, Errno};

use super::candidates::Hints;
use super::edges::{LAMP_DATA, WATCHED, watch};
use super::set::{Guard, Set, set, sets_made};
use crate::{descriptors, events, link, next, table};

/// How often a set is looked at while the answer to an offer is being taken by another thread.
const SETTLE_TRIES: u32 = 1000;

/// epoll_ctl() on what is no connection, before the kernel does it: a set inside a set is noted.
pub fn nest(set_fd: i32, fd: i32) {
    if let Some(outer) = table::set(set_fd)
        && watch(fd)
    {
        outer.holds.store(1, Ordering::SeqCst);
        settle();
    }
}

/// Settles all watched sets: what the kernel says of them is right then, and what comes later wakes
/// whoever waits on them.
pub fn settle() {
    let mut left = WATCHED.load(Ordering::SeqCst);
    for set in (0..sets_made()).filter_map(set) {
        if left == 0 {
            return;
        }
        if set.watched.load(Ordering::SeqCst) != 0 {
            left -= 1;
            set.settle();
        }
    }
}

impl Set {
    /// For sets that are watched: puts right whether the kernel thinks that the set is readable,
    /// and sees to it that whatever comes from now on wakes those who wait on it from outside.
    #[cold]
    pub(super) fn settle(&'static self) {
        for _ in 0..SETTLE_TRIES {
            let scan = link::scan();
            let Some(mut guard) = self.lock() else { return };
            let inner = self.inner.load(Ordering::Acquire);
            if inner == 0 {
                return;
            }
            self.drain_inner(&mut guard);
            let queue = self.queue.load(Ordering::Acquire);
            if queue != 0 {
                self.arm_sleep(&scan, queue - 1);
            }
            guard.relist(|state| &mut state.late);
            let (ready, undecided) = self.go_through(&scan, &mut guard, None, Hints::Until(u64::MAX));
            if ready > 0 || !undecided {
                return self.light(&mut guard, inner - 1, ready > 0);
            }
            drop(guard);
            drop(scan);
            sys::yield_now();
        }
    }

    /// Lights the lamp, or puts it out. That it is lit is asked of the kernel: parent and child of
    /// fork() have the same one.
    pub(super) fn light(&self, guard: &mut Guard<'_>, inner: i32, ready: bool) {
        if self.lamp.load(Ordering::Acquire) == 0 {
            if !ready {
                return;
            }
            let made = bell::create().map(descriptors::hide).and_then(|lamp| {
                sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, lamp, events::IN, LAMP_DATA)
                    .map(|()| lamp)
                    .inspect_err(|_| descriptors::unhide(lamp))
            });
            match made {
                Ok(lamp) => self.lamp.store(lamp + 1, Ordering::Release),
                // Without one an edge has to do, until somebody takes it.
                Err(_) => return self.nudge(guard.state().list.first as i32 - 1),
            }
        }
        let lamp = self.lamp.load(Ordering::Acquire) - 1;
        let lit = sys::readable(lamp);
        if ready && !lit {
            bell::ring(lamp);
        } else if lit && !ready {
            bell::silence(lamp);
        }
    }

    /// With sets inside: asks, and sleeps, in poll instead of epoll_wait, which would report a set
    /// that only seems to be ready (a bell may be rung for what was read before), and take the edge
    /// or the one shot of its registration. False if nothing is ready.
    #[cold]
    pub(super) fn meet_nested(&self, nanos: Option<u64>, mask: *const libc::sigset_t) -> Result<bool, Errno> {
        settle();
        // Who does not wait is not interrupted, either; and what was found before would be lost.
        let mask = if nanos == Some(0) { core::ptr::null() } else { mask };
        let fd = self.fd.load(Ordering::Relaxed);
        let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
        let seems = match next::ppoll(&mut poll, nanos, mask) {
            Err(_) if nanos == Some(0) => false,
            seems => seems? > 0,
        };
        if seems {
            settle();
        }
        Ok(seems)
    }
}
