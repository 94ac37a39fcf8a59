//! Back to tcp: because the program does something that a ring cannot follow, because the peer
//! asks, or because it has gone.
//!
//! Order matters. The one that demotes first tells the peer (DEMOTE), then wakes it if it is armed,
//! and only then announces where tcp begins: after that no kick may go out, as it would stand among
//! the bytes of tcp. A peer that arms later finds the note.
//!
//! **Recall.** A reader that must leave the ring (exec, a descriptor passed on, splice) *recalls*:
//! it stops at R, and the writer sends everything from R on by tcp. A recall that crosses an
//! announcement is void. If the writer is in no call of ours, the reader takes a copy of its
//! descriptor (pidfd_getfd, proved by SO_COOKIE) and sends the bytes in its stead; a word that both
//! swap (CLAIM) decides which of the two does. If neither can, and this process goes on with the
//! connection, the recall is taken back: the writer is told that all has been sent, and the reader
//! reads the ring to its end (`keep_rest` in [`crate::handover`]). The kernel does not know of
//! these bytes. For an epoll set's member a readable eventfd beside it stands for them
//! (`epoll/standin.rs`), and for a low water mark a lower one of the kernel's
//! ([`crate::low_water`]).
//!
//! **Bytes that nobody can send again.** The writer may have closed, been killed, shut its half, or
//! left the ring behind them before. No kernel call puts such bytes into a socket's queue: a relay
//! carries them ([`crate::relay`]). A child that only happens to hold the connection gets no relay:
//! unread bytes stay with its parent.
//!
//! **exec().** Before it the peer is told whether no other process has the connection (AGAIN). Then
//! the connection counts as new at both ends, also in the next image, which learns of it by a
//! variable in its environment (`kept.rs` of `preload`), and may be promoted again, on another
//! slot. Children of vfork() have descriptors of their own, but share our table: what they do to
//! descriptors changes nothing in it.

use fabric::sync::{Ordering, compiler_fence};
use fabric::sys::{self, Errno};
use fabric::{Local, Remote, trip};

use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::kicks::By;
use crate::layout::{self, RECALL_AT, TCP_AT, note};
use crate::path::claim::{self, Leaving, Sends};
use crate::path::reader::tell_recall;
use crate::path::steps;
use crate::path::writer::{announce, by_tcp};
use crate::path::writing::{self, Anew, Due, Leave, Step, Told, Unsent};
use crate::path::{reader, writer};
use crate::peering::{self, cut, wire};
use crate::reason::Reason;
use crate::small_buffers::Recalled;
use crate::wake::{arm, fire, word};
use crate::{kicks, rendezvous, signals, thread};
use host::diag;
use stream::spin::{ticks, ticks_of};

/// Takes the connection back to tcp for good. Bytes in the ring are read from there first; nothing
/// is waited for.
pub fn now(conn: &'static Conn, fd: i32, reason: Reason) {
    leave(conn, fd, reason, false);
}

/// As [`now`], but not for good: on tcp the connection counts as new, at both ends.
pub(crate) fn for_now(conn: &'static Conn, fd: i32, reason: Reason) {
    conn.set(flag::FOR_NOW);
    step_back(conn, fd, reason, false);
}

/// As [`now`], for what the kernel is to do with the descriptor by itself from now on. Between
/// hosts it waits, not for long, until the peer knows, and has said in the companion from where on
/// it goes by tcp; on one host it knows at once.
pub fn for_kernel(conn: &'static Conn, fd: i32, reason: Reason) {
    now(conn, fd, reason);
    // What the peer has recalled goes before what the kernel is to send.
    flush(conn, fd);
    ask_progress_thread(conn, fd);
    await_end(conn, fd);
}

/// As [`now`], for a reader that does not read. Between hosts its progress thread goes to tcp for
/// it: a reader that then finds bytes all the time attends to nothing, and looks for records before
/// each read until it knows that we have found its END.
pub(crate) fn stalled(conn: &'static Conn, fd: i32) {
    now(conn, fd, Reason::Stalled);
    call_progress_thread(conn);
}

/// Between hosts: the peer may be in no call of ours, so its progress thread is asked to go to tcp,
/// behind our own END.
pub(crate) fn ask_progress_thread(conn: &'static Conn, fd: i32) {
    if conn.state() == state::PROMOTED && peering::facts(conn).uses_records {
        flush(conn, fd);
        call_progress_thread(conn);
    }
}

