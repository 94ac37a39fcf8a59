//! Waiting for one connection, in a call that blocks: spin, arm the tripwire, look again, sleep in the kernel on the companion.
//!
//! A reader sleeps in recv(MSG_PEEK) on the companion: the kernel then does for us what it does for tcp, be it SO_RCVTIMEO, EINTR and
//! SA_RESTART, or cancellation. A writer sleeps in poll.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, bell, trip};
use stream::spin::{NO_CPU, Spun, cpu, is_realtime, nanos_of, ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::layout::{self, BIG_AT, CALL_BELL, CPU, FIRED, NOTES, R, SLOTS, SMALL_AT, STATE, TCP_AT, TRIP, W};
use crate::reason::Reason;
use crate::{
    bells, demote, idle, io, kicks, link, overdue, process, real, rendezvous, signals, table, thread,
};

/// What a waiter looks at: any change of it is a reason to try again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    front: u64,
    back: u64,
    notes: u64,
    paths: u64,
}

impl Seen {
    /// One word that changes when any of it does (but for a coincidence, which costs one spin).
    #[inline(always)]
    pub(crate) fn sum(self) -> u64 {
        self.front ^ self.back.rotate_left(21) ^ self.notes.rotate_left(43) ^ self.paths.rotate_left(11)
    }

    /// What the peer has put, now.
    #[inline(always)]
    pub(crate) fn now(conn: &Conn) -> Seen {
        Seen { back: conn.word(R), ..Seen::to_read(conn) }
    }

    /// As far as it matters to who reads. How far the peer has read is in a line of its own, which stays with the peer as long as nobody looks.
    #[inline(always)]
    fn to_read(conn: &Conn) -> Seen {
        let paths =
            conn.word(SMALL_AT) ^ conn.word(BIG_AT).rotate_left(20) ^ conn.word(TCP_AT).rotate_left(40);
        Seen { front: conn.word(W), back: 0, notes: conn.word(NOTES), paths: paths ^ conn.word(STATE) << 60 }
    }
}

/// Counts a waiter from before it arms until it is awake, and notes which thread it is.
pub(crate) struct Waiter {
    conn: &'static Conn,
    place: i32,
}

impl Waiter {
    /// One that sleeps until it is woken, if need be by a kick.
    pub(crate) fn new(conn: &'static Conn) -> Waiter {
        conn.waiters.fetch_add(1, Ordering::SeqCst);
        conn.sleepers.fetch_add(1, Ordering::SeqCst);
        let me = sleeper(thread::tid(), ticks());
        let free =
            |place: &AtomicU64| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let place = conn.asleep.iter().position(free);
        Waiter { conn, place: place.map_or(NO_PLACE, |place| place as i32) }
    }

    /// One that looks by itself now and then.
    fn looking(conn: &'static Conn) -> Waiter {
        conn.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter { conn, place: LOOKING }
    }

    /// For those who keep many: what [`Waiter::again`] makes it of.
    pub(crate) fn keep(self) -> i32 {
        core::mem::ManuallyDrop::new(self).place
    }

    pub(crate) fn again(conn: &'static Conn, place: i32) -> Waiter {
        Waiter { conn, place }
    }
}

impl Waiter {
    /// Counts it no longer; whether the last number of the connection was closed while it slept.
    fn wake(self) -> bool {
        core::mem::ManuallyDrop::new(self).leave()
    }

