//! What can go wrong.

use std::ffi::c_int;
use std::fmt;

use crate::library::{Library, Missing};

/// Why a domain or a link cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// There is no libfabric that can be used.
    Missing(Missing),
    /// This call of it failed.
    Call {
        /// Which.
        what: &'static str,
        /// An error number, positive.
        error: c_int,
        /// What libfabric says of it.
        text: String,
    },
    /// An address that cannot be.
    Address,
    /// Memory for a segment could not be had: the error number.
    Memory(c_int),
    /// The link is over, and why.
    Over(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(missing) => missing.fmt(f),
            Error::Call { what, error, text } => write!(f, "{what}: {text} ({error})"),
            Error::Address => f.write_str("an address that cannot be"),
            Error::Memory(error) => {
                write!(f, "no memory for a segment: {}", std::io::Error::from_raw_os_error(*error))
            }
            Error::Over(why) => write!(f, "the link is over: {why}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Error {
        Error::Missing(missing)
    }
}

impl Error {
    pub(crate) fn of(library: &Library, what: &'static str, error: c_int) -> Error {
        Error::Call { what, error, text: library.text(error) }
    }
}

/// What a call has returned: a count, or an error below zero.
pub(crate) fn check(library: &Library, what: &'static str, result: isize) -> Result<usize, Error> {
    usize::try_from(result).map_err(|_| Error::of(library, what, -result as c_int))
}
