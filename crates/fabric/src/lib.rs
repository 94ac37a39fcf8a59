//! Remote memory, the ground floor: what two processes share and how one wakes the other.
//!
//! The model is CLAN's and SCI's non-coherent distributed shared memory ("VIA over the CLAN network", section 2; SCILAN,
//! section 3.2): an owner exports a *segment*, a peer writes into it, and what one link writes becomes visible in the order
//! written (rule F1). A reader never reads remotely on a fast path. Everything above is written against the two traits
//! [`Local`] and [`Remote`]; `shm` implements them for one host, and `model` over loom's atomics for the model checker (`--cfg loom`).
//!
//! Read in this order: [`mem`] (the traits), [`trip`] (tripwires), [`hints`], [`queue`] (message queues), [`frames`] (the same for frames
//! of any length), [`outbox`] (what one thread is to do for all others), `shm` and `bell`
//! (one host), `credentials` (who somebody is), [`lock`] (words that survive their owner), [`sys`] (system calls),
//! [`sync`] and [`atomic`] (the seam between threads and the model checker).
#![deny(missing_docs)]

pub mod atomic;
#[cfg(not(loom))]
pub mod bell;
#[cfg(not(loom))]
pub mod credentials;
pub mod frames;
pub mod hints;
pub mod lock;
pub mod mem;
#[cfg(loom)]
pub mod model;
pub mod outbox;
pub mod queue;
#[cfg(not(loom))]
pub mod shm;
pub mod sync;
pub mod sys;
pub mod trip;

pub use mem::{Local, Mapped, Remote};
