//! Pairing: a slot is offered to the end that was found, taken or refused, and both change to it.

use fabric::credentials::{self, User};
use fabric::queue::MESSAGE;
use fabric::sync::{AtomicU64, Ordering};
use fabric::{Local, Remote, sys, trip};
use options::Stream;
use stream::ring::{Consumer, Producer};
use stream::sovia::{self, Manner, Receiver, Sender};
use stream::spin::{ticks, ticks_of};

use super::agreement::{States, TAKE_BACK, owned, promoted, refuse_pending, stop, take_back};
use super::hello;
use super::posted::{LISTENER, SERVE_NS, TOKEN, UNSEEN, posted, wait_longer, wait_no_longer};
use crate::board::Post;
use crate::conn::{Conn, Held, Tx, flag, path, state};
use crate::layout::{self, ACCEPTED, CANCELLED, NARROWED, REFUSED, STATE, note};
use crate::link::{self, Link};
use crate::reason::Reason;
use crate::wake::arm;
use crate::{descriptors, epoll, log, narrow, process, report};
use host::diag;

static SERVE_DUE: AtomicU64 = AtomicU64::new(0);

const OFFER: u32 = 1;
/// Of an offer: the program has set a small receive buffer; above these bits how bytes go by Virtual Interfaces, if they do.
const NARROW: u32 = 1;
const MANNER: u32 = 8;

/// Answers what waits at our listener and in control queues, now and then: from calls on a connection whose offer is out. Not from
/// where an epoll set is locked: connections of the set may be promoted on the way.
#[cold]
pub fn serve_offered() {
    if ticks() >= SERVE_DUE.load(Ordering::Relaxed) {
        let states = States::lock();
        if states.0 {
            serve();
        }
    }
}

/// The other end is known: link to its process, or offer a slot.
pub(super) fn approach(conn: &'static Conn, other: &Post, far: bool) {
    let own_token = TOKEN.load(Ordering::Acquire);
    if other.cookie == conn.cookie.load(Ordering::Relaxed) && !far {
        return wait_longer(conn, Reason::Unpaired);
    }
    if other.token == UNSEEN && !far {
        conn.set(flag::NAP);
        if conn.reason.load(Ordering::Relaxed) != Reason::PeerUnseen as u32 {
            // It is there: from now on the next step is not far.
            wait_no_longer(conn);
        }
        return wait_longer(conn, Reason::PeerUnseen);
    }
    match link::find(other.token, |link| link.is_full()) {
        // Between hosts one of the two offers: an offer cannot be taken back there.
        Some((_, link::state::READY)) if far && own_token > other.token => wait_longer(conn, Reason::Offered),
        Some((index, link::state::READY)) => offer(conn, index, other),
        Some((index, link::state::ASKED)) => match hello::progress(index) {
            Ok(true) => offer(conn, index, other),
            Ok(false) => wait_longer(conn, Reason::Linking),
            Err(reason) => wait_longer(conn, reason),
        },
        Some(_) => wait_longer(conn, Reason::Unpaired),
        None if far => wait_longer(conn, Reason::Linking),
        None => {
            link::sweep();
            match hello::open(conn, other, own_token) {
                Ok(_) => {
                    conn.set_reason(Reason::Linking);
                    wait_no_longer(conn);
                }
                Err(reason) => {
                    report::count_reason(reason);
                    log::on_tcp(conn, reason);
                    wait_longer(conn, reason);
                }
            }
        }
    }
}

