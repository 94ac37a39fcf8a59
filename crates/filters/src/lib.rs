//! DataCutter's filter streams ("Impact of High Performance Sockets on Data Intensive
//! Applications", section 4): programs made of *filters* that exchange *buffers* over *streams*,
//! one *unit of work* after another.
//!
//! A **group** is a caller's process and its **workers**, each a process; worker 0 is a thread of
//! the caller's process. A **plan** says which copy of which filter runs in which worker. Each copy
//! has a thread of its own. This crate is ordinary Rust.
//!
//! * **A stream** has an *outlet* for each copy of its producer: a pool of slots for buffers, which
//!   only that producer writes, a word for each slot, and for each copy of the consumer a queue of
//!   entries. Copies of one process, and of one host, use the same memory, and nothing is copied.
//!   The reader tells how many entries it has taken and how many buffers it has started on
//!   (acknowledgements, which are credits), and gives a slot back when the buffer is dropped.
//! * **Waiting**: a copy polls for a while, arms its word (`fabric::trip`), checks again, and
//!   sleeps on the word (futex, also between processes). A producer that waits for credits is woken
//!   when a quarter of them is back or the queue is empty, not for each.
//! * **Between processes without memory in common** (other hosts, other network namespaces, or by
//!   the option `transport`) a *link* carries entries and counts as frames on one socket of
//!   `native`. The receiving process has an outlet that stands for the producer's.
//! * **Ends**: the end of a unit of work is an entry. A copy writes it when its `process` has
//!   returned, cancelled or not. A consumer has ended a unit when all producer copies have. So each
//!   queue is in the order of units, and the rest of a unit that a filter leaves early is read and
//!   dropped before the next one.
//! * **Handshake**: of two workers the one with the lower number connects, in the order of the
//!   pairs' numbers.
//!
//! Read in this order: [`layout`] (what connects to what, and what runs where), [`flow`] (credits
//! and policies), `memory`, `outlet`, `ring` and `wake` (what the processes of one host share),
//! `link`, `stand`, `listener` and `acceptor` (between processes without memory in common),
//! `sleeper` (how a copy waits), `output` and `input` (the two ends of a stream), [`copy`] (a
//! filter at work), `session` (all of one process), `worker`, `status`, `unit`, `event`, `caller`
//! and `group` (all of them together); and [`sim`] (the same in virtual time).
#![warn(missing_docs)]

/// The tutorial's Rust code is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/filters.md")]
struct Tutorial;

#[cfg(not(loom))]
mod acceptor;
#[cfg(not(loom))]
mod caller;
#[cfg(not(loom))]
pub mod copy;
#[cfg(not(loom))]
pub mod error;
#[cfg(not(loom))]
mod event;
#[cfg(not(loom))]
pub mod flow;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod hello;
#[cfg(fuzzing)]
pub mod hostile;
#[cfg(not(loom))]
mod input;
#[cfg(not(loom))]
mod launch;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
mod listener;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod messages;
#[cfg(not(loom))]
mod outlet;
#[cfg(not(loom))]
mod output;
#[cfg(not(loom))]
mod registry;
pub mod ring;
#[cfg(not(loom))]
mod running;
#[cfg(not(loom))]
mod session;
#[cfg(not(loom))]
mod show;
#[cfg(not(loom))]
pub mod sim;
#[cfg(not(loom))]
mod sleeper;
#[cfg(not(loom))]
mod stand;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod unit;
#[cfg(not(loom))]
mod wake;
#[cfg(not(loom))]
mod worker;

#[cfg(not(loom))]
pub use acceptor::library_is_at;
#[cfg(not(loom))]
pub use copy::{Context, Filter};
#[cfg(not(loom))]
pub use error::{Error, Failure};
#[cfg(not(loom))]
pub use group::{Group, Options, WINDOW_MOST};
#[cfg(not(loom))]
pub use input::{Buffer, Found};
#[cfg(not(loom))]
pub use launch::{Launcher, Local, Process};
#[cfg(not(loom))]
pub use layout::{Layout, Place, Placement, StreamOptions};
#[cfg(not(loom))]
pub use memory::NOTE_MOST;
#[cfg(not(loom))]
pub use messages::Transport;
#[cfg(not(loom))]
pub use outlet::Draft;
#[cfg(not(loom))]
pub use output::{Chooser, With};
#[cfg(not(loom))]
pub use registry::{Registry, spec};
#[cfg(not(loom))]
pub use session::Factory;
#[cfg(not(loom))]
pub use status::{CopyStatus, Status, Traced};
#[cfg(not(loom))]
pub use unit::{Next, Part, Unit, UnitOptions};
#[cfg(not(loom))]
pub use worker::{TICKET, Ticket, serve};
