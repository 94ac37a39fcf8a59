//! The status of a group: the states and past activities of its copies, and the traffic of its
//! streams.

use crate::copy::{Span, State};
use crate::stats::Figures;

/// A past activity of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// The copy, as people name it.
    pub copy: String,
    /// Its host.
    pub host: String,
    /// Its place among all copies.
    pub index: usize,
    /// The unit of work.
    pub uow: u64,
    /// The activity and its time.
    pub span: Span,
}

/// The status of a group.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// The states of the copies.
    pub copies: Vec<CopyStatus>,
    /// The traffic of the streams.
    pub figures: Vec<Figures>,
    /// Units of work that are done, have failed, are under way, wait.
    pub units: [usize; 4],
    /// How often processes were lost.
    pub losses: u64,
}

/// The state of one copy.
#[derive(Debug, Clone)]
pub struct CopyStatus {
    /// The copy, as people name it.
    pub name: String,
    /// Its host, by the launcher's name.
    pub host: String,
    /// The machine's own name.
    pub machine: String,
    /// Its process.
    pub pid: u32,
    /// Its state; `None` if that is not known.
    pub state: Option<State>,
    /// In which unit of work.
    pub uow: u64,
    /// How many it has ended.
    pub ended: u64,
}
