//! Waking the peer, and taking out of the companion what the peer woke us by. A kick is one byte on the companion; both ends count
//! them, so that a reader knows which bytes there are not data.

use fabric::sync::{Ordering, fence};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, bell, hints, trip};
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, Held, Rx, Tx, flag, path};
use crate::layout::{self, FIRED, KICKS, TRIP};
use crate::peering::records;
use crate::steps;
use crate::{descriptors, epoll, io, link, report, signals, wait};

/// After something was published: wakes the peer if it is armed for `interest`. Under the tx lock, so that what goes by tcp
/// after a demotion never mixes with kicks.
#[inline(always)]
pub(crate) fn wake(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, interest: u64) {
    fence(Ordering::SeqCst);
    if conn.theirs().armed(conn.at(TRIP), interest) {
        wake_armed(conn, fd, tx, interest);
    }
}

#[cold]
fn wake_armed(conn: &Conn, fd: i32, tx: &mut Tx, interest: u64) {
    if conn.is_far() {
        // Its carrier does the rest.
        conn.theirs().stimulate(conn.at(TRIP), interest);
        return;
    }
    // Whoever dies behind the mark has fired what was armed then, or nothing yet.
    (tx.fired, tx.fires_with) = (conn.theirs().word(conn.at(TRIP)), tx.fires + 1);
    steps::begin(&mut tx.step, steps::FIRING);
    let fired = conn.theirs().stimulate(conn.at(TRIP), interest);
    if fired != 0 {
        tx.fired = fired;
        wake_as_armed(conn, fd, tx, false);
        carried_out(conn, tx);
    }
    steps::end(&mut tx.step, steps::FIRING);
}

/// Ends what one that is dead had begun: wakes the peer once more, unless that is known to be done. A wake-up for nothing does no harm until
/// the peer has been told of it.
pub(crate) fn ring_again(conn: &Conn, fd: i32, tx: &mut Tx) {
    if tx.fires != tx.fires_with {
        let armed = conn.theirs().stimulate(conn.at(TRIP), trip::RX | trip::TX);
        if armed != 0 {
            tx.fired = armed;
        }
        wake_as_armed(conn, fd, tx, true);
    }
    carried_out(conn, tx);
}

/// Tells the peer that it has been woken as it was armed.
fn carried_out(conn: &Conn, tx: &mut Tx) {
    tx.fires = tx.fires_with;
    conn.put(FIRED, tx.fires);
}

/// As [`wake`], for one that does not hold the tx lock: a reader that made room.
pub(crate) fn fire(conn: &'static Conn, fd: i32, interest: u64) {
    if let Some(mut tx) = conn.lock_tx(fd) {
        wake(conn, fd, &mut tx, interest);
    }
}

/// Wakes the peer in the way in which it was armed, [`Tx::fired`]. `again`: one that is dead may have done a part of that.
fn wake_as_armed(conn: &Conn, fd: i32, tx: &mut Tx, again: bool) {
    report::add(report::at::WAKES, 1);
    let mut how = tx.fired;
    if how & trip::MODE == trip::QUEUE {
        conn.counters.hints.fetch_add(1, Ordering::Relaxed);
        let queue = usize::from(trip::id(how)) % layout::QUEUES;
        let base = layout::HINTS + queue * hints::BYTES;
        conn.put(layout::HINTED, ticks());
        tx.hinted = base;
        how = hints::set(&conn.theirs(), base, conn.slot.load(Ordering::Relaxed) as usize);
        if how == 0 && again {
            // Disarmed, but perhaps not rung. Queues that sleep do so by the bell of their number.
            how = trip::armed(trip::RX, trip::BELL, queue as u8);
        }
        if how == 0 {
            return;
        }
    }
    if how & trip::MODE == trip::BELL
        && let Some(fd) = link::link(conn.link.load(Ordering::Relaxed)).bell(trip::id(how).into())
        && descriptors::intact(fd)
    {
        conn.counters.bells.fetch_add(1, Ordering::Relaxed);
        return bell::ring(fd);
    }
    if how & trip::MODE == trip::BELL
        && link::link(conn.link.load(Ordering::Relaxed)).ring_loud(trip::id(how))
    {
        conn.counters.bells.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if conn.tx.path() == path::TCP {
        io::switch(conn, fd, tx);
    }
    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
        count(conn, tx);
        pay(conn, fd, tx);
    }
}

