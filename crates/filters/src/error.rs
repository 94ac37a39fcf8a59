//! Errors of filters, and failures of units of work.

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

/// Why a call of a filter to the runtime failed, or the filter's own error.
#[derive(Debug)]
pub enum Error {
    /// The unit of work was cancelled, ran out of time, or failed elsewhere. A filter that gets
    /// this should end; its result is ignored.
    Cancelled,
    /// The program's mistake: a write of more than a buffer, a stream that is not there. The text
    /// says which, and what to do.
    Usage(String),
    /// The connection to a neighbour broke, or memory could not be had.
    Io(io::Error),
    /// The filter's own error.
    Filter {
        /// In one line.
        what: String,
        /// Where it happened, if there is more to say: a traceback.
        traceback: String,
    },
}

impl Error {
    /// A failure of the filter's own.
    pub fn filter(what: impl Into<String>) -> Error {
        Error::Filter { what: what.into(), traceback: String::new() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Error::Cancelled => f.write_str("the unit of work was cancelled"),
            Error::Usage(what) | Error::Filter { what, .. } => f.write_str(what),
            Error::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(error)
    }
}

/// Why a unit of work failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// A copy of a filter failed.
    Filter {
        /// The copy, as people name it: `zoom[1]`.
        copy: String,
        /// Its host.
        host: String,
        /// In one line.
        what: String,
        /// Where, as far as is known.
        traceback: String,
    },
    /// A process was lost with the copies that it had.
    Lost {
        /// The copies.
        copies: Vec<String>,
        /// Its host.
        host: String,
        /// How it ended, as far as is known.
        how: String,
    },
    /// The layout or the placement is impossible: the program's mistake.
    Mistake(String),
    /// It was cancelled.
    Cancelled,
    /// It took longer than its timeout.
    TimedOut,
    /// The group was closed before it was done, or could not be started again.
    Closed(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Failure::Filter { copy, host, what, .. } => {
                write!(f, "filter {copy} on host '{host}' failed: {what}")
            }
            Failure::Lost { copies, host, how } => {
                write!(f, "the process of {} on host '{host}' was lost ({how})", copies.join(", "))
            }
            Failure::Cancelled => f.write_str("cancelled"),
            Failure::TimedOut => f.write_str("it took longer than its timeout"),
            Failure::Mistake(why) | Failure::Closed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}