fn call_progress_thread(conn: &Conn) {
    if conn.state() == state::PROMOTED {
        peering::call_to_tcp(conn);
    }
}

/// Between hosts: waits, not for long, for the END of a peer that was asked to go to tcp. It must
/// not come when nobody knows what it is.
fn await_end(conn: &'static Conn, fd: i32) {
    let (start, mut ready) = (sys::now(), false);
    if conn.state() != state::PROMOTED || !peering::facts(conn).uses_records {
        return;
    }
    loop {
        if sys::now() - start > END_NS {
            return peering::fell_silent(conn);
        }
        let Some(mut rx) = conn.lock_rx(fd) else { return };
        if !matches!(conn.rx.path(), path::SMALL | path::BIG) {
            return;
        }
        kicks::poll(conn, fd, &mut rx, By::Call);
        reader::progress(conn, fd, &mut rx);
        // Of one that has shut its reading half the kernel says that it has ended, and is readable,
        // whatever the peer does.
        let shut = conn.has(flag::SHUT_RD);
        let ended = match shut {
            true => peering::is_over(conn) || conn.notes() & note::CLOSED != 0,
            false => kicks::ended(conn, fd),
        };
        if conn.word(TCP_AT) != 0 || ended {
            return;
        }
        drop(rx);
        ready |= shut;
        kicks::await_more(fd, &mut ready, 200_000);
    }
}

/// Before close(), between hosts: what is on the way to the peer goes by tcp if the link ends
/// before it is there.
pub(crate) fn deliver(conn: &'static Conn, fd: i32) {
    if conn.state() != state::PROMOTED || !peering::facts(conn).uses_records {
        return;
    }
    let unread = |tx: Held<'_, Tx>| {
        path::is_ring(conn.tx.path()) && tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0)
    };
    if conn.lock_tx(fd).is_some_and(unread) && conn.notes() & note::CLOSED == 0 {
        peering::settle(conn);
    }
    flush_records(conn, fd);
}

/// Before close(): what we have asked the peer for must not come when the connection is closed, to
/// which the kernel would answer with a reset.
pub(crate) fn before_close(conn: &'static Conn, fd: i32) {
    if conn.is_demoted()
        && conn.notes() & note::CLOSED == 0
        // One that is stopped would hold up each close().
        && !peering::is_silent(conn)
    {
        ask_progress_thread(conn, fd);
        await_end(conn, fd);
    }
}

/// What a direction holds.
const MOST_UNREAD: u64 = layout::UNDER_WAY as u64;

/// Announces that the writer is on tcp from here on. If the reader has recalled the ring from
/// `from` on, or is sending what lies there in our stead, what it has not sent goes by tcp first.
fn to_tcp(conn: &Conn, tx: &mut Held<'_, Tx>, recalled: Option<u64>) {
    let before = conn.theirs().or_word(conn.at(layout::CLAIM), claim::BY_WRITER);
    let written = tx.ring.position();
    // A holder of the lock who was killed may have written what it did not publish.
    tx.ring.publish(&conn.ends());
    let oldest = written.saturating_sub(MOST_UNREAD);
    let start = sys::now();
    let from = loop {
        let resent_to = conn.word(layout::RESENT_TO).checked_sub(1);
        let seen = Leaving { before, recalled, written, oldest, resent_to, waited: sys::now() - start };
        match seen.sends() {
            Sends::From(from) => break from,
            Sends::NotKnown => sys::yield_now(),
            Sends::BreakOff => {
                // It says so to the program.
                conn.break_off(conn.descriptor());
                break written;
            }
        }
    };
    tx.tcp_at = from + 1;
    steps::begin(&mut tx.step, steps::LEAVING);
    announce(conn, tx);
    steps::end(&mut tx.step, steps::LEAVING);
}

pub(crate) fn leave(conn: &'static Conn, fd: i32, reason: Reason, recall: bool) {
    conn.set(flag::OWN_WISH);
    step_back(conn, fd, reason, recall);
}