    fn leave(&self) -> bool {
        match self.place {
            LOOKING => less(&self.conn.waiters, 1),
            NO_PLACE => awake(self.conn, 1),
            // One that was taken for gone is not counted any more.
            place => loop {
                let who = self.conn.asleep[place as usize].load(Ordering::Acquire);
                if thread_of(who) != thread::tid() {
                    break;
                }
                if vacate(self.conn, place as usize, who) {
                    return who & ORPHAN != 0;
                }
            },
        }
        false
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The last number of the connection, `fd`, is about to be closed: marks the readers that sleep on it, who keep it. How many there are.
pub(crate) fn orphan(conn: &Conn, fd: i32) -> u32 {
    let mut marked = 0;
    for place in &conn.asleep {
        let who = place.load(Ordering::Acquire);
        let tid = thread_of(who);
        // Of those that were killed, or jumped out of their sleep, the kernel knows no such call.
        if tid == 0 || tid == thread::tid() {
            continue;
        }
        if !(sys::sleeps_in_recv(tid, fd) || conn.is_far() && sys::sleeps_in_poll(tid)) {
            continue;
        }
        conn.orphans.fetch_add(1, Ordering::AcqRel);
        if place.compare_exchange(who, who | ORPHAN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            marked += 1;
        } else {
            conn.orphans.fetch_sub(1, Ordering::AcqRel);
        }
    }
    marked
}

/// A bit of a sleeper's word beside its thread's id, which is smaller: its number was closed.
const ORPHAN: u64 = 1 << 31;

fn thread_of(who: u64) -> u32 {
    who as u32 & !(ORPHAN as u32)
}

const NO_PLACE: i32 = -1;
const LOOKING: i32 = -2;

/// Counts down, but never below nothing: of those without a place some may have been taken for gone.
fn less(count: &AtomicU32, by: u32) {
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| Some(count.saturating_sub(by)));
}

fn awake(conn: &Conn, count: u32) {
    less(&conn.sleepers, count);
    less(&conn.waiters, count);
}

fn vacate(conn: &Conn, place: usize, who: u64) -> bool {
    let vacated = conn.asleep[place].compare_exchange(who, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if vacated {
        awake(conn, 1);
    }
    vacated
}

/// A sleeper: its thread, and since when in its upper half.
fn sleeper(tid: u32, since: u64) -> u64 {
    u64::from(tid) | (since >> SINCE) << 32
}

/// The unit of [`sleeper`]'s time is so many bits of ticks: a millisecond or two.
const SINCE: u32 = 22;

/// Counts no longer those that were killed in their sleep or jumped out of it, as this thread has, which is awake, if it is found among
/// them. Since `left` there has always been a kick in the companion, so that nobody can be asleep there who was before, only such as
/// have had no processor since.
#[cold]
pub(crate) fn forget_gone(conn: &Conn, left: u64) {
    let (now, long) = ((ticks() >> SINCE) as u32, (ticks_of(WOKEN_NS) >> SINCE) as i32);
    // Signed: it may be later than `now`.
    let long_ago = |since: u32| now.wrapping_sub(since) as i32 > long;
    let woken = long_ago((left >> SINCE) as u32);
    let mut asleep = false;
    for (place, who) in conn.asleep.iter().enumerate() {
        let who = who.load(Ordering::Acquire);
        let (tid, since) = (thread_of(who), (who >> 32) as u32);
        if tid == 0 || who & ORPHAN != 0 {
            asleep |= tid != 0;
            continue;
        }
        if woken && long_ago(since) || tid == thread::tid() || !fabric::sync::thread_lives(tid) {
            vacate(conn, place, who);
        } else {
            asleep = true;
        }
    }
    if woken && !asleep {
        // Of those for whom there was no place it is not known since when.
        awake(conn, conn.sleepers.load(Ordering::Acquire));
    }
}

/// After so long whoever was asleep before a kick came has woken by it.
const WOKEN_NS: u64 = 1_000_000_000;

/// Waits until a read may find something. Errors are what the call is to return. `orphan`: whether the number that the call was made with
/// was closed while it slept, so that [`Conn::descriptor`] is the one to go on with.
#[cold]
pub fn readable(conn: &'static Conn, fd: i32, orphan: &mut bool) -> Result<(), Errno> {
    beyond(conn, fd, 0, orphan)
}

/// Likewise, until a look may find more than the `had` bytes that the last one has seen; until `deadline`, of SO_RCVTIMEO, at most.
#[cold]
pub fn more(
    conn: &'static Conn,
    fd: i32,
    had: usize,
    deadline: Option<u64>,
    orphan: &mut bool,
) -> Result<(), Errno> {
    if deadline.is_some_and(|deadline| ticks() >= deadline) {
        return Err(Errno::EAGAIN);
    }
    if matches!(conn.rx.path(), path::SMALL | path::BIG) && conn.word(TCP_AT) == 0 {
        return beyond(conn, fd, had as u64, orphan);
    }
    // Some of it came, or comes, by tcp: the kernel wakes nobody who has seen bytes and wants more.
    nap(conn, fd, deadline.is_some(), orphan)
}

/// Sleeps for a moment where nothing tells of what is waited for; `limited`: by a time of the program's, so that no signal's call is restarted.
fn nap(conn: &'static Conn, fd: i32, limited: bool, orphan: &bool) -> Result<(), Errno> {
    let nap = sys::timespec(NAP_NS);
    // SAFETY: no array, and a valid timeout.
    let got = unsafe { real::ppoll()(core::ptr::null_mut(), 0, &nap, core::ptr::null()) };
    if got < 0 && real::errno() == libc::EINTR && (limited || !signals::restarts()) {
        return Err(Errno::EINTR);
    }
    if *orphan || is_still(conn, fd) { Ok(()) } else { Err(Errno::EBADF) }
}

/// Whether the number has not been closed meanwhile.
fn is_still(conn: &'static Conn, fd: i32) -> bool {
    core::ptr::eq(table::conn(fd).map_or(core::ptr::null(), core::ptr::from_ref), conn)
}

const NAP_NS: u64 = 500_000;

fn beyond(conn: &'static Conn, fd: i32, had: u64, orphan: &mut bool) -> Result<(), Errno> {
    let (seen, ahead, mut learned) = {
        let Some(rx) = conn.lock_rx(fd) else { return Err(Errno::EINTR) };
        let seen = Seen::to_read(conn);
        let ring = matches!(conn.rx.path(), path::SMALL | path::BIG);
        if ring && conn.has(flag::RECALLED) && conn.word(TCP_AT) == 0 && seen.front != rx.ring.position() {
            // It has been recalled, and may be on its way by tcp; its writer may be stopped.
            drop(rx);
            return nap(conn, fd, false, orphan);
        }
        if ring
            && (seen.front != rx.ring.position() + had
                || conn.word(TCP_AT) == rx.ring.position() + 1
                    && conn.word(layout::KICKS) == rx.kicks_drained)
        {
            return Ok(());
        }
        if conn.rx.path() == path::TCP && conn.word(SMALL_AT) != 0 && rx.tcp_left.is_none() {
            return Ok(());
        }
        (seen, ring.then(|| rx.ring.ahead()), rx.learned)
    };
    let limit = process::spin_ticks();
    let peer = meet(conn);
    if ahead.is_some() && gains_nothing(conn, peer) {
        demote::now(conn, fd, Reason::OneProcessor);
        return Ok(());
    }
    let spun = learned.spin(limit, peer, || {
        // The bytes come together with the word that tells of them.
        ahead.iter().flatten().for_each(|&place| conn.mine().foresee(place));
        Seen::to_read(conn) != seen
    });
    let before = ticks();
    let result = if spun == Spun::Won { Ok(()) } else { sleep_readable(conn, fd, seen, orphan) };
    match spun {
        Spun::Won => conn.counters.spins_won.fetch_add(1, Ordering::Relaxed),
        Spun::Lost => conn.counters.spins_lost.fetch_add(1, Ordering::Relaxed),
        Spun::None => 0,
    };
    if spun != Spun::Won {
        learned.slept(ticks() - before, limit);
    }
    if !*orphan && !is_still(conn, fd) {
        return Err(Errno::EBADF);
    }
    if let Some(mut rx) = conn.lock_rx(if *orphan { conn.descriptor() } else { fd }) {
        rx.learned = learned;
    }
    result
}

/// Whether tcp would do as well: a real-time reader does not spin, and if its peer waits on the same processor each message costs a kick to send, to look at, and
/// to take, which is one call more than by tcp.
fn gains_nothing(conn: &Conn, peer: u64) -> bool {
    // First what most have not: to ask for the processor takes as long as a message.
    let sleeps = conn.counters.sleeps.load(Ordering::Relaxed);
    sleeps > SLEEPS_MOST
        && conn.counters.ring_in.load(Ordering::Relaxed) < sleeps * GAINS_BYTES
        && peer != NO_CPU
        && peer == cpu()
        && is_realtime(ticks())
        && !conn.has(flag::DEMOTING)
}

/// So many sleeps are enough to tell; and with so many bytes for each, memory is better even so.
const SLEEPS_MOST: u64 = 500;
const GAINS_BYTES: u64 = 4096;

fn sleep_readable(conn: &'static Conn, fd: i32, seen: Seen, orphan: &mut bool) -> Result<(), Errno> {
    if conn.is_far()
        && let Some(result) = sleep_by_bell(conn, fd, seen, orphan)
    {
        return result;
    }
    let waiter = Waiter::new(conn);
    arm(conn, trip::RX, trip::KICK, 0);
    if Seen::to_read(conn) != seen {
        // Left armed, which costs one wake-up for nothing: to take it back could undo what another thread has just armed.
        drop(waiter);
        if conn.has(flag::LEFT) {
            kicks::take_after_sleep(conn, fd);
        }
        return Ok(());
    }
    conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
    idle::look_if_due();
    let mut byte = 0;
    // SAFETY: the buffer is valid for the one byte asked for.
    let got = unsafe { real::recv()(fd, &raw mut byte, 1, libc::MSG_PEEK) };
    let errno = Errno::new(real::errno());
    *orphan |= waiter.wake();
    let fd = if *orphan { conn.descriptor() } else { fd };
    if got > 0 || conn.has(flag::LEFT) {
        kicks::take_after_sleep(conn, fd);
    }
    if got > 0 {
        return Ok(());
    }
    if got == 0 {
        conn.set(flag::PEER_FIN);
        return Ok(());
    }
    match errno {
        errno @ (Errno::EINTR | Errno::EAGAIN | Errno::EBADF) => Err(errno),
        errno => {
            // The kernel tells an error once: keep it until what is in the ring has been read.
            conn.set(flag::PEER_HUP);
            if let Some(mut rx) = conn.lock_rx(fd) {
                rx.error = errno.into_raw();
            }
            Ok(())
        }
    }
}

/// Sleeps as readers of connections between hosts do, where a kick takes a way round: until our own carrier rings. `None` if the bell is taken,
/// or others sleep on the connection.
fn sleep_by_bell(conn: &'static Conn, fd: i32, seen: Seen, orphan: &mut bool) -> Option<Result<(), Errno>> {
    if conn.waiters.load(Ordering::Acquire) != 0 || conn.has(flag::SHARED) {
        return None;
    }
    let deadline = deadline(fd, libc::SO_RCVTIMEO);
    let bell = bells::claim_bell()?;
    let waiter = Waiter::new(conn);
    let (mut result, mut companion) = (Ok(()), 0);
    loop {
        arm(conn, trip::RX, trip::BELL, CALL_BELL as u8);
        if Seen::to_read(conn) != seen {
            break;
        }
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let left = deadline.map(|deadline| deadline.saturating_sub(ticks()));
        if left == Some(0) {
            result = Err(Errno::EAGAIN);
            break;
        }
        let (left, looks) = overdue::limit(left.map(nanos_of));
        let timeout = left.map(sys::timespec);
        let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        let mut polls = [
            libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 },
            libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 },
        ];
        // SAFETY: the array and the timeout are valid.
        let got = unsafe { real::ppoll()(polls.as_mut_ptr(), 2, timeout, core::ptr::null()) };
        // As in the kernel, where a call with a limit of time is never restarted.
        if got < 0 && real::errno() == libc::EINTR && (deadline.is_some() || !signals::restarts()) {
            result = Err(Errno::EINTR);
            break;
        }
        if looks && got == 0 {
            let owed = || (Seen::to_read(conn) != seen).then_some(fd);
            overdue::check("recv", owed, |nanos| sys::ppoll(&mut polls, Some(nanos)) != Ok(0));
        }
        if polls[1].revents != 0 {
            bell::silence(bell);
        }
        if got > 0 {
            companion = polls[0].revents;
            break;
        }
    }
    *orphan |= waiter.wake();
    bells::release_bell();
    if companion & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0 {
        conn.set(flag::PEER_FIN);
    }
    if companion & libc::POLLIN != 0 {
        kicks::take_after_sleep(conn, if *orphan { conn.descriptor() } else { fd });
    }
    Some(result)
}

