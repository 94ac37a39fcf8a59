//! futex(2): FUTEX_WAIT and FUTEX_WAKE, and their variants with a set of bits.

use syscalls::Errno;

use super::state::{Kernel, Outcome, Tid};
use super::user;

impl Kernel {
    pub(super) fn futex(&mut self, tid: Tid, args: [usize; 6]) -> Outcome {
        const VARIANTS: i32 = libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME;
        let [at, op, value, timeout, _, bits] = args;
        match op as i32 & !VARIANTS {
            libc::FUTEX_WAIT => self.futex_wait(tid, at, value as u32, timeout, u32::MAX, false),
            libc::FUTEX_WAIT_BITSET => self.futex_wait(tid, at, value as u32, timeout, bits as u32, true),
            libc::FUTEX_WAKE => Outcome::Done(Ok(self.futex_wake(at, value as i32, u32::MAX))),
            libc::FUTEX_WAKE_BITSET => Outcome::Done(Ok(self.futex_wake(at, value as i32, bits as u32))),
            _ => {
                self.unlike("futex operation");
                Outcome::Done(Err(Errno::ENOSYS))
            }
        }
    }

    fn futex_wait(
        &mut self,
        tid: Tid,
        at: usize,
        value: u32,
        timeout: usize,
        bits: u32,
        until: bool,
    ) -> Outcome {
        if self.sleep(tid).waits {
            if self.sleep(tid).woken {
                return Outcome::Done(Ok(0));
            }
            if self.wait(tid, None) {
                return Outcome::Sleep;
            }
            self.leave_futex(tid);
            return Outcome::Done(Err(Errno::ETIMEDOUT));
        }
        let found = if at.is_multiple_of(4) { user::get::<u32>(at) } else { Err(Errno::EINVAL) };
        let timeout = if timeout == 0 { Ok(None) } else { user::get::<libc::timespec>(timeout).map(Some) };
        let (found, timeout) = match (found, timeout) {
            (Ok(found), Ok(timeout)) => (found, timeout),
            (Err(errno), _) | (_, Err(errno)) => return Outcome::Done(Err(errno)),
        };
        let nanos = match timeout {
            Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => {
                return Outcome::Done(Err(Errno::EINVAL));
            }
            Some(time) => Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
            None => None,
        };
        // FUTEX_WAIT_BITSET takes a point in time.
        let nanos = nanos.map(|nanos| if until { nanos.saturating_sub(self.now) } else { nanos });
        if found != value {
            return Outcome::Done(Err(Errno::EAGAIN));
        }
        if !self.wait(tid, nanos) {
            return Outcome::Done(Err(Errno::ETIMEDOUT));
        }
        self.sleep(tid).waits = true;
        let key = self.futex_key(at);
        self.futexes.push((key, tid, bits));
        Outcome::Sleep
    }

    fn futex_wake(&mut self, at: usize, most: i32, bits: u32) -> usize {
        let key = self.futex_key(at);
        // One is woken at least (futex_wake()).
        let most = most.max(1) as usize;
        let mut woken = Vec::new();
        self.futexes.retain(|&(of, tid, set)| {
            let wakes = of == key && set & bits != 0 && woken.len() < most;
            if wakes {
                woken.push(tid);
            }
            !wakes
        });
        for &tid in &woken {
            if let Some(sleep) = self.threads.get_mut(&tid).and_then(|thread| thread.sleep.as_mut()) {
                sleep.woken = true;
            }
        }
        self.changes += u64::from(!woken.is_empty());
        woken.len()
    }

    /// A thread waits no more.
    pub(super) fn leave_futex(&mut self, tid: Tid) {
        self.futexes.retain(|&(_, waiter, _)| waiter != tid);
    }
}
