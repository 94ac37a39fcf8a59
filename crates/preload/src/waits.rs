//! poll, select and epoll.

use core::ffi::c_int;
use fabric::sys::{self, Errno};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use sockets::poll::{self as ours, Handled};
use sockets::spare::Spare;
use sockets::table::{self, Entry};
use sockets::{descriptors, epoll, faults, lifecycle, thread};

use crate::next::{answer, hooks};
use crate::uring;

fn from_millis(millis: c_int) -> Option<u64> {
    (millis >= 0).then(|| millis as u64 * 1_000_000)
}

/// # Safety
/// Null or valid.
unsafe fn from_timespec(time: *const timespec) -> Result<Option<u64>, ()> {
    // SAFETY: the caller vouches for it.
    match unsafe { time.as_ref() } {
        None => Ok(None),
        Some(time) if time.tv_sec < 0 || !(0..1_000_000_000).contains(&time.tv_nsec) => Err(()),
        Some(time) => {
            Ok(Some((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)))
        }
    }
}

/// poll() by the kernel, or ours if a connection among the descriptors is managed, or an epoll set
/// among them.
///
/// # Safety
/// As for poll.
unsafe fn polled(
    fds: *mut pollfd,
    count: nfds_t,
    nanos: Option<u64>,
    mask: *const sigset_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if faults::low(fds) || count == 0 || count > 1 << 20 {
        return next();
    }
    // SAFETY: the caller vouches for it.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    // Polling does not change which descriptors there are, so the guard may look at a copy of
    // nothing but them.
    // SAFETY: the guard reads the `fd` fields only, which neither the kernel nor we write.
    let view = unsafe { core::slice::from_raw_parts(fds.as_ptr(), fds.len()) };
    match ours::by_kernel(view) {
        Ok(_in_kernel) => next(),
        Err(handled) => answer(ours::poll(fds, nanos, mask, handled)) as c_int,
    }
}

/// Sets of select, as poll's: each descriptor that is in any of the three.
///
/// # Safety
/// The sets are null or valid for `count` descriptors.
unsafe fn select_with(
    count: c_int,
    sets: [*mut fd_set; 3],
    nanos: Option<u64>,
    mask: *const sigset_t,
    next: impl FnOnce() -> c_int,
) -> c_int {
    if sets.iter().any(|&set| !set.is_null() && faults::low(set)) {
        return next();
    }
    let words = (count.clamp(0, 1 << 20) as usize).div_ceil(64);
    // SAFETY: a set has a bit for each descriptor below count.
    let has = |set: *mut fd_set, fd: usize| unsafe {
        !set.is_null() && *set.cast::<u64>().add(fd / 64) >> (fd % 64) & 1 == 1
    };
    let wanted = |fd: usize| sets.iter().any(|&set| has(set, fd));
    let mut tracked = false;
    let mut total = 0;
    for fd in 0..count.max(0) as usize {
        if wanted(fd) {
            total += 1;
            tracked |= table::conn(fd as i32).is_some() || table::set(fd as i32).is_some();
        }
    }
    if !tracked {
        return next();
    }
    let (mut few, mut spare) = ([NOTHING; FEW], None);
    let Some(fds) = places(&mut few, &mut spare, total) else { return next() };
    for (place, fd) in fds.iter_mut().zip((0..count as usize).filter(|&fd| wanted(fd))) {
        place.fd = fd as c_int;
        for (&set, events) in sets.iter().zip([
            libc::POLLIN | libc::POLLRDBAND,
            libc::POLLOUT | libc::POLLWRBAND,
            libc::POLLPRI,
        ]) {
            if has(set, fd) {
                place.events |= events;
            }
        }
    }
    let handled = match ours::by_kernel(fds) {
        Ok(in_kernel) => {
            let result = next();
            drop(in_kernel);
            return result;
        }
        Err(handled) => handled,
    };
    match poll_sets(fds, nanos, mask, handled, |poll| {
        (0..3).any(|at| poll.revents & TOLD[at] != 0 && has(sets[at], poll.fd as usize))
    }) {
        Err(errno) => answer(Err(errno)) as c_int,
        Ok(()) if fds.iter().any(|poll| poll.revents & libc::POLLNVAL != 0) => {
            answer(Err(Errno::EBADF)) as c_int
        }
        Ok(()) => {
            // SAFETY: as the caller vouches.
            let bits = unsafe { keep_told(sets, words, fds) };
            bits as c_int
        }
    }
}

