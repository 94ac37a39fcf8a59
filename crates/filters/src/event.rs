//! What comes to the thread of a group: what workers say, and what the program wants.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::error::Failure;
use crate::messages::{FromWorker, Hello};
use crate::status::{Status, Traced};
use crate::unit::{Shared, UnitOptions};
use crate::worker::Control;

/// What comes to the thread.
pub enum Event {
    /// A worker has said hello.
    Came(usize, Control, Hello),
    /// A worker says something: which one, its incarnation, what.
    Said(usize, u64, FromWorker),
    /// Its connection has ended.
    Gone(usize, u64),
    /// The program appends a unit of work.
    Append { uow: u64, params: Vec<u8>, options: UnitOptions, shared: Arc<Shared> },
    /// It wants one to fail, unless that has ended.
    Cancel(u64, Failure),
    /// It wants to see how things are.
    Status(Sender<Status>),
    /// It wants what was recorded.
    Spans(Sender<Vec<Traced>>),
    /// It has no use for the group any more.
    Close,
}
