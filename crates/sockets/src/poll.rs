//! poll() over a mixture of the kernel's descriptors and promoted connections; select() is turned into it. First what is ready
//! without waiting, then a short spin, then tripwires armed for every promoted member and a sleep in the kernel's poll, where the
//! companions stand for their connections.

use fabric::bell;
use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::trip;
use stream::spin::{Learned, NO_CPU, Spun, ticks};

use crate::conn::{Conn, flag};
use crate::wait::{self, Seen};
use crate::{process, ready, real, rendezvous, table};

/// Connections that a poll of the kernel's is waiting on: they are not promoted meanwhile, as nobody would wake it.
pub struct InKernel<'a>(&'a [libc::pollfd], usize);

impl Drop for InKernel<'_> {
    fn drop(&mut self) {
        for conn in self.0[..self.1].iter().filter_map(|poll| table::conn(poll.fd)) {
            conn.leave_kernel();
        }
    }
}

/// Whether poll() over these descriptors is the kernel's: the guard is to be held for the call. Housekeeping on the way for
/// connections that are still on tcp.
pub fn by_kernel(fds: &[libc::pollfd]) -> Option<InKernel<'_>> {
    let mut entered = InKernel(fds, 0);
    for poll in fds {
        if let Some(conn) = table::conn(poll.fd) {
            if !conn.is_managed() {
                rendezvous::tick(conn, poll.fd);
            }
            if !conn.enter_kernel() {
                return None;
            }
        }
        entered.1 += 1;
    }
    Some(entered)
}

/// poll(); `nanos` `None` waits for ever.
pub fn poll(
    fds: &mut [libc::pollfd],
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let deadline = nanos.map(|nanos| sys::now().saturating_add(nanos));
    let mut learned = LEARNED.load();
    // One more place for the bell.
    let Some(mut scratch) = Scratch::new(fds.len() + 1) else { return Err(Errno::ENOMEM) };
    loop {
        // Before the survey: what comes during it must show as a change.
        let seen = fingerprint(fds);
        let ready = survey(fds, &mut scratch)?;
        if ready > 0 || nanos == Some(0) {
            return Ok(ready);
        }
        let limit = process::spin_ticks();
        let only = fds.iter().find_map(|poll| table::conn(poll.fd).filter(|conn| conn.is_managed()));
        let peer = only.map_or(NO_CPU, wait::meet);
        let spun = learned.spin(limit, peer, || fingerprint(fds) != seen);
        let before = ticks();
        let slept = if spun == Spun::Won { Ok(()) } else { sleep(fds, &mut scratch, deadline, mask, seen) };
        if spun != Spun::Won {
            learned.slept(ticks() - before, limit);
        }
        LEARNED.store(learned);
        if let Some(conn) = only {
            let count = if spun == Spun::Won { &conn.counters.spins_won } else { &conn.counters.spins_lost };
            count.fetch_add(u64::from(spun != Spun::None), Ordering::Relaxed);
        }
        slept?;
        if deadline.is_some_and(|deadline| sys::now() >= deadline) {
            return survey(fds, &mut scratch);
        }
    }
}

/// What is ready now, without waiting: rings first, the kernel's in one call.
fn survey(fds: &mut [libc::pollfd], scratch: &mut Scratch) -> Result<usize, Errno> {
    let polls = scratch.polls();
    let mut others = 0;
    for (place, poll) in polls.iter_mut().zip(fds.iter_mut()) {
        *place = *poll;
        place.revents = 0;
        poll.revents = 0;
        if let Some(conn) = managed(poll.fd)
            && let Some(events) = events(conn, poll)
        {
            poll.revents = events as i16;
            place.fd = -1;
        } else {
            others += 1;
        }
    }
    if others > 0 {
        let count = fds.len();
        sys::ppoll(&mut polls[..count], Some(0))?;
        for (place, poll) in polls.iter().zip(fds.iter_mut()) {
            if place.fd >= 0 {
                poll.revents = place.revents;
            }
        }
    }
    Ok(fds.iter().filter(|poll| poll.revents != 0).count())
}

/// What a promoted member is ready for; waits for a thread that is taking the answer to its offer.
fn events(conn: &'static Conn, poll: &libc::pollfd) -> Option<u32> {
    loop {
        match ready::events(conn, poll.fd, poll.events as u16 as u32) {
            Some(ready::AGAIN) => sys::yield_now(),
            events => return events,
        }
    }
}

