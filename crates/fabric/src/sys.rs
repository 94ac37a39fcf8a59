//! System calls, made directly: the library's own calls must not go through libc's symbols, which it interposes, nor set errno.

use core::ffi::CStr;
use core::ptr;
pub use syscalls::{Errno, Sysno};

macro_rules! call {
    ($nr:ident $(, $arg:expr)*) => {
        // SAFETY: each caller below passes what the kernel's interface for this call asks for.
        unsafe { syscalls::syscall!(calls::number::$nr $(, $arg)*) }
    };
}

pub mod calls;
#[cfg(not(loom))]
pub mod locking;
#[cfg(loom)]
#[path = "sys/locking_not.rs"]
pub mod locking;

/// The thread's id.
pub fn gettid() -> u32 {
    call!(gettid).unwrap_or(0) as u32
}

/// The process's id.
pub fn getpid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// The kernel's version: the first two numbers, as long as they can be read.
pub fn kernel_version() -> (u32, u32) {
    // SAFETY: all zeroes is a valid utsname.
    let mut names: libc::utsname = unsafe { core::mem::zeroed() };
    if call!(uname, &raw mut names).is_err() {
        return (0, 0);
    }
    let digits = |byte: &core::ffi::c_char| Some(*byte as u8).filter(u8::is_ascii_digit);
    let mut numbers = names.release.split(|&byte| byte as u8 == b'.').map(|part| {
        part.iter()
            .map_while(digits)
            .fold(0u32, |sum, digit| sum.wrapping_mul(10).wrapping_add(u32::from(digit - b'0')))
    });
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The effective user.
pub fn geteuid() -> u32 {
    call!(geteuid).unwrap_or(0) as u32
}

/// The real, effective and saved user.
pub fn getresuid() -> [u32; 3] {
    ids(calls::number::getresuid)
}

/// The real, effective and saved group.
pub fn getresgid() -> [u32; 3] {
    ids(calls::number::getresgid)
}

fn ids(call: Sysno) -> [u32; 3] {
    let mut ids = [u32::MAX; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: both calls write three numbers to these places.
    let _ = unsafe { syscalls::syscall!(call, &raw mut *real, &raw mut *effective, &raw mut *saved) };
    ids
}

/// Whether a thread with this id runs or may run (one that we may not signal does). One that was killed exists until its parent
/// reaps it, and its parent may be the one who asks: that counts as dead.
pub fn thread_lives(tid: u32) -> bool {
    !matches!(call!(tkill, tid, 0), Err(Errno::ESRCH)) && !matches!(thread_state(tid), Some(b'Z' | b'X'))
}

/// The kernel's letter for what a thread does; none if /proc does not say.
fn thread_state(tid: u32) -> Option<u8> {
    let mut stat = [0; 64]; // number, (name of at most 15 bytes), letter
    let stat = proc(tid, b"/stat", &mut stat)?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

/// Whether a thread sleeps in recvfrom() on `fd`. False if /proc does not say.
pub fn sleeps_in_recv(tid: u32, fd: i32) -> bool {
    sleeps_in(tid).is_some_and(|(call, first)| call == libc::SYS_recvfrom && first == Some(fd))
}

/// Whether it sleeps in ppoll().
pub fn sleeps_in_poll(tid: u32) -> bool {
    sleeps_in(tid).is_some_and(|(call, _)| call == libc::SYS_ppoll)
}

/// In which call it sleeps, and the first argument if that may be a descriptor.
fn sleeps_in(tid: u32) -> Option<(libc::c_long, Option<i32>)> {
    let mut words = [0; 128]; // number of the call and its arguments: 45 0x3 ...
    let words = proc(tid, b"/syscall", &mut words)?;
    let mut words =
        words.split(|byte| *byte == b' ').map(|word| core::str::from_utf8(word).unwrap_or_default());
    let call = words.next()?.parse().ok()?;
    let first = words.next().and_then(|word| i32::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    Some((call, first))
}

/// What a file of a thread's says, as far as there is room.
fn proc<'a>(tid: u32, file: &[u8], text: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = *b"/proc/\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = [0u8; 10];
    let (mut rest, mut first) = (tid, digits.len());
    loop {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    let count = digits.len() - first;
    path[6..6 + count].copy_from_slice(&digits[first..]);
    path[6 + count..6 + count + file.len()].copy_from_slice(file);
    let fd = open(CStr::from_bytes_until_nul(&path).ok()?, libc::O_RDONLY, 0).ok()?;
    let len = read(fd, text);
    close(fd);
    text.get(..len.ok()?)
}

/// Sleeps on a word in shared memory while it holds `value`, at most `nanos`.
pub fn futex_wait(word: *const u32, value: u32, nanos: i64) {
    let timeout = libc::timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    let _ = call!(futex, word, libc::FUTEX_WAIT, value, &raw const timeout, 0, 0);
}

/// Wakes sleepers on a word.
pub fn futex_wake(word: *const u32, count: u32) {
    let _ = call!(futex, word, libc::FUTEX_WAKE, count, 0, 0, 0);
}

/// Copies from this process's memory into another's, as far as it goes; how many bytes that were.
///
/// # Safety
/// `local` must be valid for reads.
pub unsafe fn process_vm_writev(
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    call!(process_vm_writev, pid, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0)
}

/// Copies from another process's memory into this one's, likewise.
///
/// # Safety
/// `local` must be valid for writes.
pub unsafe fn process_vm_readv(
    pid: u32,
    local: &[libc::iovec],
    remote: &[libc::iovec],
) -> Result<usize, Errno> {
    call!(process_vm_readv, pid, local.as_ptr(), local.len(), remote.as_ptr(), remote.len(), 0)
}

/// An anonymous file in memory that can be sealed; close-on-exec.
pub fn memfd_create(name: &CStr) -> Result<i32, Errno> {
    call!(memfd_create, name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).map(|fd| fd as i32)
}

/// The limit on the size of files that the process writes: beyond it the kernel sends SIGXFSZ, which would end the program.
pub fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit);
    limit.rlim_cur
}

/// How much address space the process may have.
pub fn address_space_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    let _ = call!(prlimit64, 0, libc::RLIMIT_AS, 0, &raw mut limit);
    limit.rlim_cur
}

/// Sets a file's length; EFBIG, and no signal, if the process may not have files of that size.
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

/// Whether a file's pages are ordinary ones in memory (tmpfs). Huge pages can be missing when they are first touched, which is
/// a SIGBUS.
pub fn is_tmpfs(fd: i32) -> bool {
    // SAFETY: all zeroes is a valid statfs.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    call!(fstatfs, fd, &raw mut about).is_ok() && about.f_type == libc::TMPFS_MAGIC
}

/// Whether a filter of system calls holds for this thread (seccomp): it may kill the process for a call that it does not expect.
pub fn filtered() -> bool {
    call!(prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) != Ok(0)
}

/// A copy of descriptor `theirs` of the process `pid`; only where one may trace that process.
pub fn descriptor_of(pid: u32, theirs: i32) -> Result<i32, Errno> {
    if filtered() {
        return Err(Errno::EPERM);
    }
    let process = call!(pidfd_open, pid, 0)? as i32;
    let got = call!(pidfd_getfd, process, theirs, 0).map(|fd| fd as i32);
    close(process);
    got
}

/// A handle on a process.
pub fn pidfd(pid: u32) -> Result<i32, Errno> {
    call!(pidfd_open, pid, 0).map(|fd| fd as i32)
}

/// A copy of descriptor `theirs` of the process that `process` stands for, whatever filter is installed: for a program that has just made this call itself.
pub fn copy_of(process: i32, theirs: i32) -> Result<i32, Errno> {
    call!(pidfd_getfd, process, theirs, 0).map(|fd| fd as i32)
}

/// Entries of a directory, as the kernel writes them.
pub fn getdents(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(getdents64, fd, buffer.as_mut_ptr(), buffer.len())
}

/// fcntl with an integer argument.
pub fn fcntl(fd: i32, command: i32, arg: usize) -> Result<i32, Errno> {
    call!(fcntl, fd, command, arg).map(|value| value as i32)
}

/// Maps a file shared, readable and writable, left out of core dumps.
pub fn mmap_shared(fd: i32, len: usize) -> Result<*mut u8, Errno> {
    mmap_shared_from(fd, 0, len)
}

/// As [`mmap_shared`], a part of the file, from the beginning of one of its pages on.
pub fn mmap_shared_from(fd: i32, offset: usize, len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let at = locking::map(len, flags, fd, offset)?;
    madvise(at, len, libc::MADV_DONTDUMP);
    Ok(at)
}

/// Private zeroed memory, sparse, left out of core dumps where it is much.
pub fn mmap_private(len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = locking::map(len, flags, -1, 0)?;
    if len >= SPARSE {
        madvise(at, len, libc::MADV_DONTDUMP);
    }
    Ok(at)
}

/// Mappings from so many bytes on have holes, most likely.
const SPARSE: usize = 64 << 10;

/// Puts memory that nobody else has (but children of fork() to come) where `len` bytes are mapped: the first `kept` of them with what they had, if there is memory for that, else zeroes.
///
/// # Safety
/// All `len` bytes are mapped there, from the beginning of a page on, and nobody else counts on what others write there.
pub unsafe fn make_own(at: *mut u8, len: usize, kept: usize) {
    let kept = kept.next_multiple_of(4096).min(len);
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    let copy = match kept {
        0 => None,
        _ => mmap_common(kept).ok(),
    };
    let from = copy.map_or(0, |copy| {
        // SAFETY: `at` is mapped for `len` bytes, says the caller, and the copy for as many as are kept.
        unsafe { ptr::copy_nonoverlapping(at, copy, kept) };
        kept
    });
    let rest = at.wrapping_add(from);
    if len > from {
        let _ = call!(mmap, rest, len - from, protection, flags | libc::MAP_FIXED, -1isize, 0);
    }
    if let Some(copy) = copy {
        let _ = call!(mremap, copy, kept, kept, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, at);
    }
}

/// Unmaps.
pub fn munmap(at: *mut u8, len: usize) {
    locking::unmap(at.addr());
    let _ = call!(munmap, at, len);
}

/// What may be done with the pages that hold so many bytes at an address.
pub fn mprotect(at: *mut u8, len: usize, protection: i32) -> Result<(), Errno> {
    let page = at.addr() & !4095;
    call!(mprotect, page, at.addr() + len - page, protection).map(drop)
}

/// Advice about memory.
pub fn madvise(at: *mut u8, len: usize, advice: i32) {
    let _ = call!(madvise, at, len, advice);
}

/// Whether there is memory at all of `len` bytes from an address on. That a page is not in memory now does not matter.
pub fn is_mapped(at: *const u8, len: usize) -> bool {
    let mut page = at.addr() & !4095;
    let end = at.addr() + len;
    if filtered() {
        return call!(msync, page, end - page, libc::MS_ASYNC) != Err(Errno::ENOMEM);
    }
    // Where it may be asked: valgrind takes the other question for a use of memory.
    let mut resident = [0u8; 256];
    while page < end {
        let part = (end - page).min(resident.len() * 4096);
        if matches!(call!(mincore, page, part, resident.as_mut_ptr()), Err(Errno::ENOMEM)) {
            return false;
        }
        page += resident.len() * 4096;
    }
    true
}

/// Closes.
pub fn close(fd: i32) {
    let _ = call!(close, fd);
}

/// Reads.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(read, fd, buffer.as_mut_ptr(), buffer.len())
}