/// How long a blocked writer waits for a reader that does not read before it goes on by tcp, whose buffers are larger: two
/// programs that write to each other first and read later must not stop where tcp would not.
pub(crate) const STALL_NS: u64 = 20_000_000;

/// The same for a window of messages, which may be full after few bytes: so that a reader which has had no processor for a moment is not taken for one that does not read.
const WINDOW_STALL_NS: u64 = 200_000_000;

/// Which of them holds for a connection.
pub(crate) fn stall_ns(conn: &Conn) -> u64 {
    if conn.is_via() && conn.tx.path() == path::SMALL { WINDOW_STALL_NS } else { STALL_NS }
}

/// Waits until a write may find room.
#[cold]
pub fn writable(conn: &'static Conn, fd: i32) -> Result<(), Errno> {
    demote::attend(conn, fd);
    let (seen, mut learned) = {
        let Some(mut tx) = conn.lock_tx(fd) else { return Err(Errno::EINTR) };
        let seen = Seen::now(conn);
        match conn.tx.path() {
            path::SMALL | path::BIG => {
                if io::room_for(conn, fd, &mut tx, 1) != Ok(0) {
                    return Ok(());
                }
            }
            _ => {
                drop(tx);
                return kernel_writable(conn, fd);
            }
        }
        (seen, tx.learned)
    };
    let limit = process::spin_ticks();
    let spun = learned.spin(limit, meet(conn), || Seen::now(conn) != seen);
    let result = if spun == Spun::Won {
        Ok(())
    } else {
        let before = ticks();
        let result = sleep_writable(conn, fd, seen);
        learned.slept(ticks() - before, limit);
        result
    };
    if !is_still(conn, fd) {
        return Err(Errno::EBADF);
    }
    if let Some(mut tx) = conn.lock_tx(fd) {
        tx.learned = learned;
    }
    result
}

