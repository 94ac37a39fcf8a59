//! The seam of atomics: loom's under `--cfg loom`, core's otherwise. Nothing else in the workspace names `core::sync::atomic`
//! (clippy.toml bans it), so every ordering decision can be put before the model checker.

#[cfg(loom)]
#[allow(clippy::disallowed_types)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
#[allow(clippy::disallowed_types)]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

/// One turn of a spin loop.
#[inline(always)]
pub fn spin_hint() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}
