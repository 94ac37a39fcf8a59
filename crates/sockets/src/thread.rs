//! What a thread knows of itself. Const-initialised and without destructors, so that hooks may use
//! it at any time, in threads that are starting or ending and in signal handlers.

use core::cell::Cell;
use fabric::lock::Lock;
use fabric::sys;

struct Thread {
    tid: Cell<u32>,
    /// By [`Place`], the lock that it took last, and about where its stack was then. It may have
    /// given it back since.
    took: [Cell<(*const Lock, usize)>; PLACES],
    /// It is a thread of this library, none of the program's.
    ours: Cell<bool>,
}

const PLACES: usize = Place::Proof as usize + 1;

#[cfg(not(sim))]
thread_local! {
    static THREAD: Thread = const {
        Thread {
            tid: Cell::new(0),
            took: [const { Cell::new((core::ptr::null(), 0)) }; PLACES],
            ours: Cell::new(false),
        }
    };
}

#[cfg(not(sim))]
#[inline(always)]
fn with<R>(of: impl FnOnce(&Thread) -> R) -> R {
    THREAD.with(of)
}

#[cfg(sim)]
fn with<R>(of: impl FnOnce(&Thread) -> R) -> R {
    const { assert!(size_of::<Thread>() <= fabric::sim::THREAD_BYTES) }
    // SAFETY: the thread's own memory, which has room for this and began with zeroes, which are a
    // valid value.
    of(unsafe { &*fabric::sim::thread().cast() })
}

/// What a lock is for: a thread has at most one of each kind, but for signal handlers in between.
#[derive(Clone, Copy)]
pub enum Place {
    States,
    Set,
    Tx,
    Rx,
    Link,
    Proof,
}

/// The thread's id, cached.
#[inline(always)]
pub fn tid() -> u32 {
    with(Thread::tid)
}

/// Whether this thread is from now on one of this library's.
pub fn be_ours(ours: bool) {
    with(|thread| thread.ours.set(ours));
}

/// Whether it is. Libraries that such a thread opens do not change what the program has decided for
/// its process.
pub fn is_ours() -> bool {
    with(|thread| thread.ours.get())
}

/// Takes a lock that lives as long as the process; false if the thread has it already, in a call
/// that this one, in a signal handler, has interrupted.
#[inline(always)]
#[must_use]
pub fn lock(lock: &Lock, place: Place) -> bool {
    with(|thread| lock.lock(thread.tid()) && thread.note(lock, place))
}

/// As [`lock`], if nobody has it.
#[must_use]
pub fn try_lock(lock: &Lock, place: Place) -> bool {
    with(|thread| lock.try_lock(thread.tid()) && thread.note(lock, place))
}

/// Forgets what it knows: in the child of fork().
pub fn forget() {
    with(|thread| {
        thread.tid.set(0);
        thread.took.iter().for_each(|took| took.set((core::ptr::null(), 0)));
    });
}

/// The thread jumps (longjmp) to a place where its stack is at `target`: tells of the locks that it
/// has in frames which end by that, calls that its signal handler has interrupted.
#[cold]
pub fn abandoned(target: usize, mut each: impl FnMut(&'static Lock)) {
    // Stacks grow downwards. A handler may run on a stack of its own: to jump from there to the
    // thread's ends all that was on it.
    let ends = |frame: usize| match sys::alternate_stack() {
        Some(other) if other.contains(&target) => other.contains(&frame) && frame < target,
        Some(other) if other.contains(&frame) => true,
        _ => frame < target,
    };
    with(|thread| {
        for took in &thread.took {
            let (lock, frame) = took.get();
            // SAFETY: locks that `lock` is called with live as long as the process, at the same
            // place.
            if let Some(lock) = unsafe { lock.as_ref() }
                && lock.owner() == thread.tid()
                && ends(frame)
            {
                each(lock);
            }
        }
    });
}

/// About where the stack is now.
#[inline(always)]
fn stack() -> usize {
    let here = 0u8;
    &raw const here as usize
}

impl Thread {
    #[inline(always)]
    fn tid(&self) -> u32 {
        let tid = self.tid.get();
        if tid != 0 { tid } else { self.learn() }
    }

    /// That it has taken a lock; true.
    #[inline(always)]
    fn note(&self, lock: &Lock, place: Place) -> bool {
        self.took[place as usize].set((lock, stack()));
        true
    }

    #[cold]
    fn learn(&self) -> u32 {
        let tid = sys::gettid();
        self.tid.set(tid);
        tid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LOCK: Lock = Lock::unlocked();

    #[test]
    fn only_locks_of_frames_that_end_are_abandoned() {
        let mut told = 0;
        assert!(lock(&LOCK, Place::Link));
        abandoned(stack() - (1 << 16), |_| told += 1);
        assert_eq!(told, 0, "a jump within the handler");
        abandoned(usize::MAX, |lock| {
            told += 1;
            lock.unlock();
        });
        abandoned(usize::MAX, |_| told += 1);
        assert_eq!((told, LOCK.owner()), (1, 0));
        assert!(lock(&LOCK, Place::Link));
        LOCK.unlock();
        abandoned(usize::MAX, |_| told += 1);
        assert_eq!(told, 1, "given back before");
    }
}
