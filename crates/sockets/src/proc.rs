//! What /proc says of a process's descriptors. Without memory of its own: hooks call it.

use core::ffi::CStr;
use core::fmt;

use fabric::sys;
use fabric::text::Text;

/// Calls `each` for the open descriptors of a process, in their order, until it says that it is
/// enough. `process`: a number, or "self".
pub(crate) fn each_descriptor(process: impl fmt::Display, mut each: impl FnMut(i32) -> bool) {
    let path = Path::of(format_args!("/proc/{process}/fd"));
    each_name(path.as_c(), |folder, name| {
        let fd = name.to_str().ok().and_then(|name| name.parse().ok());
        fd.is_some_and(|fd| fd != folder && each(fd))
    });
}

/// Calls `each` for the names in a folder, with the folder's descriptor, until it says that it is
/// enough.
pub(crate) fn each_name(path: &CStr, mut each: impl FnMut(i32, &CStr) -> bool) {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let Ok(folder) = crate::descriptors::made(|| sys::open(path, flags, 0)) else { return };
    let mut entries = [0; 2048];
    'all: while let Ok(len @ 1..) = sys::getdents(folder, &mut entries) {
        let mut at = 0;
        while at + NAME < len {
            let size = usize::from(u16::from_ne_bytes([entries[at + SIZE], entries[at + SIZE + 1]]));
            let name = CStr::from_bytes_until_nul(&entries[at + NAME..len]).unwrap_or_default();
            at += size.max(1);
            if each(folder, name) {
                break 'all;
            }
        }
    }
    sys::close(folder);
}

/// Where an entry of a directory has its size, and its name (linux_dirent64).
const SIZE: usize = 16;
const NAME: usize = 19;

/// What a descriptor is of ("anon_inode:[eventpoll]", "/memfd:name (deleted)"), as much as there is
/// room for; nothing if it is not open.
pub(crate) fn target(process: impl fmt::Display, fd: i32, room: &mut [u8]) -> &[u8] {
    let path = Path::of(format_args!("/proc/{process}/fd/{fd}"));
    let len = sys::readlink(path.as_c(), room).unwrap_or(0);
    &room[..len]
}

/// The name of a file there.
pub(crate) type Path = Text<64>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_open_is_found_and_named_and_nothing_else() {
        let files: Vec<File> = (0..200).map(|_| File::open("/dev/null").unwrap()).collect();
        let mut found = Vec::new();
        each_descriptor("self", |fd| {
            found.push(fd);
            false
        });
        for file in &files {
            assert!(found.contains(&file.as_raw_fd()));
        }
        assert_eq!(target("self", files[0].as_raw_fd(), &mut [0; 64]), b"/dev/null");
        assert_eq!(target("self", 1 << 20, &mut [0; 64]), b"");
        let mut seen = 0;
        each_descriptor(std::process::id(), |_| {
            seen += 1;
            seen == 3
        });
        assert_eq!(seen, 3);
    }
}
