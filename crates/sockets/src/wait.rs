//! Waiting for one connection, in a call that blocks: spin, arm the tripwire, look again, sleep in
//! the kernel on the companion.
//!
//! A reader sleeps on the tripwire first ([`crate::wake::word`]), if nothing else can end its wait.
//! Those who wait longer, and writers, sleep in poll, until their thread's bell is rung or the
//! companion tells of the end. A reader who has no bell sleeps in recv(MSG_PEEK) on the companion,
//! until it is kicked: the kernel then does for us what it does for tcp, be it SO_RCVTIMEO, EINTR
//! and SA_RESTART, or cancellation.

use core::mem::ManuallyDrop;
use core::ptr;

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Local, trip};
use stream::spin::{Learned, Spun, nanos_of, ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::layout::{R, SMALL_AT, TCP_AT, TRIP};
use crate::path::reading;
use crate::path::room;
use crate::path::room::stall_ns;
use crate::path::writer;
use crate::signals::Sleeps;
use crate::wake::arm::{Seen, arm, meet};
use crate::wake::call_bell::CallBell;
use crate::wake::sleepers::Waiter;
use crate::wake::word;

use crate::{demote, idle, kicks, next, overdue, peering, process, rendezvous, table};

/// The number that a call goes by, and how it sleeps. If it is closed while the call sleeps it is
/// an `orphan`, and goes on by the connection's hidden one ([`crate::close`]).
pub struct Number {
    pub fd: i32,
    pub orphan: bool,
    /// Ended by [`Number::end_sleeps`]: a destructor would cost each call that does not sleep.
    sleeps: ManuallyDrop<Sleeps>,
}

impl Number {
    pub const fn new(fd: i32) -> Number {
        Number { fd, orphan: false, sleeps: ManuallyDrop::new(Sleeps::new()) }
    }

    /// Its call returns.
    #[inline(always)]
    pub fn end_sleeps(&mut self) {
        if self.sleeps.are_blocked() {
            *self.sleeps = Sleeps::new();
        }
    }

    /// The sleeper is awake. False if the number has been closed meanwhile, and may be another
    /// file's.
    #[must_use]
    fn woken(&mut self, conn: &Conn, waiter: Waiter) -> bool {
        if waiter.wake() {
            (self.fd, self.orphan) = (conn.descriptor(), true);
            return false;
        }
        self.check(conn).is_ok()
    }

    /// Until when its reads wait (SO_RCVTIMEO), in ticks.
    fn deadline(&mut self) -> Option<u64> {
        let fd = self.fd;
        self.sleeps.deadline(|| time_limit(fd, libc::SO_RCVTIMEO))
    }

    /// Whether that is over.
    fn is_late(&mut self) -> bool {
        self.deadline().is_some_and(|deadline| ticks() >= deadline)
    }

    /// The call has moved bytes.
    pub fn moved(&mut self) {
        self.sleeps.moved();
    }

    /// EBADF if it has been closed meanwhile.
    fn check(&self, conn: &Conn) -> Result<(), Errno> {
        if self.orphan || conn.is(table::conn(self.fd)) { Ok(()) } else { Err(Errno::EBADF) }
    }
}

/// Waits until a read may find something. Errors are what the call is to return.
#[cold]
pub fn readable(conn: &'static Conn, number: &mut Number) -> Result<(), Errno> {
    beyond(conn, number, 0)
}

/// Likewise, until a look may find more than the `had` bytes that the last one has seen.
#[cold]
pub fn more(conn: &'static Conn, number: &mut Number, had: usize) -> Result<(), Errno> {
    if number.is_late() {
        return Err(Errno::EAGAIN);
    }
    if path::is_ring(conn.rx.path()) && conn.word(TCP_AT) == 0 {
        return beyond(conn, number, had as u64);
    }
    // Some of it came, or comes, by tcp: the kernel wakes nobody who has seen bytes and wants more.
    nap(conn, number)
}

/// Waits until the kernel may have more for a call that has some bytes. With a low water mark it
/// does not tell of all that comes: that is looked for now and then.
#[cold]
pub fn rest_of(number: &mut Number) -> Result<(), Errno> {
    number.sleeps.moved();
    let rest = number.deadline().map(|deadline| nanos_of(deadline.saturating_sub(ticks())));
    if rest == Some(0) {
        return Err(Errno::EAGAIN);
    }
    let part = rest.unwrap_or(u64::MAX).min(REST_NS);
    sleep(&mut [arrivals(number.fd)], (rest, Some(part)), &mut number.sleeps).map(drop)
}

const REST_NS: u64 = 10_000_000;

/// Sleeps for a moment where nothing tells of what is waited for.
fn nap(conn: &Conn, number: &mut Number) -> Result<(), Errno> {
    if number.is_late() {
        return Err(Errno::EAGAIN);
    }
    sleep(&mut [], (None, Some(NAP_NS)), &mut number.sleeps)?;
    number.check(conn)
}

const NAP_NS: u64 = 500_000;

/// Sleeps in poll(), for a part of what is left ([`Sleeps::part`]). How many descriptors are ready:
/// none, too, after a signal whose call is restarted.
fn sleep(
    polls: &mut [libc::pollfd],
    (left, part): (Option<u64>, Option<u64>),
    sleeps: &mut Sleeps,
) -> Result<usize, Errno> {
    let slept = match sleeps.part(left, part) {
        Ok(part) => next::ppoll(polls, part, sleeps.mask(ptr::null())),
        Err(errno) => Err(errno),
    };
    match slept {
        Err(Errno::EINTR) if sleeps.end_by_any() || sleeps.end_the_call() => Err(Errno::EINTR),
        got => Ok(got.unwrap_or(0)),
    }
}

/// What tells a sleeper of kicks, and of the end.
fn arrivals(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }
}

