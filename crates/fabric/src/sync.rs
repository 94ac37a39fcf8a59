//! Everything between threads, for real or, under `--cfg loom`, in the model: atomics (the seam is
//! [`crate::atomic`]), sleeping and waking, whether a thread lives, one turn of a spin loop.

pub use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
#[cfg(not(loom))]
pub use crate::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicUsize};

/// Sleeps while `word` holds `value`, at most `nanos`. The model has no time: it lets the other
/// threads run and returns.
pub fn futex_wait(word: &AtomicU32, value: u32, nanos: i64) {
    #[cfg(loom)]
    {
        let _ = (word, value, nanos);
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    let _ = crate::sys::futex_wait(word.as_ptr(), value, nanos);
}

/// Wakes up to `count` of the threads that sleep on `word`.
pub fn futex_wake(word: &AtomicU32, count: u32) {
    #[cfg(loom)]
    let _ = (word, count);
    #[cfg(not(loom))]
    crate::sys::futex_wake(word.as_ptr(), count);
}

/// Whether a thread lives. In the model, thread ids from `DEAD` on belong to threads that died.
pub fn thread_lives(tid: u32) -> bool {
    #[cfg(loom)]
    return tid < DEAD;
    #[cfg(not(loom))]
    crate::sys::thread_lives(tid)
}

/// See [`thread_lives`].
#[cfg(loom)]
pub const DEAD: u32 = 1 << 20;

/// One turn of a spin loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(sim)]
    crate::sim::spin();
    #[cfg(not(any(loom, sim)))]
    core::hint::spin_loop();
}

/// Under `--cfg perturb` (`make perturb`) it delays the thread now and then, so that others get in
/// between steps where they hardly ever would by themselves. In other builds it does nothing.
#[inline(always)]
pub fn perturb() {
    #[cfg(perturb)]
    crate::sys::perturb();
}