/// Reads without blocking, whatever the flags of the file say; EOPNOTSUPP where the kernel cannot do that with this kind of file.
pub fn read_now(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    call!(preadv2, fd, &raw const iov, 1, -1i64, -1i64, libc::RWF_NOWAIT)
}

/// Whether `fd` is an object of the kernel's without a kind of file: an eventfd, epoll set, timer and the like.
pub fn is_anonymous(fd: i32) -> bool {
    // SAFETY: all zeroes is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    call!(fstat, fd, &raw mut about).is_ok() && about.st_mode & libc::S_IFMT == 0
}

/// What tells the file behind a descriptor from others: its device and inode, mixed. The kernel's anonymous ones (eventfds) are all the same.
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

/// Reads at an offset into several places, with the flags of preadv2(), to which -1 is where the file stands: no offset here.
pub fn preadv(fd: i32, places: &[libc::iovec], offset: u64, flags: i32) -> Result<usize, Errno> {
    if offset > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    call!(preadv2, fd, places.as_ptr(), places.len(), offset, 0u64, flags)
}

/// Whether a file lies in memory (tmpfs, ramfs), so that reading it waits for no disk.
pub fn lies_in_memory(fd: i32) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    // SAFETY: all zeroes is a valid statfs.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    call!(fstatfs, fd, &raw mut about).is_ok() && matches!(about.f_type, TMPFS | RAMFS)
}

