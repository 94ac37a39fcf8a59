//! The seam of atomics: loom's under `--cfg loom`, the simulator's under `--cfg sim`, core's
//! otherwise. Nothing else in the workspace names `core::sync::atomic` (clippy.toml bans it), so
//! the model checker sees every choice of an ordering. Other modules use [`crate::sync`], which
//! passes this on.

#[cfg(loom)]
#[allow(clippy::disallowed_types)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(sim)]
mod stepped;
#[cfg(sim)]
#[allow(clippy::disallowed_types)]
pub use {
    core::sync::atomic::{Ordering, compiler_fence, fence},
    stepped::*,
};

#[cfg(not(any(loom, sim)))]
#[allow(clippy::disallowed_types)]
pub use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, compiler_fence,
    fence,
};

/// Keeps the compiler from moving stores of one thread over each other. That matters where a thread
/// is killed and another one goes on with what it has stored. In the model nobody is killed.
#[cfg(loom)]
pub fn compiler_fence(_order: Ordering) {}
