//! What the progress thread, the thread that serves links between hosts, does on connections: for
//! peers, and when a link begins or ends.

use fabric::shm::Map;
use fabric::sync::Ordering;
use fabric::{Local, bell, hints, trip};
use options::LogLevel;
use stream::spin::ticks;

use super::kind::Peered;
use super::peer::Peer;
use super::wire::{self, Wire};
use super::{cut, desk};
use crate::conn::{Conn, flag, path, state};
use crate::handover;
use crate::layout::{self, FIRED, TRIP};
use crate::link::{self, Link};
use crate::path::{reader, writer};
use crate::reason::Reason;
use crate::wake::fire;
use crate::{bells, demote, epoll, kicks, log, peering, process, rendezvous, table};
use host::addr::Addr;

/// Connections that a link between hosts has room for: registered memory is pinned by most
/// providers.
pub const SLOTS: usize = 32;
/// Bytes of a segment of such a link.
pub const SEGMENT: usize = layout::mapped(SLOTS);

/// It serves no more: what is put comes no more.
pub fn serve_no_more() {
    wire::silence();
    for link in link::all().map(link::link) {
        if let Some(wire) = link.peering().wire() {
            wire.outbox.close();
        }
    }
    wire::forget_progress_thread();
}

/// Before fork(): what goes between hosts goes back to tcp.
pub fn before_fork() {
    if !desk::is_started() || process::is_guest() {
        return;
    }
    for_each_promoted(|conn, fd| {
        handover::go_back(conn, fd, Reason::Forked);
    });
}

/// Whether a connection between hosts has moved to memory since [`before_fork`], which its offer's
/// answer may do until the states are locked.
pub fn has_moved_since() -> bool {
    let mut moved = false;
    if desk::is_started() && !process::is_guest() {
        for_each_promoted(|conn, _| moved |= !conn.is_demoted() && !conn.has(flag::NEVER));
    }
    moved
}

/// The process ends: waits until all that it has put is there. What is still to be written, by what
/// else runs at its end, goes by tcp.
pub fn leave() {
    if !wire::has_progress_thread() || process::borrowed() {
        return;
    }
    rendezvous::end_remote();
    for_each_promoted(demote::begin_end);
    for link in link::all().map(link::link) {
        if let Some(wire) = link.peering().wire()
            && link.is_used()
            && !wire.is_over()
            && wire.settle()
        {
            wire.end_is_told();
        }
    }
    for_each_promoted(|conn, fd| {
        if let Some(mut tx) = conn.tx.try_lock()
            && conn.tx.path() == path::RESEND
        {
            demote::resend(conn, fd, &mut tx);
        }
    });
}

/// All connections of this process that go between hosts.
fn for_each_promoted(mut what: impl FnMut(&'static Conn, i32)) {
    table::for_each(|fd, entry| {
        if let table::Entry::Conn(conn) = entry
            && !peering::facts(conn).kept_by_children
            && conn.state() == state::PROMOTED
        {
            what(conn, fd);
        }
    });
}

/// The connection that was posted with this index and cookie, and its addresses (own, peer's).
pub fn posted(index: u32, cookie: u64) -> Option<(Addr, Addr)> {
    Some(rendezvous::posted_conn(index, cookie)?.addresses())
}

/// An agent has said where the other end of a posted connection is.
pub fn introduced(index: u32, cookie: u64, token: u64, peer_index: u32, peer_cookie: u64) {
    let Some(conn) = rendezvous::posted_conn(index, cookie) else { return };
    conn.remote.introduce(wire::Introduced {
        token,
        cookie: peer_cookie,
        index: peer_index,
        by_proof: false,
    });
    rendezvous::hurry(conn);
}

/// This process's name for progress threads.
pub fn token() -> u64 {
    rendezvous::own_token()
}

/// A link with a process (its name, its user) stands, by our segment and the shadow of its, the
/// progress thread's with this number: connections may go by it. `mark`: what both ends know and
/// nobody else. Its number for [`fired`] and others.
pub fn linked(
    (token, uid): (u64, u32),
    (mine, shadow): (Map, Map),
    opened: bool,
    number: u64,
    mark: u128,
) -> Option<(u32, &'static Wire)> {
    let wire = Wire::make(mark)?;
    let index = link::add_remote(token, uid, mine, Peer::remote(shadow, wire), opened, number).ok()?;
    Some((index, wire))
}

/// Whether a link had no free slot when last asked.
pub fn is_full(index: u32) -> bool {
    link::link(index).is_full()
}

/// A line for the log.
pub fn note(what: impl core::fmt::Display) {
    log::note(LogLevel::Info, what);
}

/// The provider that is to be used; `None`: the best.
pub fn provider() -> Option<&'static str> {
    process::options().fabric.provider()
}

/// An agent does not introduce a connection that was posted: why not, in its words.
pub fn refused(index: u32, cookie: u64, why: &str) {
    if let Some(conn) = rendezvous::posted_conn(index, cookie) {
        conn.count_reason(Reason::NotIntroduced);
        log::connection(LogLevel::Info, conn, why);
    }
}

