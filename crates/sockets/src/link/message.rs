//! What two processes say to each other by the control queues of their link.

use fabric::Plain;
use fabric::queue::MESSAGE;

/// A message.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Message {
    /// [`OFFER`] or [`TAKE_BACK`].
    pub kind: u32,
    pub slot: u32,
    /// Where the connection is posted at the receiver.
    pub index: u32,
    /// Of an offer: bits of [`SMALL_BUFFERS`] and, above [`MANNER`], how bytes go by Virtual
    /// Interfaces, if they do.
    pub how: u32,
    /// Of an offer: the cookies of the receiver's end and of the sender's.
    pub yours: u64,
    pub mine: u64,
    pub unused: [u64; 4],
}

const _: () = assert!(size_of::<Message>() == MESSAGE);

// SAFETY: integers; those of 32 bits are an even number.
unsafe impl Plain for Message {}

/// A slot is offered.
pub const OFFER: u32 = 1;
/// An offer is to be refused if it has not been accepted.
pub const TAKE_BACK: u32 = 2;

/// The program has set a small receive buffer.
pub const SMALL_BUFFERS: u32 = 1;
pub const MANNER: u32 = 8;
