//! Paths of the options, as the standard library has them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use options::Text;

/// A path of the options, as std has them.
pub fn path_of(text: &Text) -> PathBuf {
    OsStr::from_bytes(text.as_bytes()).into()
}
