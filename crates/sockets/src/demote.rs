//! Back to tcp: because the program does something that a ring cannot follow, because the peer asks, or because it has gone.
//!
//! Order matters. The one that demotes first tells the peer (DEMOTE), then wakes it if it is armed, and only then announces where
//! tcp begins: after that no kick may go out, as it would stand among the bytes of tcp. A peer that arms later finds the note.

use fabric::sync::{Ordering, compiler_fence, fence};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, trip};
use host::diag;

use crate::conn::{Conn, Held, Rx, Tx, flag, path, state};
use crate::far::{self, records};
use crate::kicks::By;
use crate::layout::{self, NOTES, RECALL_AT, TCP_AT, W, note};
use crate::mend::{self, step};
use crate::reason::Reason;
use crate::{descriptors, epoll, io, kicks, link, log, relay, rendezvous, report, signals, wait};

/// Takes the connection back to tcp for good. Bytes in the ring are read from there first; nothing is waited for.
pub fn now(conn: &'static Conn, fd: i32, reason: Reason) {
    leave(conn, fd, reason, false);
}

/// As [`now`], for what the kernel is to do with the descriptor by itself from now on. Between hosts it waits, not for long, until the peer knows, and has said in the
/// companion from where on it goes by tcp; on one host it knows at once.
pub fn for_kernel(conn: &'static Conn, fd: i32, reason: Reason) {
    now(conn, fd, reason);
    // What the peer has recalled goes before what the kernel is to send.
    crate::close::flush(conn, fd);
    ask_carrier(conn, fd);
    await_end(conn, fd);
}

/// As [`now`], for a reader that does not read. Between hosts its carrier goes to tcp for it: a reader that then finds bytes all the time attends to nothing, and looks for records
/// before each read until it knows that we have found its END.
pub(crate) fn stalled(conn: &'static Conn, fd: i32) {
    now(conn, fd, Reason::Stalled);
    call_carrier(conn);
}

/// Between hosts: the peer may be in no call of ours, so its carrier is asked to go to tcp, behind our own END.
fn ask_carrier(conn: &'static Conn, fd: i32) {
    if conn.state() == state::PROMOTED && conn.is_far() {
        crate::close::flush(conn, fd);
        call_carrier(conn);
    }
}

fn call_carrier(conn: &Conn) {
    if conn.state() == state::PROMOTED
        && let Some(wire) = conn.wire()
    {
        wire.call(far::call::RECALL, conn.slot.load(Ordering::Relaxed).into());
    }
}

/// Between hosts: waits, not for long, for the END of a peer that was asked to go to tcp. It must not come when nobody knows what it is.
fn await_end(conn: &'static Conn, fd: i32) {
    let start = sys::now();
    let Some(wire) = conn.wire().filter(|_| conn.state() == state::PROMOTED) else { return };
    loop {
        if sys::now() - start > HAND_OVER_NS {
            return wire.fell_silent();
        }
        let Some(mut rx) = conn.lock_rx(fd) else { return };
        if !matches!(conn.rx.path(), path::SMALL | path::BIG) {
            return;
        }
        kicks::look(conn, fd, &mut rx, By::Call);
        io::progress(conn, fd, &mut rx);
        if conn.word(TCP_AT) != 0 || kicks::ended(conn, fd) {
            return;
        }
        drop(rx);
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(200_000));
    }
}

/// Before close(): what we have asked the peer for must not come when the connection is closed, to which the kernel would answer with a reset.
pub(crate) fn before_close(conn: &'static Conn, fd: i32) {
    if conn.has(flag::DEMOTING)
        && conn.notes() & note::CLOSED == 0
        // One that is stopped would hold up each close().
        && conn.wire().is_some_and(|wire| !wire.is_silent())
    {
        ask_carrier(conn, fd);
        await_end(conn, fd);
    }
}

/// Takes the connection back so that a process that knows nothing of rings can go on with it: unread bytes of the ring are
/// recalled, to be sent again by tcp, and kicks are taken out of the companion. Waits for the peer, but not for ever: if it is in no
/// call of ours, we send the bytes in its stead where the kernel lets us ([`send_for_peer`]). What can go by tcp no more, as the peer
/// has shut its half or gone another way before, goes by a [`relay`]. `leaves`: this process does not go on with it. True if the connection
/// itself carries all of it.
pub fn hand_over(conn: &'static Conn, fd: i32, reason: Reason, leaves: bool) -> bool {
    let whole = give_up_ring(conn, fd, reason, leaves);
    // Between hosts the peer must first know of it.
    crate::close::flush(conn, fd);
    if whole {
        await_recalled(conn, fd);
        await_finish(conn, fd);
    }
    whole
}

