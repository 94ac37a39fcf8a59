//! Descriptors and files: opening, reading, writing, what the kernel knows of them, and limits on
//! both.

use core::ffi::CStr;
use core::ptr;
use syscalls::Errno;

/// An anonymous file in memory that can be sealed; close-on-exec.
pub fn memfd_create(name: &CStr) -> Result<i32, Errno> {
    call!(memfd_create, name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).map(|fd| fd as i32)
}

/// The limit on the size of files that the process writes. Beyond it the kernel sends SIGXFSZ,
/// which would end the program.
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit);
    limit.rlim_cur
}

/// Sets a file's length. EFBIG, and no signal, if the process may not have files of that size.
pub fn ftruncate(fd: i32, len: usize) -> Result<(), Errno> {
    if file_size_limit() < len as u64 {
        return Err(Errno::EFBIG);
    }
    call!(ftruncate, fd, len).map(drop)
}

/// A file's length.
pub fn file_len(fd: i32) -> Result<usize, Errno> {
    call!(lseek, fd, 0, libc::SEEK_END)
}

/// Whether a file's pages are ordinary ones in memory (tmpfs). Huge pages can be missing when they
/// are first touched, which causes SIGBUS.
pub fn is_tmpfs(fd: i32) -> bool {
    // SAFETY: all zeroes is a valid statfs.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    call!(fstatfs, fd, &raw mut about).is_ok() && about.f_type == libc::TMPFS_MAGIC
}

/// Entries of a directory, as the kernel writes them.
pub fn getdents(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(getdents64, fd, buffer.as_mut_ptr(), buffer.len())
}

/// fcntl with an integer argument.
pub fn fcntl(fd: i32, command: i32, arg: usize) -> Result<i32, Errno> {
    call!(fcntl, fd, command, arg).map(|value| value as i32)
}

/// Closes.
pub fn close(fd: i32) {
    let _ = call!(close, fd);
}

/// Reads.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(read, fd, buffer.as_mut_ptr(), buffer.len())
}

/// Reads without blocking, whatever the file's flags are. EOPNOTSUPP where the kernel cannot do
/// that with this kind of file.
pub fn read_now(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    call!(preadv2, fd, &raw const iov, 1, -1i64, -1i64, libc::RWF_NOWAIT)
}

/// Whether `fd` is an object of the kernel's that has no file type: an eventfd, epoll set, timer
/// and the like.
pub fn is_anonymous(fd: i32) -> bool {
    // SAFETY: all zeroes is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    call!(fstat, fd, &raw mut about).is_ok() && about.st_mode & libc::S_IFMT == 0
}

/// Tells the file behind a descriptor from others: its device and inode, mixed. The kernel's
/// anonymous files (eventfds) all have the same.
pub fn identity(fd: i32) -> u64 {
    // SAFETY: all zeroes is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    match call!(fstat, fd, &raw mut about) {
        Ok(_) => about.st_ino.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ about.st_dev.rotate_left(20) ^ 1,
        Err(_) => 0,
    }
}

/// Writes.
pub fn write(fd: i32, buffer: &[u8]) -> Result<usize, Errno> {
    call!(write, fd, buffer.as_ptr(), buffer.len())
}

/// Reads at an offset.
pub fn pread(fd: i32, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    call!(pread64, fd, buffer.as_mut_ptr(), buffer.len(), offset)
}

/// Reads at an offset into several places, with the flags of preadv2(). An offset of -1, which
/// means the file's own position there, is refused.
pub fn preadv(fd: i32, places: &[libc::iovec], offset: u64, flags: i32) -> Result<usize, Errno> {
    if offset > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    call!(preadv2, fd, places.as_ptr(), places.len(), offset, 0u64, flags)
}

/// Whether a file lies in memory (tmpfs, ramfs), so that reading it never waits for a disk.
pub fn lies_in_memory(fd: i32) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    // SAFETY: all zeroes is a valid statfs.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    call!(fstatfs, fd, &raw mut about).is_ok() && matches!(about.f_type, TMPFS | RAMFS)
}

/// Writes at an offset of a file. EFBIG, and no signal, if the process may not write there (any
/// more).
pub fn pwrite(fd: i32, buffer: &[u8], offset: u64) -> Result<usize, Errno> {
    if file_size_limit() < offset + buffer.len() as u64 {
        return Err(Errno::EFBIG);
    }
    call!(pwrite64, fd, buffer.as_ptr(), buffer.len(), offset)
}

/// Opens a file, close-on-exec.
pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<i32, Errno> {
    call!(openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC, mode).map(|fd| fd as i32)
}

/// Sets a file's mode.
pub fn fchmod(fd: i32, mode: u32) -> Result<(), Errno> {
    call!(fchmod, fd, mode).map(drop)
}

/// Sets the mode of a file by its path.
pub fn chmod(path: &CStr, mode: u32) -> Result<(), Errno> {
    call!(fchmodat, libc::AT_FDCWD, path.as_ptr(), mode).map(drop)
}

/// Removes a file.
pub fn unlink(path: &CStr) -> Result<(), Errno> {
    call!(unlinkat, libc::AT_FDCWD, path.as_ptr(), 0).map(drop)
}

/// An event counter, non-blocking.
pub fn eventfd() -> Result<i32, Errno> {
    call!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(|fd| fd as i32)
}

/// ioctl whose result is an int.
pub fn ioctl_int(fd: i32, request: u64) -> Result<i32, Errno> {
    let mut value = 0i32;
    call!(ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// The target of a symbolic link.
pub fn readlink(path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())
}

/// The limits of descriptors.
pub fn nofile_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let _ = call!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    limit
}

/// Sets the limits of descriptors and returns the old ones, in one step.
pub fn swap_nofile_limit(limit: libc::rlimit) -> Result<libc::rlimit, Errno> {
    let mut was = limit;
    call!(prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, &raw mut was)?;
    Ok(was)
}

/// Moves a file's position.
pub fn lseek(fd: i32, to: i64, whence: i32) -> Result<u64, Errno> {
    call!(lseek, fd, to, whence).map(|at| at as u64)
}

/// Makes `to` another descriptor of the file behind `fd`.
pub fn dup_over(fd: i32, to: i32, cloexec: bool) -> Result<(), Errno> {
    call!(dup3, fd, to, if cloexec { libc::O_CLOEXEC } else { 0 }).map(drop)
}

/// Closes all descriptors from `first` to `last`.
pub fn close_range(first: u32, last: u32) {
    if first <= last {
        let _ = call!(close_range, first, last, 0);
    }
}

/// ioctl with a structure.
pub fn ioctl<T>(fd: i32, request: u64, value: &mut T) -> Result<(), Errno> {
    call!(ioctl, fd, request, ptr::from_mut(value)).map(drop)
}