/// poll() for select(). That a descriptor has hung up, or has an error, poll() always tells; where
/// that does not `count` for a set that has it, select() waits on: for a while for the others, then
/// for all of them again.
fn poll_sets(
    fds: &mut [pollfd],
    nanos: Option<u64>,
    mask: *const sigset_t,
    handled: Handled,
    counts: impl Fn(&pollfd) -> bool,
) -> Result<(), Errno> {
    let told = |poll: &pollfd| poll.revents & libc::POLLNVAL != 0 || counts(poll);
    let deadline = nanos.map(|nanos| sys::now().saturating_add(nanos));
    let interrupted = handled.is_one();
    let ready = ours::poll(fds, nanos, mask, handled)?;
    if ready == 0 || nanos == Some(0) || fds.iter().any(told) {
        return Ok(());
    }
    if interrupted {
        return Err(Errno::EINTR);
    }
    loop {
        // Below zero poll() leaves them out.
        for poll in fds.iter_mut().filter(|poll| poll.revents != 0) {
            poll.fd = !poll.fd;
        }
        let left = deadline.map_or(u64::MAX, |deadline| deadline.saturating_sub(sys::now()));
        let ready = ours::poll(fds, Some(left.min(LEFT_OUT_NS)), mask, Handled::none())?;
        if ready > 0 && !fds.iter().any(told) {
            continue;
        }
        for poll in fds.iter_mut().filter(|poll| poll.fd < 0) {
            poll.fd = !poll.fd;
        }
        if ready == 0 {
            ours::poll(fds, Some(0), mask, Handled::none())?;
        }
        if left == 0 || fds.iter().any(told) {
            return Ok(());
        }
    }
}

const LEFT_OUT_NS: u64 = 50_000_000;

/// What of poll()'s each of the sets is told of: to be read, to be written, and exceptions.
const TOLD: [i16; 3] = [
    libc::POLLIN | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLWRBAND | libc::POLLERR,
    libc::POLLPRI,
];

/// Leaves in the sets what poll() has told; how many bits those are.
///
/// # Safety
/// The sets are null or have so many words.
unsafe fn keep_told(sets: [*mut fd_set; 3], words: usize, fds: &[pollfd]) -> u32 {
    let mut bits = 0;
    for (&set, told) in sets.iter().zip(TOLD) {
        if set.is_null() {
            continue;
        }
        for word in 0..words {
            // SAFETY: inside the set.
            let place = unsafe { &mut *set.cast::<u64>().add(word) };
            let asked = *place;
            let mut kept = 0u64;
            for poll in fds.iter().filter(|poll| poll.fd as usize / 64 == word) {
                if poll.revents & told != 0 {
                    kept |= asked & 1 << (poll.fd as usize % 64);
                }
            }
            *place = kept;
            bits += kept.count_ones();
        }
    }
    bits
}

/// So many descriptors of select() are waited for without memory of their own.
const FEW: usize = 64;
const NOTHING: pollfd = pollfd { fd: 0, events: 0, revents: 0 };

/// A place for each of `count` descriptors of select(): the few, or of `spare`.
fn places<'a>(
    few: &'a mut [pollfd; FEW],
    spare: &'a mut Option<Spare>,
    count: usize,
) -> Option<&'a mut [pollfd]> {
    if count <= FEW {
        return Some(&mut few[..count]);
    }
    let first = spare.insert(Spare::new(count * size_of::<pollfd>())?).memory().cast::<pollfd>();
    for at in 0..count {
        // SAFETY: there is room for so many, aligned, and ours alone.
        unsafe { first.add(at).write(NOTHING) };
    }
    // SAFETY: all have just been written; `spare` is borrowed as long as they are used.
    Some(unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), count) })
}

