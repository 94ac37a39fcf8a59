//! Rings of liburing, where it is a library of its own. It makes its system calls itself, but all
//! that is submitted goes through functions of it, and lies in the ring when they are called. Many
//! programs use a ring for their files only: databases do. So a ring that has no wishes which we do
//! not know costs nobody his connections, as long as only reads, writes and the like are submitted,
//! of what is no connection. Before anything else is submitted, or done by a function that we
//! cannot look behind, the process goes back to tcp with all connections.

use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};
use sockets::reason::Reason;
use sockets::{faults, process, rings, table};

use crate::next::hooks;
use crate::uring::{made, past_us, step_aside};

/// liburing's `struct io_uring`, whose layout is part of its binary interface.
#[repr(C)]
struct Ring {
    submission: Submission,
    completion: [u64; 12],
    flags: c_uint,
    fd: c_int,
}

#[repr(C)]
struct Submission {
    head: *const u32,
    tail: *const u32,
    mask: *const u32,
    entries: *const u32,
    flags: *const u32,
    dropped: *const u32,
    array: *const u32,
    requests: *const Request,
    taken: u32,
    filled: u32,
    size: usize,
    memory: *const c_void,
    pad: [u32; 4],
}

/// The kernel's `struct io_uring_sqe`, as far as we look at it.
#[repr(C)]
struct Request {
    what: u8,
    flags: u8,
    priority: u16,
    fd: c_int,
    rest: [u64; 7],
}

const _: () = assert!(core::mem::offset_of!(Ring, fd) == 204 && size_of::<Request>() == 64);

/// What the kernel may be asked for with a ring that we look after: IOPOLL, CQSIZE, CLAMP,
/// SUBMIT_ALL, COOP_TASKRUN, TASKRUN_FLAG, SINGLE_ISSUER, DEFER_TASKRUN, NO_SQARRAY. Not SQPOLL,
/// with which nothing need be called, nor larger entries.
const KNOWN_WISHES: u32 = 0x1 | 0x8 | 0x10 | 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x1_0000;

/// Requests about files, buffers and time, by number: NOP, READV, WRITEV, FSYNC, READ_FIXED,
/// WRITE_FIXED, SYNC_FILE_RANGE, TIMEOUT, TIMEOUT_REMOVE, ASYNC_CANCEL, LINK_TIMEOUT, FALLOCATE,
/// READ, WRITE, FADVISE, MADVISE, FTRUNCATE.
const FILES_ONLY: u64 = {
    let numbers = [0, 1, 2, 3, 4, 5, 8, 11, 12, 14, 15, 17, 22, 23, 24, 25, 55];
    let (mut bits, mut index) = (0, 0);
    while index < numbers.len() {
        bits |= 1 << numbers[index];
        index += 1;
    }
    bits
};

/// The request has the number of a registered file, and those were looked at when they were
/// registered.
const FIXED_FILE: u8 = 1;

thread_local! {
    /// Whether this thread is in a function of liburing that makes a ring. Some call others of
    /// them.
    static MAKING: Cell<bool> = const { Cell::new(false) };
}

/// Has liburing make a ring with these wishes.
unsafe fn make(wishes: u32, ring: *const c_void, next: impl FnOnce() -> c_int) -> c_int {
    let inner = MAKING.replace(true);
    let result = next();
    MAKING.set(inner);
    if !inner && result >= 0 {
        // SAFETY: liburing has just filled it.
        unsafe { made_with(wishes, ring) };
    }
    result
}

/// A ring was made with these wishes.
unsafe fn made_with(wishes: u32, ring: *const c_void) {
    // SAFETY: liburing has just filled it.
    let fd = unsafe { (*ring.cast::<Ring>()).fd };
    if wishes & !KNOWN_WISHES != 0 || !rings::look_after_ring(fd) {
        made(false);
    }
}

/// Before what has been put in a ring is submitted.
unsafe fn submitting(ring: *const c_void) {
    if process::barred().is_some() || !process::active() {
        return;
    }
    // SAFETY: the program's ring, which liburing is going to read as well; it has made it, or its
    // memory.
    let followed = unsafe { ring.cast::<Ring>().as_ref().is_none_or(|ring| only_files(&ring.submission)) };
    if !followed {
        step_aside(Reason::IoUring);
    }
}

unsafe fn only_files(queue: &Submission) -> bool {
    if faults::low(queue.head) || faults::low(queue.mask) || faults::low(queue.requests) {
        return false;
    }
    // SAFETY: mapped with the ring; the kernel writes the head, with our own calls only.
    let (head, mask) = unsafe { (queue.head.read_volatile(), queue.mask.read_volatile()) };
    let count = queue.filled.wrapping_sub(head);
    count <= mask.saturating_add(1)
        && (0..count).all(|index| {
            // SAFETY: masked, so inside the ring.
            let request = unsafe { &*queue.requests.add((head.wrapping_add(index) & mask) as usize) };
            is_followed(request)
        })
}

fn is_followed(request: &Request) -> bool {
    let known = request.what < 64 && FILES_ONLY >> request.what & 1 != 0;
    known && (request.flags & FIXED_FILE != 0 || table::conn(request.fd).is_none())
}

