//! A connection is handed over to who knows nothing of rings: what is unread there is recalled, to go by tcp, or sent in the
//! writer's stead, or kept.

use fabric::Local;
use fabric::sync::Ordering;
use fabric::sys::{self};

use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::demote::{ask_carrier, finish, flush, leave};
use crate::kicks::{self, By};
use crate::layout::{self, KICKS, SMALL_AT, TCP_AT, W, note};
use crate::path::reader::{self};
use crate::path::recall::{Next, PEER_NS, Reads, Recall};
use crate::peering::records;
use crate::reason::Reason;
use crate::socket::SO_COOKIE;
use crate::table::{self, Entry};
use crate::wake::arm;
use crate::{descriptors, link, process, report, signals};
use host::diag;

/// Who carries on with what cannot go by tcp: the connection, its number, the locked direction, and whether the peer has ended.
pub(crate) type Rest = fn(&'static Conn, i32, Held<'_, Rx>, bool);

/// Takes the connection back so that a process that knows nothing of rings can go on with it: unread bytes of the ring are
/// recalled, to be sent again by tcp, and kicks are taken out of the companion. Waits for the peer, but not for ever: if it is in no
/// call of ours, we send the bytes in its stead where the kernel lets us ([`send_for_peer`]). What can go by tcp no more, as the peer
/// has shut its half or gone another way before, gets `rest`, or stays here. `leaves`: this process does not go on with it. True if the
/// connection itself carries all of it.
pub(crate) fn hand_over_with(
    conn: &'static Conn,
    fd: i32,
    reason: Reason,
    leaves: bool,
    rest: Option<Rest>,
) -> bool {
    let whole = give_up_ring(conn, fd, reason, leaves, rest);
    // Between hosts the peer must first know of it.
    flush(conn, fd);
    if whole {
        await_recalled(conn, fd);
        await_finish(conn, fd);
    }
    whole
}

/// As [`crate::relay::hand_over`], of a connection that this process goes on with: what can go by tcp no more stays in the ring, and is ours.
pub fn go_back(conn: &'static Conn, fd: i32, reason: Reason) -> bool {
    hand_over_with(conn, fd, reason, false, None)
}

/// Waits, not for long, until what has been recalled has come by tcp, at least so much as always finds room there: it was readable before, so it is to be readable
/// now. A peer that sends it may have lost its processor between saying so and doing it.
fn await_recalled(conn: &'static Conn, fd: i32) {
    let unread = {
        let Some(rx) = conn.lock_rx(fd) else { return };
        // Only who has a slot has a ring: of an offer that was taken back the link may be gone.
        if !conn.slot_taken() || conn.rx.path() != path::LAST {
            return;
        }
        conn.word(W).wrapping_sub(rx.ring.position())
    };
    if unread == 0 || unread > layout::UNDER_WAY as u64 {
        return;
    }
    // Counted from the beginning of the connection, since another thread may read: what came before the ring, kicks, and that.
    let end = if conn.is_far() { records::BYTES as u64 } else { 0 };
    let before = (conn.word(SMALL_AT).wrapping_sub(1)).wrapping_add(conn.word(KICKS)).wrapping_add(end);
    let has_come = || {
        let waiting = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) as u64;
        diag::received(fd).is_ok_and(|received| {
            (received.read + waiting).wrapping_sub(before) as i64 >= unread.min(ALWAYS_ROOM) as i64
        })
    };
    let start = sys::now();
    while !has_come() {
        if sys::now() - start > FINISH_NS || kicks::ended(conn, fd) {
            return;
        }
        let _ = sys::ppoll(&mut [], Some(LOOK_NS));
    }
}

/// Between hosts: waits, not for long, until the peer has found our END, so that no record comes any more and the connection is the kernel's alone.
pub(crate) fn await_finish(conn: &'static Conn, fd: i32) {
    let Some(wire) = conn.wire() else { return };
    let start = sys::now();
    while conn.state() == state::PROMOTED && !finish(conn) {
        if sys::now() - start > FINISH_NS || wire.is_silent() || kicks::ended(conn, fd) {
            return;
        }
        {
            let Some(mut rx) = conn.lock_rx(fd) else { return };
            if matches!(conn.rx.path(), path::SMALL | path::BIG) {
                kicks::look(conn, fd, &mut rx, By::Call);
            }
            while records::may_come(conn) && records::hear(conn, fd, &mut rx) == records::Next::Record {}
            reader::progress(conn, fd, &mut rx);
        }
        let _ = sys::ppoll(&mut [], Some(LOOK_NS));
    }
}

