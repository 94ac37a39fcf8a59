//! What can go wrong.

use std::ffi::c_int;
use std::fmt;

/// Why there is no libfabric; says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

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