/// What of it tells of the end.
const ENDS: i16 = libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP;

/// Spins until `changed`, then sleeps if that has not come; both are learned from.
pub(crate) fn spin_or_sleep(
    learned: &mut Learned,
    peer: u64,
    mut changed: impl FnMut() -> bool,
    sleep: impl FnOnce() -> Result<(), Errno>,
) -> (Spun, Result<(), Errno>) {
    let limit = process::spin_ticks();
    let spun = learned.spin(limit, peer, &mut changed);
    if spun == Spun::Won {
        return (spun, Ok(()));
    }
    let before = ticks();
    let result = sleep();
    if changed() {
        learned.slept(ticks() - before, limit);
    } else {
        learned.ended_elsewhere();
    }
    (spun, result)
}

/// For the report.
pub(crate) fn count_spin(conn: &Conn, spun: Spun) {
    match spun {
        Spun::Won => conn.counters.spins_won.fetch_add(1, Ordering::Relaxed),
        Spun::Lost => conn.counters.spins_lost.fetch_add(1, Ordering::Relaxed),
        Spun::None => 0,
    };
}

fn beyond(conn: &'static Conn, number: &mut Number, had: u64) -> Result<(), Errno> {
    let (seen, ahead, mut learned) = {
        let Some(rx) = conn.lock_rx(number.fd) else { return Err(Errno::EINTR) };
        let (seen, position) = (Seen::to_read(conn), rx.ring.position());
        let ring = path::is_ring(conn.rx.path());
        let next = position + had;
        if ring && conn.is_recalled_at(next) && reading::naps(next, seen.front, conn.word(TCP_AT)) {
            drop(rx);
            return nap(conn, number);
        }
        let tcp_is_next =
            || conn.word(TCP_AT) == position + 1 && kicks::counted(conn, &rx) == rx.kicks_drained;
        if ring && (seen.front != position + had || tcp_is_next()) {
            return Ok(());
        }
        if conn.rx.path() == path::TCP && conn.word(SMALL_AT) != 0 && rx.tcp_left.is_none() {
            return Ok(());
        }
        (seen, ring.then(|| rx.ring.ahead()), rx.learned)
    };
    if conn.tx.path() == path::RESEND && !peering::facts(conn).uses_records {
        return beside_unsent(conn, number, seen);
    }
    let peer = meet(conn);
    let changed = || {
        // The bytes come together with the word that tells of them.
        ahead.iter().flatten().for_each(|&place| conn.mine().foresee(place));
        Seen::to_read(conn) != seen
    };
    let sleep = || sleep_readable(conn, number, seen);
    let (spun, result) = spin_or_sleep(&mut learned, peer, changed, sleep);
    count_spin(conn, spun);
    number.check(conn)?;
    if let Some(mut rx) = conn.lock_rx(number.fd) {
        rx.learned = learned;
    }
    result
}

