//! BSD socket semantics over rings: which descriptor is which connection, how a connection finds
//! its other half and moves its bytes off the kernel's path and back, and what send, recv, poll,
//! select and epoll mean meanwhile. ARCHITECTURE.md tells the whole story.
//!
//! This code runs inside other people's programs: no allocation, no std input or output, no panics
//! on any input from a peer.

/// Stores zero in atomic fields.
macro_rules! zero {
    ($of:ident: $($field:ident)*) => {
        $($of.$field.store(0, fabric::sync::Ordering::Relaxed);)*
    };
}

mod bells;
pub mod board;
pub mod close;
pub mod conn;
pub mod demote;
pub mod descriptors;
pub mod epoll;
pub mod errno;
pub mod events;
pub mod faults;
mod folder;
pub mod fork;
mod gain;
pub mod handover;
pub mod home;
mod idle;
pub mod interface;
pub mod io;
pub mod jumps;
pub mod kicks;
pub mod layout;
pub mod lifecycle;
pub mod link;
pub mod log;
pub mod low_water;
pub mod names;
pub mod next;
mod outcome;
mod overdue;
pub mod path;
pub mod peering;
pub mod poll;
mod proc;
pub mod process;
pub mod ready;
pub mod reason;
pub mod relay;
pub mod rendezvous;
pub mod renounce;
pub mod report;
pub mod rings;
pub mod rules;
pub mod seen;
pub mod signals;
pub mod small_buffers;
pub mod socket;
pub mod spare;
pub mod table;
pub mod taken;
pub mod thread;
pub mod wait;
mod wake;
pub mod worth;
