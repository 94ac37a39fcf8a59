//! Pairing: a slot is offered to the end that was found, taken or refused, and both change to it.

use fabric::credentials::{self, User};
use fabric::sync::{AtomicU64, Ordering};
use fabric::{Local, Remote, sys, trip};
use options::Stream;
use stream::ring::{Consumer, Producer};
use stream::sovia::{self, Manner, Receiver, Sender};
use stream::spin::{ticks, ticks_of};

use super::agreement::{
    States, leave_slot, of_word, owned, pending_word, promoted, refuse_pending, stop, take_back,
};
use super::posted::{LISTENER, SERVE_NS, UNSEEN, other_end, own_token, posted, wait_longer, wait_no_longer};
use super::{hello, meeting};
use crate::board::{self, Post};
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::folder::{self, Spot};
use crate::layout::{self, ACCEPTED, CANCELLED, REFUSED, SMALL_BUFFERS_SET, STATE, note};
use crate::link::{self, Link, MANNER, Message, OFFER, SMALL_BUFFERS, TAKE_BACK};
use crate::path::offer::{offers, takes, yields};
use crate::path::writer;
use crate::reason::Reason;
use crate::wake::arm;
use crate::{descriptors, epoll, peering, process, report, small_buffers};
use host::diag;

static SERVE_DUE: AtomicU64 = AtomicU64::new(0);

/// Answers what waits at our listener and in control queues, now and then: from calls on a
/// connection whose offer is out. Not from where an epoll set is locked: connections of the set may
/// be promoted on the way.
#[cold]
pub fn serve_offered() {
    if ticks() >= SERVE_DUE.load(Ordering::Relaxed)
        && let Some(_states) = States::lock()
    {
        serve();
    }
}

/// How the other end has been found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    OnBoard,
    /// Agents have told of it, and the progress thread makes the link.
    ByAgents,
    ByProof,
}

/// The other end is known: link to its process, or offer a slot.
pub(super) fn approach(conn: &'static Conn, other: &Post, found: Found) {
    let remote = found != Found::OnBoard;
    if other.cookie == conn.cookie.load(Ordering::Relaxed) && !remote {
        return wait_longer(conn, Reason::Unpaired);
    }
    if other.token == UNSEEN && !remote {
        conn.set(flag::NAP);
        if !conn.is_because(Reason::PeerUnseen) {
            // It is there: from now on the next step is not far.
            wait_no_longer(conn);
        }
        return wait_longer(conn, Reason::PeerUnseen);
    }
    if conn.is_because(Reason::PeerUnseen) {
        // It has been seen: the pause may have been long.
        wait_no_longer(conn);
    }
    match link::find(other.token) {
        Some(link) => match link.state() {
            // One end offers.
            link::state::READY if found == Found::ByAgents && !offers(own_token(), other.token) => {
                wait_longer(conn, Reason::Offered)
            }
            link::state::READY if found == Found::ByProof && !conn.has(flag::CLIENT) => {
                wait_longer(conn, Reason::Offered)
            }
            link::state::READY if !remote && comes_to_us(conn, other) => {
                wait_longer(conn, Reason::Offered);
            }
            link::state::READY => offer(conn, link, other),
            link::state::ASKED => match hello::progress(link) {
                Ok(true) => offer(conn, link, other),
                Ok(false) => wait_longer(conn, Reason::Linking),
                Err(reason) => wait_longer(conn, reason),
            },
            _ => wait_longer(conn, Reason::Unpaired),
        },
        // One end makes it.
        None if found == Found::ByAgents || remote && !conn.has(flag::CLIENT) => {
            wait_longer(conn, Reason::Linking);
        }
        None => {
            link::sweep();
            let opened = match peering::introduced(conn) {
                Some(introduced) if remote => hello::open_far(conn, &introduced),
                _ => hello::open(conn, other),
            };
            match opened {
                Ok(()) => {
                    conn.set_reason(Reason::Linking);
                    wait_no_longer(conn);
                }
                Err(reason) => {
                    conn.goes_by_tcp(reason);
                    wait_longer(conn, reason);
                }
            }
        }
    }
}

/// Whether the other end is to offer when it looks next. Where it was posted long before, it looks
/// seldom by now: until it answered an offer of ours, each call on the connection would take
/// longer. Not for ever: it may have no slot left.
fn comes_to_us(conn: &Conn, other: &Post) -> bool {
    let ours = conn.posted_time.load(Ordering::Relaxed);
    is_long_before(other.time, ours) && board::now().wrapping_sub(ours) < COMES_MS
}

