//! Tripwires of connections: armed by who is going to sleep, and what of a connection they are
//! armed for.

use fabric::shm::Map;
use fabric::sync::{Ordering, fence};
use fabric::{Local, Remote, bell, hints, trip};
use stream::spin::{NO_CPU, cpu};

use super::call_bell;
use crate::conn::{Conn, flag, state};
use crate::layout::{self, BIG_AT, CPU, FIRED, NOTES, R, SLOTS, SMALL_AT, STATE, TCP_AT, TRIP, W};
use crate::{bells, link, peering};

/// What a waiter looks at: any change of it is a reason to try again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) front: u64,
    pub(crate) back: u64,
    /// The peer's notes, and, in the upper half, which of the connection's slots they are on.
    notes: u64,
    paths: u64,
}

impl Seen {
    /// One word that changes when any of it does (but for a coincidence, which costs one spin).
    #[inline(always)]
    pub(crate) fn sum(self) -> u64 {
        self.front ^ self.back.rotate_left(21) ^ self.notes.rotate_left(43) ^ self.paths.rotate_left(11)
    }

    /// What the peer has put, now.
    #[inline(always)]
    pub(crate) fn now(conn: &Conn) -> Seen {
        Seen { back: conn.word(R), ..Seen::to_read(conn) }
    }

    /// As far as it matters to who reads. How far the peer has read is in a line of its own, which
    /// stays with the peer as long as nobody looks.
    #[inline(always)]
    pub(crate) fn to_read(conn: &Conn) -> Seen {
        let paths =
            conn.word(SMALL_AT) ^ conn.word(BIG_AT).rotate_left(20) ^ conn.word(TCP_AT).rotate_left(40);
        let notes = conn.word(NOTES) ^ u64::from(conn.settled.load(Ordering::Relaxed)) << 32;
        Seen { front: conn.word(W), back: 0, notes, paths: paths ^ conn.word(STATE) << 60 }
    }
}

/// Arms for one interest, keeping what another waiter is armed for. `how` to be woken: the mode,
/// and the number of the bell or queue, as in a tripwire.
pub(crate) fn arm(conn: &Conn, interest: u64, how: u64) {
    let mode = how & trip::MODE;
    let others = conn.waiters.load(Ordering::Acquire) > 1;
    // Kicks wake everybody, epoll sets that it is in included; a bell or a queue only its owner.
    let member = mode != trip::QUEUE && conn.epolls.load(Ordering::Acquire) != 0;
    let kick = mode == trip::KICK || others || member || conn.has(flag::SHARED | flag::NO_BELLS);
    arm_counted(conn, |other| {
        let how = if kick || other & trip::MODE == trip::KICK { trip::KICK } else { how };
        // Whether somebody still sleeps on the word is not known here: a stale mark costs the peer
        // one call.
        interest | other & (INTEREST | trip::ASLEEP) | how
    });
}

/// Arms for reading, to sleep on the word itself; others stay armed as they are. Returns the word.
pub(crate) fn arm_word(conn: &Conn, turn: u64) -> u64 {
    // Nobody sleeps by a bell that was armed then, and its ring would be in the way of a later
    // sleep.
    let alone = conn.waiters.load(Ordering::Acquire) == 1 && conn.epolls.load(Ordering::Acquire) == 0;
    let compose = |other: u64| {
        let asleep = if other & trip::WORD == 0 { trip::asleep(turn) } else { other & trip::ASLEEP };
        let stale = alone && other & trip::MODE == trip::BELL;
        let others = if stale { other & !trip::armed(0, trip::MODE, u8::MAX) } else { other };
        others | trip::RX | asleep
    };
    compose(arm_counted(conn, compose))
}