/// Writes at an offset of a file; EFBIG, and no signal, if the process may not write there (any more).
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

/// An event counter, non-blocking.
pub fn eventfd() -> Result<i32, Errno> {
    call!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).map(|fd| fd as i32)
}

/// Makes a socket.
pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
    call!(socket, family, kind, protocol).map(|fd| fd as i32)
}

/// Binds.
pub fn bind(fd: i32, address: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    call!(bind, fd, address, len).map(drop)
}

/// Listens.
pub fn listen(fd: i32, backlog: i32) -> Result<(), Errno> {
    call!(listen, fd, backlog).map(drop)
}

/// Connects.
pub fn connect(fd: i32, address: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    call!(connect, fd, address, len).map(drop)
}

/// Accepts, with flags.
pub fn accept(fd: i32, flags: i32) -> Result<i32, Errno> {
    call!(accept4, fd, 0, 0, flags).map(|fd| fd as i32)
}

/// Receives into a buffer.
pub fn recv(fd: i32, buffer: *mut u8, len: usize, flags: i32) -> Result<usize, Errno> {
    call!(recvfrom, fd, buffer, len, flags, 0, 0)
}

/// Sends a buffer.
pub fn send(fd: i32, buffer: *const u8, len: usize, flags: i32) -> Result<usize, Errno> {
    call!(sendto, fd, buffer, len, flags, 0, 0)
}