fn sleep_writable(conn: &'static Conn, fd: i32, seen: Seen) -> Result<(), Errno> {
    let deadline = deadline(fd, libc::SO_SNDTIMEO);
    let stalled = ticks() + ticks_of(stall_ns(conn));
    let waiter = Waiter::looking(conn);
    // Of one that an epoll set has, kicks come ([`arm`]), and a bell would be waited for in vain.
    let alone = conn.waiters.load(Ordering::Acquire) == 1
        && conn.epolls.load(Ordering::Acquire) == 0
        && !conn.has(flag::SHARED | flag::NO_BELLS);
    let bell = if alone { bells::claim_bell() } else { None };
    let (mode, id) = if bell.is_some() { (trip::BELL, CALL_BELL as u8) } else { (trip::KICK, 0) };
    let mut result = Ok(());
    loop {
        arm(conn, trip::TX, mode, id);
        if Seen::now(conn) != seen {
            break;
        }
        conn.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        let now = ticks();
        if deadline.is_some_and(|deadline| now >= deadline) {
            result = Err(Errno::EAGAIN);
            break;
        }
        if now >= stalled {
            drop(waiter);
            if bell.is_some() {
                bells::release_bell();
            }
            if !grown(conn, fd) {
                demote::stalled(conn, fd);
            }
            return Ok(());
        }
        // Kicks, or the end of the connection; without a bell the poll is short, as other bytes may make the companion readable.
        let events = if bell.is_some() { libc::POLLRDHUP } else { libc::POLLIN | libc::POLLRDHUP };
        let mut polls = [
            libc::pollfd { fd, events, revents: 0 },
            libc::pollfd { fd: bell.unwrap_or(-1), events: libc::POLLIN, revents: 0 },
        ];
        let timeout = sys::timespec(1_000_000);
        // SAFETY: the array and the timeout are valid.
        let got = unsafe { real::ppoll()(polls.as_mut_ptr(), 2, &timeout, core::ptr::null()) };
        if got < 0 && real::errno() == libc::EINTR && !signals::restarts() {
            result = Err(Errno::EINTR);
            break;
        }
        if got == 0 && overdue::looks() {
            // What woke another one, who was armed beside us, may have disarmed us as well.
            let armed = || conn.mine().word(conn.at(TRIP)) & trip::TX != 0;
            let owed = || (conn.word(R) != seen.back && armed()).then_some(fd);
            overdue::check("send", owed, |nanos| sys::ppoll(&mut polls, Some(nanos)) != Ok(0));
        }
        if let Some(bell) = bell
            && polls[1].revents != 0
        {
            bell::silence(bell);
        }
        if polls[0].revents & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP) != 0 {
            conn.set(flag::PEER_FIN);
            // Gone, or only half closed: `attend` tells them apart.
            if let Some(mut tx) = conn.lock_tx(fd)
                && matches!(conn.tx.path(), path::SMALL | path::BIG)
            {
                tx.looked = 0;
                if io::attend(conn, fd, &mut tx) {
                    break;
                }
            }
        }
        if polls[0].revents & libc::POLLIN != 0 {
            kicks::take_after_sleep(conn, fd);
        }
    }
    if bell.is_some() {
        bells::release_bell();
    }
    result
}

