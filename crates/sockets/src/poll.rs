//! poll() over a mixture of the kernel's descriptors and promoted connections; select() is turned
//! into it. First what is ready without waiting, then a short spin, then tripwires armed for every
//! promoted member and a sleep in the kernel's poll, where the companions stand for their
//! connections. Epoll sets among the descriptors are settled before the kernel is asked about them;
//! that one seemed readable in its sleep is only a reason to look again.

use core::mem::MaybeUninit;

use fabric::sync::{AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::trip;
use stream::spin::{Learned, NO_CPU, cpu, ticks, ticks_of};

use crate::conn::{self, Conn, Entered, flag, path};
use crate::path::room;
use crate::signals::Sleeps;
use crate::spare::Spare;
use crate::wake::arm;
use crate::wake::arm::Seen;
use crate::wake::call_bell::{CallBell, POLLED};
use crate::wake::sleepers::Waiter;
use crate::wake::word;
use crate::{epoll, events, idle, kicks, next, overdue, process, ready, rendezvous, seen, table, wait};

/// Connections that a poll of the kernel's is waiting on: they are not promoted meanwhile, as
/// nobody would wake it. The first `count` are set.
pub struct InKernel {
    entered: [MaybeUninit<conn::InKernel>; Self::MOST],
    count: usize,
}

impl InKernel {
    /// With more of them [`poll`] makes the call, which has room for any number.
    const MOST: usize = 32;
}

impl Drop for InKernel {
    fn drop(&mut self) {
        for entered in &mut self.entered[..self.count] {
            // SAFETY: the first `count` are set, and dropped once.
            unsafe { entered.assume_init_drop() };
        }
    }
}

/// Whether poll() over these descriptors is the kernel's: the guard is to be held for the call.
/// Else [`poll`] is to make it. Housekeeping on the way for connections that are still on tcp.
pub fn by_kernel(fds: &[libc::pollfd]) -> Result<InKernel, Handled> {
    let mut polled = InKernel { entered: [const { MaybeUninit::uninit() }; InKernel::MOST], count: 0 };
    let mut handled = false;
    // Sets without promoted members, too: one may be promoted while the kernel waits.
    let mut sets = false;
    for poll in fds {
        sets |= table::set(poll.fd).is_some();
        if let Some(conn) = table::conn(poll.fd) {
            if !conn.is_managed() {
                seen::waited_for(conn);
                handled |= rendezvous::tick(conn, poll.fd).handled;
            }
            let entered = conn.enter_kernel().filter(|_| polled.count < InKernel::MOST);
            let Some(entered) = entered else { return Err(Handled(handled)) };
            polled.entered[polled.count].write(entered);
            polled.count += 1;
        }
    }
    if sets || handled { Err(Handled(handled)) } else { Ok(polled) }
}

/// Whether a handler has run during the housekeeping, which ends the call even with SA_RESTART.
pub struct Handled(bool);

impl Handled {
    pub fn is_one(&self) -> bool {
        self.0
    }

    pub fn none() -> Handled {
        Handled(false)
    }
}

/// poll(); `nanos` `None` waits for ever.
pub fn poll(
    fds: &mut [libc::pollfd],
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
    handled: Handled,
) -> Result<usize, Errno> {
    if handled.0 && nanos != Some(0) {
        let ready = poll(fds, Some(0), mask, Handled(false))?;
        return if ready > 0 { Ok(ready) } else { Err(Errno::EINTR) };
    }
    let mut waits = nanos != Some(0);
    let deadline = nanos.filter(|_| waits).map(|nanos| sys::now().saturating_add(nanos));
    let mut learned = LEARNED.load();
    let mut sleeps = Sleeps::new();
    let Some(mut scratch) = Scratch::new(fds.len()) else { return Err(Errno::ENOMEM) };
    let mut ask = false;
    loop {
        // Before the survey: what comes during it must show as a change.
        let seen = fingerprint(fds);
        let found = survey(fds, scratch.polls());
        let member = fds.iter().find_map(|poll| managed(poll.fd));
        let spins = member.is_some() && learned.may_spin(process::spin_ticks());
        // Who goes to sleep at once learns from that what is ready in the kernel.
        ask |= !waits || found.ready > 0 || found.sets || spins && found.others && not_asked_lately();
        let ready = if ask { ask_kernel(fds, scratch.polls(), &found)? } else { found.ready };
        if ready == 0 && nanos == Some(0) && !mask.is_null() {
            // What is pending, and the mask lets through, interrupts a call that waits for no time.
            next::ppoll(&mut [], Some(0), mask)?;
        }
        if ready > 0 || !waits {
            return Ok(ready);
        }
        let mut slept = Ok(false);
        let mut sleep = || {
            slept = sleep(fds, &mut scratch, (deadline, &mut sleeps), mask, seen);
            slept.map(drop)
        };
        if let Some(conn) = member {
            let changed = || fingerprint(fds) != seen;
            let (spun, _) = wait::spin_or_sleep(&mut learned, meet(fds), changed, sleep);
            LEARNED.store(learned);
            wait::count_spin(conn, spun);
        } else {
            let _ = sleep();
        }
        // Of a set the kernel tells also what has been seen before.
        let told = if slept? && !found.sets { after_sleep(fds, &mut scratch) } else { None };
        waits = deadline.is_none_or(|deadline| sys::now() < deadline);
        match told {
            Some(ready) if ready > 0 || !waits => return Ok(ready),
            _ => ask = told.is_none(),
        }
    }
}

/// What a look without system calls finds.
struct Survey {
    /// Promoted members that are ready.
    ready: usize,
    /// Whether there are others, of which the kernel knows, and sets among them.
    others: bool,
    sets: bool,
}

/// Looks at rings. The others are left in `polls`.
fn survey(fds: &mut [libc::pollfd], polls: &mut [libc::pollfd]) -> Survey {
    let mut found = Survey { ready: 0, others: false, sets: false };
    for (place, poll) in polls.iter_mut().zip(fds) {
        *place = libc::pollfd { revents: 0, ..*poll };
        poll.revents = 0;
        if let Some(events) = managed(poll.fd).and_then(|conn| events(conn, poll)) {
            poll.revents = events as i16;
            place.fd = -1;
            found.ready += usize::from(events != 0);
        } else {
            found.others = true;
            found.sets |= epoll::watch(poll.fd);
        }
    }
    found
}

/// Asks for those in `polls`, and whether members have ended; what comes out goes to `fds`. How
/// many are ready in all.
fn ask_kernel(fds: &mut [libc::pollfd], polls: &mut [libc::pollfd], found: &Survey) -> Result<usize, Errno> {
    let polls = &mut polls[..fds.len()];
    if !look_for_ends(fds, polls) && !found.others {
        return Ok(found.ready);
    }
    if found.sets {
        epoll::settle();
    }
    match sys::ppoll(polls, Some(0)) {
        // The kernel looks for signals only where nothing is ready.
        Err(Errno::EINTR) if found.ready > 0 => return Ok(found.ready),
        asked => asked?,
    };
    if polls.iter().any(|poll| poll.revents != 0 && table::set(poll.fd).is_some()) {
        // It may be a wake-up for something that was seen before the wake-up came: only what stays
        // when that is taken counts.
        epoll::settle();
        sys::ppoll(polls, Some(0))?;
    }
    ASKED.store(ticks(), Ordering::Relaxed);
    for (place, poll) in polls.iter().zip(&mut *fds).filter(|(place, _)| place.fd >= 0 && place.revents != 0)
    {
        // Of a member it was asked only for the end; it may have gone back to tcp meanwhile.
        let of_member = managed(place.fd).filter(|_| place.events == ENDED).and_then(|conn| {
            ready::absorb(conn, place.fd);
            events(conn, poll)
        });
        let wanted = poll.events | libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        poll.revents = of_member.map_or(place.revents & wanted, |events| events as i16);
    }
    Ok(fds.iter().filter(|poll| poll.revents != 0).count())
}

/// Whether none of this process's polls has asked the kernel for a moment. What is ready there
/// waits for the end of a spin otherwise, and one that ends in vain is learned from.
fn not_asked_lately() -> bool {
    ticks().saturating_sub(ASKED.load(Ordering::Relaxed)) > ticks_of(ASKED_NS)
}

/// When one did last, in ticks.
static ASKED: AtomicU64 = AtomicU64::new(0);
const ASKED_NS: u64 = 50_000;

/// How many are ready after a sleep in the kernel, which has told of its own. `None` where it was
/// asked for something else than the program wants to know.
fn after_sleep(fds: &mut [libc::pollfd], scratch: &mut Scratch) -> Option<usize> {
    let (polls, watches) = scratch.both();
    let mut ready = 0;
    for ((place, watch), poll) in polls.iter().zip(&*watches).zip(fds) {
        poll.revents = match watch {
            Watch::Waiter(conn, _) if conn.is(managed(poll.fd)) => events(conn, poll)? as i16,
            Watch::Waiter(..) => return None,
            _ => place.revents,
        };
        ready += usize::from(poll.revents != 0);
    }
    Some(ready)
}

/// Between two looks at the kernel for a connection's life, in ns.
const LIFE_NS: u64 = 100_000;

/// Puts those into `polls` of which it is to be asked whether they have ended without a word, as
/// that of a peer that was killed: promoted members with nothing to read. Only the kernel knows. It
/// tells those who sleep; for a program that never does it is asked now and then, of all when that
/// is due of the first. False if it is of none.
fn look_for_ends(fds: &[libc::pollfd], polls: &mut [libc::pollfd]) -> bool {
    let now = ticks();
    let mut due = false;
    for (place, poll) in polls.iter_mut().zip(fds).filter(|(place, _)| place.fd < 0) {
        if poll.revents & libc::POLLIN == 0
            && let Some(conn) = managed(poll.fd)
            && !conn.has(ENDS_KNOWN)
            && let Some(mut rx) = conn.lock_rx(poll.fd)
            && path::is_ring(conn.rx.path())
        {
            if !due && now.wrapping_sub(rx.looked) < ticks_of(LIFE_NS) {
                return false;
            }
            (rx.looked, due) = (now, true);
            *place = libc::pollfd { fd: poll.fd, events: ENDED, revents: 0 };
        }
    }
    due
}

/// Nothing more comes, as the companion says all the time from then on.
const ENDS_KNOWN: u32 = flag::PEER_FIN | flag::PEER_HUP | flag::SHUT_RD;

/// What a member is asked for.
const ENDED: i16 = libc::POLLRDHUP;

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

/// Changes when any promoted member's peer has put something that is waited for, or its end has
/// become known: a survey before that has not seen it, and a sleep after it would not be told.
fn fingerprint(fds: &[libc::pollfd]) -> u64 {
    fds.iter().filter_map(|poll| Some((poll, managed(poll.fd)?))).fold(0, |sum, (poll, conn)| {
        let told = u64::from(conn.has(ENDS_KNOWN));
        let seen = if writes(poll) { Seen::now(conn) } else { Seen::to_read(conn) };
        sum.rotate_left(9) ^ seen.sum() ^ told
    })
}

/// Whether it waits for room, too.
fn writes(poll: &libc::pollfd) -> bool {
    events::ask_for_room(poll.events as u16 as u32)
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

/// Counts this thread as a sleeper on each connection, or as one that is in the kernel, arms it,
/// and puts what the kernel is asked for into `polls`. How long at most may be slept, in ns.
fn fall_asleep(
    fds: &[libc::pollfd],
    polls: &mut [libc::pollfd],
    watches: &mut [Watch],
    bell: &CallBell,
) -> Option<u64> {
    let mut limit = None;
    for ((place, watch), poll) in polls.iter_mut().zip(&mut *watches).zip(fds) {
        *place = libc::pollfd { revents: 0, ..*poll };
        *watch = Watch::NotOurs;
        let Some(conn) = table::conn(poll.fd) else { continue };
        *watch = Watch::into(conn);
        if matches!(watch, Watch::Kernel(_)) {
            continue;
        }
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let interest = if writes(poll) { trip::RX | trip::TX } else { trip::RX };
        arm::arm(conn, interest, bell.how(conn));
        // The companion stands for the connection: kicks, its end, and what is still on tcp. Once
        // its end is known it would be readable for ever.
        let on_tcp = matches!(conn.tx.path(), path::TCP | path::LAST);
        let out = if on_tcp { poll.events & (libc::POLLOUT | libc::POLLWRNORM) } else { 0 };
        if conn.tx.path() == path::RESEND {
            // For room in the companion, or for what the peer says, whatever the program waits for:
            // the peer may have to get these bytes before it answers. The next survey sends on.
            limit = Some(RESEND_NS);
        } else if conn.is_via() && conn.tx.path() == path::SMALL && writes(poll) {
            // For a window that stays full.
            limit = limit.or(Some(room::STALL_NS));
        }
        let told = conn.has(ENDS_KNOWN);
        place.events =
            out | poll.events & libc::POLLPRI | if told { 0 } else { libc::POLLIN | libc::POLLRDHUP };
    }
    limit
}

/// Sleeps in the kernel, unless what was `seen` has changed: then it is not asked.
fn sleep(
    fds: &[libc::pollfd],
    scratch: &mut Scratch,
    (deadline, sleeps): (Option<u64>, &mut Sleeps),
    mask: *const libc::sigset_t,
    seen: u64,
) -> Result<bool, Errno> {
    let began = sleeps.began();
    if !sleeps.are_one(true)
        && let Some(result) = sleep_on_word(fds, deadline, mask, seen)
    {
        return result;
    }
    let rung = |conn: &Conn| !conn.has(flag::NO_BELLS);
    let bell = CallBell::claim_if(fds.iter().any(|poll| managed(poll.fd).is_some_and(rung)));
    let count = fds.len();
    let (polls, watches) = scratch.both();
    let limit = fall_asleep(fds, polls, watches, &bell);
    polls[count..].copy_from_slice(&bell.polled());
    let mut result = Ok(false);
    if fingerprint(fds) == seen {
        let left = deadline.map(|deadline| deadline.saturating_sub(sys::now()));
        let (part, looks) =
            overdue::limit(idle::before_sleep([left, limit].into_iter().flatten().min(), began));
        let got = match sleeps.part(left, part) {
            Ok(part) => next::ppoll(polls, part, sleeps.mask(mask)),
            Err(errno) => Err(errno),
        };
        if looks && got == Ok(0) {
            let came =
                || (fingerprint(fds) != seen).then(|| fds.iter().find(|poll| managed(poll.fd).is_some()));
            overdue::check(
                "poll",
                || came().flatten().map(|poll| poll.fd),
                |nanos| sys::ppoll(polls, Some(nanos)) != Ok(0),
            );
        }
        result = got.map(|_| true);
    }
    for watch in &*watches {
        match watch {
            Watch::Waiter(conn, place) => drop(Waiter::again(conn, *place)),
            Watch::Kernel(in_kernel) => in_kernel.leave(),
            Watch::NotOurs => {}
        }
    }
    bell.silence(&polls[count..]);
    drop(bell);
    for ((place, watch), poll) in polls.iter().zip(&*watches).zip(fds) {
        if let Watch::Waiter(conn, _) = watch
            && (place.revents != 0 || conn.has(flag::LEFT))
            && conn.is(managed(poll.fd))
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

/// Sleeps on the tripwire of the one connection that is waited for, if it is one, to be read.
/// `None` if something else may end the wait, as far as is known, or if it has lasted for long.
fn sleep_on_word(
    fds: &[libc::pollfd],
    deadline: Option<u64>,
    mask: *const libc::sigset_t,
    seen: u64,
) -> Option<Result<bool, Errno>> {
    let [poll] = fds else { return None };
    let conn = managed(poll.fd)?;
    if poll.events & !READABLE != 0
        || poll.events & (libc::POLLIN | libc::POLLRDNORM) == 0
        || !mask.is_null()
        || deadline.is_some_and(|deadline| deadline < sys::now() + word::SHORT_NS)
        || conn.waiters.load(Ordering::Acquire) != 0
        || !word::tells_all(conn)
    {
        return None;
    }
    next::test_cancel();
    let waiter = Waiter::new(conn);
    let slept = word::sleep(conn, poll.fd, "poll", || fingerprint(fds) == seen);
    drop(waiter);
    if conn.has(flag::LEFT) && conn.is(managed(poll.fd)) {
        kicks::take_after_sleep(conn, poll.fd);
    }
    if slept == Err(Errno::EINTR) {
        next::test_cancel();
    }
    match slept {
        Ok(()) => Some(Ok(false)),
        // Signals may come again and again before the kernel would be asked for the end.
        Err(Errno::EINTR) if !kicks::ended(conn, poll.fd) => Some(Err(Errno::EINTR)),
        Err(Errno::EINTR) => Some(Ok(false)),
        Err(_) => None,
    }
}

/// What select() and poll() of who reads ask for.
const READABLE: i16 =
    libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;

/// How a descriptor is waited for in a sleep.
#[derive(Clone, Copy)]
enum Watch {
    NotOurs,
    /// As a promoted connection, with the waiter's place.
    Waiter(&'static Conn, i32),
    /// As one of the kernel's, which is not promoted meanwhile.
    Kernel(Entered),
}

impl Watch {
    fn into(conn: &'static Conn) -> Watch {
        loop {
            if conn.is_managed() {
                return Watch::Waiter(conn, Waiter::new(conn).keep());
            }
            if let Some(in_kernel) = conn.enter_kernel() {
                return Watch::Kernel(in_kernel.keep());
            }
        }
    }
}

/// Room for as many pollfds as the program has, and those of the bell, and for how each is waited
/// for: on the stack, or kept for the next call when there are many.
struct Scratch {
    polls: [libc::pollfd; Self::FEW + POLLED],
    watches: [Watch; Self::FEW],
    many: Option<Spare>,
    len: usize,
}

impl Scratch {
    const FEW: usize = 64;
    const NONE: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

    fn new(len: usize) -> Option<Scratch> {
        let few = ([Self::NONE; Self::FEW + POLLED], [Watch::NotOurs; Self::FEW]);
        let mut scratch = Scratch { polls: few.0, watches: few.1, many: None, len };
        if len > Self::FEW {
            let bytes = len * size_of::<Watch>() + (len + POLLED) * size_of::<libc::pollfd>();
            let (watches, polls) = Self::split(scratch.many.insert(Spare::new(bytes)?), len);
            for at in 0..len {
                // SAFETY: there is room for so many watches.
                unsafe { watches.add(at).write(Watch::NotOurs) };
            }
            for at in 0..len + POLLED {
                // SAFETY: and behind them for the polls of the bell, too.
                unsafe { polls.add(at).write(Self::NONE) };
            }
        }
        Some(scratch)
    }

    /// The watches come first, as they need the alignment.
    fn split(many: &Spare, len: usize) -> (*mut Watch, *mut libc::pollfd) {
        let watches = many.memory().as_ptr().cast::<Watch>();
        (watches, watches.wrapping_add(len).cast())
    }

    fn polls(&mut self) -> &mut [libc::pollfd] {
        self.both().0
    }

    fn both(&mut self) -> (&mut [libc::pollfd], &mut [Watch]) {
        let Some(many) = &self.many else {
            return (&mut self.polls[..self.len + POLLED], &mut self.watches[..self.len]);
        };
        let (watches, polls) = Self::split(many, self.len);
        // SAFETY: `new` has made room for both, and written all of them; owned by self.
        unsafe {
            (
                core::slice::from_raw_parts_mut(polls, self.len + POLLED),
                core::slice::from_raw_parts_mut(watches, self.len),
            )
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
