//! Errors.

use std::ffi::c_int;
use std::fmt;

/// Why there is no libfabric; the text says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub(crate) String);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// Why a domain cannot be opened, or a link cannot be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// There is no libfabric that can be used.
    Missing(Missing),
    /// A call of libfabric failed.
    Call {
        /// Which call.
        what: &'static str,
        /// An error number, positive.
        error: c_int,
        /// libfabric's text for it.
        text: String,
    },
    /// An impossible address.
    Address,
    /// There is no memory for a segment: the error number.
    Memory(c_int),
    /// The link is over, and why.
    Over(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing(missing) => missing.fmt(f),
            Error::Call { what, error, text } => write!(f, "{what}: {text} ({error})"),
            Error::Address => f.write_str("an impossible address"),
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