fn managed(fd: i32) -> Option<&'static Conn> {
    table::conn(fd).filter(|conn| conn.is_managed())
}

/// Changes when any promoted member's peer has put something.
fn fingerprint(fds: &[libc::pollfd]) -> u64 {
    fds.iter()
        .filter_map(|poll| managed(poll.fd))
        .fold(0, |sum, conn| sum.rotate_left(9) ^ Seen::now(conn).sum())
}

fn sleep(
    fds: &[libc::pollfd],
    scratch: &mut Scratch,
    deadline: Option<u64>,
    mask: *const libc::sigset_t,
    seen: u64,
) -> Result<(), Errno> {
    let bell = process::claim_bell(1);
    let (mode, id) = if bell.is_some() { (trip::BELL, 1) } else { (trip::KICK, 0) };
    let polls = scratch.polls();
    for (place, poll) in polls.iter_mut().zip(fds) {
        *place = libc::pollfd { revents: 0, ..*poll };
        let Some(conn) = managed(poll.fd) else { continue };
        conn.waiters.fetch_add(1, Ordering::AcqRel);
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let interest = if poll.events & libc::POLLOUT != 0 { trip::RX | trip::TX } else { trip::RX };
        wait::arm(conn, interest, mode, id);
        // The companion stands for the connection: kicks, its end, and what is still on tcp. Once its end is known it would
        // be readable for ever.
        let on_tcp = conn.tx.path() == crate::conn::path::TCP || conn.tx.path() == crate::conn::path::LAST;
        let out = if on_tcp { poll.events & libc::POLLOUT } else { 0 };
        let told = conn.has(flag::PEER_FIN | flag::PEER_HUP);
        place.events =
            out | poll.events & libc::POLLPRI | if told { 0 } else { libc::POLLIN | libc::POLLRDHUP };
    }
    let count = fds.len();
    polls[count] = libc::pollfd { fd: bell.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    let mut result = Ok(());
    if fingerprint(fds) == seen {
        let left = deadline.map(|deadline| sys::timespec(deadline.saturating_sub(sys::now())));
        let timeout = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the array has count + 1 places, timeout is null or valid, the mask is the program's.
        let got = unsafe { real::ppoll()(polls.as_mut_ptr(), count as u64 + 1, timeout, mask) };
        if got < 0 {
            result = Err(Errno::new(real::errno()));
        }
    }
    for poll in fds {
        if let Some(conn) = managed(poll.fd) {
            conn.waiters.fetch_sub(1, Ordering::AcqRel);
        }
    }
    if let Some(bell) = bell {
        if polls[count].revents != 0 {
            bell::silence(bell);
        }
        process::release_bell(1);
    }
    for (place, poll) in polls.iter().zip(fds) {
        // With others asleep the kick stays for them; the last one takes it.
        if place.revents != 0
            && let Some(conn) = managed(poll.fd)
            && conn.waiters.load(Ordering::Acquire) == 0
        {
            ready::absorb(conn, poll.fd);
        }
    }
    result
}

/// Room for pollfds: on the stack, or mapped when there are many.
struct Scratch {
    few: [libc::pollfd; Self::FEW],
    many: *mut libc::pollfd,
    len: usize,
}

impl Scratch {
    const FEW: usize = 64;

    fn new(len: usize) -> Option<Scratch> {
        let many = if len > Self::FEW {
            sys::mmap_private(len * size_of::<libc::pollfd>()).ok()?.cast()
        } else {
            core::ptr::null_mut()
        };
        Some(Scratch { few: [libc::pollfd { fd: -1, events: 0, revents: 0 }; Self::FEW], many, len })
    }

    fn polls(&mut self) -> &mut [libc::pollfd] {
        if self.many.is_null() {
            &mut self.few[..self.len]
        } else {
            // SAFETY: mapped with room for len, zeroed, owned by self.
            unsafe { core::slice::from_raw_parts_mut(self.many, self.len) }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.many.is_null() {
            sys::munmap(self.many.cast(), self.len * size_of::<libc::pollfd>());
        }
    }
}

/// What this process's polls have learned of spinning; a torn value is as good as another.
struct Memory(fabric::sync::AtomicU64);
static LEARNED: Memory = Memory(fabric::sync::AtomicU64::new(0));

impl Memory {
    fn load(&self) -> Learned {
        Learned::from_bits(self.0.load(Ordering::Relaxed))
    }
    fn store(&self, learned: Learned) {
        self.0.store(learned.to_bits(), Ordering::Relaxed);
    }
}
