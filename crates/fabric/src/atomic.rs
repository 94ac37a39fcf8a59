//! The seam of atomics: loom's under `--cfg loom`, core's otherwise. Nothing else in the workspace names `core::sync::atomic`
//! (clippy.toml bans it), so every ordering decision can be put before the model checker. Others have it by way of [`crate::sync`].

#[cfg(loom)]
#[allow(clippy::disallowed_types)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
#[allow(clippy::disallowed_types)]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};

/// Keeps the compiler from moving stores of one thread over each other, which matters to whoever goes on where that one was killed. Nobody is
/// in the model.
#[cfg(loom)]
pub fn compiler_fence(_order: Ordering) {}