pub(super) fn offer(conn: &'static Conn, index: u32, other: &Post) {
    let link = link::link(index);
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
    settle(conn, link, index, slot, read);
    conn.pending_cookie.store(other.cookie, Ordering::Relaxed);
    conn.state.store(state::OFFERED, Ordering::Release);
    conn.managed_is(true);
    // The peer may use the ring as soon as it has the offer: epoll sets must know before.
    epoll::adopt(conn);
    if conn.state() != state::OFFERED {
        // A set had no place for it, and has taken the offer back. The peer never hears of it: the slot is free again.
        link.mine().set_word(layout::slot(slot) + STATE, CANCELLED | REFUSED);
        return;
    }
    let mut message = [0; MESSAGE];
    message[0..4].copy_from_slice(&OFFER.to_ne_bytes());
    message[4..8].copy_from_slice(&(slot as u32).to_ne_bytes());
    message[8..12].copy_from_slice(&other.index.to_ne_bytes());
    let narrow = if narrow::reader(conn) { NARROW } else { 0 };
    message[12..16].copy_from_slice(&(narrow | conn.manner.load(Ordering::Relaxed) << MANNER).to_ne_bytes());
    message[16..24].copy_from_slice(&other.cookie.to_ne_bytes());
    message[24..32].copy_from_slice(&conn.cookie.load(Ordering::Relaxed).to_ne_bytes());
    conn.set_reason(Reason::Offered);
    if !link.tell(&message) {
        conn.state.store(state::POSTED, Ordering::Release);
        // The peer has not heard of it, so it will not answer: the slot is free again.
        conn.mine().set_word(conn.at(STATE), CANCELLED | REFUSED);
        link.leave_slot(slot);
        conn.unmanage();
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

/// Answers HELLOs that wait at our listener, and messages that wait in control queues. True if there were any.
pub(super) fn serve() -> bool {
    let mut served = false;
    SERVE_DUE.store(ticks() + ticks_of(SERVE_NS), Ordering::Relaxed);
    let token = TOKEN.load(Ordering::Acquire);
    let listener = LISTENER.load(Ordering::Acquire);
    if listener > 0 && token != 0 && descriptors::intact(listener - 1) {
        served |= hello::answer(|| accept(listener - 1).ok(), token);
    }
    link::sweep_when_due();
    for index in link::all() {
        // The other process may have got ready on this link, and offer on it, while all our connections wait on another one.
        if link::link(index).is_asked()
            && let Err(reason) = hello::progress(index)
        {
            report::count_reason(reason);
        }
        for _ in 0..layout::SLOTS {
            let Some(message) = link::link(index).hear() else { break };
            served = true;
            hear(index, &message);
        }
    }
    served
}

pub(super) fn accept(listener: i32) -> Result<i32, sys::Errno> {
    let accept = || sys::accept(listener, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    match accept() {
        // The kernel says so whether or not somebody waits.
        Err(sys::Errno::EMFILE) if sys::readable(listener) => descriptors::made(accept),
        result => result,
    }
}

/// Carries out a message from a peer. Every field is checked: the peer may be hostile (rule F2).
fn hear(index: u32, message: &[u8; MESSAGE]) {
    let half = |at: usize| u32::from_ne_bytes(core::array::from_fn(|i| message[at + i]));
    let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| message[at + i]));
    let (slot, link) = (half(4) as usize, link::link(index));
    if half(0) == TAKE_BACK {
        let at = posted(half(8) as usize).map_or(0, |cell| cell.load(Ordering::Acquire));
        // SAFETY: as below.
        let conn = if at == 0 { None } else { Some(unsafe { &*(at as *const Conn) }) };
        if let Some(conn) = conn
            && conn.pending.load(Ordering::Acquire) == u64::from(index) << 32 | (slot as u64 + 1)
        {
            refuse_pending(conn);
        }
        return;
    }
    if half(0) != OFFER || !link.is_peers_slot(slot) || link.conn(slot).is_some() {
        return;
    }
    if !link.has_room_for(slot) {
        return link.refuse(slot);
    }
    let conn = posted(half(8) as usize).map_or(0, |cell| cell.load(Ordering::Acquire));
    // SAFETY: only `register` stores there, from a &'static Conn.
    let conn = if conn == 0 { None } else { Some(unsafe { &*(conn as *const Conn) }) };
    match conn {
        Some(conn) if conn.cookie.load(Ordering::Relaxed) == word(16) => {
            // One that came before has been taken back by now.
            refuse_pending(conn);
            conn.pending_cookie.store(word(24), Ordering::Relaxed);
            if half(12) & NARROW != 0 {
                conn.set(flag::PEER_NARROW)
            } else {
                conn.clear(flag::PEER_NARROW)
            }
            if conn.state() == state::OFFERED {
                // Both have offered: the offer of the end with the smaller cookie stands.
                if word(24) > conn.cookie.load(Ordering::Relaxed) || !take_back(conn) {
                    return link.refuse(slot);
                }
                conn.state.store(state::POSTED, Ordering::Release);
            }
            if half(12) >> MANNER != 0 && !link.has_via() {
                return link.refuse(slot);
            }
            conn.manner.store(half(12) >> MANNER, Ordering::Relaxed);
            wait_no_longer(conn);
            take(conn, index, slot);
        }
        _ => link.refuse(slot),
    }
}

/// Takes the slot that the peer has offered, now or, if a call is in the kernel, later.
pub(super) fn take(conn: &'static Conn, index: u32, slot: usize) {
    let link = link::link(index);
    if conn.state() != state::POSTED
        || conn.has(flag::NEVER | flag::SHUT_WR | flag::SHUT_RD)
        || (conn.has(flag::SHARED) && !owned(conn))
        || link.conn(slot).is_some()
    {
        return link.refuse(slot);
    }
    if !proved(conn, link, conn.pending_cookie.load(Ordering::Relaxed)) {
        conn.set_reason(Reason::Unproved);
        report::count_reason(Reason::Unproved);
        return link.refuse(slot);
    }
    let read = match begin(conn) {
        Ok(read) => read,
        Err(Reason::Busy) => {
            conn.set_reason(Reason::Busy);
            link.live.fetch_add(1, Ordering::AcqRel);
            return conn.pending.store(u64::from(index) << 32 | (slot as u64 + 1), Ordering::Release);
        }
        Err(reason) => {
            link.refuse(slot);
            return stop(conn, reason);
        }
    };
    link.use_slot(slot, conn);
    settle(conn, link, index, slot, read);
    conn.managed_is(true);
    epoll::adopt(conn);
    if conn.has(flag::NEVER) {
        // An epoll set had no place for it.
        link.unuse_slot(slot);
        link.refuse(slot);
        return conn.unmanage();
    }
    if narrow::reader(conn) {
        conn.tell(note::NARROW);
    }
    // Other threads may be in calls on it: none may write to the ring before it is known that the offer stands, and none may read
    // there what the peer writes once it has our answer, and not be able to wake it.
    let Some(tx) = writing(conn) else {
        link.unuse_slot(slot);
        link.refuse(slot);
        conn.unmanage();
        return wait_longer(conn, Reason::Busy);
    };
    let offer = conn.theirs().or_word(conn.at(STATE), ACCEPTED);
    let stands = offer & CANCELLED == 0;
    if offer & NARROWED != 0 {
        conn.set(flag::PEER_NARROW);
    }
    if stands {
        conn.state.store(state::PROMOTED, Ordering::Release);
    }
    drop(tx);
    if stands {
        return promoted(conn);
    }
    link.leave_slot(slot);
    conn.unmanage();
}

/// Locks the writing direction, but does not wait for ever: a signal handler may have interrupted the one who has it, and wait for the
/// lock on states, which is ours.
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

/// Begins to make calls on the connection ours ([`Conn::manage`]); how many bytes the program has read so far.
fn begin(conn: &'static Conn) -> Result<u64, Reason> {
    if epoll::untimely(conn) || !conn.manage() {
        return Err(Reason::Busy);
    }
    // A call that began when an earlier offer had made it managed may still be reading. From here on none begins.
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

/// Empties the queues of Virtual Interfaces on a slot of ours that nobody uses, at both ends: whoever takes the offer finds them as they are, and
/// what it posts there stays.
fn wipe(conn: &Conn, link: &Link, slot: usize) {
    if conn.is_via()
        && let Some((mine, theirs)) = link.maps()
    {
        sovia::wipe(&mine, layout::via(slot));
        sovia::wipe(&theirs, layout::via(slot));
    }
}

/// Puts the connection's state for a slot in place, on tcp in both directions.
fn settle(conn: &'static Conn, link: &Link, index: u32, slot: usize, read: u64) {
    let fd = conn.descriptor();
    if sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0) & libc::O_NONBLOCK != 0 {
        conn.set(flag::NONBLOCK);
    } else {
        conn.clear(flag::NONBLOCK);
    }
    conn.keep_options(fd);
    let Some((mine, theirs)) = link.maps() else { return };
    // [`begin`] has had both: this thread is in no call that has one.
    let (Some(mut tx), Some(mut rx)) = (conn.tx.lock(), conn.rx.lock()) else { return };
    let before = (conn.link.load(Ordering::Relaxed), conn.slot.load(Ordering::Relaxed) as usize);
    let former = (before != (index, slot) && conn.slot_taken()).then(|| {
        // It was in memory before its peer went through exec().
        conn.tell(note::CLOSED);
        link::Former::of(conn, &tx, &rx)
    });
    conn.set_maps(mine, theirs);
    conn.slot.store(slot as u32, Ordering::Relaxed);
    conn.link.store(index, Ordering::Relaxed);
    conn.peer_pid.store(link.peer_pid.load(Ordering::Relaxed), Ordering::Relaxed);
    conn.arms.store(0, Ordering::Relaxed);
    conn.clear(flag::GREW);
    conn.clear(flag::NO_BELLS | flag::LOUD);
    if !link.rings() {
        conn.set(if link.rings_loud() { flag::NO_BELLS | flag::LOUD } else { flag::NO_BELLS });
    }
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
    if conn.waiters.load(Ordering::SeqCst) != 0 {
        // Asleep since it had another slot, armed there.
        arm::arm(conn, trip::RX | trip::TX, trip::KICK, 0);
    }
}

/// Whether the kernel's record of the other end agrees with what the peer says and with who it is.
fn proved(conn: &Conn, link: &Link, cookie: u64) -> bool {
    if link.wire().is_some() {
        // Both agents have asked their kernels.
        return conn.far.token.load(Ordering::Acquire) == link.token.load(Ordering::Acquire)
            && conn.far.cookie.load(Ordering::Relaxed) == cookie;
    }
    let (own, peer) = conn.addresses();
    User::of(link.peer_uid.load(Ordering::Relaxed)).is_some_and(|user| {
        descriptors::made(|| diag::lookup(peer, own))
            .is_ok_and(|record| record.cookie == cookie && credentials::is_of(record.uid, user))
    })
}
