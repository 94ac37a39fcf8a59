//! The layout of the memory that each end has for a connection, in bytes from its beginning.

use via::wire::{self, ENTRY, FEW, INLINE, SLOTS};

use super::message::{ACKS, MOST, MTU};

/// Entries of received acknowledgements.
pub const ACKNOWLEDGEMENTS: usize = 0;
/// Cookies of buffers that the peer has posted.
pub const COOKIES: usize = ACKNOWLEDGEMENTS + ENTRY * ACKS;
/// Cookies of descriptors that the peer has posted for acknowledgements.
pub const ACK_COOKIES: usize = COOKIES + QUEUE;
/// Entries of received data.
pub const MESSAGES: usize =
    if cfg!(loom) { ACK_COOKIES + QUEUE } else { (ACK_COOKIES + QUEUE).next_multiple_of(128) };
/// The buffers.
pub const BUFFERS: usize = if cfg!(loom) {
    MESSAGES + SLOTS * (ENTRY + INLINE)
} else {
    (MESSAGES + ENTRY * MOST).next_multiple_of(4096)
};
/// The end.
pub const END: usize = BUFFERS + MOST * MTU;
/// The size of a cookie queue whose first places are enough.
const QUEUE: usize = 16 * (1 + FEW);

/// Where the bytes of a message are that lie in its entry.
pub(super) fn entry(area: usize, slot: u16) -> usize {
    wire::bytes_at(area + MESSAGES, slot)
}

/// A buffer.
pub(super) fn buffer(area: usize, slot: u16) -> usize {
    area + BUFFERS + usize::from(slot) * MTU
}