/// Arms, unless nobody is to be armed any more: whoever sleeps then is woken by what comes by tcp.
/// Returns the word that was there.
fn arm_counted(conn: &Conn, compose: impl Fn(u64) -> u64) -> u64 {
    // Counted before it is asked: either we find that it was disarmed for all, or whoever did that
    // finds that it is not quiet yet.
    conn.arms.fetch_add(1, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    if conn.has(flag::DISARMED) {
        conn.arms.fetch_sub(1, Ordering::AcqRel);
        return 0;
    }
    let (link, slot, mine) = (conn.link.load(Ordering::Relaxed), conn.slot(), conn.mine());
    let was = trip::arm(&mine, layout::slot(slot) + TRIP, &compose);
    if was & INTEREST != 0 {
        conn.arms.fetch_sub(1, Ordering::AcqRel);
    }
    // An offer is taken back, or refused, beside those who are about to sleep.
    if (conn.link.load(Ordering::Relaxed), conn.slot()) != (link, slot) || !conn.slot_taken() {
        armed_anothers(conn, &mine, slot, was, compose(was));
    }
    was
}

/// The slot whose tripwire has just been armed is, or may be, another connection's by now: whoever
/// sleeps on that is not woken as it was armed for, and may have been fired at meanwhile. It is
/// woken once for nothing, and by kicks from now on.
#[cold]
fn armed_anothers(conn: &Conn, mine: &Map, slot: usize, was: u64, armed: u64) {
    let at = layout::slot(slot) + TRIP;
    let of_it = |link: &&link::Link| link.mine().base() == mine.base();
    // A child of fork() may not have the link.
    let Some(link) = link::each().find(of_it) else { return };
    let Some(owner) = link.conn(slot) else {
        // Nobody's yet: whoever gets it finds it disarmed.
        let _ = mine.replace_word(at, armed, 0);
        return;
    };
    if core::ptr::eq(owner, conn) {
        return;
    }
    if was & INTEREST == 0 {
        // Not where it has begun anew on another slot meanwhile.
        let _ = conn.arms.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |arms| arms.checked_sub(1));
        owner.arms.fetch_add(1, Ordering::AcqRel);
    }
    let by_kick = |other: u64| other & (INTEREST | trip::ASLEEP) | trip::RX | trip::TX | trip::KICK;
    if trip::arm(mine, at, by_kick) & INTEREST == 0 {
        owner.arms.fetch_add(1, Ordering::AcqRel);
    }
    trip::wake(mine, at, SLEEPERS);
    call_bell::ring_all();
    if let Some(queue) = owner.queue.load(Ordering::Acquire).checked_sub(1).map(|queue| queue as usize) {
        hints::set(mine, layout::HINTS + queue * hints::BYTES, slot);
        if let Some(bell) = bells::bell_fd(queue) {
            bell::ring(bell);
        }
    }
}

/// So many of those who sleep on a word are woken. One sleeps so, as a rule; a hostile peer could
/// have any number of threads sleep on its word, for us to wake with each write.
pub(crate) const SLEEPERS: u32 = 16;

pub(crate) const INTEREST: u64 = trip::RX | trip::TX;

/// Disarms, whoever else is armed or about to be: nobody is to wait for the ring any more.
pub(crate) fn disarm_for_all(conn: &Conn) {
    conn.set(flag::DISARMED);
    fence(Ordering::SeqCst);
    if trip::disarm(&conn.mine(), conn.at(TRIP)) & INTEREST != 0 {
        conn.arms.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Whether the peer has carried out all that it fired, so that, disarmed for all, no kick is on the
/// way that it has not counted.
pub(crate) fn quiet(conn: &Conn) -> bool {
    conn.word(FIRED) == conn.arms.load(Ordering::Acquire)
}

/// Whether the peer has carried out all that it fired, armed or not. Of a connection that may be
/// changing its slot just now, or have been closed: so the words are read where its link has them,
/// which stays mapped for the look.
pub(crate) fn woken(_scan: &link::Scan, conn: &Conn) -> bool {
    if !conn.slot_taken() || !matches!(conn.state(), state::OFFERED | state::PROMOTED) {
        return true;
    }
    let mine = link::link(conn.link.load(Ordering::Relaxed)).mine();
    let slot = conn.slot.load(Ordering::Relaxed) as usize;
    if slot >= SLOTS || mine.len() == 0 {
        return true;
    }
    let at = layout::slot(slot);
    let armed = mine.word(at + TRIP) & INTEREST != 0;
    mine.word(at + FIRED).wrapping_add(u64::from(armed)) >= conn.arms.load(Ordering::Acquire)
}

/// Tells the peer on which processor we wait, and says on which it waited.
pub(crate) fn meet(conn: &Conn) -> u64 {
    meet_at(conn, cpu())
}

/// As [`meet`], of one who knows on which processor that is: to ask takes as long as to look at the
/// peer's word.
pub(crate) fn meet_at(conn: &Conn, here: u64) -> u64 {
    tell_cpu(conn, here + 1);
    peer_cpu(conn)
}

/// On which processor the peer last began to wait.
pub(crate) fn peer_cpu(conn: &Conn) -> u64 {
    if peering::facts(conn).shares_memory { conn.word(CPU).checked_sub(1).unwrap_or(NO_CPU) } else { NO_CPU }
}

/// Tells the peer on which processor we wait, plus one.
pub(crate) fn tell_cpu(conn: &Conn, cpu: u64) {
    if peering::facts(conn).shares_memory {
        conn.theirs().put_word(conn.at(CPU), cpu);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peering::peer::Peer;
    use fabric::shm::Map;

    #[test]
    fn another_slot_with_the_same_words_is_a_change() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let [mine, theirs] = [(); 2].map(|()| Map::create(c"shunt:link", layout::SEGMENT).unwrap().0);
        conn.set_maps(mine, Peer::near(theirs));
        conn.slot.store(0, Ordering::Relaxed);
        let (seen, all) = (Seen::to_read(conn), Seen::now(conn));
        assert!(seen == Seen::to_read(conn) && all.sum() == Seen::now(conn).sum());
        conn.slot.store(2, Ordering::Relaxed);
        conn.settled.fetch_add(1, Ordering::SeqCst);
        assert!(seen != Seen::to_read(conn) && all.sum() != Seen::now(conn).sum());
    }
}