/// Counts one more kick, for the peer as well.
pub(crate) fn count(conn: &Conn, tx: &mut Tx) {
    conn.counters.kicks.fetch_add(1, Ordering::Relaxed);
    tx.kicks_sent += 1;
    tx.debt += 1;
    tx.echo = 0;
    tell(conn, tx);
}

/// Counts the kicks for the peer: before they are sent.
pub(crate) fn tell(conn: &Conn, tx: &Tx) {
    conn.put(KICKS, tx.kicks_sent);
}

/// Sends the kicks that have been counted but not sent, because the companion was full (its reader is awake then anyway). They
/// come before anything else that goes by tcp. False if it still is.
pub(crate) fn pay(conn: &Conn, fd: i32, tx: &mut Tx) -> bool {
    if tx.debt > 0
        && let Some(wire) = conn.wire()
        && !wire.has_settled(&mut tx.echo)
        && !wire.is_over()
    {
        // The peer must know of them before.
        return false;
    }
    send_owed(fd, tx)
}

/// As [`pay`], once the peer knows of them.
pub(crate) fn send_owed(fd: i32, tx: &mut Tx) -> bool {
    let _undisturbed = (tx.debt > 0).then(signals::undisturbed);
    while tx.debt > 0 {
        steps::begin(&mut tx.step, steps::PAYING);
        let zeros = [0; 64];
        let len = (tx.debt as usize).min(zeros.len());
        match sys::send(fd, zeros.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => tx.debt -= sent as u64,
            Err(Errno::EAGAIN | Errno::EINTR) => {
                steps::end(&mut tx.step, steps::PAYING);
                return false;
            }
            // The connection is at an end.
            Err(_) => tx.debt = 0,
        }
        steps::end(&mut tx.step, steps::PAYING);
    }
    true
}

/// What the kernel says of a connection whose peer writes to the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Nothing,
    Data,
    End,
}

/// Whether the kernel tells of the end of what the peer sends, or of the connection.
pub(crate) fn ended(conn: &Conn, fd: i32) -> bool {
    let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 {
        conn.set(flag::PEER_FIN);
    }
    conn.has(flag::PEER_FIN | flag::PEER_HUP)
}

/// Asks the kernel, taking kicks out of the companion.
pub(crate) fn look(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, by: By) -> Look {
    let mut poll = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
    if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) == 0 {
        return Look::Nothing;
    }
    let told = poll[0].revents;
    if told & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
        conn.set(flag::PEER_HUP);
    }
    if told & libc::POLLRDHUP != 0 {
        conn.set(flag::PEER_FIN);
    }
    let waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64;
    let owed = owed(conn, rx).min(waiting);
    if told & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL) != 0 {
        // That keeps awake whoever sleeps, and what is behind the kicks may be wanted now.
        drain(conn, fd, rx, owed, by);
        if conn.is_far() {
            while records::hear(conn, fd, rx) == records::Next::Record {}
        }
        return Look::End;
    }
    let free = take(conn, fd, rx, owed, by);
    if conn.is_far() && waiting > 0 {
        // What is neither a kick nor a record is one that has not been told yet.
        return match records::hear(conn, fd, rx) {
            records::Next::Record => Look::Data,
            _ => Look::Nothing,
        };
    }
    if !free || waiting <= owed {
        return Look::Nothing;
    }
    Look::Data
}

/// Who takes a kick.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A call.
    Call,
    /// An epoll set, which looks at the connection next.
    Set,
}