/// sendmsg.
pub fn sendmsg(fd: i32, message: *const libc::msghdr, flags: i32) -> Result<usize, Errno> {
    call!(sendmsg, fd, message, flags)
}

/// recvmsg.
pub fn recvmsg(fd: i32, message: *mut libc::msghdr, flags: i32) -> Result<usize, Errno> {
    call!(recvmsg, fd, message, flags)
}

/// A socket option of fixed size.
pub fn getsockopt<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as u32;
    call!(getsockopt, fd, level, name, value.as_mut_ptr(), &raw mut len)?;
    // SAFETY: zeroed and then filled by the kernel; the types used with it (integers, plain structs) admit any bytes.
    Ok(unsafe { value.assume_init() })
}

/// Whether a filter is attached to a socket.
pub fn has_filter(fd: i32) -> bool {
    // How many instructions it has; one that is no classic program the kernel does not show.
    let mut len = 0u32;
    let got = call!(
        getsockopt,
        fd,
        libc::SOL_SOCKET,
        libc::SO_GET_FILTER,
        core::ptr::null_mut::<u8>(),
        &raw mut len
    );
    match got {
        Ok(_) => len > 0,
        Err(errno) => errno == Errno::EACCES,
    }
}

/// Sets a socket option of fixed size.
pub fn setsockopt<T: Copy>(fd: i32, level: i32, name: i32, value: T) -> Result<(), Errno> {
    call!(setsockopt, fd, level, name, &raw const value, size_of::<T>()).map(drop)
}

/// The local address of a socket.
pub fn getsockname(fd: i32) -> Result<libc::sockaddr_storage, Errno> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    call!(getsockname, fd, &raw mut address, &raw mut len)?;
    Ok(address)
}

/// The address of a socket's peer.
pub fn getpeername(fd: i32) -> Result<libc::sockaddr_storage, Errno> {
    // SAFETY: all zeroes is a valid sockaddr_storage.
    let mut address: libc::sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    call!(getpeername, fd, &raw mut address, &raw mut len)?;
    Ok(address)
}

/// ioctl that answers an int.
pub fn ioctl_int(fd: i32, request: u64) -> Result<i32, Errno> {
    let mut value = 0i32;
    call!(ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// Shuts one half of a connection.
pub fn shutdown(fd: i32, how: i32) -> Result<(), Errno> {
    call!(shutdown, fd, how).map(drop)
}

/// poll with nanoseconds; `None` waits for ever.
pub fn ppoll(fds: &mut [libc::pollfd], nanos: Option<u64>) -> Result<usize, Errno> {
    let timeout = nanos.map(timespec);
    let at = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    call!(ppoll, fds.as_mut_ptr(), fds.len(), at, 0, 8)
}

/// Whether a read of `fd` would not block, be it for what is there or for its end.
pub fn readable(fd: i32) -> bool {
    ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(0)).is_ok_and(|ready| ready > 0)
}

/// Whether a write to `fd` would find room, or an error.
pub fn writable(fd: i32) -> bool {
    ppoll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], Some(0)).is_ok_and(|ready| ready > 0)
}

