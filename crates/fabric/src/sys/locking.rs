//! Keeps the library's memory from being locked (mlockall(2)): a program that locks itself into
//! memory may lock a few MB, and our sparse mappings are much larger. So mappings that are made
//! here are noted. mlockall() locks everything else, piece by piece. A mapping that is made while
//! MCL_FUTURE holds is unlocked before it can be touched.

use super::files::{close, open, read};
use crate::atomic::{AtomicUsize, Ordering};
use syscalls::Errno;

/// Whether mappings of this process are locked from the beginning.
static FUTURE: AtomicUsize = AtomicUsize::new(0);
/// Beginning and length of our mappings. Those smaller than [`NOTED`] may be locked as well.
static OURS: [[AtomicUsize; 2]; 128] = [const { [const { AtomicUsize::new(0) }; 2] }; 128];
const NOTED: usize = 64 << 10;

/// mmap() of sparse memory, readable and writable.
pub(super) fn map(len: usize, flags: i32, fd: i32, offset: usize) -> Result<*mut u8, Errno> {
    let usual = libc::PROT_READ | libc::PROT_WRITE;
    let at = if FUTURE.load(Ordering::Relaxed) == 0 {
        call!(mmap, 0, len, usual, flags, fd, offset)?
    } else {
        // Memory that is not accessible is not brought in.
        let at = call!(mmap, 0, len, libc::PROT_NONE, flags, fd, offset)?;
        let _ = call!(munlock, at, len);
        if let Err(errno) = call!(mprotect, at, len, usual) {
            let _ = call!(munmap, at, len);
            return Err(errno);
        }
        at
    };
    if len >= NOTED {
        let free = |place: &&[AtomicUsize; 2]| {
            place[0].compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        if let Some(place) = OURS.iter().find(free) {
            place[1].store(len, Ordering::Release);
        }
    }
    Ok(at as *mut u8)
}

/// A mapping is about to end.
pub(super) fn unmap(at: usize) {
    if let Some(place) = OURS.iter().find(|place| at != 0 && place[0].load(Ordering::Acquire) == at) {
        place[1].store(0, Ordering::Relaxed);
        place[0].store(0, Ordering::Release);
    }
}

/// In the child of fork(), whose memory is not locked.
pub fn forked() {
    FUTURE.store(0, Ordering::Relaxed);
}

/// munlockall(): before it.
pub fn unlocking() {
    FUTURE.store(0, Ordering::Relaxed);
}

/// mlockall(), of everything but ours.
pub fn lock_all(flags: i32) -> Result<(), Errno> {
    let (current, future) = (flags & libc::MCL_CURRENT != 0, flags & libc::MCL_FUTURE != 0);
    if flags & !(libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT) != 0 || !(current || future) {
        return call!(mlockall, flags).map(drop);
    }
    if current {
        // This brings nothing in yet. Where there is a limit, the kernel counts our addresses, too,
        // and may refuse because of them: so the others are counted here.
        match call!(mlockall, flags | libc::MCL_ONFAULT) {
            Err(Errno::ENOMEM) if others() <= limit() => {}
            result => drop(result?),
        }
        each_other(|at, len| {
            let _ = match flags & libc::MCL_ONFAULT {
                0 => call!(mlock, at, len),
                _ => call!(mlock2, at, len, libc::MLOCK_ONFAULT),
            };
        });
        for [at, len] in &OURS {
            let (at, len) = (at.load(Ordering::Acquire), len.load(Ordering::Acquire));
            if at != 0 && len != 0 {
                let _ = call!(munlock, at, len);
            }
        }
    }
    if future {
        call!(mlockall, flags & !libc::MCL_CURRENT)?;
    }
    FUTURE.store(usize::from(future), Ordering::Relaxed);
    Ok(())
}

fn limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let _ = call!(prlimit64, 0, libc::RLIMIT_MEMLOCK, 0, &raw mut limit);
    limit.rlim_cur as usize
}

fn others() -> usize {
    let mut sum = 0;
    each_other(|_, len| sum += len);
    sum
}

/// Calls `each` with the mapped parts of the address space that are not ours.
fn each_other(mut each: impl FnMut(usize, usize)) {
    let Ok(fd) = open(c"/proc/self/maps", libc::O_RDONLY | libc::O_CLOEXEC, 0) else { return };
    let (mut bytes, mut line) = ([0u8; 4096], Line::default());
    while let Ok(len @ 1..) = read(fd, &mut bytes) {
        for &byte in &bytes[..len] {
            if let Some((start, end)) = line.add(byte) {
                but_ours(start, end, &mut each);
            }
        }
    }
    close(fd);
}

/// A parser for a line of /proc/PID/maps: takes the two bounds and skips the rest.
#[derive(Default)]
struct Line {
    bounds: [usize; 2],
    place: usize,
}

impl Line {
    /// The bounds, when both are complete.
    fn add(&mut self, byte: u8) -> Option<(usize, usize)> {
        match byte {
            b'\n' => *self = Line::default(),
            _ if self.place > 1 => {}
            b'-' | b' ' => {
                self.place += 1;
                return (self.place == 2).then_some((self.bounds[0], self.bounds[1]));
            }
            _ => {
                let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
                self.bounds[self.place] = self.bounds[self.place] << 4 | digit;
            }
        }
        None
    }
}

/// The kernel shows neighbours of one kind as one mapping: our part is cut out of it.
fn but_ours(start: usize, end: usize, each: &mut impl FnMut(usize, usize)) {
    let mut at = start;
    while at < end {
        let ours = OURS.iter().map(|[at, len]| (at.load(Ordering::Acquire), len.load(Ordering::Acquire)));
        let next = ours.filter(|&(ours, len)| len != 0 && ours + len > at && ours < end).min();
        let (until, then) = next.map_or((end, end), |(ours, len)| (ours.max(at), ours + len));
        if until > at {
            each(at, until - at);
        }
        at = then;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_cut_out() {
        let ours = map(NOTED * 2, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0).unwrap() as usize;
        let mut parts = Vec::new();
        but_ours(ours - 4096, ours + NOTED * 2 + 8192, &mut |at, len| parts.push((at, len)));
        assert_eq!(parts, [(ours - 4096, 4096), (ours + NOTED * 2, 8192)]);
        parts.clear();
        but_ours(ours + 4096, ours + 8192, &mut |at, len| parts.push((at, len)));
        assert_eq!(parts, []);
        unmap(ours);
        but_ours(ours, ours + 4096, &mut |at, len| parts.push((at, len)));
        assert_eq!(parts, [(ours, 4096)]);
    }

    #[test]
    fn what_is_mapped_is_found() {
        let here = &raw const OURS as usize;
        let mut found = false;
        each_other(|at, len| found |= (at..at + len).contains(&here));
        assert!(found);
    }
}
