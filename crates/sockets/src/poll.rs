//! poll() over a mixture of the kernel's descriptors and promoted connections; select() is turned into it. First what is ready
//! without waiting, then a short spin, then tripwires armed for every promoted member and a sleep in the kernel's poll, where the
//! companions stand for their connections. Epoll sets among the descriptors are settled before the kernel is asked about them; that
//! one seemed readable in its sleep is only a reason to look again.

use fabric::bell;
use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::trip;
use stream::spin::{Learned, NO_CPU, Spun, cpu, ticks};

use crate::conn::{Conn, flag, path};
use crate::layout::CALL_BELL;
use crate::path::room;
use crate::wake::arm;
use crate::wake::arm::Seen;
use crate::wake::sleepers::Waiter;
use crate::{bells, epoll, idle, kicks, overdue, process, ready, real, rendezvous, seen, table};

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
    // Sets without promoted members, too: one may be promoted while the kernel waits.
    let mut sets = false;
    for poll in fds {
        sets |= table::set(poll.fd).is_some();
        if let Some(conn) = table::conn(poll.fd) {
            if !conn.is_managed() {
                seen::waited_for(conn);
                rendezvous::tick(conn, poll.fd);
            }
            if !conn.enter_kernel() {
                return None;
            }
        }
        entered.1 += 1;
    }
    if sets { None } else { Some(entered) }
}