/// Takes kicks out of the companion, at most `most`, unless others are asleep who are to wake by them: these would find nothing, and
/// sleep on. One is left then, which is enough, and the last one awake takes it. False if it was left.
pub(crate) fn take(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, most: u64, by: By) -> bool {
    // Before it is asked who sleeps: by a kick that is counted later one may wake who falls asleep only then.
    let owed = owed(conn, rx).min(most);
    if owed == 0 {
        // What was left has been drained since, whoever slept.
        rx.left = 0;
        if conn.has(flag::LEFT) {
            conn.clear(flag::LEFT);
        }
        return true;
    }
    // And this before, too: whoever wakes up meanwhile finds it.
    conn.set(flag::LEFT);
    fence(Ordering::SeqCst);
    if conn.sleepers.load(Ordering::SeqCst) > 0 {
        let arrived = owed.min(sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64);
        if rx.left == 0 && arrived > 0 {
            rx.left = ticks();
        }
        if rx.left != 0 && ticks().wrapping_sub(rx.left) > ticks_of(GONE_NS) {
            wait::forget_gone(conn, rx.left);
        }
        if conn.sleepers.load(Ordering::SeqCst) > 0 {
            if arrived > 1 {
                drain(conn, fd, rx, arrived - 1, by);
            }
            return false;
        }
    }
    conn.clear(flag::LEFT);
    rx.left = 0;
    drain(conn, fd, rx, owed, by);
    true
}

/// As [`take`], of a connection that is read from a ring, by one that slept on it. If others have not woken up yet it lets them.
pub(crate) fn take_after_sleep(conn: &Conn, fd: i32) {
    let age = {
        let Some(mut rx) = conn.lock_rx(fd) else { return };
        if !matches!(conn.rx.path(), path::SMALL | path::BIG) {
            return;
        }
        if conn.is_far() {
            // It may have been woken by a record.
            look(conn, fd, &mut rx, By::Call);
        }
        if take(conn, fd, &mut rx, u64::MAX, By::Call) {
            return;
        }
        if rx.left == 0 { 0 } else { ticks().wrapping_sub(rx.left) }
    };
    if age > ticks_of(GONE_NS) {
        let _ = sys::ppoll(&mut [], Some(NAP_NS));
    } else {
        sys::yield_now();
    }
}

/// After so long it is asked whether those that sleep beside a kick are still there.
const GONE_NS: u64 = 10_000_000;
/// How long one that is awake waits for those that do not wake up.
const NAP_NS: u64 = 1_000_000;

/// How many kicks the peer has counted that we have not taken; none if it does not keep to the protocol.
pub(crate) fn owed(conn: &Conn, rx: &Rx) -> u64 {
    let owed = conn.word(KICKS).wrapping_sub(rx.kicks_drained);
    if owed > 1 << 20 { 0 } else { owed }
}

/// Takes kicks out of the companion, as many as have arrived and at most `most`, whoever is asleep. Other epoll sets that the
/// connection is a member of get an edge in the place of the one that finds nothing now.
pub(crate) fn drain(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, most: u64, by: By) {
    let _undisturbed = (owed(conn, rx) > 0).then(signals::undisturbed);
    let before = rx.kicks_drained;
    let last = before.saturating_add(most);
    loop {
        let mut count = owed(conn, rx).min(last - rx.kicks_drained).min(256) as usize;
        let mut bytes = [0; 256];
        if conn.is_far() {
            // One that was counted may never come, but a record in its place.
            let next = sys::recv_some(fd, &mut bytes[..count], libc::MSG_PEEK | libc::MSG_DONTWAIT);
            if let Err(errno) = next {
                rx.keep_error(errno);
            }
            count = bytes[..next.unwrap_or(0)].iter().take_while(|&&byte| byte == 0).count();
        }
        if count == 0 {
            break;
        }
        steps::begin(&mut rx.step, steps::READING);
        let taken = sys::recv(fd, bytes.as_mut_ptr(), count, libc::MSG_DONTWAIT);
        rx.kicks_drained += taken.unwrap_or(0) as u64;
        steps::end(&mut rx.step, steps::READING);
        match taken {
            Ok(1..) => {}
            Err(errno) => {
                rx.keep_error(errno);
                break;
            }
            Ok(_) => break,
        }
    }
    if rx.left != 0 && owed(conn, rx) == 0 {
        rx.left = 0;
        conn.clear(flag::LEFT);
    }
    if rx.kicks_drained != before && conn.epolls.load(Ordering::Acquire) > u32::from(by == By::Set) {
        epoll::another_edge(conn);
    }
}
