//! Waking the peer, and taking out of the companion what the peer woke us by. A kick is one byte on
//! the companion; both ends count them, so that a reader knows which bytes there are not data.

use fabric::sync::{Ordering, fence};
use fabric::sys;
use host::diag;
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, Held, Rx, flag, path};
use crate::layout::KICKS;
use crate::path::{reading, steps};
use crate::peering::{self, Next};
use crate::wake::{call_bell, fire, sleepers, word};
use crate::{epoll, signals};

/// As [`fire::wake`], for one that does not hold the tx lock: a reader that made room.
pub(crate) fn fire(conn: &'static Conn, fd: i32, interest: u64) {
    if let Some(mut tx) = conn.lock_tx(fd) {
        fire::wake(conn, fd, &mut tx, interest);
    }
}

/// What the kernel says of a connection whose peer writes to the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Nothing,
    Data,
    End,
}

/// Whether this end has shut the connection for reading, and the peer may still send: the kernel
/// says that nothing more comes, also where it does.
pub(crate) fn shut_here(conn: &Conn, fd: i32) -> bool {
    conn.has(flag::SHUT_RD) && diag::may_send(fd)
}

/// What the kernel has `told` of the connection, without what this end has done itself.
pub(crate) fn of_peer(conn: &Conn, fd: i32, told: i16) -> i16 {
    if told & libc::POLLRDHUP != 0 && shut_here(conn, fd) { told & !libc::POLLRDHUP } else { told }
}

/// Whether the kernel tells of the end of what the peer sends, or of the connection.
pub(crate) fn ended(conn: &Conn, fd: i32) -> bool {
    if of_peer(conn, fd, sys::ready_for(fd, libc::POLLRDHUP)) != 0 {
        conn.set(flag::PEER_FIN);
    }
    conn.has(flag::PEER_FIN | flag::PEER_HUP)
}

/// Asks the kernel, taking kicks out of the companion.
pub(crate) fn poll(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, by: By) -> Polled {
    let told = of_peer(conn, fd, sys::ready_for(fd, libc::POLLIN | libc::POLLRDHUP));
    if told == 0 {
        return Polled::Nothing;
    }
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
        while hear(conn, fd, rx) == Next::Record {}
        return Polled::End;
    }
    let free = take(conn, fd, rx, owed, by);
    if peering::facts(conn).uses_records && waiting > 0 {
        // What is neither a kick nor a record is one that has not been told yet.
        let mut polled = Polled::Nothing;
        // All of them: no edge tells a set of one that was there already.
        while hear(conn, fd, rx) == Next::Record {
            polled = Polled::Data;
        }
        return polled;
    }
    if !free || waiting <= owed {
        return Polled::Nothing;
    }
    Polled::Data
}

/// Waits until something comes, at most for `nanos`. What is there already, and has not helped,
/// would end each wait at once: `ready` says that the last one was.
pub(crate) fn await_more(fd: i32, ready: &mut bool, nanos: u64) {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let fds = if *ready { &mut [][..] } else { &mut fds };
    *ready = sys::ppoll(fds, Some(nanos)) != Ok(0);
}

/// Takes the records that one who reads from a ring has in the companion, behind kicks.
pub(crate) fn poll_for_records(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) {
    if peering::facts(conn).uses_records && path::is_ring(conn.rx.path()) {
        poll(conn, fd, rx, By::Call);
    }
}

/// As [`peering::hear`]. If a record has been taken, other threads are woken that sleep on the
/// connection, and were to wake by it.
pub(crate) fn hear(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Next {
    let next = peering::hear(conn, fd, rx);
    if next == Next::Record {
        fence(Ordering::SeqCst);
        if conn.sleepers.load(Ordering::SeqCst) > 0 {
            call_bell::ring_all();
        }
    }
    next
}

/// Takes all records that can be taken, whatever path it reads from. True if bytes that are none
/// stand before what comes next.
pub(crate) fn hear_all(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> bool {
    poll_for_records(conn, fd, rx);
    while peering::may_come(conn) {
        match hear(conn, fd, rx) {
            Next::Record => {}
            Next::Bytes(_) => return true,
            Next::Wait | Next::Nothing => return false,
        }
    }
    false
}

/// Who takes a kick.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A call.
    Call,
    /// An epoll set, which looks at the connection next.
    Set,
}

/// Takes kicks out of the companion, at most `most`, unless others are asleep who are to wake by
/// them: these would find nothing, and sleep on. One is left then, which is enough, and the last
/// one awake takes it. False if it was left.
pub(crate) fn take(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, most: u64, by: By) -> bool {
    // Before it is asked who sleeps: by a kick that is counted later one may wake who falls asleep
    // only then.
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
            // It wakes nobody who sleeps on the word.
            word::look_again(conn);
        }
        if rx.left != 0 && ticks().wrapping_sub(rx.left) > ticks_of(GONE_NS) {
            sleepers::forget_gone(conn, rx.left);
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

/// As [`take`], of a connection that is read from a ring, by one that slept on it. If others have
/// not woken up yet it lets them.
pub(crate) fn take_after_sleep(conn: &Conn, fd: i32) {
    let age = {
        let Some(mut rx) = conn.lock_rx(fd) else { return };
        if !path::is_ring(conn.rx.path()) {
            return;
        }
        // It may have been woken by one.
        poll_for_records(conn, fd, &mut rx);
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

/// How many kicks the peer has counted.
pub(crate) fn counted(conn: &Conn, rx: &Rx) -> u64 {
    if rx.kicks_said != 0 { rx.kicks_said - 1 } else { conn.word(KICKS) }
}

/// How many kicks the peer has counted that we have not taken.
pub(crate) fn owed(conn: &Conn, rx: &Rx) -> u64 {
    reading::owed(counted(conn, rx), rx.kicks_drained)
}

/// Takes kicks out of the companion, as many as have arrived and at most `most`, whoever is asleep.
/// Other epoll sets that the connection is a member of get an edge in the place of the one that
/// finds nothing now.
pub(crate) fn drain(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, most: u64, by: By) {
    let _undisturbed = (owed(conn, rx) > 0).then(signals::undisturbed);
    let before = rx.kicks_drained;
    let last = before.saturating_add(most);
    loop {
        let mut bytes = [0; 256];
        let count = owed(conn, rx).min(last - rx.kicks_drained).min(bytes.len() as u64) as usize;
        let count = peering::kicks_ahead(conn, fd, rx, count);
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