/// Makes an epoll set.
pub fn epoll_create() -> Result<i32, Errno> {
    call!(epoll_create1, libc::EPOLL_CLOEXEC).map(|fd| fd as i32)
}

/// Changes an epoll set.
pub fn epoll_ctl(set: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<(), Errno> {
    let event = libc::epoll_event { events, u64: data };
    call!(epoll_ctl, set, op, fd, &raw const event).map(drop)
}

/// Waits on an epoll set, at most `millis` (-1: for ever).
pub fn epoll_wait(set: i32, events: *mut libc::epoll_event, max: i32, millis: i32) -> Result<usize, Errno> {
    call!(epoll_pwait, set, events, max, millis, 0, 8)
}

/// Time since boot in nanoseconds, not adjusted.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Processor time that this process has used, in nanoseconds.
pub fn cpu_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = call!(clock_gettime, which, &raw mut time);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The target of a symbolic link.
pub fn readlink(path: &CStr, buffer: &mut [u8]) -> Result<usize, Errno> {
    call!(readlinkat, libc::AT_FDCWD, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())
}

/// Random bytes, which nobody can guess; none where the kernel gives none.
pub fn try_random() -> Option<u64> {
    let mut bytes = [0; 8];
    let got = match call!(getrandom, bytes.as_mut_ptr(), bytes.len(), 0) {
        Ok(got) => got,
        Err(_) => {
            let fd = open(c"/dev/urandom", libc::O_RDONLY, 0).ok()?;
            let got = read(fd, &mut bytes);
            close(fd);
            got.ok()?
        }
    };
    (got == bytes.len()).then_some(u64::from_ne_bytes(bytes))
}

/// The same, where nothing can go on without: what was to be secret must not be guessed instead.
pub fn random() -> u64 {
    try_random().expect("the kernel gives random bytes, by getrandom() or /dev/urandom")
}

/// Nanoseconds as a timespec.
pub fn timespec(nanos: u64) -> libc::timespec {
    libc::timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 }
}

/// The limits of descriptors.
pub fn nofile_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1024 };
    let _ = call!(prlimit64, 0, libc::RLIMIT_NOFILE, 0, &raw mut limit);
    limit
}

/// Sets the limits of descriptors; says what they were, in one step.
pub fn swap_nofile_limit(limit: libc::rlimit) -> Result<libc::rlimit, Errno> {
    let mut was = limit;
    call!(prlimit64, 0, libc::RLIMIT_NOFILE, &raw const limit, &raw mut was)?;
    Ok(was)
}

/// Processors that this process may run on.
pub fn cpus() -> u32 {
    let mut mask = [0u64; 128];
    match call!(sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) {
        Ok(_) => mask.iter().map(|word| word.count_ones()).sum(),
        Err(_) => 1,
    }
}

/// The processor that the thread runs on.
pub fn getcpu() -> u32 {
    let mut cpu = 0u32;
    let _ = call!(getcpu, &raw mut cpu, 0, 0);
    cpu
}

/// Whether a descriptor becomes ready for `events` of poll() within so many nanoseconds.
pub fn waits_for(fd: i32, events: i16, nanos: u64) -> bool {
    ppoll(&mut [libc::pollfd { fd, events, revents: 0 }], Some(nanos)).is_ok_and(|count| count > 0)
}

/// Whether a process exists.
pub fn process_lives(pid: u32) -> bool {
    !matches!(call!(kill, pid, 0), Err(Errno::ESRCH))
}

/// ppoll as the kernel has it.
///
/// # Safety
/// `timeout` is null or valid; the rest is the kernel's to check.
pub unsafe fn ppoll_raw(
    fds: *mut libc::pollfd,
    count: u64,
    timeout: *const libc::timespec,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // The kernel writes the rest of the time back: libc hides that, and so do we.
    // SAFETY: the caller vouches for it.
    let copy = unsafe { timeout.as_ref() }.copied();
    call!(ppoll, fds, count, copy.as_ref().map_or(ptr::null(), ptr::from_ref), mask, 8)
}

/// epoll_pwait as the kernel has it.
pub fn epoll_pwait(
    set: i32,
    events: *mut libc::epoll_event,
    max: i32,
    millis: i32,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    call!(epoll_pwait, set, events, max, millis, mask, 8)
}

