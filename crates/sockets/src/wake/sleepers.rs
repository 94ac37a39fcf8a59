//! Who sleeps on a connection: counted and known by thread, so that those who were killed or jumped
//! out of their sleep are not waited for.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::{sys, trip};
use stream::spin::{ticks, ticks_of};

use crate::conn::Conn;
use crate::layout::TRIP;
use crate::thread;

/// Counts a waiter from before it arms until it is awake, and notes which thread it is.
pub(crate) struct Waiter {
    conn: &'static Conn,
    place: i32,
}

impl Waiter {
    /// One that sleeps until it is woken, if need be by a kick.
    pub(crate) fn new(conn: &'static Conn) -> Waiter {
        Waiter::noted(conn, 0)
    }

    /// One in a read, to whom the connection is left if its number is closed meanwhile.
    pub(crate) fn reading(conn: &'static Conn) -> Waiter {
        Waiter::noted(conn, READS | AWAKE)
    }

    fn noted(conn: &'static Conn, kind: u64) -> Waiter {
        conn.waiters.fetch_add(1, Ordering::SeqCst);
        conn.sleepers.fetch_add(1, Ordering::SeqCst);
        let me = sleeper(thread::tid(), ticks()) | kind;
        let free =
            |place: &AtomicU64| place.compare_exchange(0, me, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let place = conn.asleep.iter().position(free);
        Waiter { conn, place: place.map_or(NO_PLACE, |place| place as i32) }
    }

    /// One that looks by itself now and then.
    pub(crate) fn looking(conn: &'static Conn) -> Waiter {
        conn.waiters.fetch_add(1, Ordering::AcqRel);
        Waiter { conn, place: LOOKING }
    }

    /// For those who keep many: what [`Waiter::again`] makes it of.
    pub(crate) fn keep(self) -> i32 {
        core::mem::ManuallyDrop::new(self).place
    }

    pub(crate) fn again(conn: &'static Conn, place: i32) -> Waiter {
        Waiter { conn, place }
    }
}

impl Waiter {
    /// A reader is about to sleep. False if the last number of its connection has been closed since
    /// it began to.
    pub(crate) fn falls_asleep(&self) -> bool {
        self.note(|who| who & !AWAKE)
    }

    /// A reader goes from one sleep to the next, and is known meanwhile. False as above.
    pub(crate) fn stays(&self) -> bool {
        self.note(|who| who | AWAKE)
    }

    fn note(&self, change: impl Fn(u64) -> u64) -> bool {
        let Ok(place) = usize::try_from(self.place) else { return true };
        let own = |who: u64| (thread_of(who) == thread::tid()).then(|| change(who));
        let noted = self.conn.asleep[place].fetch_update(Ordering::AcqRel, Ordering::Acquire, own);
        noted.is_err() || noted.is_ok_and(|who| who & ORPHAN == 0)
    }

    /// Counts it no longer; whether the last number of the connection was closed while it slept.
    pub(crate) fn wake(self) -> bool {
        core::mem::ManuallyDrop::new(self).leave()
    }

