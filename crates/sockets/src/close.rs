//! The end of a descriptor and of a connection. The kernel closes the companion and thereby tells
//! the peer; here the slot is given up, and what the kernel does not know is made to look as it
//! would with tcp: unread bytes in the ring reset the connection.

use fabric::sync::Ordering;
use fabric::{sys, trip};

use crate::conn::{Conn, Held, Rx, Tx, flag, path, state};
use crate::demote::flush;
use crate::kicks::By;
use crate::layout::{self, TCP_AT, W, note};
use crate::path::closing::{self, Closing, End, LastKicks, Shut};
use crate::path::{reader, recovery};
use crate::peering::{cut, wire};
use crate::reason::Reason;
use crate::table::{self, Entry};
use crate::wake::{arm, fire, sleepers, word};
use crate::{demote, descriptors, epoll, home, kicks, link, peering, rendezvous, worth};

/// A descriptor is about to be closed: takes it out of the table, and tells what it stood for.
pub fn closing(fd: i32) {
    if let Some(conn) = table::conn(fd).filter(|conn| conn.has(flag::SHARED)) {
        let mut numbers = 0;
        table::for_each(|_, entry| {
            numbers += u32::from(matches!(entry, Entry::Conn(other) if core::ptr::eq(other, conn)));
        });
        if numbers == 1 {
            epoll::part(conn, fd);
        }
    }
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
        if peering::facts(conn).uses_records {
            // The progress thread may be using the number, under one of these locks.
            drop(conn.tx.lock());
            drop(conn.rx.lock());
        }
        // The peer takes a copy of it where it sends in our stead.
        if conn.state() == state::PROMOTED && conn.slot_taken() && peering::facts(conn).reaches_process {
            conn.put(layout::FD, conn.descriptor() as u64 + 1);
        }
    }
}

/// Leaves the connection to the readers that sleep on it, if there are any: in the kernel, too, a
/// call keeps what it was made for.
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
        // The kernel tells of that as of an end: who writes would not sleep beside it.
        demote::now(conn, fd, Reason::Half);
        conn.set(flag::SHUT_RD);
        word::look_again(conn);
    }
    if halves & flag::SHUT_WR != 0 {
        for step in closing::shutting() {
            match step {
                Shut::Demote => demote::now(conn, fd, Reason::Half),
                Shut::Flush => flush(conn, fd),
                Shut::Tell => conn.tell(note::SHUT_WR),
            }
        }
        peering::settle(conn);
        // The link may have ended meanwhile: what is to be said of that cannot be said later.
        demote::flush_records(conn, fd);
        conn.set(flag::SHUT_WR);
    }
}

/// The process ends, and the kernel closes what it has: the peer is to ask the kernel from now on.
/// Not if another thread is in the middle of writing.
pub fn at_exit(conn: &'static Conn, fd: i32) {
    if conn.state() == state::PROMOTED
        && !goes_on(conn)
        && peering::facts(conn).shares_memory
        && let Some(mut tx) = conn.tx.try_lock()
    {
        recovery::recover(conn, fd, &mut tx);
        if !matches!(conn.tx.path(), path::SMALL | path::BIG) {
            return;
        }
        conn.tell(note::ENDING);
        fire::wake(conn, fd, &mut tx, trip::RX);
    }
}

/// The process ends, and its peers know: kicks that nobody has read are taken out of the
/// companions, as the kernel would make resets of them. Not beside a thread that waits to be woken
/// by one: until the very end its answer may be waited for.
pub(crate) fn all_kicks_at_exit() {
    let start = sys::now();
    table::each_conn(|fd, conn| {
        // A peer that has accepted our offer may have sent some already.
        if goes_on(conn) || conn.sleepers.load(Ordering::Acquire) != 0 || !rendezvous::is_agreed_at_exit(conn)
        {
            return;
        }
        // In this order, as everybody does.
        let mut tx = wire::past_progress(&conn.tx);
        if let Some(tx) = tx.as_mut().filter(|_| conn.tx.path() == path::RESEND) {
            recovery::recover(conn, fd, tx);
            demote::resend(conn, fd, tx);
        }
        let Some(mut rx) = wire::past_progress(&conn.rx) else { return };
        reader::progress(conn, fd, &mut rx);
        if conn.rx.path() != path::LAST {
            last_kicks(conn, fd, &mut rx, start);
            // What runs at the end may wait for more.
            conn.clear(flag::DISARMED);
        }
        if let Some(tx) = &mut tx {
            last_record(conn, fd, tx, &mut rx, start);
        }
    });
}