/// Waits while the companion has no room for bytes that the program has sent, and sends them on:
/// the peer may have to get them before it answers. Between hosts the progress thread does it.
fn beside_unsent(conn: &'static Conn, number: &mut Number, seen: Seen) -> Result<(), Errno> {
    while conn.tx.path() == path::RESEND && Seen::to_read(conn) == seen {
        if number.is_late() {
            return Err(Errno::EAGAIN);
        }
        let mut polls = [arrivals(number.fd)];
        let got = sleep(&mut polls, (None, Some(NAP_NS)), &mut number.sleeps)?;
        number.check(conn)?;
        if got > 0 {
            kicks::take_after_sleep(conn, number.fd);
            return Ok(());
        }
        demote::attend(conn, number.fd);
    }
    Ok(())
}

fn sleep_readable(conn: &'static Conn, number: &mut Number, seen: Seen) -> Result<(), Errno> {
    number.sleeps.began();
    // Who goes from one sleep to the next is known meanwhile: its number may be closed just then.
    let mut asleep = None;
    if !number.sleeps.are_one(true)
        && let Some(result) = sleep_on_word(conn, number, seen, &mut asleep)
    {
        return result;
    }
    if let Some(result) = sleep_by_bell(conn, number, seen, &mut asleep) {
        return result;
    }
    let waiter = asleep.unwrap_or_else(|| Waiter::reading(conn));
    arm(conn, trip::RX, trip::KICK);
    if Seen::to_read(conn) != seen || !waiter.falls_asleep() {
        // Left armed, which costs one wake-up for nothing: to take it back could undo what another
        // thread has just armed.
        if number.woken(conn, waiter) && conn.has(flag::LEFT) {
            kicks::take_after_sleep(conn, number.fd);
        }
        return Ok(());
    }
    conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
    idle::look_if_due();
    let got = next::wait_in_recv(number.fd);
    if !number.woken(conn, waiter) {
        return Ok(());
    }
    if matches!(got, Ok(1..)) || conn.has(flag::LEFT) {
        kicks::take_after_sleep(conn, number.fd);
    }
    match got {
        Ok(0) if kicks::of_peer(conn, number.fd, libc::POLLRDHUP) != 0 => conn.set(flag::PEER_FIN),
        Ok(_) => {}
        Err(errno @ (Errno::EINTR | Errno::EAGAIN | Errno::EBADF)) => return Err(errno),
        Err(errno) => {
            // The kernel tells an error once: keep it until what is in the ring has been read.
            conn.set(flag::PEER_HUP);
            if let Some(mut rx) = conn.lock_rx(number.fd) {
                rx.error = errno.into_raw();
            }
        }
    }
    Ok(())
}

/// Sleeps on the tripwire itself. `None` if something else than the peer's words may end the wait,
/// as far as is known, or if it has lasted for long: then `asleep` is who has slept.
fn sleep_on_word(
    conn: &'static Conn,
    number: &mut Number,
    seen: Seen,
    asleep: &mut Option<Waiter>,
) -> Option<Result<(), Errno>> {
    if conn.waiters.load(Ordering::Acquire) != 0
        || !word::tells_all(conn)
        || process::is_guest()
        || !waits_for_long(conn, number)
    {
        return None;
    }
    next::test_cancel();
    let waiter = Waiter::reading(conn);
    let slept = match waiter.falls_asleep() {
        true => word::sleep(conn, number.fd, "recv", || Seen::to_read(conn) == seen),
        false => Ok(()),
    };
    let lasts = slept == Err(Errno::ETIMEDOUT) && !conn.has(flag::LEFT);
    // If it was closed, and was not the connection's last, it may be another file's by now.
    if lasts && waiter.stays() && number.check(conn).is_ok() {
        *asleep = Some(waiter);
        return None;
    }
    let same = number.woken(conn, waiter);
    if same && conn.has(flag::LEFT) {
        kicks::take_after_sleep(conn, number.fd);
    }
    if slept == Err(Errno::EINTR) {
        next::test_cancel();
    }
    if !same {
        return Some(Ok(()));
    }
    match slept {
        Ok(()) => Some(Ok(())),
        // Signals may come again and again before the kernel would be asked for the end.
        Err(Errno::EINTR) if interrupts(number) && !kicks::ended(conn, number.fd) => Some(Err(Errno::EINTR)),
        Err(_) => None,
    }
}

/// Whether a handler that has run ends a read: with a time limit any does, SA_RESTART or not
/// (signal(7)).
fn interrupts(number: &mut Number) -> bool {
    number.sleeps.end_the_call() || number.deadline().is_some() || number.sleeps.have_moved()
}