/// A link is over: what goes by it goes back to tcp.
pub fn over(index: u32) {
    if let Some(wire) = link::link(index).peering().wire() {
        wire.end();
    }
}

/// As far as nobody else does it: takes the connections of a link that is over back to tcp. False
/// if some are left.
pub fn cut(index: u32) -> bool {
    let link = link::link(index);
    let mut all = true;
    for (slot, conn) in (0..SLOTS).filter_map(|slot| Some((slot, link.conn(slot)?))) {
        if conn.state() != state::PROMOTED || conn.notes() & layout::note::CLOSED != 0 {
            continue;
        }
        if conn.has(flag::CUT) {
            all &= attend(index, slot as u64) == Attended::Done;
            continue;
        }
        all = false;
        if let Some(mut tx) = conn.tx.try_lock()
            && let Some(rx) = conn.rx.try_lock()
        {
            if is_on(conn, index, slot) && !peering::has_agreed(conn) {
                peering::seek_stop(conn, conn.descriptor());
            }
            drop(rx);
            if is_on(conn, index, slot) {
                cut::cut(conn, conn.descriptor(), &mut tx);
            }
        }
    }
    all
}

/// How far the progress thread has come with what a peer wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// All of it is on its way by tcp, or nobody is there.
    Done,
    /// Again later.
    Later,
}

/// The peer wants this end to go on by tcp, perhaps with what is in the ring, and the program may
/// be in no call of ours: does it.
pub fn attend(index: u32, slot: u64) -> Attended {
    let Some((slot, conn)) = on_slot(index, slot) else { return Attended::Done };
    let Some(mut tx) = conn.tx.try_lock() else { return Attended::Later };
    if !is_on(conn, index, slot) || conn.state() != state::PROMOTED {
        return Attended::Done;
    }
    let fd = conn.descriptor();
    let cut = conn.has(flag::CUT);
    if cut
        && !conn.has(flag::HEARD)
        && let Some(mut rx) = conn.rx.try_lock()
    {
        // The peer's STOP.
        kicks::poll_for_records(conn, fd, &mut rx);
    }
    let wanted = conn.notes() & layout::note::DEMOTE != 0;
    match conn.tx.path() {
        path::TCP if wanted => drop(writer::switch(conn, fd, &mut tx)),
        path::SMALL | path::BIG if wanted => demote::asked(conn, fd, &mut tx),
        // Whether or not the program writes once more, or the peer can say how far it has read.
        path::SMALL | path::BIG if cut => demote::leave_what_is_over(conn, &mut tx),
        path::RESEND => drop(demote::resend(conn, fd, &mut tx)),
        _ => {}
    }
    if conn.tx.path() != path::LAST {
        return Attended::Later;
    }
    // Its END, so that it knows soon that nothing more than bytes comes.
    if let Some(mut rx) = conn.rx.try_lock()
        && matches!(conn.rx.path(), path::SMALL | path::BIG)
        && !sleeps(conn)
    {
        kicks::poll(conn, fd, &mut rx, kicks::By::Call);
        reader::progress(conn, fd, &mut rx);
    }
    Attended::Done
}

/// The peer's END is on its way by the companion, and the program may be in no call of ours that
/// looks for it: looks, so that the peer is told soon that it has been found.
pub fn hear(index: u32, slot: u64) -> Attended {
    let Some((slot, conn)) = on_slot(index, slot) else { return Attended::Done };
    let Some(mut rx) = conn.rx.try_lock() else { return Attended::Later };
    if !is_on(conn, index, slot) || conn.state() != state::PROMOTED || conn.word(layout::TCP_AT) != 0 {
        return Attended::Done;
    }
    if sleeps(conn) {
        return Attended::Later;
    }
    let fd = conn.descriptor();
    reader::progress(conn, fd, &mut rx);
    if matches!(conn.rx.path(), path::SMALL | path::BIG) {
        kicks::poll(conn, fd, &mut rx, kicks::By::Call);
    } else {
        kicks::hear(conn, fd, &mut rx);
    }
    if conn.word(layout::TCP_AT) == 0 {
        return Attended::Later;
    }
    reader::progress(conn, fd, &mut rx);
    drop(rx);
    // Whoever the kernel has told of it would have found it.
    if conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
    Attended::Done
}

/// Whether somebody sleeps on the connection: wakes by a record that is in the companion, and by
/// nothing else if no kick comes any more, and takes it then.
fn sleeps(conn: &Conn) -> bool {
    conn.sleepers.load(Ordering::SeqCst) > 0
}

/// The peer has taken the offer of this slot, and the program may be in no call of ours that would
/// notice. False: again later.
pub fn taken(index: u32, slot: u64) -> bool {
    let Some((slot, conn)) = on_slot(index, slot) else { return true };
    !is_on(conn, index, slot) || conn.state() != state::OFFERED || rendezvous::answered(conn)
}