/// Where the window is full of little messages there is room in the ring.
fn grown(conn: &'static Conn, fd: i32) -> bool {
    let Some(mut tx) = conn.lock_tx(fd) else { return true };
    let stuck = io::stuck(conn, &tx);
    if stuck && !io::grow(conn, &mut tx) {
        demote::out_of_rings(conn, fd, &mut tx);
    }
    stuck
}

const RESEND_NS: u64 = 200_000;
/// How often it is looked whether an offer has been answered while the kernel has no room.
const ANSWER_NS: u64 = 50_000_000;

fn kernel_writable(conn: &'static Conn, fd: i32) -> Result<(), Errno> {
    let timeout = deadline(fd, libc::SO_SNDTIMEO);
    loop {
        let now = ticks();
        if timeout.is_some_and(|deadline| now >= deadline) {
            return Err(Errno::EAGAIN);
        }
        if conn.is_far() && conn.tx.path() == path::RESEND {
            // It is the peer who is waited for.
            demote::attend(conn, fd);
            if conn.tx.path() == path::RESEND {
                let _ = sys::ppoll(&mut [], Some(RESEND_NS));
            }
            return Ok(());
        }
        let mut poll = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
        // In one sleep if that can be: a signal that comes between two would not end the call, and an alarm comes once.
        let offered = (conn.state() == state::OFFERED).then_some(ANSWER_NS);
        let left = timeout.map(|deadline| nanos_of(deadline - now));
        let step = [offered, left].into_iter().flatten().min().map(sys::timespec);
        let step = step.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: the array and the timeout are valid.
        let got = unsafe { real::ppoll()(poll.as_mut_ptr(), 1, step, core::ptr::null()) };
        if got > 0 {
            return Ok(());
        }
        if got < 0 && real::errno() == libc::EINTR && !signals::restarts() {
            return Err(Errno::EINTR);
        }
        if conn.state() == state::OFFERED {
            rendezvous::answered(conn);
        }
    }
}