/// Whether its reads have no time limit, or one that is long beside a sleep on the word. The kernel
/// is asked once, and again when the program has set one, and by a call that has slept for long.
fn waits_for_long(conn: &Conn, number: &mut Number) -> bool {
    let long = ticks_of(LONG * word::SHORT_NS);
    if !conn.has(flag::UNLIMITED) {
        // First: the program may set one just now.
        conn.set(flag::UNLIMITED);
        if time_limit(number.fd, libc::SO_RCVTIMEO).is_some_and(|limit| limit < long) {
            conn.clear(flag::UNLIMITED);
        }
    }
    let lasts = ticks() - number.sleeps.began() > long / 2;
    conn.has(flag::UNLIMITED) && !(lasts && number.deadline().is_some())
}

/// So many sleeps on the word make a limit long: it ends by one of them late.
const LONG: u64 = 50;

/// Sleeps in poll(), until the peer rings this thread's bell, which is cheaper than a kick to send
/// and to take; between hosts our own progress thread rings it. `None` if all bells are taken, if
/// others sleep on the connection, or if it is not known whether a signal is to end the call, as in
/// a guest. But recv() knows neither how long a call has slept before, nor whether it has moved
/// bytes, nor which signals to block: where that matters, one without a bell sleeps here until
/// kicked.
fn sleep_by_bell(
    conn: &'static Conn,
    number: &mut Number,
    seen: Seen,
    asleep: &mut Option<Waiter>,
) -> Option<Result<(), Errno>> {
    let told = !process::is_guest() || peering::facts(conn).uses_records;
    let own = u32::from(asleep.is_some());
    let alone = conn.waiters.load(Ordering::Acquire) == own && !conn.has(flag::SHARED | flag::NO_BELLS);
    let bell = CallBell::claim_for(conn, told && alone);
    let deadline = number.deadline();
    if !bell.is_had() && !number.sleeps.are_one(told) && !number.sleeps.end_by_any() {
        return None;
    }
    let waiter = asleep.take().unwrap_or_else(|| Waiter::reading(conn));
    let (mut result, mut companion) = (Ok(()), 0);
    arm(conn, trip::RX, bell.how(conn));
    if Seen::to_read(conn) == seen && waiter.falls_asleep() {
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        idle::look_if_due();
        let rest = deadline.map(|deadline| nanos_of(deadline.saturating_sub(ticks())));
        let (part, looks) = if rest.is_some() { (rest, false) } else { overdue::limit(None) };
        let [own, loud, far] = bell.polled();
        let mut polls = [arrivals(number.fd), own, loud, far];
        let got = sleep(&mut polls, (rest, part), &mut number.sleeps);
        if looks && got == Ok(0) {
            let owed = || (Seen::to_read(conn) != seen).then_some(number.fd);
            overdue::check("recv", owed, |nanos| sys::ppoll(&mut polls, Some(nanos)) != Ok(0));
        }
        bell.silence(&polls[1..]);
        companion = polls[0].revents;
        result = match got {
            Ok(0) if deadline.is_some() => Err(Errno::EAGAIN),
            got => got.map(drop),
        };
    }
    let same = number.woken(conn, waiter);
    drop(bell);
    if !same {
        return Some(Ok(()));
    }
    if kicks::of_peer(conn, number.fd, companion) & ENDS != 0 {
        conn.set(flag::PEER_FIN);
    }
    if companion & libc::POLLIN != 0 || conn.has(flag::LEFT) {
        kicks::take_after_sleep(conn, number.fd);
    }
    Some(result)
}

/// Waits until a write may find room.
#[cold]
pub fn writable(conn: &'static Conn, fd: i32, sleeps: &mut Sleeps) -> Result<(), Errno> {
    demote::attend(conn, fd);
    let (seen, mut learned) = {
        let Some(mut tx) = conn.lock_tx(fd) else { return Err(Errno::EINTR) };
        // Also of a connection that has never been in memory, and has no words to look at.
        if !path::is_ring(conn.tx.path()) {
            drop(tx);
            return kernel_writable(conn, fd, sleeps);
        }
        let seen = Seen::now(conn);
        if room::room_for(conn, fd, &mut tx, 1) != Ok(0) {
            return Ok(());
        }
        (seen, tx.learned)
    };
    let changed = || Seen::now(conn) != seen;
    let (_, result) =
        spin_or_sleep(&mut learned, meet(conn), changed, || sleep_writable(conn, fd, seen, sleeps));
    Number::new(fd).check(conn)?;
    if let Some(mut tx) = conn.lock_tx(fd) {
        tx.learned = learned;
    }
    result
}