/// Between hosts: waits, not for long, until what has been recalled comes by tcp, at least so much as always finds room there. It was readable before, so it is to be readable now.
fn await_recalled(conn: &'static Conn, fd: i32) {
    let unread = {
        let Some(rx) = conn.lock_rx(fd) else { return };
        // Only who has a slot has a ring: of an offer that was taken back the link may be gone.
        if !conn.slot_taken() || !conn.is_far() || conn.rx.path() != path::LAST {
            return;
        }
        conn.word(W).wrapping_sub(rx.ring.position())
    };
    if unread > MOST_UNREAD {
        return;
    }
    let start = sys::now();
    while sys::ioctl_int(fd, libc::FIONREAD).is_ok_and(|waiting| (waiting as u64) < unread.min(ALWAYS_ROOM)) {
        if sys::now() - start > FINISH_NS || kicks::ended(conn, fd) {
            return;
        }
        let _ = sys::ppoll(&mut [], Some(LOOK_NS));
    }
}

/// Between hosts: waits, not for long, until the peer has found our END, so that no record comes any more and the connection is the kernel's alone.
fn await_finish(conn: &'static Conn, fd: i32) {
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
            io::progress(conn, fd, &mut rx);
        }
        let _ = sys::ppoll(&mut [], Some(LOOK_NS));
    }
}

fn give_up_ring(conn: &'static Conn, fd: i32, reason: Reason, leaves: bool) -> bool {
    leave(conn, fd, reason, true);
    if conn.state() != state::PROMOTED {
        return true;
    }
    ask_carrier(conn, fd);
    // What is unread stays in the ring, and is ours, as splice() can take it from there: it may be a child that only happens to hold the
    // connection, which ends us.
    let stays_here = || {
        matches!(reason, Reason::Duplicated | Reason::Forked | Reason::Splice)
            || !leaves && conn.epolls.load(Ordering::Acquire) != 0
            || reason != Reason::Passed && fd > libc::STDERR_FILENO && relay::shared(conn)
    };
    let start = sys::now();
    let mut tried = false;
    loop {
        let Some(mut rx) = conn.lock_rx(fd) else { return false };
        if conn.is_far() && matches!(conn.rx.path(), path::SMALL | path::BIG) {
            kicks::look(conn, fd, &mut rx, By::Call);
        }
        io::progress(conn, fd, &mut rx);
        // Asked before: what the end brought with it is there.
        let ended = kicks::ended(conn, fd) || conn.notes() & note::CLOSED != 0;
        let quiet = wait::quiet(conn);
        let waited = sys::now() - start;
        let on_ring = matches!(conn.rx.path(), path::SMALL | path::BIG);
        // Behind what is unread of tcp there are bytes in the ring, or kicks, perhaps one that is on the way.
        let ahead = conn.rx.path() == path::TCP
            && conn.word(layout::SMALL_AT) != 0
            && (conn.word(W) != 0 || conn.word(layout::KICKS) != 0);
        let kicked = conn.rx.path() == path::TCP && !conn.is_far() && !quiet && waited < KICK_NS;
        if !(on_ring || ahead || kicked) {
            // The writer has put nothing into the ring. When it does, it finds the recall and sends it by tcp.
            if conn.rx.path() == path::TCP && !conn.is_far() && quiet && conn.has(flag::RECALLED) {
                conn.rx.set_path(path::LAST);
            }
            drop(rx);
            finish(conn);
            return true;
        }
        if on_ring {
            if waited > PEER_NS || ended {
                kicks::drain(conn, fd, &mut rx, u64::MAX, By::Call);
            } else {
                kicks::take(conn, fd, &mut rx, u64::MAX, By::Call);
            }
        }
        let left = conn.word(TCP_AT);
        let empty = conn.word(W) == rx.ring.position();
        // No kick is on the way. With nothing unread, whatever the writer does later, it will find the recall and send it by tcp.
        let settled = quiet && on_ring && conn.word(layout::KICKS) == rx.kicks_drained;
        // It sends by tcp what it has put into the ring, behind what is unread of tcp, and no kick stands between.
        let sends = quiet && ahead && left == rx.ring.position() + 1 && conn.word(layout::KICKS) == 0;
        // Between hosts it says so among the bytes of tcp, which must not be taken for the program's.
        if settled && empty && left == 0 && !conn.is_far() || sends {
            conn.rx.set_path(path::LAST);
        } else if quiet && (settled || ahead) && left == 0 && !ended && !tried && waited > PEER_NS {
            tried = true;
            if settled && send_for_peer(conn, &rx) {
                conn.rx.set_path(path::LAST);
            } else if stays_here() && keep_rest(conn) {
                return false;
            }
        }
        if conn.rx.path() == path::LAST {
            drop(rx);
            finish(conn);
            return true;
        }
        if conn.is_far() && on_ring && !ended && left == 0 {
            // A record comes among the bytes of tcp, and nobody behind us would know it.
            if waited < FAR_NS {
                drop(rx);
                let _ =
                    sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(500_000));
                continue;
            }
            conn.break_off(fd);
            return false;
        }
        let limit = match () {
            () if empty => HAND_OVER_EMPTY_NS,
            // We may not send in its stead, and it may be long in no call of ours.
            () if tried => UNTRACED_NS,
            () => HAND_OVER_NS,
        };
        // It sends no more what we have not read: it has gone another way behind it, or nothing comes from it any more.
        let unsendable = left > rx.ring.position() + 1 || ended && left == 0 || ahead && left != 0;
        if !kicked && ((unsendable && (quiet || waited > KICK_NS)) || waited > limit) {
            if stays_here() {
                report::count_reason(Reason::PeerGone);
            } else {
                rest(conn, fd, rx, ended);
            }
            return false;
        }
        drop(rx);
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }], Some(500_000));
    }
}

