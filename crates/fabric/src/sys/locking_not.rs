//! The stand-in for [`super::locking`] in loom's models, in which nobody locks memory.

use syscalls::Errno;

pub(super) fn map(len: usize, flags: i32, fd: i32, offset: usize) -> Result<*mut u8, Errno> {
    call!(mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, offset).map(|at| at as *mut u8)
}

pub(super) fn unmap(_at: usize) {}
