//! Processes and threads: their ids, whether they live and what they do; their users, signals,
//! processors and namespaces.

use core::ffi::CStr;
use core::ptr;
use syscalls::Errno;

use super::files::{close, open, read};

/// The thread's id.
pub fn gettid() -> u32 {
    call!(gettid).unwrap_or(0) as u32
}

/// The process's id.
pub fn getpid() -> u32 {
    call!(getpid).unwrap_or(0) as u32
}

/// How many threads the process has, if that can be known.
pub fn threads() -> Option<u64> {
    let tasks = open(c"/proc/self/task", libc::O_PATH | libc::O_CLOEXEC, 0).ok()?;
    // SAFETY: all zeroes is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    let known = call!(fstat, tasks, &raw mut about);
    close(tasks);
    // A link for each, beside the two that each directory has.
    known.ok().map(|_| about.st_nlink as u64)
}

/// The kernel's version: its first two numbers, if they can be read.
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

/// The three numbers that such a call gives.
macro_rules! ids {
    ($call:ident) => {{
        let mut ids = [u32::MAX; 3];
        let [real, effective, saved] = &mut ids;
        let _ = call!($call, &raw mut *real, &raw mut *effective, &raw mut *saved);
        ids
    }};
}

/// The real, effective and saved user.
pub fn getresuid() -> [u32; 3] {
    ids!(getresuid)
}

/// The real, effective and saved group.
pub fn getresgid() -> [u32; 3] {
    ids!(getresgid)
}

/// Whether a thread with this id runs or may run (a thread that we may not signal counts). A
/// process that was killed exists until its parent reaps it, and the caller may be that parent:
/// such a thread counts as dead.
pub fn thread_lives(tid: u32) -> bool {
    !matches!(call!(tkill, tid, 0), Err(Errno::ESRCH)) && !matches!(thread_state(tid), Some(b'Z' | b'X'))
}

/// The kernel's letter for the state of a thread. None if /proc does not show it.
fn thread_state(tid: u32) -> Option<u8> {
    let mut stat = [0; 64]; // number, (name of at most 15 bytes), letter
    let stat = proc(tid, b"/stat", &mut stat)?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

/// The call in which a thread sleeps, and its first argument. None if it runs, or if /proc does not
/// show it.
pub fn sleeps_in(tid: u32) -> Option<(libc::c_long, usize)> {
    let mut words = [0; 128]; // number of the call and its arguments: 45 0x3 ...
    let words = proc(tid, b"/syscall", &mut words)?;
    let mut words =
        words.split(|byte| *byte == b' ').map(|word| core::str::from_utf8(word).unwrap_or_default());
    let call = words.next()?.parse().ok()?;
    let first = usize::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok()?;
    Some((call, first))
}

/// Reads a file of /proc about a thread, as far as there is room.
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
pub fn futex_wait(word: *const u32, value: u32, nanos: i64) -> Result<(), Errno> {
    let timeout = libc::timespec { tv_sec: nanos / 1_000_000_000, tv_nsec: nanos % 1_000_000_000 };
    call!(futex, word, libc::FUTEX_WAIT, value, &raw const timeout, 0, 0).map(drop)
}

/// Wakes sleepers on a word.
pub fn futex_wake(word: *const u32, count: u32) {
    let _ = call!(futex, word, libc::FUTEX_WAKE, count, 0, 0, 0);
}

/// Whether a filter of system calls (seccomp) is installed for this thread: it may kill the process
/// for a call that it does not expect.
pub fn filtered() -> bool {
    call!(prctl, libc::PR_GET_SECCOMP, 0, 0, 0, 0) != Ok(0)
}

/// A copy of descriptor `theirs` of the process `pid`. Works only if this process may trace that
/// one.
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

/// A copy of descriptor `theirs` of the process behind the pidfd `process`, whatever filter is
/// installed: for a program that has just made this call itself.
pub fn copy_of(process: i32, theirs: i32) -> Result<i32, Errno> {
    call!(pidfd_getfd, process, theirs, 0).map(|fd| fd as i32)
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

/// Whether a process exists.
pub fn process_lives(pid: u32) -> bool {
    !matches!(call!(kill, pid, 0), Err(Errno::ESRCH))
}

/// Whether the thread is scheduled by SCHED_FIFO or SCHED_RR: no other thread runs on its processor
/// before it sleeps.
pub fn is_realtime() -> bool {
    const RESET_ON_FORK: usize = 0x4000_0000;
    let policy = call!(sched_getscheduler, 0).unwrap_or(0) & !RESET_ON_FORK;
    policy == libc::SCHED_FIFO as usize || policy == libc::SCHED_RR as usize
}

/// Lets another thread run.
pub fn yield_now() {
    let _ = call!(sched_yield);
}

/// Makes a copy of this process that has one thread. No signal reports its end. Returns `None` in
/// the copy. With CLONE_FILES in `flags` the two share their descriptors.
pub fn clone_process(flags: i32) -> Result<Option<u32>, Errno> {
    call!(clone, flags, 0, 0, 0, 0).map(|pid| (pid != 0).then_some(pid as u32))
}

/// Waits for the end of a process made by [`clone_process`].
pub fn wait_for(pid: u32) {
    while call!(wait4, pid, 0, libc::__WALL, 0) == Err(Errno::EINTR) {}
}

/// Ends the process at once, without exit handlers.
pub fn exit(status: i32) -> ! {
    loop {
        let _ = call!(exit_group, status);
    }
}

/// Makes namespaces or descriptors the process's own.
pub fn unshare(flags: i32) -> Result<(), Errno> {
    call!(unshare, flags).map(drop)
}

/// Sets the blocked signals and returns those that were blocked: a bit for each, as the kernel has
/// them.
pub fn block_signals(mask: u64) -> u64 {
    let mut was = 0u64;
    let _ = call!(rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut was, 8);
    was
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