hooks! {
    fn poll(next; fds: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
        polled(fds, count, from_millis(millis), core::ptr::null(), || next(fds, count, millis))
    }
    fn __poll_chk(next; fds: *mut pollfd, count: nfds_t, millis: c_int, room: usize) -> c_int {
        if count as usize > room / size_of::<pollfd>() {
            return next(fds, count, millis, room);
        }
        polled(fds, count, from_millis(millis), core::ptr::null(), || next(fds, count, millis, room))
    }
    fn ppoll(next; fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match from_timespec(timeout) {
            Ok(nanos) => polled(fds, count, nanos, mask, || next(fds, count, timeout, mask)),
            Err(()) => next(fds, count, timeout, mask),
        }
    }
    fn __ppoll_chk(next; fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: usize) -> c_int {
        if count as usize > room / size_of::<pollfd>() {
            return next(fds, count, timeout, mask, room);
        }
        match from_timespec(timeout) {
            Ok(nanos) => polled(fds, count, nanos, mask, || next(fds, count, timeout, mask, room)),
            Err(()) => next(fds, count, timeout, mask, room),
        }
    }
    fn select(next; count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int {
        let nanos = match timeout.as_ref() {
            None => Ok(None),
            Some(time) if time.tv_sec < 0 || time.tv_usec < 0 => Err(()),
            Some(time) => Ok(Some((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_usec as u64 * 1000))),
        };
        let Ok(nanos) = nanos else { return next(count, read, write, except, timeout) };
        let start = if nanos.is_some() { sys::now() } else { 0 };
        let mut by_kernel = false;
        let result = select_with(count, [read, write, except], nanos, core::ptr::null(), || {
            by_kernel = true;
            next(count, read, write, except, timeout)
        });
        // Linux writes the time that is left back.
        if let (Some(nanos), false) = (nanos, by_kernel || timeout.is_null()) {
            let left = nanos.saturating_sub(sys::now() - start);
            (*timeout).tv_sec = (left / 1_000_000_000) as i64;
            (*timeout).tv_usec = (left % 1_000_000_000 / 1000) as i64;
        }
        result
    }
    fn pselect(next; count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        match from_timespec(timeout) {
            Ok(nanos) => select_with(count, [read, write, except], nanos, mask, || {
                next(count, read, write, except, timeout, mask)
            }),
            Err(()) => next(count, read, write, except, timeout, mask),
        }
    }
    fn epoll_create(next; size: c_int) -> c_int {
        if thread::is_ours() {
            return descriptors::for_library(|| next(size));
        }
        let fd = next(size);
        if fd >= 0 {
            epoll::created(fd);
            uring::set_made();
        }
        fd
    }
    fn epoll_create1(next; flags: c_int) -> c_int {
        if thread::is_ours() {
            return descriptors::for_library(|| next(flags));
        }
        let fd = next(flags);
        if fd >= 0 {
            epoll::created(fd);
            uring::set_made();
        }
        fd
    }
    fn epoll_ctl(next; set: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        uring::set_changed();
        if faults::low(event) && op != libc::EPOLL_CTL_DEL {
            return next(set, op, fd, event);
        }
        if op == libc::EPOLL_CTL_ADD && matches!(table::entry(fd), Entry::None) && table::set(set).is_some() {
            // A member before it is connected.
            lifecycle::track_unconnected(fd);
        }
        let given = if faults::low(event) { None } else { Some(event.read_unaligned()) };
        match epoll::control(set, op, fd, given) {
            Some(result) => answer(result.map(|()| 0)) as c_int,
            None => {
                epoll::nest(set, fd);
                next(set, op, fd, event)
            }
        }
    }
    fn epoll_wait(next; set: c_int, events: *mut epoll_event, max: c_int, millis: c_int) -> c_int {
        match epoll::wait(set, events, max, from_millis(millis), core::ptr::null()) {
            Some(result) => answer(result) as c_int,
            None => next(set, events, max, millis),
        }
    }
    fn epoll_pwait(next; set: c_int, events: *mut epoll_event, max: c_int, millis: c_int, mask: *const sigset_t) -> c_int {
        match epoll::wait(set, events, max, from_millis(millis), mask) {
            Some(result) => answer(result) as c_int,
            None => next(set, events, max, millis, mask),
        }
    }
    fn epoll_pwait2(next; set: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        let result = match from_timespec(timeout) {
            Ok(nanos) => epoll::wait(set, events, max, nanos, mask),
            Err(()) => None,
        };
        match result {
            Some(result) => answer(result) as c_int,
            None => next(set, events, max, timeout, mask),
        }
    }
}
