//! What a managed connection is ready for, as poll() would say of tcp. From the rings where the bytes are in rings, from the kernel
//! where they are not.

use fabric::{Local, sys};

use crate::conn::{Conn, flag, path, state};
use crate::events::{IN, OUT, RDHUP};
use crate::kicks::By;
use crate::layout::{TCP_AT, W, note};
use crate::path::{reader, writer};
use crate::{demote, kicks, low_water, rendezvous};

/// Events of poll() (the same bits as epoll's) that the connection is ready for, of those in `want`; HUP and ERR always count.
/// `None` if its calls are no longer ours; [`AGAIN`] if that is being decided.
pub fn events(conn: &'static Conn, fd: i32, want: u32) -> Option<u32> {
    if conn.state() == state::OFFERED && !rendezvous::answered(conn) {
        return Some(AGAIN);
    }
    demote::attend(conn, fd);
    if !conn.is_managed() {
        return None;
    }
    let mut got = 0;
    let mut ask = want & libc::EPOLLPRI as u32;
    {
        let mut tx = conn.lock_tx(fd)?;
        match conn.tx.path() {
            path::SMALL | path::BIG => {
                if want & OUT != 0 {
                    let third = tx.ring.capacity() as usize / 3;
                    let room = writer::room_for(conn, fd, &mut tx, third).unwrap_or(usize::MAX);
                    if room >= third
                        || conn.is_via() && room > 0 && tx.ring.unread(&conn.ends()) == Ok(0)
                        || if room > 0 {
                            writer::stuck(conn, &tx)
                        } else {
                            writer::stuck_for_long(conn, &mut tx)
                        }
                        || conn.notes() & note::CLOSED != 0
                        || conn.has(flag::BROKEN | flag::SHUT_WR)
                    {
                        got |= OUT;
                    }
                }
            }
            path::RESEND => {}
            _ => ask |= want & OUT,
        }
    }
    let (ring, few);
    {
        let mut rx = conn.lock_rx(fd)?;
        reader::progress(conn, fd, &mut rx);
        ring = matches!(conn.rx.path(), path::SMALL | path::BIG);
        // What was recalled between hosts is not there; an END tells when it comes. (On one host its writer may have left it to us without a word.)
        let recalled = conn.is_far() && conn.has(flag::RECALLED) && conn.word(TCP_AT) == 0;
        let unread = ring && !recalled && conn.word(W) != rx.ring.position();
        few = unread && low_water::is_above(conn, &rx);
        if unread && !few {
            for place in rx.ring.ahead() {
                conn.mine().foresee(place);
            }
            got |= IN;
        } else if !ring || few {
            ask |= IN | RDHUP;
        }
        if rx.error != 0 {
            got |= IN | libc::EPOLLERR as u32;
        }
    }
    if conn.has(flag::PEER_FIN | flag::PEER_HUP) || conn.notes() & (note::CLOSED | note::SHUT_WR) != 0 {
        ask |= IN | RDHUP;
    }
    if ask & (want | IN | RDHUP) != 0 {
        let mut poll = [libc::pollfd { fd, events: ask as i16, revents: 0 }];
        if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 {
            let ends = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
            let mut told = poll[0].revents as u32;
            if told & ends == libc::EPOLLERR as u32 {
                // The kernel may be in the middle of a reset: the error first, then that it has hung up. One that slept, as the program
                // does by what it knows, is told both. This question waits until the kernel has done with the socket.
                let _ = sys::ioctl_int(fd, libc::FIONREAD);
                let _ = sys::ppoll(&mut poll, Some(0));
                told = poll[0].revents as u32;
            }
            if ring && !few && told & IN != 0 && told & (RDHUP | ends) == 0 {
                // The peer has told that it ends, and what the kernel has of that is a kick, or half: it counts an end as a byte before it
                // says that it is one.
                let mut rx = conn.lock_rx(fd)?;
                match kicks::look(conn, fd, &mut rx, By::Call) {
                    kicks::Look::Nothing => told &= !IN,
                    kicks::Look::Data => {}
                    kicks::Look::End => {
                        let _ = sys::ppoll(&mut poll, Some(0));
                        told = poll[0].revents as u32;
                    }
                }
            }
            got |= told;
            if told & RDHUP != 0 {
                conn.set(flag::PEER_FIN);
            }
            if told & ends != 0 {
                conn.set(flag::PEER_HUP);
            }
        }
    }
    if got & IN != 0 {
        got |= RDNORM;
    }
    if got & OUT != 0 {
        got |= WRNORM;
    }
    Some(got & (want | (libc::EPOLLHUP | libc::EPOLLERR) as u32))
}

/// The companion became readable while the connection is on a ring: takes kicks out, notes the end.
pub fn absorb(conn: &'static Conn, fd: i32) {
    absorb_by(conn, fd, By::Call);
}

/// As [`absorb`].
pub(crate) fn absorb_by(conn: &'static Conn, fd: i32, by: By) {
    if let Some(mut rx) = conn.lock_rx(fd)
        && matches!(conn.rx.path(), path::SMALL | path::BIG)
    {
        kicks::look(conn, fd, &mut rx, by);
    }
}

/// Not an event: to be asked again.
pub(crate) const AGAIN: u32 = 1 << 27;
const RDNORM: u32 = libc::EPOLLRDNORM as u32;
const WRNORM: u32 = libc::EPOLLWRNORM as u32;