/// The connection on a slot that a peer has named.
fn on_slot(index: u32, slot: u64) -> Option<(usize, &'static Conn)> {
    let slot = usize::try_from(slot).ok()?;
    Some((slot, link::link(index).conn(slot)?))
}

/// Whether a connection has this slot.
fn is_on(conn: &Conn, index: u32, slot: usize) -> bool {
    conn.link.load(Ordering::Relaxed) == index && conn.slot.load(Ordering::Relaxed) as usize == slot
}

/// Frees links that are over and that nobody uses.
pub fn sweep() {
    rendezvous::try_sweep();
}

/// The outbox of a link.
pub fn wire(index: u32) -> Option<&'static Wire> {
    link::link(index).peering().wire()
}

/// Answers offers that have come, if nobody else is at it. For the progress thread, which waits for
/// no lock.
pub fn answer_offers(index: u32) -> bool {
    link::link(index).has_message() && rendezvous::try_serve()
}

/// A tripwire of ours at `offset` has been fired; `held`: how its owner wants to be woken. The slot
/// for which the peer must be asked for a kick, if that is how.
pub fn fired(index: u32, offset: usize, held: u64) -> Option<u64> {
    let link = link::link(index);
    let mine = link.mine();
    if mine.len() == 0 {
        return None;
    }
    if (layout::HINTS..layout::SLOT).contains(&offset) {
        ring_own(held);
        return None;
    }
    let slot = offset.checked_sub(layout::SLOT + TRIP)? / layout::SLOT_BYTES;
    if slot >= SLOTS || offset != layout::slot(slot) + TRIP {
        return None;
    }
    wake(link, &mine, slot, held)
}

/// Wakes an end of ours as it was armed.
fn wake(link: &Link, mine: &Map, slot: usize, held: u64) -> Option<u64> {
    match held & trip::MODE {
        trip::QUEUE => {
            let base = layout::HINTS + usize::from(trip::id(held)) % layout::QUEUES * hints::BYTES;
            mine.set_word(layout::slot(slot) + layout::HINTED, ticks());
            let sleeps = hints::set(mine, base, slot);
            if sleeps != 0 {
                ring_own(sleeps);
            }
            carried_out(mine, slot);
            None
        }
        trip::BELL => {
            ring_own(held);
            carried_out(mine, slot);
            None
        }
        _ => link.conn(slot).is_some().then_some(slot as u64),
    }
}

/// Rings a bell of this process.
fn ring_own(held: u64) {
    if let Some(bell) = bells::bell_fd(trip::id(held).into()) {
        bell::ring(bell);
    }
}

/// What was armed has been woken: counted where, on one host, the peer does.
fn carried_out(mine: &Map, slot: usize) {
    let at = layout::slot(slot) + FIRED;
    mine.set_word(at, mine.word(at) + 1);
}

/// The peer's progress thread has counted the kick that was asked for.
pub fn kicked(index: u32, slot: u64) {
    if let Ok(slot) = usize::try_from(slot)
        && slot < SLOTS
    {
        carried_out(&link::link(index).mine(), slot);
    }
}

/// What became of a kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kick {
    /// It has been counted, as this one, and is sent when the peer knows ([`pay`]).
    Counted(u64),
    /// Somebody has the connection just now: again later.
    Later,
    /// There is nobody to be kicked.
    Nobody,
}

/// The peer asks for a kick on a slot.
pub fn kick(index: u32, slot: u64) -> Kick {
    with_conn(index, slot, |conn, tx| {
        if conn.tx.path() == path::TCP {
            writer::switch(conn, conn.descriptor(), tx);
        }
        if !matches!(conn.tx.path(), path::SMALL | path::BIG) {
            return Kick::Nobody;
        }
        fire::count(conn, tx);
        Kick::Counted(tx.kicks_sent)
    })
}

/// Sends kicks that were counted, up to the last one of which the peer knows by now.
pub fn pay(index: u32, slot: u64, known: u64) -> Kick {
    with_conn(index, slot, |conn, tx| {
        fire::send_owed(conn.descriptor(), tx, known);
        Kick::Counted(known)
    })
}

fn with_conn(index: u32, slot: u64, act: impl FnOnce(&'static Conn, &mut crate::conn::Tx) -> Kick) -> Kick {
    let Some(conn) = usize::try_from(slot).ok().and_then(|slot| link::link(index).conn(slot)) else {
        return Kick::Nobody;
    };
    let Some(mut tx) = conn.tx.try_lock() else { return Kick::Later };
    if conn.link.load(Ordering::Relaxed) != index
        || conn.slot.load(Ordering::Relaxed) as u64 != slot
        || !matches!(conn.state(), state::OFFERED | state::PROMOTED)
        // Of one that was counted now the peer would not hear, and take it for a byte.
        || peering::is_over(conn)
    {
        return Kick::Nobody;
    }
    act(conn, &mut tx)
}