pub(crate) fn give_up_ring(
    conn: &'static Conn,
    fd: i32,
    reason: Reason,
    leaves: bool,
    rest: Option<Rest>,
) -> bool {
    leave(conn, fd, reason, true);
    if conn.state() != state::PROMOTED {
        return true;
    }
    ask_carrier(conn, fd);
    // What is unread stays in the ring, and is ours, as splice() can take it from there: it may be a child that only happens to hold the
    // connection, which ends us.
    let stays_here = || {
        rest.is_none()
            || !leaves && conn.epolls.load(Ordering::Acquire) != 0
            || reason != Reason::Passed && fd > libc::STDERR_FILENO && shared(conn)
    };
    let start = sys::now();
    let mut tried = false;
    loop {
        let Some(mut rx) = conn.lock_rx(fd) else { return false };
        if conn.is_far() && path::is_ring(conn.rx.path()) {
            kicks::look(conn, fd, &mut rx, By::Call);
        }
        reader::progress(conn, fd, &mut rx);
        // Asked before: what the end brought with it is there.
        let ended = kicks::ended(conn, fd) || conn.notes() & note::CLOSED != 0;
        let quiet = arm::quiet(conn);
        let seen = Recall { quiet, ended, tried, ..look(conn, &rx, sys::now() - start) };
        if let Some(free) = seen.free() {
            if free == (Next::Free { last: true }) {
                conn.rx.set_path(path::LAST);
            }
            drop(rx);
            finish(conn);
            return true;
        }
        if seen.reads == Reads::Ring {
            if seen.waited > PEER_NS || ended {
                kicks::drain(conn, fd, &mut rx, u64::MAX, By::Call);
            } else {
                kicks::take(conn, fd, &mut rx, u64::MAX, By::Call);
            }
        }
        let seen = Recall { quiet, ended, tried, ..look(conn, &rx, seen.waited) };
        let mut next = seen.next();
        if next == Next::SendForPeer {
            tried = true;
            if seen.reads == Reads::Ring && send_for_peer(conn, &rx) {
                next = Next::ByTcp;
            } else if stays_here() && keep_rest(conn) {
                return false;
            }
        }
        match next {
            Next::ByTcp => {
                conn.rx.set_path(path::LAST);
                drop(rx);
                finish(conn);
                return true;
            }
            Next::BreakOff => {
                conn.break_off(fd);
                return false;
            }
            Next::Unsendable => {
                match rest {
                    Some(rest) if !stays_here() => rest(conn, fd, rx, ended),
                    _ => report::count_reason(Reason::PeerGone),
                }
                return false;
            }
            Next::Free { .. } | Next::SendForPeer | Next::Wait => {}
        }
        drop(rx);
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(500_000));
    }
}

/// What a reader sees that has recalled what is unread, but for what the caller asks in a certain order.
fn look(conn: &Conn, rx: &Rx, waited: u64) -> Recall {
    Recall {
        reads: match conn.rx.path() {
            path::TCP => Reads::Tcp,
            path::SMALL | path::BIG => Reads::Ring,
            _ => Reads::Last,
        },
        far: conn.is_far(),
        waited,
        quiet: false,
        ended: false,
        recalled: conn.has(flag::RECALLED),
        announced: conn.word(SMALL_AT) != 0,
        written: conn.word(W),
        read: rx.ring.position(),
        kicks: conn.word(KICKS),
        kicks_taken: rx.kicks_drained,
        by_tcp: conn.word(TCP_AT).checked_sub(1),
        tried: false,
    }
}

/// How long it may take until the peer has said that it has found our END, and how often it is looked.
pub(crate) const FINISH_NS: u64 = 200_000_000;

pub(crate) const LOOK_NS: u64 = 100_000;

/// So many bytes the kernel takes of a peer, whatever its buffers are.
pub(crate) const ALWAYS_ROOM: u64 = 2048;