/// Lets a relay have what is unread. If the writer may still come to send it, it is told not to.
fn rest(conn: &'static Conn, fd: i32, mut rx: Held<'_, Rx>, ended: bool) {
    // Between hosts nobody sends in the other's stead.
    let claimed =
        !conn.is_far() && conn.mine().replace_word(conn.at(layout::CLAIM), 0, layout::BY_READER).is_ok();
    let died_unread = if ended { io::unread_at_death(conn) } else { None };
    if (claimed || ended || conn.word(TCP_AT) != 0)
        && let Some(rest) = relay::take(conn, &mut rx, died_unread)
    {
        if claimed {
            conn.put(layout::RESENT_TO, rx.ring.position() + 1);
        }
        conn.rx.set_path(path::LAST);
        drop(rx);
        crate::close::flush(conn, fd);
        // Whoever else has the connection goes on with the kernel's.
        finish(conn);
        if relay::begin(conn, fd, rest) {
            return;
        }
    }
    report::count_reason(Reason::PeerGone);
}

/// How long a peer gets that is in a call of ours, or about to be.
const PEER_NS: u64 = 1_000_000;
const HAND_OVER_NS: u64 = 2_000_000_000;
const UNTRACED_NS: u64 = 30_000_000;
/// How long it may take until the peer has said that it has found our END, and how often it is looked.
const FINISH_NS: u64 = 200_000_000;
const LOOK_NS: u64 = 100_000;
/// So many bytes the kernel takes of a peer, whatever its buffers are.
const ALWAYS_ROOM: u64 = 2048;
/// How long a kick that was begun may take to come.
const KICK_NS: u64 = 200_000_000;
const HAND_OVER_EMPTY_NS: u64 = 200_000_000;
/// How long a peer on another host may take, whose link may just have ended.
const FAR_NS: u64 = 10_000_000_000;
/// What a direction holds.
const MOST_UNREAD: u64 = layout::UNDER_WAY as u64;
/// How long a writer waits for a reader that has begun to send in its stead.
const CLAIMED_NS: u64 = if cfg!(fuzzing) { 0 } else { 1_000_000_000 };