fn is_long_before(theirs: u32, ours: u32) -> bool {
    ours.wrapping_sub(theirs) as i32 > LONG_BEFORE_MS
}

const LONG_BEFORE_MS: i32 = 30;
/// It looks once a second at least, if its program makes calls.
const COMES_MS: u32 = 2000;

fn offer(conn: &'static Conn, link: &'static Link, other: &Post) {
    if conn.has(flag::SHUT_WR | flag::SHUT_RD | flag::NEVER) {
        return stop(conn, Reason::Half);
    }
    if !proved(conn, link, other.cookie) {
        return wait_longer(conn, Reason::Unproved);
    }
    if conn.has(flag::SHARED) && !owned(conn) {
        return wait_longer(conn, Reason::Shared);
    }
    let read = match begin(conn) {
        Ok(read) => read,
        Err(Reason::Busy) => return conn.set_reason(Reason::Busy),
        Err(reason) => return stop(conn, reason),
    };
    let Some(slot) = link.take_slot(conn) else {
        link.full.store(1, Ordering::Relaxed);
        conn.managed_is(false);
        conn.set_reason(Reason::LinkLimit);
        return;
    };
    conn.manner.store(if link.has_via() { manner() } else { 0 }, Ordering::Relaxed);
    wipe(conn, link, slot);
    settle(conn, link, slot, read);
    peering::offered(conn);
    conn.pending_cookie.store(other.cookie, Ordering::Relaxed);
    conn.state.store(state::OFFERED, Ordering::Release);
    conn.managed_is(true);
    // The peer may use the ring as soon as it has the offer: epoll sets must know before.
    epoll::adopt(conn);
    if conn.state() != state::OFFERED {
        // A set had no place for it, and has taken the offer back. The peer never hears of it: the
        // slot is free again.
        link.mine().set_word(layout::slot(slot) + STATE, CANCELLED | REFUSED);
        return;
    }
    let small = if small_buffers::reader(conn) { SMALL_BUFFERS } else { 0 };
    let message = Message {
        kind: OFFER,
        slot: slot as u32,
        index: other.index,
        how: small | conn.manner.load(Ordering::Relaxed) << MANNER,
        yours: other.cookie,
        mine: conn.cookie.load(Ordering::Relaxed),
        ..Message::default()
    };
    conn.set_reason(Reason::Offered);
    if !link.tell(&message) {
        conn.state.store(state::POSTED, Ordering::Release);
        // The peer has not heard of it, so it will not answer: the slot is free again.
        conn.mine().set_word(conn.at(STATE), CANCELLED | REFUSED);
        leave_slot(conn);
        wait_longer(conn, Reason::Busy);
    }
}

/// As [`serve`], unless somebody else is at it.
pub(crate) fn try_serve() -> bool {
    match States::try_lock() {
        Some(_states) => serve(),
        None => false,
    }
}

/// Frees links that are over and that nobody uses, unless somebody is about to: whoever takes an
/// offer, or makes one, has the lock on states from when it looks for the link.
pub(crate) fn try_sweep() {
    if let Some(_states) = States::try_lock() {
        link::sweep();
    }
}

/// Answers HELLOs that wait at our listener, and messages that wait in control queues. True if
/// there were any.
pub(super) fn serve() -> bool {
    let mut served = false;
    SERVE_DUE.store(ticks() + ticks_of(SERVE_NS), Ordering::Relaxed);
    if let Some(listener) = LISTENER.get()
        && descriptors::intact(listener)
    {
        served |= hello::answer(listener, false);
    }
    served |= meeting::serve();
    if let Some((listener, _)) = folder::known(Spot::Links) {
        served |= hello::answer(listener, true);
    }
    link::sweep_when_due();
    for link in link::each() {
        // The other process may have got ready on this link, and offer on it, while all our
        // connections wait on another one.
        if link.is_asked()
            && let Err(reason) = hello::progress(link)
        {
            report::count_reason(reason);
        }
        for _ in 0..layout::SLOTS {
            let Some(message) = link.hear() else { break };
            served = true;
            hear(link, &message);
        }
    }
    served
}

/// Carries out a message from a peer. Every field is checked: the peer may be hostile (rule F2).
fn hear(link: &'static Link, message: &Message) {
    let slot = message.slot as usize;
    let conn = posted(message.index);
    match message.kind {
        TAKE_BACK => {
            if let Some(conn) = conn
                && conn.pending.load(Ordering::Acquire) == pending_word(link, slot)
            {
                refuse_pending(conn);
            }
        }
        OFFER if link.is_peers_slot(slot) && link.conn(slot).is_none() => {
            let ours = conn.filter(|conn| conn.cookie.load(Ordering::Relaxed) == message.yours);
            if !link.has_room_for(slot) || !ours.is_some_and(|conn| heed(conn, link, message)) {
                link.refuse(slot);
            }
        }
        _ => {}
    }
}