/// poll(); `nanos` `None` waits for ever.
pub fn poll(
    fds: &mut [libc::pollfd],
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let deadline = nanos.map(|nanos| sys::now().saturating_add(nanos));
    let mut learned = LEARNED.load();
    let began = ticks();
    let Some(mut scratch) = Scratch::new(fds.len()) else { return Err(Errno::ENOMEM) };
    loop {
        // Before the survey: what comes during it must show as a change.
        let seen = fingerprint(fds);
        let ready = survey(fds, &mut scratch)?;
        if ready > 0 || nanos == Some(0) {
            return Ok(ready);
        }
        let only = fds.iter().find_map(|poll| managed(poll.fd));
        let limit = if only.is_some() { process::spin_ticks() } else { 0 };
        let peer = only.map_or(NO_CPU, |_| meet(fds));
        let spun = learned.spin(limit, peer, || fingerprint(fds) != seen);
        let before = ticks();
        let slept =
            if spun == Spun::Won { Ok(()) } else { sleep(fds, &mut scratch, (deadline, began), mask, seen) };
        if spun != Spun::Won && only.is_some() {
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
    let mut others = false;
    let mut sets = false;
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
            others = true;
            sets |= epoll::watch(poll.fd);
        }
    }
    if others {
        let polls = &mut polls[..fds.len()];
        if sets {
            epoll::settle();
        }
        sys::ppoll(polls, Some(0))?;
        if polls.iter().any(|poll| poll.revents != 0 && table::set(poll.fd).is_some()) {
            // It may be a wake-up for something that was seen before the wake-up came: only what stays when that is taken counts.
            epoll::settle();
            sys::ppoll(polls, Some(0))?;
        }
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

/// Changes when any promoted member's peer has put something, or its end has become known: a survey before that has not seen it, and a sleep
/// after it would not be told.
fn fingerprint(fds: &[libc::pollfd]) -> u64 {
    fds.iter().filter_map(|poll| managed(poll.fd)).fold(0, |sum, conn| {
        let told = u64::from(conn.has(flag::PEER_FIN | flag::PEER_HUP));
        sum.rotate_left(9) ^ Seen::now(conn).sum() ^ told
    })
}

/// Tells peers where we wait. Where they do: on this very processor, if one of them does.
fn meet(fds: &[libc::pollfd]) -> u64 {
    let here = cpu();
    let met = |conn| arm::meet_at(conn, here);
    let peers = fds.iter().filter_map(|poll| managed(poll.fd)).take(MEET_MOST).map(met);
    peers.fold(NO_CPU, |known, peer| if known == here { here } else { peer })
}

/// So many are asked, at most.
const MEET_MOST: usize = 8;

/// How soon it is looked again whether what goes by tcp first has gone.
const RESEND_NS: u64 = 1_000_000;

/// Counts this thread as a sleeper on each connection, or as one that is in the kernel, arms it, and puts what the kernel is asked for into `polls`. How long at most may
/// be slept, in ns.
fn fall_asleep(
    fds: &[libc::pollfd],
    polls: &mut [libc::pollfd],
    ways: &mut [Way],
    mode: u64,
    id: u8,
) -> Option<u64> {
    let mut limit = None;
    for ((place, way), poll) in polls.iter_mut().zip(&mut *ways).zip(fds) {
        *place = libc::pollfd { revents: 0, ..*poll };
        *way = Way::NotOurs;
        let Some(conn) = table::conn(poll.fd) else { continue };
        *way = Way::into(conn);
        if matches!(way, Way::Kernel(_)) {
            continue;
        }
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let interest = if poll.events & libc::POLLOUT != 0 { trip::RX | trip::TX } else { trip::RX };
        arm::arm(conn, interest, mode, id);
        // The companion stands for the connection: kicks, its end, and what is still on tcp. Once its end is known it would
        // be readable for ever.
        let on_tcp = matches!(conn.tx.path(), path::TCP | path::LAST);
        let out = if on_tcp { poll.events & libc::POLLOUT } else { 0 };
        if conn.tx.path() == path::RESEND && poll.events & libc::POLLOUT != 0 {
            // For room in the companion, or for what the peer says: looks send on.
            limit = Some(RESEND_NS);
        } else if conn.is_via() && conn.tx.path() == path::SMALL && poll.events & libc::POLLOUT != 0 {
            // For a window that stays full.
            limit = limit.or(Some(room::STALL_NS));
        }
        let told = conn.has(flag::PEER_FIN | flag::PEER_HUP);
        place.events =
            out | poll.events & libc::POLLPRI | if told { 0 } else { libc::POLLIN | libc::POLLRDHUP };
    }
    limit
}

fn sleep(
    fds: &[libc::pollfd],
    scratch: &mut Scratch,
    (deadline, began): (Option<u64>, u64),
    mask: *const libc::sigset_t,
    seen: u64,
) -> Result<(), Errno> {
    let rung = |conn: &Conn| !conn.has(flag::NO_BELLS);
    let bell =
        if fds.iter().any(|poll| managed(poll.fd).is_some_and(rung)) { bells::claim_bell() } else { None };
    let (mode, id) = if bell.is_some() { (trip::BELL, CALL_BELL as u8) } else { (trip::KICK, 0) };
    let count = fds.len();
    let (polls, ways) = scratch.both();
    let limit = fall_asleep(fds, polls, ways, mode, id);
    polls[count] = libc::pollfd { fd: bell.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
    let mut result = Ok(());
    if fingerprint(fds) == seen {
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        let (left, looks) =
            overdue::limit(idle::before_sleep([left, limit].into_iter().flatten().min(), began));
        let left = left.map(sys::timespec);
        let timeout = left.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the array has count + 1 places, timeout is null or valid, the mask is the program's.
        let got = unsafe { real::ppoll()(polls.as_mut_ptr(), count as u64 + 1, timeout, mask) };
        if got < 0 {
            result = Err(Errno::new(real::errno()));
        }
        if looks && got == 0 {
            let came =
                || (fingerprint(fds) != seen).then(|| fds.iter().find(|poll| managed(poll.fd).is_some()));
            overdue::check(
                "poll",
                || came().flatten().map(|poll| poll.fd),
                |nanos| sys::ppoll(polls, Some(nanos)) != Ok(0),
            );
        }
    }
    for way in &*ways {
        match way {
            Way::Waiter(conn, place) => drop(Waiter::again(conn, *place)),
            Way::Kernel(conn) => conn.leave_kernel(),
            Way::NotOurs => {}
        }
    }
    if let Some(bell) = bell {
        if polls[count].revents != 0 {
            bell::silence(bell);
        }
        bells::release_bell();
    }
    for ((place, way), poll) in polls.iter().zip(&*ways).zip(fds) {
        if let Way::Waiter(conn, _) = way
            && (place.revents != 0 || conn.has(flag::LEFT))
            && managed(poll.fd).is_some_and(|now| core::ptr::eq(now, *conn))
        {
            if place.revents & !(libc::POLLIN | libc::POLLRDNORM) == 0 {
                kicks::take_after_sleep(conn, poll.fd);
            } else {
                ready::absorb(conn, poll.fd);
            }
        }
    }
    result
}

/// How a descriptor is waited for in a sleep.
#[derive(Clone, Copy)]
enum Way {
    NotOurs,
    /// As a promoted connection, with the waiter's place.
    Waiter(&'static Conn, i32),
    /// As one of the kernel's, which is not promoted meanwhile.
    Kernel(&'static Conn),
}

impl Way {
    fn into(conn: &'static Conn) -> Way {
        loop {
            if conn.is_managed() {
                return Way::Waiter(conn, Waiter::new(conn).keep());
            }
            if conn.enter_kernel() {
                return Way::Kernel(conn);
            }
        }
    }
}

/// Room for as many pollfds as the program has, and one for the bell, and for how each is waited for: on the stack, or mapped when
/// there are many.
struct Scratch {
    polls: [libc::pollfd; Self::FEW + 1],
    ways: [Way; Self::FEW],
    many: *mut libc::pollfd,
    len: usize,
}

impl Scratch {
    const FEW: usize = 64;

    fn new(len: usize) -> Option<Scratch> {
        let many: *mut libc::pollfd = if len > Self::FEW {
            sys::mmap_private(Self::bytes(len)).ok()?.cast()
        } else {
            core::ptr::null_mut()
        };
        for at in 0..if many.is_null() { 0 } else { len } {
            // SAFETY: mapped with room for so many, which come first.
            unsafe { many.cast::<Way>().add(at).write(Way::NotOurs) };
        }
        let none = libc::pollfd { fd: -1, events: 0, revents: 0 };
        Some(Scratch { polls: [none; Self::FEW + 1], ways: [Way::NotOurs; Self::FEW], many, len })
    }

    /// The ways come first, as they need the alignment.
    fn bytes(len: usize) -> usize {
        len * size_of::<Way>() + (len + 1) * size_of::<libc::pollfd>()
    }

    fn polls(&mut self) -> &mut [libc::pollfd] {
        self.both().0
    }

    fn both(&mut self) -> (&mut [libc::pollfd], &mut [Way]) {
        if self.many.is_null() {
            return (&mut self.polls[..self.len + 1], &mut self.ways[..self.len]);
        }
        let ways = self.many.cast::<Way>();
        // SAFETY: mapped with room for both, the ways written by `new`, the rest zeroed; owned by self.
        unsafe {
            (
                core::slice::from_raw_parts_mut(ways.add(self.len).cast(), self.len + 1),
                core::slice::from_raw_parts_mut(ways, self.len),
            )
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.many.is_null() {
            sys::munmap(self.many.cast(), Self::bytes(self.len));
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
