//! Links: what joins this process to another one. Made once per pair (or once per 384 connections) by a hand-shake over an
//! abstract UNIX socket, which stays open and tells of the peer's death. Everything here happens inside hooks, without blocking.

mod entry;
mod former;
mod registry;
mod scan;

pub(crate) use entry::{BY_BELL, LOUD};
pub use entry::{Link, state};
pub(crate) use former::Former;
pub(crate) use registry::{Guard, add, add_far, fail, length, ready, renounce, room};
pub use registry::{Scan, all, any, find, forget, forked, freeze, link, scan, sweep, sweep_when_due, thaw};
