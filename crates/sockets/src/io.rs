//! Sending and receiving on a managed connection: one whose calls are ours. Each direction takes
//! bytes over the path that it is on and changes over where the writer announced it: `recv.rs` the
//! one that is read, `send.rs` the one that is written. What blocks, and how, is in `wait.rs`.

pub(crate) mod buffers;
mod companion;
mod peek;
mod queries;
mod recv;
mod send;

pub(crate) use buffers::total;
pub use companion::second_segment;
pub use queries::{before_mark, unread, unsent};
pub use recv::{keep_error, lend, recv, take_error};
pub use send::{File, send, send_file};

pub use crate::outcome::Outcome;