    fn leave(&self) -> bool {
        match self.place {
            LOOKING => less(&self.conn.waiters, 1),
            NO_PLACE => awake(self.conn, 1),
            // One that was taken for gone is not counted any more.
            place => loop {
                let who = self.conn.asleep[place as usize].load(Ordering::Acquire);
                if thread_of(who) != thread::tid() {
                    break;
                }
                if vacate(self.conn, place as usize, who) {
                    return who & ORPHAN != 0;
                }
            },
        }
        false
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The last number of the connection, `fd`, is about to be closed: marks the readers that sleep on
/// it, who keep it. How many there are.
pub(crate) fn orphan(conn: &Conn, fd: i32) -> u32 {
    conn.asleep.iter().map(|place| u32::from(marks(conn, place, fd))).sum()
}

/// Of those that were killed, or jumped out of their sleep, the kernel knows no such call. One that
/// has just said that it falls asleep is in it as soon as it gets a processor.
fn marks(conn: &Conn, place: &AtomicU64, fd: i32) -> bool {
    let word = trip::place(&conn.mine(), conn.at(TRIP));
    let until = ticks() + ticks_of(FALLS_ASLEEP_NS);
    loop {
        let who = place.load(Ordering::Acquire);
        let tid = thread_of(who);
        if who & READS == 0 || tid == thread::tid() {
            return false;
        }
        let sleeps = match sys::sleeps_in(tid) {
            _ if who & AWAKE != 0 => true,
            Some((libc::SYS_recvfrom, first)) => first == fd as usize,
            Some((libc::SYS_futex, first)) => first == word,
            Some((call, _)) => call == libc::SYS_ppoll,
            None => {
                if ticks() > until || !fabric::sync::thread_lives(tid) {
                    return false;
                }
                sys::yield_now();
                continue;
            }
        };
        if !sleeps {
            return false;
        }
        conn.orphans.fetch_add(1, Ordering::AcqRel);
        if place.compare_exchange(who, who | ORPHAN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
        conn.orphans.fetch_sub(1, Ordering::AcqRel);
    }
}

/// So long one is waited for that is about to sleep, or has jumped out of its sleep and runs.
const FALLS_ASLEEP_NS: u64 = 10_000_000;

/// A bit of a sleeper's word beside its thread's id, which is smaller: its number was closed.
pub(crate) const ORPHAN: u64 = 1 << 31;

/// Another one: it is in a read.
const READS: u64 = 1 << 30;

/// A third: that is on its way into a sleep, or from one to the next.
const AWAKE: u64 = 1 << 29;

pub(crate) fn thread_of(who: u64) -> u32 {
    who as u32 & !((ORPHAN | READS | AWAKE) as u32)
}

pub(crate) const NO_PLACE: i32 = -1;

pub(crate) const LOOKING: i32 = -2;

/// Counts down, but never below nothing: of those without a place some may have been taken for
/// gone.
pub(crate) fn less(count: &AtomicU32, by: u32) {
    let _ = count.fetch_update(Ordering::SeqCst, Ordering::Relaxed, |count| Some(count.saturating_sub(by)));
}

pub(crate) fn awake(conn: &Conn, count: u32) {
    less(&conn.sleepers, count);
    less(&conn.waiters, count);
}

pub(crate) fn vacate(conn: &Conn, place: usize, who: u64) -> bool {
    let vacated = conn.asleep[place].compare_exchange(who, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    if vacated {
        awake(conn, 1);
    }
    vacated
}

/// A sleeper: its thread, and since when in its upper half.
pub(crate) fn sleeper(tid: u32, since: u64) -> u64 {
    u64::from(tid) | (since >> SINCE) << 32
}

/// The unit of [`sleeper`]'s time is so many bits of ticks: a millisecond or two.
pub(crate) const SINCE: u32 = 22;

/// Counts no longer those that were killed in their sleep or jumped out of it, as this thread has,
/// which is awake, if it is found among them. Since `left` there has always been a kick in the
/// companion, so that nobody can be asleep there who was before, only such as have had no processor
/// since.
#[cold]
pub(crate) fn forget_gone(conn: &Conn, left: u64) {
    let (now, long) = ((ticks() >> SINCE) as u32, (ticks_of(WOKEN_NS) >> SINCE) as i32);
    // Signed: it may be later than `now`.
    let long_ago = |since: u32| now.wrapping_sub(since) as i32 > long;
    let woken = long_ago((left >> SINCE) as u32);
    let mut asleep = false;
    for (place, who) in conn.asleep.iter().enumerate() {
        let who = who.load(Ordering::Acquire);
        let (tid, since) = (thread_of(who), (who >> 32) as u32);
        if tid == 0 || who & ORPHAN != 0 {
            asleep |= tid != 0;
            continue;
        }
        if woken && long_ago(since) || tid == thread::tid() || !fabric::sync::thread_lives(tid) {
            vacate(conn, place, who);
        } else {
            asleep = true;
        }
    }
    if woken && !asleep {
        // Of those for whom there was no place it is not known since when.
        awake(conn, conn.sleepers.load(Ordering::Acquire));
    }
}

/// After so long whoever was asleep before a kick came has woken by it.
pub(crate) const WOKEN_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SEGMENT;
    use crate::peering::peer::Peer;
    use fabric::shm::Map;

    /// How many readers of a connection are left it when its number is closed, if there is one that
    /// has just registered, does `first`, and is at `then` meanwhile; and what that is told of it,
    /// when it wakes.
    fn closed_beside(first: impl Fn(&Waiter) + Send, then: impl Fn() + Send) -> (u32, bool) {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let [mine, theirs] = [(); 2].map(|()| Map::create(c"shunt:link", SEGMENT).unwrap().0);
        conn.set_maps(mine, Peer::near(theirs));
        let (tell, told) = std::sync::mpsc::channel();
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let waiter = Waiter::reading(conn);
                first(&waiter);
                tell.send(()).unwrap();
                then();
                is_done.recv().unwrap();
                waiter.wake()
            });
            told.recv().unwrap();
            let marked = orphan(conn, 1000);
            done.send(()).unwrap();
            (marked, reader.join().unwrap())
        })
    }

