//! Dynamic polling: how a thread waits for work. It polls for a while, letting others have the
//! processor in between, and then sleeps. It learns for how long to poll. Where work comes after
//! short pauses, polling saves the wake-up (17 us and more). Where work comes seldom, or the
//! machine is busy, each poll only takes time away from the threads that make the work. Pure
//! spinning, as in the paper's ETHOM, takes a whole processor; on two processors it made the
//! slowest of a hundred round trips 3 to 12 ms long.

use fabric::sync::spin_hint;
use fabric::sys;

use crate::stats::Count;

/// Polls without giving the processor away, before the first time.
const BRISK: u32 = 20;
/// One of so many sleeps follows a poll although polling has not paid, to find out whether it would
/// now.
const TRY_AGAIN: u32 = 16;

/// Decides for one thread.
#[derive(Debug)]
pub struct Poller {
    most: u64,
    /// Which of the last waits ended within `most`: a bit each.
    short: u32,
    sleeps: u32,
}

impl Poller {
    /// For a thread that polls for at most `most` nanoseconds; not at all if there is only one
    /// processor.
    pub fn new(most: u64) -> Poller {
        Poller { most: if sys::cpus() > 1 { most } else { 0 }, short: 0, sleeps: 0 }
    }

    /// Polls for work for a while, if that has paid lately. True if there is some. Else the caller
    /// sleeps, and then tells [`Poller::slept`] for how long.
    pub fn poll(&mut self, polls: &Count, mut ready: impl FnMut() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.most == 0 || !self.pays() {
            return false;
        }
        let start = sys::now();
        let mut turns = 0u32;
        loop {
            if turns < BRISK {
                spin_hint();
            } else {
                sys::yield_now();
            }
            turns += 1;
            if ready() {
                polls.add(1);
                self.short = self.short << 1 | 1;
                return true;
            }
            if turns.is_multiple_of(4) && sys::now() - start > self.most {
                self.short <<= 1;
                return false;
            }
        }
    }

    /// The thread has slept for `nanos`.
    pub fn slept(&mut self, nanos: u64) {
        self.sleeps = self.sleeps.wrapping_add(1);
        // A wake-up takes about as long as the shortest possible sleep.
        self.short = self.short << 1 | u32::from(nanos < self.most);
    }

    fn pays(&self) -> bool {
        (self.short & 0xffff).count_ones() >= 6 || self.sleeps % TRY_AGAIN == TRY_AGAIN - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_pay_is_given_up_and_tried_again() {
        let mut poller = Poller { most: 50_000, short: 0xffff, sleeps: 0 };
        let polls = Count::default();
        let mut left = 3;
        assert!(poller.poll(&polls, || {
            left -= 1;
            left == 0
        }));
        assert_eq!(polls.value(), 1);
        for _ in 0..20 {
            poller.poll(&polls, || false);
            poller.slept(1_000_000);
        }
        poller.sleeps = 0;
        let mut looks = 0;
        assert!(!poller.poll(&polls, || {
            looks += 1;
            false
        }));
        assert_eq!(looks, 1);
        poller.sleeps = TRY_AGAIN - 1;
        assert!(!poller.poll(&polls, || {
            looks += 1;
            false
        }));
        assert!(looks > 2);
    }
}