fn step_back(conn: &'static Conn, fd: i32, reason: Reason, recall: bool) {
    if conn.state() != state::PROMOTED && rendezvous::give_up(conn, reason) {
        return;
    }
    await_agreement(conn);
    let Some(mut tx) = conn.lock_tx(fd) else { return };
    let first = !conn.is_demoted();
    if conn.tx.path() == path::TCP && !writer::switch(conn, fd, &mut tx) {
        if !peering::may_put(conn) {
            conn.set(flag::NEVER);
        }
        if !recall || !conn.has(flag::SHUT_WR) {
            return;
        }
        // Nothing more goes that way.
        by_tcp(conn);
    }
    if first {
        conn.went_back(reason);
    }
    // What the peer has recalled meanwhile goes by tcp, whoever was first.
    let from = asks(conn, &tx).from;
    for step in writing::leaving(writer::writes(conn), false) {
        if recall
            && *step == Step::Tell
            && let Some(rx) = conn.lock_rx(fd)
        {
            conn.set(flag::RECALLED);
            arm::disarm_for_all(conn);
            word::look_again(conn);
            tell_recall(conn, &rx);
        } else {
            carry_out(conn, fd, &mut tx, *step, from);
        }
    }
    conn.set(flag::NEVER);
}

/// Between hosts: waits, not for long, until it is known that the peer has heard that both have
/// agreed.
fn await_agreement(conn: &Conn) {
    let start = sys::now();
    while conn.state() == state::PROMOTED
        && !peering::may_put(conn)
        && !(peering::is_over(conn) || wire::is_progress_thread() || sys::now() - start > END_NS)
    {
        let _ = sys::ppoll(&mut [], Some(100_000));
    }
}

/// A step of what [`writing`] says; `from`: the first byte of the ring that is to go by tcp.
fn carry_out(conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>, step: Step, from: Option<u64>) {
    match step {
        Step::Tell => {
            let for_now = conn.has(flag::FOR_NOW) && !conn.has(flag::OWN_WISH);
            let again = if for_now { note::AGAIN } else { 0 };
            conn.tell(note::DEMOTE | again);
        }
        Step::Wake => fire::wake(conn, fd, tx, trip::RX | trip::TX),
        Step::Announce => to_tcp(conn, tx, from),
    }
}

/// Between hosts, when the process ends: nothing more is put. An END says so to the peer, and a
/// note that it comes, as the link is over soon. Nothing is asked of the peer: an answer that comes
/// when nobody reads any more makes the kernel's end a reset. Not if another thread of the program
/// is in the middle of writing.
pub(crate) fn begin_end(conn: &'static Conn, _fd: i32) {
    let Some(mut tx) = wire::past_progress(&conn.tx) else { return };
    match conn.tx.path() {
        path::SMALL | path::BIG => to_tcp(conn, &mut tx, None),
        path::TCP => conn.tx.set_path(path::LAST),
        _ => {}
    }
    conn.set(flag::NEVER);
    conn.tell(note::ENDING);
}

/// Does what the peer has asked for, if it has: from calls that only read or wait.
pub fn attend(conn: &'static Conn, fd: i32) {
    if conn.state() != state::PROMOTED {
        return;
    }
    cut::attend(conn, fd);
    let due = writing::due(writer::writes(conn), || conn.notes() & note::DEMOTE != 0);
    match due {
        Due::Nothing => {}
        Due::Finish => {
            finish(conn);
        }
        Due::Leave | Due::Resend => {
            let Some(mut tx) = conn.lock_tx(fd) else { return };
            if due == Due::Leave && conn.tx.path() == path::TCP && !writer::switch(conn, fd, &mut tx) {
                return;
            }
            if due == Due::Leave && path::is_ring(conn.tx.path()) {
                asked(conn, fd, &mut tx);
            }
            // At once: whoever waits for room may not be woken again.
            if conn.tx.path() == path::RESEND {
                resend(conn, fd, &mut tx);
            }
        }
    }
}

/// How the peer wants the ring to be left, as far as it has told.
fn asks(conn: &Conn, tx: &Tx) -> Leave {
    let notes = conn.notes();
    let told = Told {
        closed: notes & note::CLOSED != 0,
        recalled: (notes & note::RECALL != 0).then(|| conn.word(RECALL_AT)),
    };
    told.leave(tx.ring.position(), tx.ring.position().saturating_sub(MOST_UNREAD))
}

/// The peer asks for tcp, or has gone: leaves the ring. Under the tx lock, with the path on a ring.
pub(crate) fn asked(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    let notes = conn.notes();
    if !conn.is_demoted() {
        conn.went_back(if notes & note::DEMOTE != 0 { Reason::PeerAsked } else { Reason::PeerGone });
    }
    let leave = asks(conn, tx);
    if leave.breaks {
        conn.break_off(fd);
    }
    for step in leave.steps {
        carry_out(conn, fd, tx, *step, leave.from);
    }
    if leave.from.is_some() && conn.tx.path() == path::RESEND {
        resend(conn, fd, tx);
    }
}

