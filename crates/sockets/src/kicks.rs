//! Waking the peer, and taking out of the companion what the peer woke us by. A kick is one byte on the companion; both ends count
//! them, so that a reader knows which bytes there are not data.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Remote, bell, hints, trip};

use crate::conn::{Conn, Held, Rx, Tx, flag, path};
use crate::layout::{self, FIRED, KICKS, TRIP};
use crate::{io, link, report, wait};

/// After something was published: wakes the peer if it is armed for `interest`. Under the tx lock, so that what goes by tcp
/// after a demotion never mixes with kicks.
#[inline(always)]
pub(crate) fn wake(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, interest: u64) {
    let fired = conn.theirs().stimulate(conn.at(TRIP), interest);
    if fired != 0 {
        ring_out(conn, fd, tx, fired);
        tx.fires += 1;
        conn.put(FIRED, tx.fires);
    }
}

/// As [`wake`], for one that does not hold the tx lock: a reader that made room.
pub(crate) fn fire(conn: &'static Conn, fd: i32, interest: u64) {
    if let Some(mut tx) = conn.lock_tx() {
        wake(conn, fd, &mut tx, interest);
    }
}

#[cold]
fn ring_out(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, fired: u64) {
    report::add(report::at::WAKES, 1);
    let mut how = fired;
    if how & trip::MODE == trip::QUEUE {
        conn.counters.hints.fetch_add(1, Ordering::Relaxed);
        let queue = usize::from(trip::id(how)) % layout::QUEUES;
        let base = layout::HINTS + queue * hints::BYTES;
        how = hints::set(&conn.theirs(), base, conn.slot.load(Ordering::Relaxed) as usize);
        if how == 0 {
            return;
        }
    }
    if how & trip::MODE == trip::BELL
        && let Some(fd) = link::link(conn.link.load(Ordering::Relaxed)).bell(trip::id(how).into())
    {
        conn.counters.bells.fetch_add(1, Ordering::Relaxed);
        return bell::ring(fd);
    }
    if conn.tx.path() == path::TCP {
        io::switch(conn, fd);
    }
    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
        conn.counters.kicks.fetch_add(1, Ordering::Relaxed);
        tx.kicks_sent += 1;
        tx.debt += 1;
        conn.put(KICKS, tx.kicks_sent);
        pay(fd, tx);
    }
}

/// Sends the kicks that have been counted but not sent, because the companion was full (its reader is awake then anyway). They
/// come before anything else that goes by tcp. False if it still is.
pub(crate) fn pay(fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    while tx.debt > 0 {
        let zeros = [0; 64];
        let len = (tx.debt as usize).min(zeros.len());
        match sys::send(fd, zeros.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => tx.debt -= sent as u64,
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end.
            Err(_) => tx.debt = 0,
        }
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

/// Asks the kernel, taking kicks out of the companion.
pub(crate) fn look(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Look {
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
    let waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as usize;
    let drained = drain(conn, fd, rx, waiting);
    if drained > 0 && conn.waiters.load(Ordering::Acquire) > 0 {
        // A kick wakes all that sleep, but the one who takes it may leave others asleep: for them it is armed again.
        wait::arm(conn, trip::RX | trip::TX, trip::KICK, 0);
    }
    if told & (libc::POLLHUP | libc::POLLERR | libc::POLLRDHUP | libc::POLLNVAL) != 0 {
        return Look::End;
    }
    if waiting > drained { Look::Data } else { Look::Nothing }
}

/// Takes kicks out of the companion, as many as were sent and at most `most`; says how many.
pub(crate) fn drain(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, most: usize) -> usize {
    let mut drained = 0;
    loop {
        let owed = conn.word(KICKS).wrapping_sub(rx.kicks_drained).min((most - drained) as u64) as usize;
        if owed == 0 || owed > 1 << 20 {
            return drained;
        }
        let mut bytes = [0; 256];
        match sys::recv(fd, bytes.as_mut_ptr(), owed.min(256), libc::MSG_DONTWAIT) {
            Ok(count @ 1..) => {
                rx.kicks_drained += count as u64;
                drained += count;
            }
            Ok(0) => return drained,
            Err(errno) => {
                if errno != Errno::EAGAIN && errno != Errno::EINTR {
                    rx.error = errno.into_raw();
                }
                return drained;
            }
        }
    }
}