/// Whether another process has it, too.
fn goes_on(conn: &Conn) -> bool {
    conn.has(flag::SHARED) && conn.refs.load(Ordering::Acquire) > 1
}

fn teardown(conn: &'static Conn, fd: Option<i32>) {
    if conn.has(flag::REST) {
        epoll::drop_stand_ins(conn);
    }
    if rendezvous::close(conn) {
        if let Some(fd) = fd {
            flush(conn, fd);
            demote::deliver(conn, fd);
            demote::before_close(conn, fd);
        }
        let tx = conn.tx.lock();
        let rx = conn.rx.lock();
        if let (Some(mut tx), Some(mut rx)) = (tx, rx) {
            if let Some(fd) = fd {
                recovery::recover(conn, fd, &mut tx);
                recovery::recover_reading(conn, fd, &mut rx);
                if conn.state() == state::PROMOTED {
                    worth::ended(conn);
                    reader::progress(conn, fd, &mut rx);
                    let seen = Closing {
                        reads: reader::reads(conn),
                        written: conn.word(W),
                        read: rx.ring.position(),
                        broken: conn.has(flag::BROKEN),
                    };
                    match seen.end() {
                        End::Reset => {
                            let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
                            let _ = sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, at_once);
                        }
                        End::TakeKicks => last_kicks(conn, fd, &mut rx, sys::now()),
                        End::ByKernel => {}
                    }
                    conn.tell(note::CLOSED);
                    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
                        fire::wake(conn, fd, &mut tx, trip::RX | trip::TX);
                    }
                    peering::settle(conn);
                    last_record(conn, fd, &mut tx, &mut rx, sys::now());
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
    conn.count_last_reason();
    home::give(conn);
}

/// Takes the END out of the companion of a peer on another host that left the ring before it knew
/// that this end closes, or whose link has ended, and waits for it if it may be on the way: the
/// kernel would answer it with a reset. What such a peer has told before is there, as it has
/// echoed.
fn last_record(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>, rx: &mut Held<'_, Rx>, start: u64) {
    if !peering::facts(conn).uses_records || conn.has(flag::BROKEN) {
        return;
    }
    loop {
        // Asked before: what the end of the connection brought with it is there.
        let ended = kicks::ended(conn, fd);
        if peering::is_over(conn) && !peering::has_agreed(conn) {
            peering::seek_stop(conn, fd);
        }
        let unread = kicks::hear_all(conn, fd, rx);
        reader::progress(conn, fd, rx);
        // One of them may have said that the link is over.
        cut::say_end(conn, fd, tx);
        let leaves = !peering::is_over(conn) && conn.notes() & note::DEMOTE != 0;
        let says_end = cut::owes_end(conn) || leaves && path::is_ring(conn.rx.path());
        // Behind bytes that the program has not read none can be taken, and those make a reset
        // themselves.
        let again = conn.again.load(Ordering::Relaxed) != 0;
        let comes = !unread && (again || says_end && conn.word(TCP_AT) == 0);
        if !comes || ended || peering::is_silent(conn) || sys::now() - start > END_NS {
            return;
        }
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: 0, revents: 0 }], Some(100_000));
    }
}

/// How long an END that may be on the way may take, and bytes that come again.
const END_NS: u64 = peering::HELD_NS;

/// Takes the last kicks out of the companion, and waits for those that are on the way, since
/// `start`.
fn last_kicks(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, start: u64) {
    loop {
        arm::disarm_for_all(conn);
        // Asked before: what the end of the connection brought with it is there.
        let ended = conn.has(flag::PEER_FIN | flag::PEER_HUP);
        // What was fired when the link ended is never told to have been carried out.
        let quiet = arm::quiet(conn) || peering::is_over(conn);
        reader::progress(conn, fd, rx);
        let on_ring = path::is_ring(conn.rx.path());
        if on_ring {
            kicks::drain(conn, fd, rx, u64::MAX, By::Call);
        }
        let counted = kicks::counted(conn, rx);
        // Behind unread bytes of tcp none can be taken, and those make a reset themselves.
        let taken = if on_ring { rx.kicks_drained } else { counted };
        let waited = sys::now() - start;
        if (LastKicks { quiet, ended, counted, taken, waited }).may_close() {
            return;
        }
        // Unread bytes of tcp would end each wait at once.
        let events = libc::POLLRDHUP | if on_ring { libc::POLLIN } else { 0 };
        let mut poll = [libc::pollfd { fd, events, revents: 0 }];
        if sys::ppoll(&mut poll, Some(100_000)).unwrap_or(0) > 0
            && kicks::of_peer(conn, fd, poll[0].revents) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR)
                != 0
        {
            conn.set(flag::PEER_FIN);
        }
    }
}
