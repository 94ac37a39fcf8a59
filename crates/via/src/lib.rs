//! The Virtual Interface Architecture over remote memory ("VIA over the CLAN network", section 3): NICs, protection tags, registered
//! memory, Virtual Interfaces, completion queues and connections. `vipl` puts C functions before it.
//!
//! The modules, bottom up; each uses only those before it:
//!
//! * words and numbers: [`abi`], `limits`, `until`, [`lock`], [`gate`], [`wire`], `user`, `process`;
//! * what a process has: [`handles`], [`arena`], [`memory`], `opened` (NIC handles, tags, regions), `handlers` (the program's);
//! * what a connection has: `far::link`, [`segment`], `socket`, `far::peer`, [`descriptor`], `engine`, [`transfer`], [`queue`];
//! * `cq::members`, `connect::pending`, then [`vi`]: its places, waking, connection, work;
//! * those that look through Virtual Interfaces: [`cq`], [`agent`]; those that connect them: [`far`], [`connect`];
//! * [`names`], `fork` (a child begins all of them anew), [`nic`] (opens and closes).
#![deny(missing_docs)]

pub mod abi;
#[cfg(not(loom))]
pub mod agent;
#[cfg(not(loom))]
pub mod arena;
#[cfg(not(loom))]
pub mod connect;
#[cfg(not(loom))]
pub mod cq;
#[cfg(not(loom))]
pub mod descriptor;
#[cfg(not(loom))]
mod engine;
#[cfg(not(loom))]
pub mod far;
#[cfg(not(loom))]
pub(crate) mod fork;
pub mod gate;
#[cfg(not(loom))]
mod handlers;
#[cfg(not(loom))]
pub mod handles;
#[cfg(not(loom))]
pub mod limits;
pub mod lock;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod names;
#[cfg(not(loom))]
pub mod nic;
#[cfg(not(loom))]
mod opened;
#[cfg(not(loom))]
pub(crate) mod process;
#[cfg(not(loom))]
pub mod queue;
#[cfg(not(loom))]
pub mod segment;
#[cfg(not(loom))]
mod socket;
#[cfg(not(loom))]
pub mod transfer;
#[cfg(not(loom))]
mod until;
#[cfg(not(loom))]
mod user;
#[cfg(not(loom))]
pub mod vi;
pub mod wire;