    #[test]
    fn a_reader_keeps_its_connection_on_the_way_into_a_sleep_and_between_two() {
        let asleep = |reader: &Waiter| assert!(reader.falls_asleep());
        let between = |reader: &Waiter| assert!(reader.falls_asleep() && reader.stays());
        assert_eq!(closed_beside(|_| (), || ()), (1, true));
        assert_eq!(closed_beside(between, || ()), (1, true));
        // Who closes waits for one that has had no processor since it said that it falls asleep.
        let late = || {
            let begun = ticks();
            while ticks() - begun < ticks_of(FALLS_ASLEEP_NS / 10) {}
            sys::ppoll(&mut [], Some(20 * FALLS_ASLEEP_NS)).unwrap();
        };
        // On a busy machine it may have none for longer than is waited.
        assert!((0..20).any(|_| closed_beside(asleep, late) == (1, true)));
    }

    #[test]
    fn who_jumped_out_of_a_sleep_keeps_nothing() {
        let asleep = |reader: &Waiter| assert!(reader.falls_asleep());
        let elsewhere = || std::thread::sleep(std::time::Duration::from_nanos(20 * FALLS_ASLEEP_NS));
        assert_eq!(closed_beside(asleep, elsewhere), (0, false));
    }

    #[test]
    fn who_fell_asleep_since_a_kick_was_left_is_not_taken_for_gone() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            tell.send(thread::tid()).unwrap();
            let _ = stopped.recv();
        });
        let tid = told.recv().unwrap();
        let long_ago = ticks() - 2 * ticks_of(WOKEN_NS);
        for (place, since) in [(0, long_ago), (1, ticks() + (1 << SINCE))] {
            conn.asleep[place].store(sleeper(tid, since), Ordering::Relaxed);
        }
        conn.sleepers.store(2, Ordering::Relaxed);
        conn.waiters.store(2, Ordering::Relaxed);
        forget_gone(conn, ticks());
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 2, "the kick has only just been left");
        forget_gone(conn, long_ago);
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 1, "the one who was asleep before has woken by it");
        drop(stop);
        other.join().unwrap();
        // It is joined a moment before the kernel has it no more.
        while fabric::sync::thread_lives(tid) {
            sys::yield_now();
        }
        forget_gone(conn, ticks());
        assert_eq!(conn.sleepers.load(Ordering::Relaxed), 0, "nobody is left");
    }
}