/// Whether the peer cannot ring as that asks.
fn unheard(conn: &Conn, mode: u64) -> bool {
    conn.has(flag::NO_BELLS) && !(mode == trip::QUEUE && conn.has(flag::LOUD))
}

/// Arms for one interest, keeping what another waiter is armed for.
pub(crate) fn arm(conn: &Conn, interest: u64, mode: u64, id: u8) {
    let others = conn.waiters.load(Ordering::Acquire) > 1;
    // Kicks wake everybody, epoll sets that it is in included; a bell or a queue only its owner.
    let member = mode != trip::QUEUE && conn.epolls.load(Ordering::Acquire) != 0;
    let kick = mode == trip::KICK || others || member || conn.has(flag::SHARED) || unheard(conn, mode);
    let was = trip::arm(&conn.mine(), conn.at(TRIP), |other| {
        let interest = interest | other & INTEREST;
        if kick || other & trip::MODE == trip::KICK {
            trip::armed(interest, trip::KICK, 0)
        } else {
            trip::armed(interest, mode, id)
        }
    });
    if was & INTEREST == 0 {
        conn.arms.fetch_add(1, Ordering::AcqRel);
    }
}

const INTEREST: u64 = trip::RX | trip::TX;

/// Disarms, whoever else may be armed: when nobody is to wait any more.
pub(crate) fn disarm_for_all(conn: &Conn) {
    if trip::disarm(&conn.mine(), conn.at(TRIP)) & INTEREST != 0 {
        conn.arms.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the peer has carried out all that it fired, so that, disarmed, no kick is on the way that it has not counted.
pub(crate) fn quiet(conn: &Conn) -> bool {
    conn.word(FIRED) == conn.arms.load(Ordering::Acquire)
}

/// Whether the peer has carried out all that it fired, armed or not. Of a connection that may be changing its slot just now, or have
/// been closed: so the words are read where its link has them, which stays mapped for the look.
pub(crate) fn woken(_scan: &link::Scan, conn: &Conn) -> bool {
    if !conn.slot_taken() || !matches!(conn.state(), state::OFFERED | state::PROMOTED) {
        return true;
    }
    let mine = link::link(conn.link.load(Ordering::Relaxed)).mine();
    let slot = conn.slot.load(Ordering::Relaxed) as usize;
    if slot >= SLOTS || mine.len() == 0 {
        return true;
    }
    let at = layout::slot(slot);
    let armed = mine.word(at + TRIP) & INTEREST != 0;
    mine.word(at + FIRED).wrapping_add(u64::from(armed)) >= conn.arms.load(Ordering::Acquire)
}

/// Tells the peer on which processor we wait, and says on which it waited.
pub(crate) fn meet(conn: &Conn) -> u64 {
    meet_at(conn, cpu())
}

/// As [`meet`], of one who knows on which processor that is: to ask takes as long as to look at the peer's word.
pub(crate) fn meet_at(conn: &Conn, here: u64) -> u64 {
    tell_cpu(conn, here + 1);
    peer_cpu(conn)
}

/// On which processor the peer last began to wait.
pub(crate) fn peer_cpu(conn: &Conn) -> u64 {
    if conn.is_far() { NO_CPU } else { conn.word(CPU).checked_sub(1).unwrap_or(NO_CPU) }
}

/// Tells the peer on which processor we wait, plus one.
pub(crate) fn tell_cpu(conn: &Conn, cpu: u64) {
    if !conn.is_far() {
        conn.theirs().put_word(conn.at(CPU), cpu);
    }
}

/// When a call with this timeout option gives up, in ticks.
pub(crate) fn deadline(fd: i32, option: i32) -> Option<u64> {
    let time: libc::timeval = sys::getsockopt(fd, libc::SOL_SOCKET, option).ok()?;
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (nanos != 0).then(|| ticks() + ticks_of(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fell_asleep_since_a_kick_was_left_is_not_taken_for_gone() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(thread::tid()).unwrap();
            let _ = stopped.recv();
        });
        let tid = told.recv().unwrap();
        let long_ago = ticks() - 2 * ticks_of(WOKEN_NS);
        for (place, since) in [(0, long_ago), (1, ticks() + (1 << SINCE))] {
            conn.asleep[place].store(sleeper(tid, since), Ordering::Relaxed);
        }
        conn.sleepers.store(2, Ordering::Relaxed);
        conn.waiters.store(2, Ordering::Relaxed);
        forget_gone(conn, ticks());
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 2, "the kick has only just been left");
        forget_gone(conn, long_ago);
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 1, "the one who was asleep before has woken by it");
        drop(stop);
        other.join().unwrap();
        // It is joined a moment before the kernel has it no more.
        while fabric::sync::thread_lives(tid) {
            sys::yield_now();
        }
        forget_gone(conn, ticks());
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 0, "nobody is left");
    }
}
