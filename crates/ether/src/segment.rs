//! The segment of one end of an ETHOM link, from its beginning: the owner's tripwire; how far the
//! peer has read the owner's frames; the queue of frames to the owner.

use fabric::{frames, trip};

/// Where the tripwire is.
pub const TRIP: usize = 0;
/// The offset where the peer stores how far it has read.
pub const BACK: usize = 64;
/// Where the queue begins.
pub const QUEUE: usize = 128;
/// The value of the tripwire when the owner sleeps.
pub const ASLEEP: u64 = trip::armed(trip::RX, trip::BELL, 0);

/// Bytes of the segment with a queue of so many.
pub fn bytes(queue: usize) -> usize {
    QUEUE + frames::bytes(queue)
}
