//! The byte stream over Virtual Interfaces: SOVIA's protocol ("Design and implementation of a
//! user-level Sockets layer over Virtual Interface Architecture", sections 3 and 4), with what
//! SocketVIA ("Impact of High Performance Sockets on Data Intensive Applications", section 3)
//! added.
//!
//! Bytes go as messages into buffers that the receiver has posted. A *window* of `w` messages may
//! be under way; a receiver that has taken more than `t` of them out acknowledges them, in a
//! message of its own or *piggybacked* on data that goes the other way. Type and acknowledgements
//! are in the immediate data. An acknowledgement has the number of messages taken since the
//! beginning, not since the last one: so it does no harm if one comes twice, or overtakes another.
//!
//! Each direction has a Virtual Interface of its own (SocketVIA, section 3.2.2, "Two VIs per
//! connection"): data goes one way on it, its acknowledgements the other. So reader and writer of
//! one end share nothing but three counters ([`Exchange`]). Neither needs the other one's lock, nor
//! a thread that handles incoming messages. The queues are those of `via` ([`via::wire`]); buffers
//! lie in the receiver's segment, where the sender's processor copies to (programmed I/O), so a
//! message is copied twice in all, as by way of a ring.
//!
//! The write position goes to the reader with each message, and the read position back, as with a
//! ring ([`crate::transport`]). A message may be *joined*: it stays open for the next bytes, and
//! the write position tells the reader how much of it is there. That is SOVIA's combining of small
//! messages, without its timer, as nothing is held back.
//!
//! Sender and receiver lie in memory that forked processes share. Each step ends with one store to
//! a counter. So the next holder can do the step of a holder that was killed once more: entries,
//! cookies and acknowledgements are numbered, and everything else follows from counts.
//! `tests/sovia.rs` kills a holder at each access.
//!
//! Rule F2: everything that the peer has written is checked against what it may write; otherwise
//! the connection ends ([`Broken`](crate::ring::Broken)). Buffers are named by number, never by the
//! place in a cookie.
//!
//! docs/papers.md has the differences from the papers.

use fabric::Remote;

pub mod at;
mod manner;
mod message;
mod receiver;
mod sender;

pub use crate::ends::Exchange;
pub use manner::Manner;
pub use message::{MOST, MTU};
pub use receiver::Receiver;
pub use sender::Sender;

/// Bytes that each end needs in its segment for a connection.
pub const BYTES: usize = at::END;

/// Empties the queues in a segment, for a new connection.
pub fn wipe<R: Remote>(segment: &R, area: usize) {
    for word in (0..at::BUFFERS).step_by(8) {
        segment.put_word(area + word, 0);
    }
}
