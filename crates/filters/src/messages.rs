//! The messages between the caller's process and the workers. None of them is on the way of a
//! buffer. Each message is its length in four bytes and then its encoding by postcard.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::copy::{Span, State};
use crate::layout::{CopyId, Plan};
use crate::stats::Figures;

/// The most bytes of a message: partial results are in them.
const MOST: usize = 1 << 30;

/// The version of the messages; both ends must have the same.
pub const VERSION: u32 = 1;

/// The transport of buffers between processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Transport {
    /// In shared memory on one host, by sockets elsewhere.
    #[default]
    Auto,
    /// By sockets that Shunt promotes where it can.
    Shunt,
    /// By kernel TCP.
    Tcp,
}

/// Where neighbours reach a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    /// Host and port of TCP.
    pub tcp: String,
    /// The abstract name of its UNIX socket.
    pub unix: String,
    /// A text that is equal for two processes if they can share memory: the kernel's boot, the
    /// network namespace, the user.
    pub kin: String,
}

/// A worker's first message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// See [`VERSION`].
    pub version: u32,
    /// The secret of the group.
    pub token: String,
    /// Which worker of the plan it is.
    pub worker: usize,
    /// Its process.
    pub pid: u32,
    /// The machine's name, for people.
    pub machine: String,
    /// Where its neighbours reach it.
    pub address: WorkerAddress,
}

/// To a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum ToWorker {
    /// The plan. All that ran before is given up.
    Plan {
        /// The plan.
        plan: Plan,
        /// Which attempt at it this is.
        epoch: u64,
        /// Where each worker is reached.
        addresses: Vec<WorkerAddress>,
        /// How buffers go.
        transport: Transport,
        /// Whether spans are reported.
        trace: bool,
    },
    /// A unit of work.
    Append {
        /// Its number.
        uow: u64,
        /// Its parameters.
        params: Vec<u8>,
    },
    /// Cancels a unit of work.
    Cancel {
        /// Which.
        uow: u64,
    },
    /// Asks for the worker's figures.
    Report {
        /// Repeated in the answer.
        number: u64,
    },
    /// There is no more work.
    Finish,
}

/// From a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum FromWorker {
    /// All neighbours are linked.
    Ready {
        /// The attempt.
        epoch: u64,
    },
    /// The plan cannot be carried out here.
    Unfit {
        /// The attempt.
        epoch: u64,
        /// The copy that cannot be made, if it is that.
        copy: Option<CopyId>,
        /// Why.
        what: String,
        /// Where, if there is more to say.
        traceback: String,
        /// Whether a neighbour was not there, which may have been lost.
        broken: bool,
    },
    /// A partial result.
    Part {
        /// The attempt.
        epoch: u64,
        /// Of this unit of work.
        uow: u64,
        /// From this copy.
        copy: CopyId,
        /// The result.
        data: Vec<u8>,
    },
    /// A copy has failed.
    Failed {
        /// The attempt.
        epoch: u64,
        /// In this unit of work.
        uow: u64,
        /// Which.
        copy: CopyId,
        /// In one line.
        what: String,
        /// Where.
        traceback: String,
        /// Whether a connection broke, which may be because a neighbour was lost.
        broken: bool,
    },
    /// A copy has ended its part of a unit of work.
    Done {
        /// The attempt.
        epoch: u64,
        /// Which unit of work.
        uow: u64,
        /// Which copy.
        copy: CopyId,
        /// How long it took, if that was asked for.
        spans: Vec<Span>,
    },
    /// Counts of an attempt that is over.
    Counted {
        /// See there.
        figures: Vec<Figures>,
    },
    /// The answer to [`ToWorker::Report`].
    Report {
        /// Its number.
        number: u64,
        /// The states of its copies, and their units of work.
        states: Vec<(CopyId, State, u64)>,
        /// Their counts.
        figures: Vec<Figures>,
    },
}

impl FromWorker {
    /// The copy that it is about, if it is about one.
    pub fn copy(&self) -> Option<CopyId> {
        match self {
            FromWorker::Unfit { copy, .. } => *copy,
            FromWorker::Part { copy, .. }
            | FromWorker::Failed { copy, .. }
            | FromWorker::Done { copy, .. } => Some(*copy),
            FromWorker::Ready { .. } | FromWorker::Counted { .. } | FromWorker::Report { .. } => None,
        }
    }
}

/// Writes a message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let mut bytes = postcard::to_extend(message, vec![0; 4])
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
    let len = bytes.len() - 4;
    if len > MOST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("a message of {len} bytes")));
    }
    bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
    to.write_all(&bytes)
}

/// Reads a message of at most `most` bytes.
pub fn receive_most<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    if len > most {
        return Err(wrong(format!("a message of {len} bytes where at most {most} are expected")));
    }
    let mut bytes = Vec::new();
    // Grows with the bytes that come: a length alone takes no memory.
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&bytes).map_err(|error| wrong(format!("a message that is not understood: {error}")))
}

/// Reads a message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    receive_most(from, MOST)
}
