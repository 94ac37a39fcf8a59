//! What is to be seen of a group from outside: what its copies do and did, and what went by its streams.

use crate::copy::{Span, State};
use crate::stats::Figures;

/// What a copy was doing, and when.
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
    /// What and when.
    pub span: Span,
}

/// What is to be seen of a group from outside.
#[derive(Debug, Clone, Default)]
pub struct Status {
    /// What the copies do.
    pub copies: Vec<CopyStatus>,
    /// What has gone by which stream.
    pub figures: Vec<Figures>,
    /// Units of work that are done, have failed, are under way, wait.
    pub units: [usize; 4],
    /// How often processes were lost.
    pub losses: u64,
}

/// What one copy does.
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
    /// What it does; `None` if that is not known.
    pub state: Option<State>,
    /// In which unit of work.
    pub uow: u64,
    /// How many it has ended.
    pub ended: u64,
}