/// Sends the bytes that we have recalled by tcp ourselves, on a copy of the peer's own descriptor, which is proved by its cookie. No
/// kick may be on the way. False if the kernel does not let us, or the peer has begun; what does not fit now the peer sends later.
fn send_for_peer(conn: &'static Conn, rx: &Held<'_, Rx>) -> bool {
    if conn.is_far() {
        return false;
    }
    let hint = conn.word(layout::FD);
    let pid = link::link(conn.link.load(Ordering::Relaxed)).peer_pid.load(Ordering::Relaxed);
    let Some(theirs) = hint.checked_sub(1).and_then(|fd| i32::try_from(fd).ok()) else { return false };
    let Ok(socket) = sys::descriptor_of(pid, theirs) else { return false };
    let socket = descriptors::hide(socket);
    let cookie = sys::getsockopt::<u64>(socket, libc::SOL_SOCKET, rendezvous::SO_COOKIE);
    let proved = cookie == Ok(conn.pending_cookie.load(Ordering::Relaxed));
    let claimed = proved
        && conn.word(TCP_AT) == 0
        && conn.mine().replace_word(conn.at(layout::CLAIM), 0, layout::BY_READER).is_ok();
    if claimed {
        let _undisturbed = signals::undisturbed();
        let (mut ring, mut path) = (rx.ring, conn.rx.path());
        let mut bytes = [0u8; 4096];
        loop {
            let ready = ring.ready(&conn.ends(), 1, || io::until(conn, path)).unwrap_or(0).min(bytes.len());
            if ready == 0 && path == path::SMALL && conn.word(layout::BIG_AT) == ring.position() + 1 {
                ring.move_to(io::big_ring(conn), layout::BIG);
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
fn keep_rest(conn: &Conn) -> bool {
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

/// Announces that the writer is on tcp from here on. If the reader has recalled the ring from `from` on, or is sending what lies
/// there in our stead, what it has not sent goes by tcp first.
fn to_tcp(conn: &Conn, tx: &mut Held<'_, Tx>, recalled: Option<u64>) {
    let by_reader = conn.theirs().or_word(conn.at(layout::CLAIM), layout::BY_WRITER) & layout::BY_READER != 0;
    let written = tx.ring.position();
    // A holder of the lock who was killed may have written what it did not publish.
    tx.ring.publish(&conn.ends());
    let from = if by_reader {
        let start = sys::now();
        loop {
            match conn.word(layout::RESENT_TO) {
                0 if sys::now() - start < CLAIMED_NS => sys::yield_now(),
                // Gone, stopped, or hostile. What it has sent is not known, so nothing may follow: the connection ends, and says so.
                0 => {
                    conn.break_off(conn.descriptor());
                    break Some(written);
                }
                to => break Some((to - 1).clamp(written.saturating_sub(MOST_UNREAD), written)),
            }
        }
    } else {
        recalled
    };
    (tx.tcp_at, tx.leaving) = match from {
        Some(from) => (from + 1, path::RESEND),
        // Kicks that are owed come first: whoever has the connection may be the kernel, from [`path::LAST`] on.
        // And the peer must know of the change before.
        None if tx.debt > 0 || conn.is_far() => (written + 1, path::RESEND),
        None => (written + 1, path::LAST),
    };
    mend::begin(&mut tx.step, step::LEAVING);
    announce(conn, tx);
    mend::end(&mut tx.step, step::LEAVING);
}

/// Tells the reader where tcp goes on, and goes there.
pub(crate) fn announce(conn: &Conn, tx: &mut Tx) {
    tx.resend = tx.tcp_at - 1;
    tx.sent_from = 0;
    if !conn.is_far() {
        conn.put(TCP_AT, tx.tcp_at);
    }
    if tx.leaving == path::LAST {
        by_tcp(conn);
    } else {
        conn.tx.set_path(tx.leaving);
    }
    conn.set(flag::NEVER | flag::DEMOTING);
}

/// What is written goes by tcp from here on. Sets that wait for room are to ask the kernel now, which has no edge for them where there has always been some.
fn by_tcp(conn: &Conn) {
    conn.tx.set_path(path::LAST);
    // Whoever finds no room says so, and then looks which path it is.
    fence(Ordering::SeqCst);
    if conn.has(flag::TX_FULL) && conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
}

fn leave(conn: &'static Conn, fd: i32, reason: Reason, recall: bool) {
    conn.set(flag::OWN_WISH);
    if conn.state() != state::PROMOTED && rendezvous::give_up(conn, reason) {
        return;
    }
    let Some(mut tx) = conn.lock_tx(fd) else { return };
    if conn.tx.path() == path::TCP && !io::switch(conn, fd, &mut tx) {
        if !recall || !conn.has(flag::SHUT_WR) {
            return;
        }
        // Nothing more goes that way.
        by_tcp(conn);
    }
    if !conn.has(flag::DEMOTING) {
        report::count_reason(reason);
        report::add(report::at::DEMOTED, 1);
        conn.set_reason(reason);
        log::on_tcp(conn, reason);
    }
    if recall && let Some(rx) = conn.lock_rx(fd) {
        conn.set(flag::RECALLED);
        wait::disarm_for_all(conn);
        tell_recall(conn, &rx);
    } else {
        conn.tell(note::DEMOTE);
    }
    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
        kicks::wake(conn, fd, &mut tx, trip::RX | trip::TX);
        to_tcp(conn, &mut tx, None);
    }
    conn.set(flag::NEVER | flag::DEMOTING);
}

/// Between hosts, when the process ends: nothing more is put. An END says so to the peer, and a note that it comes, as the link is over soon. Nothing is asked of the peer: an answer
/// that comes when nobody reads any more makes the kernel's end a reset. Not if another thread is in the middle of writing.
pub(crate) fn begin_end(conn: &'static Conn, _fd: i32) {
    let Some(mut tx) = conn.tx.try_lock() else { return };
    match conn.tx.path() {
        path::SMALL | path::BIG => to_tcp(conn, &mut tx, None),
        path::TCP => conn.tx.set_path(path::LAST),
        _ => {}
    }
    conn.set(flag::NEVER | flag::DEMOTING);
    conn.tell(note::ENDING);
}

/// Tells the peer that nothing more is read from the ring.
pub(crate) fn tell_recall(conn: &Conn, rx: &Rx) {
    conn.put(RECALL_AT, rx.ring.position());
    let again = if conn.has(flag::KEPT) { note::AGAIN } else { 0 };
    conn.tell(note::DEMOTE | note::RECALL | again);
}

/// Does what the peer has asked for, if it has: from calls that only read or wait.
pub fn attend(conn: &'static Conn, fd: i32) {
    if conn.state() != state::PROMOTED {
        return;
    }
    if conn.is_far() {
        records::attend(conn, fd);
    }
    match conn.tx.path() {
        path::TCP | path::SMALL | path::BIG if conn.word(NOTES) & (note::DEMOTE | note::RECALL) == 0 => {}
        path::LAST => {
            finish(conn);
        }
        path::RESEND => {
            if let Some(mut tx) = conn.lock_tx(fd) {
                resend(conn, fd, &mut tx);
            }
        }
        _ => {
            if let Some(mut tx) = conn.lock_tx(fd) {
                if conn.tx.path() == path::TCP && !io::switch(conn, fd, &mut tx) {
                    return;
                }
                if matches!(conn.tx.path(), path::SMALL | path::BIG) {
                    asked(conn, fd, &mut tx);
                }
                // At once: whoever waits for room may not be woken again.
                if conn.tx.path() == path::RESEND {
                    resend(conn, fd, &mut tx);
                }
            }
        }
    }
}

/// The peer asks for tcp, or has gone: leaves the ring. Under the tx lock, with the path on a ring.
pub(crate) fn asked(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    let notes = conn.notes();
    if !conn.has(flag::DEMOTING) {
        let reason = if notes & note::DEMOTE != 0 { Reason::PeerAsked } else { Reason::PeerGone };
        conn.set_reason(reason);
        report::count_reason(reason);
        report::add(report::at::DEMOTED, 1);
        log::on_tcp(conn, reason);
    }
    if notes & note::RECALL != 0 {
        let from = conn.word(RECALL_AT);
        if from > tx.ring.position() || tx.ring.position() - from > MOST_UNREAD {
            conn.break_off(fd);
        } else {
            to_tcp(conn, tx, Some(from));
            resend(conn, fd, tx);
            return;
        }
    }
    if notes & note::CLOSED == 0 {
        conn.tell(note::DEMOTE);
        kicks::wake(conn, fd, tx, trip::RX | trip::TX);
    }
    to_tcp(conn, tx, None);
}

/// A connection that goes by Virtual Interfaces has to go on by a big ring, and none is left. Under the tx lock.
pub(crate) fn out_of_rings(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    conn.set_reason(Reason::Stalled);
    report::count_reason(Reason::Stalled);
    report::add(report::at::DEMOTED, 1);
    log::on_tcp(conn, Reason::Stalled);
    conn.tell(note::DEMOTE);
    kicks::wake(conn, fd, tx, trip::RX | trip::TX);
    to_tcp(conn, tx, None);
}

/// Between hosts, when the link is over: what is unread will go by tcp, once the peer has said from where on.
pub(crate) fn wait_for_stop(conn: &Conn, tx: &mut Held<'_, Tx>) {
    tx.resend = tx.ring.position();
    tx.sent_from = 0;
    conn.tx.set_path(path::RESEND);
}

/// Sends recalled bytes by tcp, as many as it takes now; true when all are sent.
pub(crate) fn resend(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    let slot = conn.slot.load(Ordering::Relaxed) as usize;
    let mut bytes = [0u8; 4096];
    if !kicks::pay(conn, fd, tx) {
        return false;
    }
    if !(records::may_resend(conn, tx) && records::send(conn, fd, tx)) {
        return false;
    }
    let _undisturbed = signals::undisturbed();
    if tx.sent_from == 0
        && let Ok(written) = diag::written(fd, conn.has(flag::CLIENT))
    {
        tx.resend_from = tx.resend;
        compiler_fence(Ordering::SeqCst);
        tx.sent_from = written + 1;
    }
    while tx.resend < tx.ring.position() {
        let grown = tx.big != 0 && tx.ring.is_at(layout::big(tx.big));
        let in_big = grown && tx.resend >= tx.big_from;
        let (data, capacity) =
            if in_big { (layout::big(tx.big), layout::BIG) } else { (layout::small(slot), layout::SMALL) };
        let end = if grown && !in_big { tx.big_from } else { tx.ring.position() };
        let at = (tx.resend % capacity as u64) as usize;
        let most = ((end - tx.resend) as usize).min(bytes.len());
        // SAFETY: the target is `bytes`, which has room for so many.
        let in_messages = unsafe {
            tx.ring.recover(&conn.ends(), tx.resend, bytes.as_mut_ptr(), if in_big { 0 } else { most })
        };
        let len = if in_messages > 0 { in_messages } else { most.min(capacity - at) };
        if in_messages == 0 {
            // SAFETY: as above.
            unsafe { conn.theirs().get(data + at, bytes.as_mut_ptr(), len) };
        }
        mend::begin(&mut tx.step, step::SENDING);
        let sent = sys::send(fd, bytes.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        tx.resend += sent.unwrap_or(0) as u64;
        mend::end(&mut tx.step, step::SENDING);
        match sent {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end. The kernel tells a reset once: who reads next is to know.
            Err(errno) => {
                let rx = if far::is_carrier() { conn.rx.try_lock() } else { conn.lock_rx(fd) };
                if errno != Errno::EPIPE
                    && let Some(mut rx) = rx
                {
                    rx.error = errno.into_raw();
                }
                break;
            }
        }
    }
    by_tcp(conn);
    true
}

/// When both directions are back on tcp: calls are the kernel's again. True if they are.
pub(crate) fn finish(conn: &'static Conn) -> bool {
    if conn.tx.path() != path::LAST || conn.rx.path() != path::LAST || !records::may_finish(conn) {
        return false;
    }
    if conn.plain(state::PROMOTED) {
        conn.unmanage();
        if conn.notes() & note::AGAIN != 0 {
            begin_anew(conn);
        }
    }
    true
}

/// The peer's program has gone through exec(), and the image that it is now may want the connection in memory again: so it counts as new.
/// Its slot it keeps until it gets another one ([`crate::close::leave_slot`]).
fn begin_anew(conn: &'static Conn) {
    const ENDED: u32 = flag::SHUT_WR | flag::SHUT_RD | flag::PEER_FIN | flag::PEER_HUP | flag::BROKEN;
    const OF_THE_SLOT: u32 =
        flag::DEMOTING | flag::NEVER | flag::KICKED | flag::TX_FULL | flag::PEER_NARROW | flag::REST;
    if conn.has(ENDED | flag::OWN_WISH | flag::SHARED) {
        return;
    }
    conn.clear(OF_THE_SLOT);
    conn.ops.store(0, Ordering::Relaxed);
    conn.put_off.store(0, Ordering::Relaxed);
    conn.set_reason(Reason::Young);
    conn.due.store(0, Ordering::Relaxed);
    let new =
        conn.state.compare_exchange(state::PLAIN, state::NEW, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if new && conn.has(flag::OWN_WISH) {
        // Another thread's, just now.
        conn.set(flag::NEVER);
        conn.plain(state::NEW);
    }
}
