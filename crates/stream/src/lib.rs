//! Byte streams over remote memory. SCILAN's kind (section 3.2) is a ring for each direction in the
//! receiver's segment: plain bytes, no framing. SOVIA's kind is messages into buffers that the
//! receiver has posted, with a window and acknowledgements. Also: how long a waiter spins before it
//! sleeps.
#![deny(missing_docs)]

mod ends;
pub mod ring;
pub mod sovia;
#[cfg(not(loom))] // all of it is time, which a model does not have
pub mod spin;
pub mod transport;
