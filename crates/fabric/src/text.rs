//! Short texts that are put together without memory of their own.

use core::ffi::CStr;
use core::fmt::{self, Write};

/// A text of less than `N` bytes; what does not fit is cut off.
#[derive(Debug)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    /// An empty one.
    #[allow(clippy::new_without_default)] // Default would say no more
    pub fn new() -> Text<N> {
        Text { bytes: [0; N], len: 0 }
    }

    /// What is formatted.
    pub fn of(what: fmt::Arguments<'_>) -> Text<N> {
        let mut text = Text::new();
        let _ = text.write_fmt(what);
        text
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Adds bytes.
    pub fn push(&mut self, more: &[u8]) {
        // The last byte stays zero.
        let part = &more[..more.len().min(N - 1 - self.len)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
    }

    /// As the kernel takes it.
    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// With a newline at its end.
    pub fn line(&mut self) -> &[u8] {
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        self.push(more.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_and_ends() {
        let mut line = Text::<400>::new();
        for _ in 0..100 {
            let _ = line.write_str("0123456789");
        }
        assert_eq!(line.as_c().to_bytes(), line.bytes());
        assert_eq!((line.line().len(), line.line().last()), (400, Some(&b'\n')));
    }
}
