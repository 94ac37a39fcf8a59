//! The end of a descriptor and of a connection. The kernel closes the companion and thereby tells the peer; here the slot is given
//! up, and what the kernel does not know is made to look as it would with tcp: unread bytes in the ring reset the connection.

use fabric::sync::Ordering;
use fabric::{sys, trip};

use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::demote::flush;
use crate::kicks::By;
use crate::layout::{self, KICKS, W, note};
use crate::path::{reader, recovery};
use crate::table::{self, Entry};
use crate::wake::{arm, fire, sleepers};
use crate::{demote, descriptors, epoll, home, kicks, link, rendezvous};

/// A descriptor is about to be closed: takes it out of the table, and tells what it stood for.
pub fn closing(fd: i32) {
    let (entry, last) = {
        let _steady = rendezvous::steady();
        let entry = table::swap(fd, Entry::None);
        let last = matches!(entry, Some(Entry::Conn(conn)) if conn.refs.fetch_sub(1, Ordering::AcqRel) == 1);
        (entry, last)
    };
    match entry {
        Some(Entry::Conn(conn)) => descriptor(conn, fd, last),
        Some(Entry::Set(set)) => epoll::closed(set, fd),
        _ => {}
    }
}

fn descriptor(conn: &'static Conn, fd: i32, last: bool) {
    epoll::forget(conn, fd, last);
    if last && conn.is_managed() && conn.sleepers.load(Ordering::Acquire) != 0 && orphaned(conn, fd) {
        return;
    }
    if last {
        teardown(conn, Some(fd));
    } else if conn.descriptor() == fd {
        // Another number stands for it from now on, if this process has one.
        table::for_each(|other, entry| {
            if matches!(entry, Entry::Conn(same) if core::ptr::eq(same, conn)) {
                conn.fd.store(other as u32, Ordering::Relaxed);
            }
        });
        // The peer takes a copy of it where it sends in our stead.
        if conn.state() == state::PROMOTED && conn.slot_taken() && !conn.is_far() {
            conn.put(layout::FD, conn.descriptor() as u64 + 1);
        }
    }
}

/// Leaves the connection to the readers that sleep on it, if there are any: in the kernel, too, a call keeps what it was made for.
#[cold]
fn orphaned(conn: &'static Conn, fd: i32) -> bool {
    let Ok(hidden) = descriptors::made(|| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0)) else { return false };
    let hidden = descriptors::hide(hidden);
    conn.orphans.store(1, Ordering::Release);
    conn.fd.store(hidden as u32, Ordering::Release);
    if sleepers::orphan(conn, fd) == 0 {
        conn.orphans.store(0, Ordering::Release);
        conn.fd.store(fd as u32, Ordering::Release);
        descriptors::unhide(hidden);
        return false;
    }
    orphan_left(conn);
    true
}

/// One of those has done with it.
#[cold]
pub(crate) fn orphan_left(conn: &'static Conn) {
    if conn.orphans.fetch_sub(1, Ordering::AcqRel) == 1 {
        let hidden = conn.descriptor();
        teardown(conn, Some(hidden));
        descriptors::unhide(hidden);
    }
}

/// A descriptor was closed behind our back.
pub fn abandon(conn: &'static Conn) {
    if conn.refs.fetch_sub(1, Ordering::AcqRel) == 1 {
        teardown(conn, None);
    }
}

/// shutdown(): half of a connection ends. Before the kernel's call.
pub fn shut(conn: &'static Conn, fd: i32, how: i32) {
    let mut halves = 0;
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        halves |= flag::SHUT_RD;
    }
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        halves |= flag::SHUT_WR;
    }
    if !rendezvous::shut(conn, halves) {
        return;
    }
    if halves & flag::SHUT_RD != 0 {
        conn.set(flag::SHUT_RD);
        conn.tell(note::SHUT_RD);
    }
    if halves & flag::SHUT_WR != 0 {
        // After the FIN we cannot kick: the peer is to write by tcp from now on.
        demote::now(conn, fd, crate::reason::Reason::Half);
        flush(conn, fd);
        conn.tell(note::SHUT_WR);
        settle(conn);
        conn.set(flag::SHUT_WR);
    }
}

/// Between hosts the end of the companion must not come before what was put.
fn settle(conn: &Conn) {
    if let Some(wire) = conn.wire() {
        wire.settle();
    }
}

/// How long a kick that is known to be on the way may take: as long as its sender may have to wait for a processor.
const KICK_NS: u64 = if cfg!(fuzzing) { 0 } else { 200_000_000 };

fn teardown(conn: &'static Conn, fd: Option<i32>) {
    if conn.has(flag::REST) {
        epoll::drop_stand_ins(conn);
    }
    if rendezvous::close(conn) {
        if let Some(fd) = fd {
            flush(conn, fd);
            demote::before_close(conn, fd);
        }
        let tx = conn.tx.lock();
        let rx = conn.rx.lock();
        if let (Some(mut tx), Some(mut rx)) = (tx, rx) {
            if let Some(fd) = fd {
                recovery::mend(conn, fd, &mut tx);
                recovery::mend_reading(conn, fd, &mut rx);
                if conn.state() == state::PROMOTED {
                    reader::progress(conn, fd, &mut rx);
                    let unread = matches!(conn.rx.path(), path::SMALL | path::BIG)
                        && conn.word(W) != rx.ring.position();
                    let waiting = conn.rx.path() == path::TCP && conn.word(W) != 0;
                    if (unread || waiting) && !conn.has(flag::BROKEN) {
                        let _ = sys::setsockopt(
                            fd,
                            libc::SOL_SOCKET,
                            libc::SO_LINGER,
                            libc::linger { l_onoff: 1, l_linger: 0 },
                        );
                    } else {
                        last_kicks(conn, fd, &mut rx);
                    }
                    conn.tell(note::CLOSED);
                    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
                        fire::wake(conn, fd, &mut tx, trip::RX | trip::TX);
                    }
                    settle(conn);
                } else {
                    conn.tell(note::CLOSED);
                }
            } else {
                conn.tell(note::CLOSED);
            }
            let slot = link::Former::of(conn, &tx, &rx);
            conn.managed_is(false);
            conn.state.store(state::FREE, Ordering::Release);
            slot.leave();
            conn.slot.store(layout::SLOTS as u32, Ordering::Relaxed);
        }
    }
    home::give(conn);
}

/// Takes the last kicks out of the companion, and waits for those that are on the way: the kernel would answer one that nobody has
/// read, or that comes after close(), with a reset, and what it has still to send would be lost.
fn last_kicks(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) {
    if !matches!(conn.rx.path(), path::SMALL | path::BIG) {
        return;
    }
    arm::disarm_for_all(conn);
    let start = sys::now();
    loop {
        // Asked before: what the end of the connection brought with it is there.
        let ended = conn.has(flag::PEER_FIN | flag::PEER_HUP);
        let quiet = arm::quiet(conn);
        kicks::drain(conn, fd, rx, u64::MAX, By::Call);
        if ended || quiet && conn.word(KICKS) == rx.kicks_drained || sys::now() - start > KICK_NS {
            return;
        }
        let events = libc::POLLIN | libc::POLLRDHUP;
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        if sys::ppoll(&mut poll, Some(100_000)).unwrap_or(0) > 0
            && poll[0].revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
        {
            conn.set(flag::PEER_FIN);
        }
    }
}
