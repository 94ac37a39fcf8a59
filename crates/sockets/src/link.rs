//! Links: what joins this process to another one. Made once per pair (or once per 384 connections)
//! by a hand-shake over an abstract UNIX socket, which stays open and tells of the peer's death.
//! Everything here happens inside hooks, without blocking.
//!
//! A segment is 10 MB of addresses, hardly any of it memory: small rings for 384 connections, and
//! 16 big ones for connections that fill theirs (`Link::take_big`); queues of Virtual Interfaces
//! only with `stream = via`. The big rings of a link belong to its writers: the process that made
//! the link gives one to a connection that fills its small ring, and takes it back when both ends
//! have left the slot. Only that process does, as its children have copies of the list. A process
//! that may have little address space (setrlimit(RLIMIT_AS)) maps the first slots only, gives out
//! those and refuses the others. Homes and the table of links are mapped in parts, as they are
//! needed; a home takes at most a 32nd of the limit (`layout::entries_within`), so that the
//! program's own allocations do not fail because of Shunt.
//!
//! Peers of the same user pass bells with the link: the first of those for single calls, and those
//! of as many event queues as the process has sets; the others when somebody is first to be woken
//! by them ([`passing`]).
//!
//! **Leaving a slot.** An end tells CLOSED, and GONE when it will not touch the slot again. The
//! side that owns the slot (even numbers the one that opened the link, odd numbers the other) gives
//! it out again after both have left.

mod entry;
mod former;
mod message;
pub(crate) mod passing;
mod registry;
mod scan;

pub(crate) use entry::slots;
pub(crate) use entry::{BY_BELL, LOUD};
pub use entry::{Link, state};
pub(crate) use former::Former;
pub(crate) use message::{MANNER, Message, OFFER, SMALL_BUFFERS, TAKE_BACK};
pub(crate) use registry::{Guard, add, add_remote, fail, length, ready, renounce, room};
pub use registry::{
    Scan, all, any, each, find, forget, forked, freeze, link, scan, sweep, sweep_when_due, thaw,
};
