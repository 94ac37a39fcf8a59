//! DataCutter's filter streams ("Impact of High Performance Sockets on Data Intensive Applications", section 4): programs made of
//! *filters* that exchange *buffers* over *streams*, one *unit of work* after another.
//!
//! Read in this order: [`layout`] (what connects to what, and what runs where), [`flow`] (credits and policies), `memory`, `outlet`, `ring`
//! and `wake` (what the processes of one host share), `link`, `stand`, `listener` and `door` (between processes without memory in
//! common), `sleeper` (how a copy waits), `output` and `input` (the two ends of a stream), [`copy`] (a filter at work), `session` (all of one
//! process), `worker`, `status`, `unit`, `event`, `caller` and `group` (all of them together); and [`sim`] (the same in virtual time).
#![warn(missing_docs)]

/// What the tutorial says about Rust is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/filters.md")]
struct Tutorial;

#[cfg(not(loom))]
mod caller;
#[cfg(not(loom))]
pub mod copy;
#[cfg(not(loom))]
mod door;
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
pub use copy::{Context, Filter};
#[cfg(not(loom))]
pub use door::library_is_at;
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