/// Before files are registered with a ring: a socket among them is one that is going to be used by
/// it.
unsafe fn registering(files: *const c_int, count: c_uint) {
    if process::barred().is_some() || !process::active() || faults::low(files) {
        return;
    }
    // SAFETY: the program vouches for `count` numbers.
    let files = unsafe { core::slice::from_raw_parts(files, count as usize) };
    if files.iter().any(|&fd| fd >= 0 && sockets::socket::is_tcp(fd)) {
        step_aside(Reason::IoUring);
    }
}

hooks! {
    fn io_uring_queue_init(next; entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        make(flags, ring, || next(entries, ring, flags))
    }
    fn io_uring_queue_init_params(next; entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        let wishes = if faults::low(parameters) { u32::MAX } else { *parameters.cast::<u32>().add(2) };
        make(wishes, ring, || next(entries, ring, parameters))
    }
    fn io_uring_queue_init_mem(next; entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: usize) -> c_int {
        let wishes = if faults::low(parameters) { u32::MAX } else { *parameters.cast::<u32>().add(2) };
        make(wishes, ring, || next(entries, ring, parameters, memory, len))
    }
    fn io_uring_queue_exit(next; ring: *mut c_void) {
        rings::ring_ended((*ring.cast::<Ring>()).fd);
        next(ring);
    }
    fn io_uring_close_ring_fd(next; ring: *mut c_void) -> c_int {
        rings::ring_ended((*ring.cast::<Ring>()).fd);
        next(ring)
    }

    // All that submits.
    fn io_uring_submit(next; ring: *mut c_void) -> c_int {
        submitting(ring);
        next(ring)
    }
    fn io_uring_submit_and_wait(next; ring: *mut c_void, count: c_uint) -> c_int {
        submitting(ring);
        next(ring, count)
    }
    fn io_uring_submit_and_wait_timeout(next; ring: *mut c_void, got: *mut c_void, count: c_uint, time: *mut c_void, mask: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, count, time, mask)
    }
    fn io_uring_submit_and_wait_min_timeout(next; ring: *mut c_void, got: *mut c_void, count: c_uint, time: *mut c_void, least: c_uint, mask: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, count, time, least, mask)
    }
    fn io_uring_submit_and_wait_reg(next; ring: *mut c_void, got: *mut c_void, count: c_uint, region: c_int) -> c_int {
        submitting(ring);
        next(ring, got, count, region)
    }
    fn io_uring_submit_and_get_events(next; ring: *mut c_void) -> c_int {
        submitting(ring);
        next(ring)
    }
    fn io_uring_wait_cqes(next; ring: *mut c_void, got: *mut c_void, count: c_uint, time: *mut c_void, mask: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, count, time, mask)
    }
    fn io_uring_wait_cqes_min_timeout(next; ring: *mut c_void, got: *mut c_void, count: c_uint, time: *mut c_void, least: c_uint, mask: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, count, time, least, mask)
    }
    fn io_uring_wait_cqe_timeout(next; ring: *mut c_void, got: *mut c_void, time: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, time)
    }
    fn __io_uring_get_cqe(next; ring: *mut c_void, got: *mut c_void, submit: c_uint, count: c_uint, mask: *mut c_void) -> c_int {
        submitting(ring);
        next(ring, got, submit, count, mask)
    }

    // Descriptors that it has before anything is submitted.
    fn io_uring_register_files(next; ring: *mut c_void, files: *const c_int, count: c_uint) -> c_int {
        registering(files, count);
        next(ring, files, count)
    }
    fn io_uring_register_files_tags(next; ring: *mut c_void, files: *const c_int, tags: *const c_void, count: c_uint) -> c_int {
        registering(files, count);
        next(ring, files, tags, count)
    }
    fn io_uring_register_files_update(next; ring: *mut c_void, at: c_uint, files: *const c_int, count: c_uint) -> c_int {
        registering(files, count);
        next(ring, at, files, count)
    }
    fn io_uring_register_files_update_tag(next; ring: *mut c_void, at: c_uint, files: *const c_int, tags: *const c_void, count: c_uint) -> c_int {
        registering(files, count);
        next(ring, at, files, tags, count)
    }

    // The system calls themselves, for those who have rings of their own making.
    fn io_uring_setup(next; entries: c_uint, parameters: *mut c_void) -> c_int {
        let result = next(entries, parameters);
        made(result < 0 || MAKING.get());
        result
    }
    fn io_uring_queue_mmap(next; fd: c_int, parameters: *mut c_void, ring: *mut c_void) -> c_int {
        let result = next(fd, parameters, ring);
        made(result < 0 || MAKING.get());
        result
    }
    fn io_uring_enter(next; fd: c_uint, count: c_uint, wait: c_uint, flags: c_uint, mask: *mut c_void) -> c_int {
        past_us();
        next(fd, count, wait, flags, mask)
    }
    fn io_uring_enter2(next; fd: c_uint, count: c_uint, wait: c_uint, flags: c_uint, mask: *mut c_void, size: usize) -> c_int {
        past_us();
        next(fd, count, wait, flags, mask, size)
    }
    fn io_uring_register(next; fd: c_uint, what: c_uint, argument: *const c_void, count: c_uint) -> c_int {
        past_us();
        next(fd, what, argument, count)
    }
}
