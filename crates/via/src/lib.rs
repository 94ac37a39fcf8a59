//! The Virtual Interface Architecture over remote memory ("VIA over the CLAN network", section 3): NICs, protection tags, registered
//! memory, Virtual Interfaces, completion queues and connections. `vipl` puts C functions before it.
#![deny(missing_docs)]

pub mod abi;
#[cfg(not(loom))]
pub mod handles;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod nic;
pub mod wire;
