//! Errors of measurements: a program that is not installed, an interruption by the user, and
//! everything else.

use std::fmt;

#[derive(Debug)]
pub enum Error {
    /// A program that must be installed first, and Debian's package that has it.
    Missing {
        program: String,
        package: String,
    },
    /// Another contender that is not on this machine, and how to install it.
    Absent {
        what: String,
        remedy: String,
    },
    /// Ctrl-C, or a signal that asks to end.
    Interrupted,
    Failed(String),
}

/// Tables show this for [`Error::Absent`].
pub const NOT_HERE: &str = "not here";

pub type Result<T> = std::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { program, package } => {
                write!(f, "{program} is not installed (apt-get install {package})")
            }
            Error::Absent { what, remedy } => write!(f, "{what} is {NOT_HERE} ({remedy})"),
            Error::Interrupted => write!(f, "interrupted"),
            Error::Failed(why) => write!(f, "{why}"),
        }
    }
}

impl std::error::Error for Error {}

/// An error with a text of one's own: `.map_err(failed("cannot write the plot"))`.
pub fn failed<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Error {
    move |e| Error::Failed(format!("{what}: {e}"))
}
