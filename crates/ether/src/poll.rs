//! Dynamic polling: how a thread waits for work. It looks again and again for a while, letting others have the processor in between, and then
//! sleeps. For how long it looks is learned: where work comes after short pauses, looking saves the wake-up (17 us and more); where it comes
//! seldom, or the machine has nothing to spare, each look only takes time away from those who make the work. Pure spinning, as the
//! paper's ETHOM does it, takes a whole processor, and on two of them was measured to make the slowest one in a hundred round trips 3 to 12 ms.

use fabric::sync::spin_hint;
use fabric::sys;

use crate::stats::Count;

/// Looks without giving the processor away, before the first time.
const BRISK: u32 = 20;
/// Of so many sleeps one is preceded by a look although looking has not paid, to find out whether it would by now.
const TRY_AGAIN: u32 = 16;

/// Decides for one thread.
#[derive(Debug)]
pub struct Poller {
    most: u64,
    /// Of the last waits, which ended within `most`: a bit each.
    short: u32,
    sleeps: u32,
}

impl Poller {
    /// A thread that looks for at most `most` nanoseconds; not at all where there is one processor only.
    pub fn new(most: u64) -> Poller {
        Poller { most: if sys::cpus() > 1 { most } else { 0 }, short: 0, sleeps: 0 }
    }

    /// Looks for work for a while, if that has paid of late. True if it came. Else the caller sleeps, and then tells
    /// [`Poller::slept`] for how long.
    pub fn look(&mut self, polls: &Count, mut ready: impl FnMut() -> bool) -> bool {
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
        // A wake-up is about as long as the shortest sleep there is.
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
        assert!(poller.look(&polls, || {
            left -= 1;
            left == 0
        }));
        assert_eq!(polls.value(), 1);
        for _ in 0..20 {
            poller.look(&polls, || false);
            poller.slept(1_000_000);
        }
        poller.sleeps = 0;
        let mut looks = 0;
        assert!(!poller.look(&polls, || {
            looks += 1;
            false
        }));
        assert_eq!(looks, 1);
        poller.sleeps = TRY_AGAIN - 1;
        assert!(!poller.look(&polls, || {
            looks += 1;
            false
        }));
        assert!(looks > 2);
    }
}
