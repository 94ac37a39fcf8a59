//! Back to tcp: because the program does something that a ring cannot follow, because the peer asks, or because it has gone.
//!
//! Order matters. The one that demotes first tells the peer (DEMOTE), then wakes it if it is armed, and only then announces where
//! tcp begins: after that no kick may go out, as it would stand among the bytes of tcp. A peer that arms later finds the note.

use fabric::sync::{Ordering, compiler_fence};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, trip};

use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::kicks::By;
use crate::layout::{self, NOTES, RECALL_AT, TCP_AT, note};
use crate::path::reader::tell_recall;
use crate::path::steps;
use crate::path::writer::{announce, by_tcp};
use crate::path::{reader, writer};
use crate::peering::{cut, records, wire};
use crate::reason::Reason;
use crate::wake::{arm, fire};
use crate::{kicks, log, rendezvous, report, signals};
use host::diag;
use stream::spin::{ticks, ticks_of};

/// Takes the connection back to tcp for good. Bytes in the ring are read from there first; nothing is waited for.
pub fn now(conn: &'static Conn, fd: i32, reason: Reason) {
    leave(conn, fd, reason, false);
}

/// As [`now`], for what the kernel is to do with the descriptor by itself from now on. Between hosts it waits, not for long, until the peer knows, and has said in the
/// companion from where on it goes by tcp; on one host it knows at once.
pub fn for_kernel(conn: &'static Conn, fd: i32, reason: Reason) {
    now(conn, fd, reason);
    // What the peer has recalled goes before what the kernel is to send.
    flush(conn, fd);
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
pub(crate) fn ask_carrier(conn: &'static Conn, fd: i32) {
    if conn.state() == state::PROMOTED && conn.is_far() {
        flush(conn, fd);
        call_carrier(conn);
    }
}

fn call_carrier(conn: &Conn) {
    if conn.state() == state::PROMOTED
        && let Some(wire) = conn.wire()
    {
        wire.call(wire::call::RECALL, conn.slot.load(Ordering::Relaxed).into());
    }
}

/// Between hosts: waits, not for long, for the END of a peer that was asked to go to tcp. It must not come when nobody knows what it is.
fn await_end(conn: &'static Conn, fd: i32) {
    let start = sys::now();
    let Some(wire) = conn.wire().filter(|_| conn.state() == state::PROMOTED) else { return };
    loop {
        if sys::now() - start > END_NS {
            return wire.fell_silent();
        }
        let Some(mut rx) = conn.lock_rx(fd) else { return };
        if !matches!(conn.rx.path(), path::SMALL | path::BIG) {
            return;
        }
        kicks::look(conn, fd, &mut rx, By::Call);
        reader::progress(conn, fd, &mut rx);
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

/// What a direction holds.
const MOST_UNREAD: u64 = layout::UNDER_WAY as u64;
/// How long a writer waits for a reader that has begun to send in its stead.
const CLAIMED_NS: u64 = if cfg!(fuzzing) { 0 } else { 1_000_000_000 };

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
    steps::begin(&mut tx.step, steps::LEAVING);
    announce(conn, tx);
    steps::end(&mut tx.step, steps::LEAVING);
}

pub(crate) fn leave(conn: &'static Conn, fd: i32, reason: Reason, recall: bool) {
    conn.set(flag::OWN_WISH);
    if conn.state() != state::PROMOTED && rendezvous::give_up(conn, reason) {
        return;
    }
    let Some(mut tx) = conn.lock_tx(fd) else { return };
    if conn.tx.path() == path::TCP && !writer::switch(conn, fd, &mut tx) {
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
        arm::disarm_for_all(conn);
        tell_recall(conn, &rx);
    } else {
        conn.tell(note::DEMOTE);
    }
    if matches!(conn.tx.path(), path::SMALL | path::BIG) {
        fire::wake(conn, fd, &mut tx, trip::RX | trip::TX);
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

/// Does what the peer has asked for, if it has: from calls that only read or wait.
pub fn attend(conn: &'static Conn, fd: i32) {
    if conn.state() != state::PROMOTED {
        return;
    }
    if conn.is_far() {
        cut::attend(conn, fd);
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
                if conn.tx.path() == path::TCP && !writer::switch(conn, fd, &mut tx) {
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
        fire::wake(conn, fd, tx, trip::RX | trip::TX);
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
    fire::wake(conn, fd, tx, trip::RX | trip::TX);
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
    if !fire::pay(conn, fd, tx) {
        return false;
    }
    if !(cut::may_resend(conn, tx) && records::send(conn, fd, tx)) {
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
        steps::begin(&mut tx.step, steps::SENDING);
        let sent = sys::send(fd, bytes.as_ptr(), len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        tx.resend += sent.unwrap_or(0) as u64;
        steps::end(&mut tx.step, steps::SENDING);
        match sent {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end. The kernel tells a reset once: who reads next is to know.
            Err(errno) => {
                let rx = if wire::is_carrier() { conn.rx.try_lock() } else { conn.lock_rx(fd) };
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
/// Its slot it keeps until it gets another one ([`crate::link::Former`]).
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

/// Recalled bytes go out before the end of the connection.
pub(crate) fn flush(conn: &'static Conn, fd: i32) {
    let start = sys::now();
    while conn.tx.path() == path::RESEND {
        attend(conn, fd);
        let waited = sys::now() - start;
        if let Some(wire) = conn.wire()
            && waited > if wire.is_silent() { SILENT_NS } else { FLUSH_NS }
        {
            // One that is stopped would hold up each close().
            return wire.fell_silent();
        }
        if waited > FLUSH_NS {
            return;
        }
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], Some(10_000_000));
    }
}

const FLUSH_NS: u64 = 5_000_000_000;

const SILENT_NS: u64 = 50_000_000;

/// Between two looks at the kernel for the connection's life, in ns.
const LOOK_TX_NS: u64 = 10_000_000;

/// What the peer has told that a writer must act on; true if the path has changed.
#[inline(always)]
pub(crate) fn attend_writing(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    if let Some(wire) = conn.wire()
        && wire.is_over()
    {
        cut::cut(conn, fd, tx);
        if conn.has(flag::HEARD) || conn.notes() & note::CLOSED != 0 {
            asked(conn, fd, tx);
        } else {
            // How far the peer has read it will say. Until then nothing can go any way.
            wait_for_stop(conn, tx);
        }
        return true;
    }
    let notes = conn.notes();
    let now = ticks();
    if notes & (note::CLOSED | note::DEMOTE | note::RECALL) == 0 {
        // An epoll set that has the connection is told by the kernel.
        if now.wrapping_sub(tx.looked) < ticks_of(LOOK_TX_NS) || conn.queue.load(Ordering::Relaxed) != 0 {
            return false;
        }
        tx.looked = now;
        // Who answers, lives.
        let heard = conn.counters.ring_in.load(Ordering::Relaxed);
        if core::mem::replace(&mut tx.heard, heard) != heard {
            return false;
        }
        // A peer that was killed has told nothing: its end of the companion is closed, yet it did not say that it shut it.
        let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let told = if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 { poll[0].revents } else { 0 };
        let gone = told & (libc::POLLHUP | libc::POLLERR) != 0
            || told & libc::POLLRDHUP != 0 && conn.notes() & note::SHUT_WR == 0;
        if !gone {
            return false;
        }
    }
    asked(conn, fd, tx);
    true
}

/// How long a peer that was asked to go to tcp may take.
const END_NS: u64 = 2_000_000_000;
