//! A short byte string that lives where it is declared. Paths and names of options are kept in it,
//! as the library can neither allocate nor borrow from an environment that the program may change
//! under it.

use core::ffi::CStr;
use core::fmt::{self, Write};

/// Fewer than `N` bytes without a NUL; always followed by one, so that it can go straight to a
/// system call.
#[derive(Clone, Copy)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// A path, or a name.
pub type Text = Bytes<256>;

/// A value of more than a few words.
pub type LongText = Bytes<4096>;

impl<const N: usize> Bytes<N> {
    /// The longest content, in bytes.
    pub const MAX: usize = N - 1;

    /// The empty text.
    pub const EMPTY: Self = Bytes { bytes: [0; N], len: 0 };

    /// Copies `from`; `None` if it is too long or holds a NUL byte.
    pub const fn new(from: &[u8]) -> Option<Self> {
        if from.len() > Self::MAX {
            return None;
        }
        let mut text = Self::EMPTY;
        let mut i = 0;
        while i < from.len() {
            if from[i] == 0 {
                return None;
            }
            text.bytes[i] = from[i];
            i += 1;
        }
        text.len = from.len();
        Some(text)
    }

    /// The content.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The content, as C wants it.
    pub fn as_c_str(&self) -> &CStr {
        // Never fails: the last byte is never written, so there is always a NUL.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

impl Text {
    /// `first` followed by `second`; `None` if that is too long or holds a NUL byte.
    pub(crate) fn joined(first: &[u8], second: &[u8]) -> Option<Text> {
        let mut all = [0; Self::MAX];
        let len = first.len().checked_add(second.len()).filter(|&len| len <= Self::MAX)?;
        all[..first.len()].copy_from_slice(first);
        all[first.len()..len].copy_from_slice(second);
        Text::new(&all[..len])
    }
}

impl<const N: usize> PartialEq for Bytes<N> {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl<const N: usize> Eq for Bytes<N> {}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl<const N: usize> fmt::Display for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.as_bytes(), f)
    }
}

/// Bytes that a stranger wrote.
pub(crate) struct Shown<'a>(pub &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(self.0, f)
    }
}

/// Shows them in one line, without control characters, and shortened.
fn show(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut left = Text::MAX;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if left == 0 {
                return f.write_str("...");
            }
            left -= 1;
            if c.is_control() { write!(f, "{}", c.escape_default())? } else { f.write_char(c)? }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// A `#` begins a comment at the start of a line or after a space: a path may contain one.
pub(crate) fn without_comment(line: &[u8]) -> &[u8] {
    let opens = |&i: &usize| line[i] == b'#' && (i == 0 || line[i - 1].is_ascii_whitespace());
    &line[..(0..line.len()).find(opens).unwrap_or(line.len())]
}