/// A peer offers a slot to a connection of ours. False: it is to be refused.
fn heed(conn: &'static Conn, link: &'static Link, message: &Message) -> bool {
    // One that came before has been taken back by now.
    refuse_pending(conn);
    conn.pending_cookie.store(message.mine, Ordering::Relaxed);
    conn.mark(flag::PEER_SMALL_BUFFERS, message.how & SMALL_BUFFERS != 0);
    if conn.state() == state::OFFERED {
        if !yields(conn.cookie.load(Ordering::Relaxed), message.mine) || !take_back(conn) {
            return false;
        }
        conn.state.store(state::POSTED, Ordering::Release);
    }
    let manner = message.how >> MANNER;
    if manner != 0 && !link.has_via() {
        return false;
    }
    conn.manner.store(manner, Ordering::Relaxed);
    wait_no_longer(conn);
    take(conn, link, message.slot as usize);
    true
}

/// Takes the slot that the peer has offered, now or, if a call is in the kernel, later.
pub(super) fn take(conn: &'static Conn, link: &'static Link, slot: usize) {
    let barred =
        conn.has(flag::NEVER | flag::SHUT_WR | flag::SHUT_RD) || conn.has(flag::SHARED) && !owned(conn);
    if !takes(writer::stage(conn), barred, link.conn(slot).is_some()) {
        return link.refuse(slot);
    }
    if !proved(conn, link, conn.pending_cookie.load(Ordering::Relaxed)) {
        conn.count_reason(Reason::Unproved);
        return link.refuse(slot);
    }
    let read = match begin(conn) {
        Ok(read) => read,
        Err(Reason::Busy) => {
            conn.set_reason(Reason::Busy);
            link.hold();
            return conn.pending.store(pending_word(link, slot), Ordering::Release);
        }
        Err(reason) => {
            link.refuse(slot);
            return stop(conn, reason);
        }
    };
    link.use_slot(slot, conn);
    settle(conn, link, slot, read);
    conn.managed_is(true);
    epoll::adopt(conn);
    if conn.has(flag::NEVER) {
        // An epoll set had no place for it.
        link.unuse_slot(slot);
        return conn.unmanage();
    }
    if small_buffers::reader(conn) {
        conn.tell(note::SMALL_BUFFERS);
    }
    // Other threads may be in calls on it: none may write to the ring before it is known that the
    // offer stands, and none may read there what the peer writes once it has our answer, and not be
    // able to wake it.
    let Some(tx) = writing(conn) else {
        link.unuse_slot(slot);
        conn.unmanage();
        return wait_longer(conn, Reason::Busy);
    };
    let before = conn.theirs().or_word(conn.at(STATE), ACCEPTED);
    let stands = of_word(before).stands();
    if before & SMALL_BUFFERS_SET != 0 {
        conn.set(flag::PEER_SMALL_BUFFERS);
    }
    if stands {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    drop(tx);
    if stands {
        peering::taken(conn);
        promoted(conn);
    } else {
        leave_slot(conn);
    }
}

/// Locks the writing direction, but does not wait for ever: a signal handler may have interrupted
/// the one who has it, and wait for the lock on states, which is ours.
fn writing(conn: &'static Conn) -> Option<Held<'static, Tx>> {
    for _ in 0..WRITING_TRIES {
        let tx = conn.tx.try_lock();
        if tx.is_some() {
            return tx;
        }
        sys::yield_now();
    }
    None
}

const WRITING_TRIES: usize = 1000;

/// Begins to make calls on the connection ours ([`Conn::manage`]); how many bytes the program has
/// read so far.
fn begin(conn: &'static Conn) -> Result<u64, Reason> {
    if epoll::untimely(conn) || !conn.manage() {
        return Err(Reason::Busy);
    }
    // A call that began when an earlier offer had made it managed may still be reading. From here
    // on none begins.
    let (Some(_tx), Some(_rx)) = (conn.tx.lock(), conn.rx.lock()) else {
        conn.managed_is(false);
        return Err(Reason::Busy);
    };
    match diag::received(conn.descriptor()) {
        Ok(received) if received.open => Ok(received.read),
        _ => {
            conn.managed_is(false);
            Err(Reason::Half)
        }
    }
}

/// How bytes go by Virtual Interfaces where we offer, as a word; 0 if they go by rings.
fn manner() -> u32 {
    let options = process::options();
    let manner = Manner {
        window: options.via_window,
        delayed: options.via_delayed,
        piggyback: options.via_piggyback,
        combine: options.via_combine,
    };
    if options.stream == Stream::Via { manner.word() } else { 0 }
}

/// Empties the queues of Virtual Interfaces on a slot of ours that nobody uses, at both ends:
/// whoever takes the offer finds them as they are, and what it posts there stays.
fn wipe(conn: &Conn, link: &Link, slot: usize) {
    if conn.is_via() {
        sovia::wipe(&link.mine(), layout::via(slot));
        sovia::wipe(&link.theirs(), layout::via(slot));
    }
}

/// Puts the connection's state for a slot in place, on tcp in both directions.
fn settle(conn: &'static Conn, link: &'static Link, slot: usize, read: u64) {
    let fd = conn.descriptor();
    let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    conn.mark(flag::NONBLOCK, flags & libc::O_NONBLOCK != 0);
    conn.keep_options(fd);
    let theirs = link.theirs();
    // [`begin`] has had both: this thread is in no call that has one.
    let (Some(mut tx), Some(mut rx)) = (conn.tx.lock(), conn.rx.lock()) else { return };
    let before = (conn.link.load(Ordering::Relaxed), conn.slot());
    let former = (before != (link.index(), slot) && conn.slot_taken()).then(|| {
        // It was in memory before its peer went through exec().
        conn.tell(note::CLOSED);
        link::Former::of(conn, &tx, &rx)
    });
    conn.set_maps(link.mine(), theirs);
    conn.slot.store(slot as u32, Ordering::Relaxed);
    conn.link.store(link.index(), Ordering::Relaxed);
    conn.peer_pid.store(link.peer_pid.load(Ordering::Relaxed), Ordering::Relaxed);
    conn.arms.store(0, Ordering::Relaxed);
    conn.clear(flag::DISARMED);
    conn.recalled_from.store(0, Ordering::Relaxed);
    conn.mark(flag::NO_BELLS, !link.rings() && !link.rings_loud());
    *rx = Default::default();
    rx.tcp_read = read;
    let manner = Manner::of(conn.manner.load(Ordering::Relaxed));
    rx.ring = if conn.is_via() {
        Receiver::new(&theirs, layout::via(slot), manner).into()
    } else {
        Consumer::new(layout::small(slot), layout::SMALL).into()
    };
    conn.rx.set_path(path::TCP);
    *tx = Default::default();
    tx.ring = if conn.is_via() {
        Sender::new(&theirs, layout::via(slot), manner).into()
    } else {
        Producer::new(layout::small(slot), layout::SMALL).into()
    };
    conn.exchange.reset();
    conn.tx.set_path(path::TCP);
    drop((tx, rx));
    if let Some(former) = former {
        former.leave();
    }
    // Whoever is about to sleep is counted first, and looks at this last: it sees the one, or we
    // the other.
    conn.settled.fetch_add(1, Ordering::SeqCst);
    if conn.waiters.load(Ordering::SeqCst) != 0 {
        // Asleep since it had another slot, armed there.
        arm::arm(conn, trip::RX | trip::TX, trip::KICK);
    }
}

/// Whether the kernel's record of the other end agrees with what the peer says and with who it is.
fn proved(conn: &Conn, link: &Link, cookie: u64) -> bool {
    if !peering::facts(link).shows_end {
        // Both agents have asked their kernels; or, of a process on this host, a proof has
        // introduced it.
        let token = link.token.load(Ordering::Acquire);
        let by_proof = peering::facts(link).shares_memory;
        return peering::introduced(conn)
            .is_some_and(|other| (other.token, other.cookie, other.by_proof) == (token, cookie, by_proof));
    }
    User::of(link.peer_uid.load(Ordering::Relaxed)).is_some_and(|user| {
        other_end(conn).is_ok_and(|record| record.cookie == cookie && credentials::is_of(record.uid, user))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ends_at_most_one_waits_for_the_other_to_offer() {
        for (theirs, ours, waits) in
            [(100, 100, false), (100, 105, false), (100, 400, true), (400, 100, false)]
        {
            for wrapped in [0, u32::MAX - 200] {
                let (theirs, ours) = (wrapped.wrapping_add(theirs), wrapped.wrapping_add(ours));
                assert_eq!(is_long_before(theirs, ours), waits);
                assert!(!(waits && is_long_before(ours, theirs)));
            }
        }
    }
}