fn sleep_writable(conn: &'static Conn, fd: i32, seen: Seen, sleeps: &mut Sleeps) -> Result<(), Errno> {
    let deadline = sleeps.deadline(|| time_limit(fd, libc::SO_SNDTIMEO));
    let stalled = ticks() + ticks_of(stall_ns(conn));
    let waiter = Waiter::looking(conn);
    // Of one that an epoll set has, kicks come ([`arm`]), and a bell would be waited for in vain.
    let alone = conn.waiters.load(Ordering::Acquire) == 1
        && conn.epolls.load(Ordering::Acquire) == 0
        && !conn.has(flag::SHARED | flag::NO_BELLS);
    let bell = CallBell::claim_for(conn, alone);
    loop {
        arm(conn, trip::TX, bell.how(conn));
        if Seen::now(conn) != seen {
            return Ok(());
        }
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let now = ticks();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Errno::EAGAIN);
        }
        if now >= stalled {
            drop((waiter, bell));
            if !grown(conn, fd) {
                demote::stalled(conn, fd);
            }
            return Ok(());
        }
        // Kicks, or the end of the connection; without a bell the poll is short, as other bytes may
        // make the companion readable.
        let [own, loud, far] = bell.polled();
        let mut polls = [arrivals(fd), own, loud, far];
        if bell.is_had() {
            polls[0].events = libc::POLLRDHUP;
        }
        let got = sleep(&mut polls, (None, Some(1_000_000)), sleeps)?;
        if got == 0 && overdue::looks() {
            // What woke another one, who was armed beside us, may have disarmed us as well.
            let armed = || conn.mine().word(conn.at(TRIP)) & trip::TX != 0;
            let owed = || (conn.word(R) != seen.back && armed()).then_some(fd);
            overdue::check("send", owed, |nanos| sys::ppoll(&mut polls, Some(nanos)) != Ok(0));
        }
        bell.silence(&polls[1..]);
        if polls[0].revents & ENDS != 0 {
            if kicks::of_peer(conn, fd, polls[0].revents) & ENDS != 0 {
                conn.set(flag::PEER_FIN);
            }
            // Gone, or only half closed: `attend` tells them apart.
            if let Some(mut tx) = conn.lock_tx(fd) {
                if !path::is_ring(conn.tx.path()) {
                    return Ok(());
                }
                tx.looked = 0;
                if demote::attend_writing(conn, fd, &mut tx) {
                    return Ok(());
                }
            }
        }
        if polls[0].revents & libc::POLLIN != 0 {
            kicks::take_after_sleep(conn, fd);
        }
    }
}

/// Where the window is full of little messages there is room in the ring.
fn grown(conn: &'static Conn, fd: i32) -> bool {
    let Some(mut tx) = conn.lock_tx(fd) else { return true };
    let stuck = room::stuck(conn, &tx);
    if stuck && !writer::grow(conn, &mut tx) {
        demote::out_of_rings(conn, fd, &mut tx);
    }
    stuck
}

const RESEND_NS: u64 = 200_000;
/// How often it is looked whether an offer has been answered while the kernel has no room.
const ANSWER_NS: u64 = 50_000_000;

fn kernel_writable(conn: &'static Conn, fd: i32, sleeps: &mut Sleeps) -> Result<(), Errno> {
    let timeout = sleeps.deadline(|| time_limit(fd, libc::SO_SNDTIMEO));
    loop {
        let now = ticks();
        if timeout.is_some_and(|deadline| now >= deadline) {
            return Err(Errno::EAGAIN);
        }
        if peering::facts(conn).uses_records && conn.tx.path() == path::RESEND {
            // It is the peer who is waited for.
            demote::attend(conn, fd);
            if conn.tx.path() == path::RESEND {
                sleep(&mut [], (None, Some(RESEND_NS)), sleeps)?;
            }
            return Ok(());
        }
        let offered = (conn.state() == state::OFFERED).then_some(ANSWER_NS);
        let left = timeout.map(|deadline| nanos_of(deadline - now));
        let mut room = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        let part = [offered, left].into_iter().flatten().min();
        if sleep(&mut room, (left, part), sleeps)? > 0 {
            return Ok(());
        }
        if conn.state() == state::OFFERED {
            rendezvous::answered(conn);
        }
    }
}

/// How long a call waits that has this timeout option, in ticks.
fn time_limit(fd: i32, option: i32) -> Option<u64> {
    let time: libc::timeval = sys::getsockopt(fd, libc::SOL_SOCKET, option).ok()?;
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (nanos != 0).then(|| ticks_of(nanos))
}
