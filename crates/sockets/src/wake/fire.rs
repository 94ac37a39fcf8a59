//! Waking the peer in the way in which it was armed. A kick is one byte on the companion; both ends
//! count them, so that a reader knows which bytes there are not data.

use fabric::sync::{Ordering, fence};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, hints, trip};
use stream::spin::ticks;

use super::arm;
use crate::conn::{Conn, Held, Tx};
use crate::layout::{self, FIRED, KICKS, TRIP};
use crate::path::writing::{self, Kick};
use crate::path::{steps, writer};
use crate::{descriptors, link, peering, report, signals};

/// After something was published: wakes the peer if it is armed for `interest`. Under the tx lock,
/// so that what goes by tcp after a demotion never mixes with kicks.
#[inline(always)]
pub(crate) fn wake(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, interest: u64) {
    fence(Ordering::SeqCst);
    if conn.theirs().armed(conn.at(TRIP), interest) {
        wake_armed(conn, fd, tx, interest);
    }
}

#[cold]
pub(crate) fn wake_armed(conn: &Conn, fd: i32, tx: &mut Tx, interest: u64) {
    if !peering::facts(conn).shares_memory {
        // Its progress thread does the rest.
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

/// Wakes the peer once more, as one that is dead may not have done it.
pub(crate) fn ring_again(conn: &Conn, fd: i32, tx: &mut Tx) {
    let armed = conn.theirs().stimulate(conn.at(TRIP), trip::RX | trip::TX);
    if armed != 0 {
        tx.fired = armed;
    }
    wake_as_armed(conn, fd, tx, true);
}

/// Tells the peer that it has been woken as it was armed.
pub(crate) fn carried_out(conn: &Conn, tx: &mut Tx) {
    tx.fires = tx.fires_with;
    conn.put(FIRED, tx.fires);
}

/// Wakes the peer in the way in which it was armed, [`Tx::fired`]. `again`: one that is dead may
/// have done a part of that.
pub(crate) fn wake_as_armed(conn: &Conn, fd: i32, tx: &mut Tx, again: bool) {
    report::add(report::at::WAKES, 1);
    let mut how = tx.fired;
    if how & trip::WORD != 0 {
        trip::wake(&conn.theirs().map(), conn.at(TRIP), arm::SLEEPERS);
        if how & trip::MODE == 0 {
            return;
        }
    }
    if how & trip::MODE == trip::QUEUE {
        conn.counters.hints.fetch_add(1, Ordering::Relaxed);
        let queue = usize::from(trip::id(how)) % layout::QUEUES;
        let base = layout::HINTS + queue * hints::BYTES;
        conn.put(layout::HINTED, ticks());
        tx.hinted = base;
        let slot = conn.slot.load(Ordering::Relaxed) as usize;
        how = hints::set_if(&conn.theirs(), base, slot, || can_ring(conn, queue)).unwrap_or(trip::KICK);
        if how == 0 && again {
            // Disarmed, but perhaps not rung. Queues that sleep do so by the bell of their number.
            how = trip::armed(trip::RX, trip::BELL, queue as u8);
        }
        if how == 0 {
            return;
        }
    }
    if how & trip::MODE == trip::BELL
        && let link = link::link(conn.link.load(Ordering::Relaxed))
        && let Some(bell) = link.bell(trip::id(how).into())
        && descriptors::intact(bell)
        && link.ring(bell)
    {
        conn.counters.bells.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if how & trip::MODE == trip::BELL
        && link::link(conn.link.load(Ordering::Relaxed)).ring_loud(trip::id(how))
    {
        conn.counters.bells.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if writing::kick(writer::writes(conn)) == Kick::SwitchFirst {
        writer::switch(conn, fd, tx);
    }
    if writing::kick(writer::writes(conn)) == Kick::Send {
        count(conn, tx);
        pay(conn, fd, tx);
    }
}

/// Whether we can ring the bell of one of the peer's event queues.
///
/// Another set may sleep there by now than the one whose member we have a hint for, which a kick on
/// this connection would not wake. So who cannot ring (a child of fork() does not get the bells
/// that are passed later, and others may have no number for one) must not disarm the sleep word.
#[cold]
fn can_ring(conn: &Conn, queue: usize) -> bool {
    let link = link::link(conn.link.load(Ordering::Relaxed));
    link.bell(queue).is_some_and(descriptors::intact) || link.is_loud()
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

/// Sends the kicks that have been counted but not sent, because the companion was full (its reader
/// is awake then anyway). They come before anything else that goes by tcp. False if it still is.
pub(crate) fn pay(conn: &Conn, fd: i32, tx: &mut Tx) -> bool {
    if tx.debt > 0 && !peering::has_settled(conn, &mut tx.echo) {
        // The peer must know of them before.
        return false;
    }
    if tx.debt > 0 && peering::is_over(conn) {
        // It may never hear of them: none are sent.
        return true;
    }
    send_owed(fd, tx, tx.kicks_sent)
}

/// As [`pay`], once the peer knows of so many kicks, of which some may have been sent before.
pub(crate) fn send_owed(fd: i32, tx: &mut Tx, known: u64) -> bool {
    let unknown = tx.kicks_sent.saturating_sub(known);
    let _undisturbed = (tx.debt > unknown).then(signals::undisturbed);
    while tx.debt > unknown {
        steps::begin(&mut tx.step, steps::PAYING);
        let zeros = [0; 64];
        let len = ((tx.debt - unknown) as usize).min(zeros.len());
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn no_kick_is_sent_of_which_the_peer_does_not_know() {
        let (ours, peers) = UnixStream::pair().unwrap();
        let mut tx = Tx { kicks_sent: 7, debt: 3, ..Tx::default() };
        for (known, debt, sent) in [(4, 3, 0), (5, 2, 1), (5, 2, 1), (7, 0, 3)] {
            assert!(send_owed(ours.as_raw_fd(), &mut tx, known));
            let there = sys::ioctl_int(peers.as_raw_fd(), libc::FIONREAD);
            assert_eq!((tx.debt, there), (debt, Ok(sent)), "known: {known}");
        }
    }
}
