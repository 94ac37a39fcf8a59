//! Remote memory, the lowest crate: memory that two processes share, and how one wakes the other.
//!
//! The model is CLAN's and SCI's non-coherent distributed shared memory ("VIA over the CLAN
//! network", section 2; SCILAN, section 3.2). An owner exports a *segment*, and a peer writes into
//! it. Writes of one link become visible in the order in which they were made (rule F1). A reader
//! never reads remotely on a fast path. All other crates are written against the two traits
//! [`Local`] and [`Remote`]. `shm` implements them for one host, and `model` over loom's atomics
//! for the model checker (`--cfg loom`).
//!
//! Read in this order: [`mem`] (the traits), [`trip`] (tripwires), [`hints`], [`queue`] (message
//! queues), [`frames`] (the same for frames of any length), [`outbox`] (work requests for one
//! thread from all others), [`plain`] (structs as bytes), [`text`] and `words` (texts and arrays
//! without an allocator), `shm` and `bell` (one host), `credentials` (who somebody is), [`lock`]
//! (words that survive their owner), [`sys`] (system calls), [`sync`] and [`atomic`] (the seam
//! between threads and the model checker).
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
pub mod plain;
pub mod queue;
#[cfg(sim)]
pub mod seam;
#[cfg(not(loom))]
pub mod shm;
#[cfg(sim)]
pub mod sim;
pub mod sync;
pub mod sys;
pub mod text;
pub mod trip;
#[cfg(not(loom))]
pub mod words;

pub use mem::{Local, Mapped, Remote};
pub use plain::Plain;
