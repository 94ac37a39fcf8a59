//! poll(2), select(2) and their like.

use syscalls::Errno;

use super::state::{Kernel, Outcome, Tid, ready};
use super::user;

/// Always reported.
const ANYWAY: u32 = ready::ERR | ready::HUP | ready::NVAL;
/// A file that cannot be asked is ready (DEFAULT_POLLMASK).
const DEFAULT: u32 = ready::IN | ready::OUT | ready::RDNORM | ready::WRNORM;
/// What select() counts as readable, writable and exceptional.
const SELECT: [u32; 3] = [
    ready::RDNORM | ready::RDBAND | ready::IN | ready::HUP | ready::ERR,
    ready::WRBAND | ready::WRNORM | ready::OUT | ready::ERR,
    ready::PRI,
];

/// A timeout as a `struct timespec` at an address, in nanoseconds; at 0: none.
pub(super) fn timespec(at: usize) -> Result<Option<u64>, Errno> {
    if at == 0 {
        return Ok(None);
    }
    let time = user::get::<libc::timespec>(at)?;
    if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) {
        return Err(Errno::EINVAL);
    }
    Ok(Some((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)))
}

/// A timeout in milliseconds; negative: none.
pub(super) fn millis(millis: i32) -> Option<u64> {
    u64::try_from(millis).ok().map(|millis| millis * 1_000_000)
}

impl Kernel {
    pub(super) fn poll(&mut self, tid: Tid, at: usize, count: usize, timeout: Option<u64>) -> Outcome {
        match self.poll_once(tid, at, count) {
            Ok(0) if self.wait(tid, timeout) => Outcome::Sleep,
            result => Outcome::Done(result),
        }
    }

    fn poll_once(&mut self, tid: Tid, at: usize, count: usize) -> Result<usize, Errno> {
        if count as u64 > self.process(tid).limits[libc::RLIMIT_NOFILE as usize].0 {
            return Err(Errno::EINVAL);
        }
        let mut ready = 0;
        for index in 0..count {
            let place = at + index * size_of::<libc::pollfd>();
            let mut entry: libc::pollfd = user::get(place)?;
            let asked = u32::from(entry.events as u16);
            let found = match self.file(tid, entry.fd as usize) {
                _ if entry.fd < 0 => 0,
                Ok(file) => {
                    let all = asked | ready::ERR | ready::HUP;
                    self.readiness(file, all).unwrap_or(DEFAULT) & all
                }
                Err(_) => ready::NVAL,
            };
            entry.revents = (found & (asked | ANYWAY)) as i16;
            ready += usize::from(entry.revents != 0);
            user::put(place, entry)?;
        }
        Ok(ready)
    }

    /// select(): `sets` are three addresses.
    pub(super) fn select(
        &mut self,
        tid: Tid,
        count: usize,
        sets: [usize; 3],
        timeout: Option<u64>,
    ) -> Outcome {
        match self.select_once(tid, count, sets) {
            // While it sleeps the sets stay as they are.
            Ok((0, _)) if self.wait(tid, timeout) => Outcome::Sleep,
            Ok((found, bits)) => {
                for (at, bits) in sets.into_iter().zip(&bits).filter(|&(at, _)| at != 0) {
                    for (index, &word) in bits.iter().enumerate() {
                        if let Err(errno) = user::put::<u64>(at + index * 8, word) {
                            return Outcome::Done(Err(errno));
                        }
                    }
                }
                Outcome::Done(Ok(found))
            }
            Err(errno) => Outcome::Done(Err(errno)),
        }
    }

    fn select_once(
        &mut self,
        tid: Tid,
        count: usize,
        sets: [usize; 3],
    ) -> Result<(usize, [Vec<u64>; 3]), Errno> {
        if count > i32::MAX as usize {
            return Err(Errno::EINVAL);
        }
        // Not beyond the numbers that the process has (core_sys_select).
        let count = count.min(self.process(tid).descriptors.len().next_multiple_of(64));
        let words = count.div_ceil(64);
        let mut asked: [Vec<u64>; 3] = Default::default();
        for (bits, at) in asked.iter_mut().zip(sets) {
            let word = |index| if at == 0 { Ok(0) } else { user::get::<u64>(at + index * 8) };
            *bits = (0..words).map(word).collect::<Result<_, _>>()?;
        }
        let mut found: [Vec<u64>; 3] = core::array::from_fn(|_| vec![0; words]);
        let mut ready = 0;
        for fd in 0..count {
            let (word, bit) = (fd / 64, 1u64 << (fd % 64));
            if !asked.iter().any(|bits| bits[word] & bit != 0) {
                continue;
            }
            let file = self.file(tid, fd)?;
            let mask = self.readiness(file, u32::MAX).unwrap_or(DEFAULT);
            for kind in 0..3 {
                if asked[kind][word] & bit != 0 && mask & SELECT[kind] != 0 {
                    found[kind][word] |= bit;
                    ready += 1;
                }
            }
        }
        Ok((ready, found))
    }
}