/// Sends the bytes that we have recalled by tcp ourselves, on a copy of the peer's own descriptor, which is proved by its cookie. No
/// kick may be on the way. False if the kernel does not let us, or the peer has begun; what does not fit now the peer sends later.
pub(crate) fn send_for_peer(conn: &'static Conn, rx: &Held<'_, Rx>) -> bool {
    if conn.is_far() {
        return false;
    }
    let hint = conn.word(layout::FD);
    let pid = link::link(conn.link.load(Ordering::Relaxed)).peer_pid.load(Ordering::Relaxed);
    let Some(theirs) = hint.checked_sub(1).and_then(|fd| i32::try_from(fd).ok()) else { return false };
    let Ok(socket) = sys::descriptor_of(pid, theirs) else { return false };
    let socket = descriptors::hide(socket);
    let cookie = sys::getsockopt::<u64>(socket, libc::SOL_SOCKET, SO_COOKIE);
    let proved = cookie == Ok(conn.pending_cookie.load(Ordering::Relaxed));
    let claimed = proved
        && conn.word(TCP_AT) == 0
        && conn.mine().replace_word(conn.at(layout::CLAIM), 0, layout::BY_READER).is_ok();
    if claimed {
        let _undisturbed = signals::undisturbed();
        let (mut ring, mut path) = (rx.ring, conn.rx.path());
        let mut bytes = [0u8; 4096];
        loop {
            let ready = ring.ready(&conn.ends(), 1, || conn.until(path)).unwrap_or(0).min(bytes.len());
            if ready == 0 && path == path::SMALL && conn.word(layout::BIG_AT) == ring.position() + 1 {
                ring.move_to(conn.big_ring(), layout::BIG);
                path = path::BIG;
                continue;
            }
            if ready == 0 {
                break;
            }
            // SAFETY: `ready` vouched for so many bytes of the ring; the target has room for them.
            unsafe { ring.peek(&conn.ends(), 0, bytes.as_mut_ptr(), ready) };
            match sys::send(socket, bytes.as_ptr(), ready, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
                Ok(sent) => ring.skip(sent),
                Err(_) => break,
            }
        }
        conn.put(layout::RESENT_TO, ring.position() + 1);
    }
    descriptors::unhide(socket);
    claimed
}

/// Takes a recall back whose writer does not come, and for which we cannot send: we read what there is in the ring ourselves. The writer is told that we have sent it by tcp, so
/// that it sends what it has put, or puts, behind that. False if it has begun to send. Under the lock, when no kick is on the way.
pub(crate) fn keep_rest(conn: &Conn) -> bool {
    let claimed = !conn.is_far()
        && conn.word(TCP_AT) == 0
        && conn.mine().replace_word(conn.at(layout::CLAIM), 0, layout::BY_READER).is_ok();
    if claimed {
        let end = conn.word(W).wrapping_add(1);
        // As the writer will say, when it comes. Before that it is what bounds our reading.
        conn.mine().set_word(conn.at(TCP_AT), end);
        conn.set(flag::REST);
        conn.clear(flag::RECALLED);
        conn.put(layout::RESENT_TO, end);
    }
    claimed
}

/// Whether another process has the connection, too.
pub fn shared(conn: &'static Conn) -> bool {
    let mut ours = 0;
    each_number(conn, |_| ours += 1);
    process::borrowed() || conn.refs.load(Ordering::Acquire) > ours
}

/// The numbers of this process that stand for the connection.
pub(crate) fn each_number(conn: &'static Conn, mut each: impl FnMut(i32)) {
    let borrowed = process::borrowed();
    for number in 0..table::top() {
        let known = matches!(table::entry(number), Entry::Conn(same) if core::ptr::eq(same, conn));
        if if borrowed { is_socket_of(number, conn) } else { known } {
            each(number);
        }
    }
}

/// Whether a number stands for the connection's socket: for a child of vfork(), which has numbers of its own but not its own table.
pub fn is_socket_of(number: i32, conn: &Conn) -> bool {
    sys::getsockopt(number, libc::SOL_SOCKET, SO_COOKIE) == Ok(conn.cookie.load(Ordering::Relaxed))
}
