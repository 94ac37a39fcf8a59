//! Byte streams over remote memory. SCILAN's way (section 3.2): one ring per direction in the receiver's segment, plain bytes, no framing.
//! SOVIA's: messages into buffers that the receiver has posted, with a window and acknowledgements. And how long a waiter spins before it
//! sleeps.
#![deny(missing_docs)]

mod ends;
pub mod ring;
pub mod sovia;
#[cfg(not(loom))] // all of it is time, which a model does not have
pub mod spin;
pub mod transport;
