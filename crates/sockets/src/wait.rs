//! Waiting for one connection, in a call that blocks: spin, arm the tripwire, look again, sleep in the kernel on the companion.
//!
//! A reader sleeps in recv(MSG_PEEK) on the companion: the kernel then does for us what it does for tcp, be it SO_RCVTIMEO, EINTR and
//! SA_RESTART, or cancellation. A writer sleeps in poll.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Local, bell, trip};
use stream::spin::{NO_CPU, Spun, cpu, is_realtime, nanos_of, ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::layout::{self, CALL_BELL, R, SMALL_AT, TCP_AT, TRIP};
use crate::path::room;
use crate::path::room::stall_ns;
use crate::path::writer;
use crate::reason::Reason;
use crate::wake::arm::{Seen, arm, meet};
use crate::wake::sleepers::Waiter;

use crate::{bells, demote, idle, kicks, overdue, process, real, rendezvous, signals, table};

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

/// Waits until a write may find room.
#[cold]
pub fn writable(conn: &'static Conn, fd: i32) -> Result<(), Errno> {
    demote::attend(conn, fd);
    let (seen, mut learned) = {
        let Some(mut tx) = conn.lock_tx(fd) else { return Err(Errno::EINTR) };
        let seen = Seen::now(conn);
        match conn.tx.path() {
            path::SMALL | path::BIG => {
                if room::room_for(conn, fd, &mut tx, 1) != Ok(0) {
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
                if demote::attend_writing(conn, fd, &mut tx) {
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
    let stuck = room::stuck(conn, &tx);
    if stuck && !writer::grow(conn, &mut tx) {
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

/// When a call with this timeout option gives up, in ticks.
pub(crate) fn deadline(fd: i32, option: i32) -> Option<u64> {
    let time: libc::timeval = sys::getsockopt(fd, libc::SOL_SOCKET, option).ok()?;
    let nanos = time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (nanos != 0).then(|| ticks() + ticks_of(nanos))
}
