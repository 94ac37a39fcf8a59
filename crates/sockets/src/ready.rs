//! What a managed connection is ready for, as poll() would say of tcp. From the rings where the
//! bytes are in rings, from the kernel where they are not.

use fabric::sync::Ordering;
use fabric::{Local, sys};

use crate::conn::{Conn, flag, path, state};
use crate::events::{self, IN, OUT, RDHUP, WRNORM};
use crate::kicks::By;
use crate::layout::{SMALL_AT, TCP_AT, W, note};
use crate::path::reader;
use crate::path::room;
use crate::{demote, kicks, low_water, peering, rendezvous};

/// Events of poll() (the same bits as epoll's) that the connection is ready for, of those in
/// `want`; HUP and ERR always count. `None` if its calls are no longer ours; [`AGAIN`] if that is
/// being decided.
pub fn events(conn: &'static Conn, fd: i32, want: u32) -> Option<u32> {
    if conn.state() == state::OFFERED && !rendezvous::answered(conn) {
        return Some(AGAIN);
    }
    demote::attend(conn, fd);
    if !conn.is_managed() {
        return None;
    }
    let mut seen = Seen { got: 0, ask: want & libc::EPOLLPRI as u32, ring: false, few: false };
    let looked_for = if events::ask_for_room(want) { want | OUT } else { want };
    seen.look_at_room(conn, fd, looked_for)?;
    seen.look_at_bytes(conn, fd)?;
    if conn.has(flag::PEER_FIN | flag::PEER_HUP | flag::SHUT_RD)
        || conn.notes() & (note::CLOSED | note::SHUT_WR) != 0
    {
        seen.ask |= IN | RDHUP;
    }
    if seen.ask & (looked_for | IN | RDHUP) != 0 {
        seen.ask_kernel(conn, fd)?;
        if seen.got & IN != 0 && !seen.ring && has_moved(conn, fd)? {
            // The kernel may have told of a kick: it was asked after the peer had moved.
            return events(conn, fd, want);
        }
    }
    let mut got = seen.got;
    if got & IN != 0 {
        got |= RDNORM;
    }
    if got & OUT != 0 {
        got |= WRNORM;
    }
    Some(got & (want | (libc::EPOLLHUP | libc::EPOLLERR) as u32))
}

/// Whether a connection that was read by tcp before is read from a ring now.
fn has_moved(conn: &'static Conn, fd: i32) -> Option<bool> {
    if conn.rx.path() == path::TCP && conn.word(SMALL_AT) != 0 {
        let mut rx = conn.lock_rx(fd)?;
        reader::progress(conn, fd, &mut rx);
    }
    Some(path::is_ring(conn.rx.path()))
}

/// What has been seen so far of what a connection is ready for.
struct Seen {
    got: u32,
    /// What the kernel is to be asked for.
    ask: u32,
    /// It is read from a ring, which has something, but less than the program's low water mark.
    ring: bool,
    few: bool,
}

impl Seen {
    #[inline(always)]
    fn look_at_room(&mut self, conn: &'static Conn, fd: i32, want: u32) -> Option<()> {
        let mut tx = conn.lock_tx(fd)?;
        match conn.tx.path() {
            path::SMALL | path::BIG if want & OUT == 0 => {}
            path::SMALL | path::BIG => {
                let third = tx.ring.capacity() as usize / 3;
                let room = room::room_for(conn, fd, &mut tx, third).unwrap_or(usize::MAX);
                if room >= third
                    || conn.is_via() && room > 0 && tx.ring.unread(&conn.ends()) == Ok(0)
                    || if room > 0 { room::stuck(conn, &tx) } else { room::stuck_for_long(conn, &mut tx) }
                    // A write goes by tcp then, which says how it ended.
                    || conn.notes() & note::CLOSED != 0
                    || demote::is_abandoned(conn)
                    || conn.has(flag::BROKEN | flag::SHUT_WR)
                {
                    self.got |= OUT;
                }
            }
            path::RESEND => {}
            _ => self.ask |= want & OUT,
        }
        Some(())
    }

    #[inline(always)]
    fn look_at_bytes(&mut self, conn: &'static Conn, fd: i32) -> Option<()> {
        let mut rx = conn.lock_rx(fd)?;
        reader::progress(conn, fd, &mut rx);
        self.ring = path::is_ring(conn.rx.path());
        // What was recalled between hosts is not there; an END tells when it comes. (On one host
        // its writer may have left it to us without a word.)
        let recalled = peering::facts(conn).uses_records
            && conn.is_recalled_at(rx.ring.position())
            && conn.word(TCP_AT) == 0;
        let unread = self.ring && !recalled && conn.word(W) != rx.ring.position();
        self.few = unread && low_water::is_above(conn, &rx);
        if unread && !self.few {
            for place in rx.ring.ahead() {
                conn.mine().foresee(place);
            }
            self.got |= IN;
        } else if !self.ring || self.few {
            self.ask |= IN | RDHUP;
        }
        if rx.error != 0 {
            self.got |= IN | libc::EPOLLERR as u32;
        }
        Some(())
    }

    fn ask_kernel(&mut self, conn: &'static Conn, fd: i32) -> Option<()> {
        let ready = || sys::ready_for(fd, self.ask as i16) as u16 as u32;
        let ends = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
        let mut told = ready();
        if told & ends == libc::EPOLLERR as u32 {
            // The kernel may be in the middle of a reset: the error first, then that it has hung
            // up. One that slept, as the program does by what it knows, is told both. This question
            // waits until the kernel has done with the socket.
            let _ = sys::ioctl_int(fd, libc::FIONREAD);
            told = ready();
        }
        if self.ring && !self.few && told & IN != 0 && told & (RDHUP | ends) == 0 {
            // The peer has told that it ends, and what the kernel has of that is a kick, or half:
            // it counts an end as a byte before it says that it is one.
            let mut rx = conn.lock_rx(fd)?;
            match kicks::poll(conn, fd, &mut rx, By::Call) {
                kicks::Polled::Nothing => told &= !IN,
                kicks::Polled::Data => {}
                kicks::Polled::End => told = ready(),
            }
        }
        if told & IN != 0 && conn.again.load(Ordering::Relaxed) != 0 {
            // These are taken out, and nothing to read.
            kicks::hear_all(conn, fd, &mut conn.lock_rx(fd)?);
            told = ready();
        }
        self.got |= told;
        if kicks::of_peer(conn, fd, told as i16) & libc::POLLRDHUP != 0 {
            conn.set(flag::PEER_FIN);
        }
        if told & ends != 0 {
            conn.set(flag::PEER_HUP);
        }
        Some(())
    }
}

/// The companion became readable while the connection is on a ring: takes kicks out, notes the end.
pub fn absorb(conn: &'static Conn, fd: i32) {
    absorb_by(conn, fd, By::Call);
}

/// As [`absorb`].
pub(crate) fn absorb_by(conn: &'static Conn, fd: i32, by: By) {
    if let Some(mut rx) = conn.lock_rx(fd)
        && path::is_ring(conn.rx.path())
    {
        kicks::poll(conn, fd, &mut rx, by);
    }
}

/// Not an event: to be asked again.
pub(crate) const AGAIN: u32 = 1 << 27;
const RDNORM: u32 = libc::EPOLLRDNORM as u32;
