//! What both programs know of a connection and its turns.

use sim::kernel::Pid;

/// The process that connects.
pub const CLIENT: Pid = 200;

/// What both programs know of a connection.
#[derive(Debug, Clone)]
pub struct Plan {
    pub port: u16,
    /// The client's port, if the server is to know the connection by it.
    pub from: u16,
    /// Directions of the judge: what the server writes, what the client writes.
    pub directions: [usize; 2],
    pub turns: Vec<Turn>,
    /// Both directions at once, by a thread for each at both ends; else one turn after the other.
    pub both: bool,
    /// The end that closes first.
    pub closer: usize,
    /// That end closes nothing: its process ends.
    pub exits: bool,
    pub nonblocking: [bool; 2],
    /// The server forks, and its child serves.
    pub forks: bool,
    /// This end goes through exec() before this turn. Only where the process has nothing else to
    /// do.
    pub execs: Option<(usize, usize)>,
    /// The server's end is its handler's of signals.
    pub side: bool,
    /// Urgent bytes come and go, among the others or beside them.
    pub urgent: Option<bool>,
    /// The readers use low water marks.
    pub aims: bool,
}

/// One end writes, the other reads.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    pub writer: usize,
    pub len: u64,
    /// It is written by one call.
    pub whole: bool,
    /// Each end does something else first, for so many ms.
    pub pauses: [i32; 2],
    pub exchange: bool,
    /// This end leaves the connection to the kernel before.
    pub leaves: Option<usize>,
}

impl Plan {
    /// Whether nothing is done by which the connection goes back to the kernel on purpose.
    pub fn stays(&self) -> bool {
        let leaves = |turn: &Turn| turn.exchange || turn.leaves.is_some();
        self.urgent.is_none() && !self.aims && !self.turns.iter().any(leaves)
    }

    /// What server and client write in all.
    pub fn sums(&self) -> [u64; 2] {
        [0, 1].map(|end| self.turns.iter().filter(|turn| turn.writer == end).map(|turn| turn.len).sum())
    }
}