/// Moves a file's position.
pub fn lseek(fd: i32, to: i64, whence: i32) -> Result<u64, Errno> {
    call!(lseek, fd, to, whence).map(|at| at as u64)
}

/// Of many calls most do nothing, some let others run, a few sleep for up to 300 us: see [`crate::sync::perturb`].
#[cfg(perturb)]
pub fn perturb() {
    let mut dice = now().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    dice ^= dice >> 29;
    dice = dice.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    match dice % 512 {
        0..2 => drop(ppoll(&mut [], Some(dice / 512 % 300_000))),
        2..10 => yield_now(),
        _ => {}
    }
}

/// Whether the thread is scheduled by SCHED_FIFO or SCHED_RR: nobody on its processor runs before it sleeps.
pub fn is_realtime() -> bool {
    const RESET_ON_FORK: usize = 0x4000_0000;
    let policy = call!(sched_getscheduler, 0).unwrap_or(0) & !RESET_ON_FORK;
    policy == libc::SCHED_FIFO as usize || policy == libc::SCHED_RR as usize
}

/// Lets another thread run.
pub fn yield_now() {
    let _ = call!(sched_yield);
}

/// A copy of this process that has one thread and of whose end nobody is told by a signal: `None` in the copy. With CLONE_FILES in
/// `flags` the two share their descriptors.
pub fn clone_process(flags: i32) -> Result<Option<u32>, Errno> {
    call!(clone, flags, 0, 0, 0, 0).map(|pid| (pid != 0).then_some(pid as u32))
}

/// Waits for the end of a process made by [`clone_process`].
pub fn wait_for(pid: u32) {
    while call!(wait4, pid, 0, libc::__WALL, 0) == Err(Errno::EINTR) {}
}

/// Ends the process, without any of its program's last steps.
pub fn exit(status: i32) -> ! {
    loop {
        let _ = call!(exit_group, status);
    }
}

/// Leaves what is shared with others.
pub fn unshare(flags: i32) -> Result<(), Errno> {
    call!(unshare, flags).map(drop)
}

/// Sets which signals are blocked; says which were. A bit for each, as the kernel has them.
pub fn block_signals(mask: u64) -> u64 {
    let mut was = 0u64;
    let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut was, 8);
    was
}

/// recv() into a slice.
pub fn recv_some(fd: i32, to: &mut [u8], flags: i32) -> Result<usize, Errno> {
    recv(fd, to.as_mut_ptr(), to.len(), flags)
}

/// Which signals are blocked.
pub fn blocked_signals() -> u64 {
    let mut blocked = 0u64;
    let _ = call!(rt_sigprocmask, libc::SIG_BLOCK, ptr::null::<u64>(), &raw mut blocked, 8);
    blocked
}

/// The stack that signal handlers may run on instead of the thread's own, if there is one.
pub fn alternate_stack() -> Option<core::ops::Range<usize>> {
    let mut stack = libc::stack_t { ss_sp: core::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    let _ = call!(sigaltstack, core::ptr::null::<libc::stack_t>(), &raw mut stack);
    let start = stack.ss_sp as usize;
    (stack.ss_flags & libc::SS_DISABLE == 0).then(|| start..start + stack.ss_size)
}

/// Sets the name that ps shows.
pub fn set_name(name: &CStr) {
    let _ = call!(prctl, libc::PR_SET_NAME, name.as_ptr());
}

/// Makes `to` another number for what `fd` stands for.
pub fn dup_over(fd: i32, to: i32, cloexec: bool) -> Result<(), Errno> {
    call!(dup3, fd, to, if cloexec { libc::O_CLOEXEC } else { 0 }).map(drop)
}

/// Closes all descriptors from `first` to `last`.
pub fn close_range(first: u32, last: u32) {
    if first <= last {
        let _ = call!(close_range, first, last, 0);
    }
}

/// Zeroed memory that copies of the process share.
pub fn mmap_common(len: usize) -> Result<*mut u8, Errno> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    call!(mmap, 0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1i32, 0).map(|at| at as *mut u8)
}

/// ioctl with a structure.
pub fn ioctl<T>(fd: i32, request: u64, value: &mut T) -> Result<(), Errno> {
    call!(ioctl, fd, request, ptr::from_mut(value)).map(drop)
}
