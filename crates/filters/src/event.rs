//! Events for the thread of a group: messages of workers, and requests of the program.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::error::Failure;
use crate::messages::{FromWorker, Hello};
use crate::status::{Status, Traced};
use crate::unit::{Shared, UnitOptions};
use crate::worker::Control;

/// An event.
pub enum Event {
    /// A worker has said hello.
    Came(usize, Control, Hello),
    /// A worker has sent a message: which worker, its incarnation, the message.
    Said(usize, u64, FromWorker),
    /// Its connection has ended.
    Gone(usize, u64),
    /// The program appends a unit of work.
    Append { uow: u64, params: Vec<u8>, options: UnitOptions, shared: Arc<Shared> },
    /// The program wants one to fail, unless it has ended.
    Cancel(u64, Failure),
    /// The program asks for the status.
    Status(Sender<Status>),
    /// The program asks for the recorded spans.
    Spans(Sender<Vec<Traced>>),
    /// The program closes the group.
    Close,
}
