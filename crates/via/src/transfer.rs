//! How messages are transferred: the two engines of "VIA over the CLAN network", section 3.3.2, on
//! one host.
//!
//! *Programmed I/O* for small messages: into the entry of the transfer queue, or, when they are
//! longer than that, into the eager buffer beside it; the receiver copies them on. *DMA* for large
//! ones: one copy by the kernel, straight from the sender's buffers into the posted ones, wherever
//! the program has them (process_vm_writev); RDMA goes the same way. Registered memory need not be
//! shared for that. Where the kernel refuses it, large messages go as small ones do, and wait for
//! room; there is no RDMA then. Between hosts messages go so, too; the peer's library carries out
//! requests for RDMA ([`serve`]), and the send queue waits for it.
//!
//! The peer maps buffers that the program got from the library ([`crate::arena`]): messages that do
//! not fit into their entries, and RDMA, are copied straight to and from them by the sender's
//! processor.
//!
//! The sender has the receiver's cookie first, so it knows before it moves a byte whether a
//! descriptor is posted for it, and how long it is.

mod buffers;
mod direct;
mod ends;
mod receiver;
mod sender;

pub use direct::serve;
pub use ends::{Hints, Memory, Sent, notify};
pub use receiver::{Received, Receiver};
pub use sender::Sender;