/// A connection that goes by Virtual Interfaces has to go on by a big ring, and none is left. Under
/// the tx lock.
pub(crate) fn out_of_rings(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) {
    conn.went_back(Reason::Stalled);
    for step in writing::leaving(writer::writes(conn), false) {
        carry_out(conn, fd, tx, *step, None);
    }
}

/// Between hosts, when the link is over: what the peer may not have read goes by tcp.
pub(crate) fn leave_what_is_over(conn: &Conn, tx: &mut Held<'_, Tx>) {
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
    if !(cut::may_resend(conn, tx) && peering::send_records(conn, fd, tx)) {
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
    let mut recalled = Recalled::new(fd, tx.ring.position().saturating_sub(tx.resend));
    while tx.resend < tx.ring.position() {
        let piece = unsent(tx).piece(layout::SMALL, layout::BIG, bytes.len());
        let most = if piece.in_big { 0 } else { piece.most };
        // SAFETY: the target is `bytes`, which has room for so many.
        let in_messages = unsafe { tx.ring.recover(&conn.ends(), tx.resend, bytes.as_mut_ptr(), most) };
        let len = if in_messages > 0 { in_messages } else { piece.len };
        if in_messages == 0 {
            let data = if piece.in_big { layout::big(tx.big) } else { layout::small(slot) };
            // SAFETY: as above.
            unsafe { conn.theirs().get(data + piece.at, bytes.as_mut_ptr(), len) };
        }
        steps::begin(&mut tx.step, steps::SENDING);
        let sent = recalled.send(&bytes[..len]);
        tx.resend += sent.unwrap_or(0) as u64;
        steps::end(&mut tx.step, steps::SENDING);
        match sent {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end. The kernel tells a reset once: who reads next is to
            // know.
            Err(errno) => {
                let rx = if wire::is_progress_thread() { conn.rx.try_lock() } else { conn.lock_rx(fd) };
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

/// Which bytes of the rings are still to go by tcp.
pub(crate) fn unsent(tx: &Tx) -> Unsent {
    let grown = tx.big != 0 && tx.ring.is_at(layout::big(tx.big));
    Unsent { from: tx.resend, written: tx.ring.position(), big_from: grown.then_some(tx.big_from) }
}

/// When both directions are back on tcp: calls are the kernel's again. True if they are.
pub(crate) fn finish(conn: &'static Conn) -> bool {
    let back = conn.tx.path() == path::LAST && conn.rx.path() == path::LAST;
    // An error that the kernel has told is still to be told by us; another thread that reads may
    // just be told of one.
    let keeps_error = || match conn.rx.try_lock() {
        Some(rx) => rx.error != 0,
        None => conn.rx.holder() != thread::tid(),
    };
    if !back || conn.has(flag::UNSENT) || !peering::may_finish(conn) || keeps_error() {
        return false;
    }
    if conn.plain(state::PROMOTED) {
        conn.unmanage();
        begin_anew(conn);
    }
    true
}

/// If the peer's program has gone through exec(), and the image that it is now may want the
/// connection in memory again, or if either end has gone back [`for_now`]: then it counts as new.
/// Its slot it keeps until it gets another one ([`crate::link::Former`]).
fn begin_anew(conn: &'static Conn) {
    const ENDED: u32 = flag::SHUT_WR | flag::SHUT_RD | flag::PEER_FIN | flag::PEER_HUP | flag::BROKEN;
    const OF_THE_SLOT: u32 =
        flag::NEVER | flag::TX_FULL | flag::PEER_SMALL_BUFFERS | flag::REST | flag::FOR_NOW;
    let for_now = conn.has(flag::FOR_NOW);
    let seen = Anew {
        again: conn.notes() & note::AGAIN != 0 || for_now,
        ended: conn.has(ENDED),
        stays: conn.has(flag::OWN_WISH | flag::SHARED),
    };
    if !seen.is_new() {
        return;
    }
    conn.clear(OF_THE_SLOT);
    conn.ops.store(0, Ordering::Relaxed);
    conn.put_off.store(0, Ordering::Relaxed);
    if for_now {
        conn.gone_back.fetch_add(1, Ordering::Relaxed);
    } else {
        conn.set_reason(Reason::Young);
    }
    conn.due.store(0, Ordering::Relaxed);
    let new =
        conn.state.compare_exchange(state::PLAIN, state::NEW, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if new && writing::is_taken_back(conn.has(flag::OWN_WISH)) {
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
        // One that is stopped would hold up each close().
        if waited > if peering::is_silent(conn) { SILENT_NS } else { FLUSH_NS } {
            return peering::fell_silent(conn);
        }
        // Between hosts it may be the peer who is waited for, and there is room.
        let (events, pause) =
            if peering::facts(conn).uses_records { (0, RECORD_NS) } else { (libc::POLLOUT, 10_000_000) };
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events, revents: 0 }], Some(pause));
    }
}

/// Between hosts, before nothing goes out any more: if the link is over, tells the peer how far
/// this end has come.
pub(crate) fn flush_records(conn: &'static Conn, fd: i32) {
    let start = sys::now();
    while conn.state() == state::PROMOTED && peering::is_over(conn) {
        let waited = sys::now() - start;
        // A STOP of the peer's says that it knows of the agreement. Without one it may not, and
        // sends none.
        let agreed = peering::has_agreed(conn) || waited > STOP_NS;
        if !agreed && let Some(_rx) = conn.lock_rx(fd) {
            peering::seek_stop(conn, fd);
        }
        attend(conn, fd);
        let Some(mut tx) = conn.lock_tx(fd) else { return };
        if path::is_ring(conn.tx.path()) {
            attend_writing(conn, fd, &mut tx);
        }
        let sent = agreed
            && peering::send_records(conn, fd, &mut tx)
            && matches!(conn.tx.path(), path::TCP | path::LAST)
            || conn.notes() & note::CLOSED != 0;
        drop(tx);
        if sent || waited > if peering::is_silent(conn) { SILENT_NS } else { FLUSH_NS } {
            return;
        }
        let _ = sys::ppoll(&mut [libc::pollfd { fd, events: 0, revents: 0 }], Some(RECORD_NS));
    }
}

/// How long a STOP may take of a peer that may not know of the agreement.
const STOP_NS: u64 = 100_000_000;

/// How often it is looked for the peer's answer between hosts.
const RECORD_NS: u64 = 200_000;

const FLUSH_NS: u64 = 5_000_000_000;

const SILENT_NS: u64 = 50_000_000;

/// Between two looks at the kernel for the connection's life, in ns.
const POLL_TX_NS: u64 = 10_000_000;

/// Whether the peer is known to have gone without a word: it was killed.
#[inline(always)]
pub(crate) fn is_abandoned(conn: &Conn) -> bool {
    // One look at a word that each write looks at anyway.
    conn.has(flag::PEER_HUP | flag::PEER_FIN)
        && writing::is_gone(conn.has(flag::PEER_HUP), true, conn.notes() & note::SHUT_WR != 0)
}

/// What the peer has told that a writer must act on; true if the path has changed.
#[inline(always)]
pub(crate) fn attend_writing(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    if peering::is_over(conn) {
        cut::cut(conn, fd, tx);
        if conn.has(flag::HEARD) || conn.notes() & note::CLOSED != 0 {
            asked(conn, fd, tx);
        } else {
            leave_what_is_over(conn, tx);
        }
        return true;
    }
    let notes = conn.notes();
    let now = ticks();
    if notes & (note::CLOSED | note::DEMOTE) == 0 && !is_abandoned(conn) {
        // An epoll set that has the connection is told by the kernel.
        if now.wrapping_sub(tx.looked) < ticks_of(POLL_TX_NS) || conn.queue.load(Ordering::Relaxed) != 0 {
            return false;
        }
        tx.looked = now;
        // Who answers, lives.
        let heard = conn.counters.ring_in.load(Ordering::Relaxed);
        if core::mem::replace(&mut tx.heard, heard) != heard {
            return false;
        }
        let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let told = if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 { poll[0].revents } else { 0 };
        let (hung_up, shut) = (told & (libc::POLLHUP | libc::POLLERR) != 0, told & libc::POLLRDHUP != 0);
        if !writing::is_gone(hung_up, shut, conn.notes() & note::SHUT_WR != 0) {
            return false;
        }
    }
    asked(conn, fd, tx);
    true
}

/// How long a peer that was asked to go to tcp may take.
const END_NS: u64 = 2_000_000_000;
