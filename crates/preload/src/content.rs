//! What is in a file, read without libc's or std's help into memory of our own.

use core::ffi::CStr;
use fabric::sys::{self, Errno};
use sockets::descriptors;

/// The content of a file, as long as this lives.
pub struct Content {
    at: *mut u8,
    len: usize,
    mapped: usize,
}

impl Content {
    /// Reads a file, of which not more than `most` bytes. ESPIPE if it is a pipe or a terminal.
    pub fn read(path: &CStr, most: usize) -> Result<Content, Errno> {
        // Without O_NONBLOCK, opening a pipe could wait for ever.
        let fd =
            descriptors::made(|| sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY, 0))?;
        let content = Self::of(fd, most);
        sys::close(fd);
        content
    }

    fn of(fd: i32, most: usize) -> Result<Content, Errno> {
        // One more, so that reading finds out what has no length: that it is a folder, say.
        let mapped = sys::file_len(fd)?.min(most) + 1;
        let mut content = Content { at: sys::mmap_private(mapped)?, len: 0, mapped };
        // SAFETY: mapped above with so many bytes, and not known to anybody else yet.
        let buffer = unsafe { core::slice::from_raw_parts_mut(content.at, mapped) };
        content.len = sys::pread(fd, buffer, 0)?.min(most);
        Ok(content)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the mapping, which lives as long as self, were read and are not
        // written any more.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        sys::munmap(self.at, self.mapped);
    }
}
