//! The list of candidates, members of rings that may be ready: hints put them there, and it is gone
//! through.

use core::mem::MaybeUninit;
use fabric::sync::Ordering;
use fabric::{sys, trip};

use super::edges::{BELL_DATA, ET, ONESHOT, has_other_number, inner_data, table_fds};
use super::queues::arm_member;
use super::set::{EARLY, FRESH, Guard, MEMBERS, MOVED, SPENT, Set};
use crate::conn::{Conn, flag, path, state};
use crate::kicks::By;
use crate::layout::{TCP_AT, W};
use crate::wake::arm;
use crate::{events, kicks, link, ready, rendezvous, table};

/// Which hints are taken before the list is gone through: none, or those that were set until then
/// (in ticks); later ones are set aside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hints {
    None,
    Until(u64),
}

/// Event bits that are conditions, not modes.
pub(super) const MASK: u32 = 0x0fff_ffff & !(1 << 28 | ONESHOT);

/// Hinted members on their way to the list, in the order in which their hints were set, but for
/// those hinted later than `until`.
pub(super) struct Arrived {
    /// The first `count` are set: to clear all of them would cost each call more than what it does
    /// with them.
    members: [MaybeUninit<(u64, i32)>; ARRIVED],
    count: usize,
    until: u64,
}

/// So many are put in order at a time.
pub(super) const ARRIVED: usize = 128;

impl Arrived {
    pub(super) fn new(until: u64) -> Arrived {
        Arrived { members: [const { MaybeUninit::uninit() }; ARRIVED], count: 0, until }
    }

    pub(super) fn add(&mut self, guard: &mut Guard<'_>, conn: &'static Conn, when: u64) {
        table_fds(conn, |fd| {
            if (fd as usize) < MEMBERS && guard.member(fd).flags & MOVED != 0 {
                if self.count == ARRIVED {
                    self.list(guard);
                }
                self.members[self.count].write((when, fd));
                self.count += 1;
            }
        });
    }

    pub(super) fn list(&mut self, guard: &mut Guard<'_>) {
        let set = core::mem::take(&mut self.count);
        let first = self.members.as_mut_ptr().cast::<(u64, i32)>();
        // SAFETY: `add` has set the first `count`, of at most ARRIVED.
        let members = unsafe { core::slice::from_raw_parts_mut(first, set) };
        members.sort_unstable();
        for &(when, fd) in &*members {
            if when <= self.until { guard.list(fd) } else { guard.put(fd, |state| &mut state.late) }
        }
    }
}

/// Whether what the kernel tells of a companion is an edge of the connection: not where the bytes
/// go by rings, but where they come by tcp behind what is unread there.
pub(super) fn is_edge(conn: &Conn, events: u32) -> bool {
    let ring = |path| matches!(path, path::SMALL | path::BIG);
    events & libc::EPOLLPRI as u32 != 0
        || events & events::IN != 0 && (!ring(conn.rx.path()) || conn.word(TCP_AT) != 0)
        || events & events::OUT != 0 && !ring(conn.tx.path()) && conn.has(flag::TX_FULL)
}

/// Whether room for it may be missing only because messages have not been acknowledged.
pub(super) fn waits_for_window(conn: &'static Conn) -> bool {
    conn.is_via() && conn.tx.path() == path::SMALL
}

/// What a look at a member came to.
enum Found {
    Nothing,
    /// Another thread is taking the answer to its offer.
    Undecided,
    /// These events.
    Ready(&'static Conn, u32),
}

/// What an edge-triggered member is ready for, and the peer's write position before that was looked
/// at. Armed before the look: what comes before is an edge to report now, what comes later fires.
fn edges_of(conn: &'static Conn, fd: i32, want: u32) -> (Option<u32>, u64) {
    let room = events::ask_for_room(want) && conn.has(flag::TX_FULL);
    arm_member(conn, if room { trip::RX | trip::TX } else { trip::RX });
    let seen = conn.word(W);
    let got = match ready::events(conn, fd, want) {
        // No room although nobody told us so (filled before it became a member): its edge is
        // awaited, too.
        Some(got) if events::ask_for_room(want) && !events::ask_for_room(got) && !room => {
            conn.set(flag::TX_FULL);
            arm_member(conn, trip::RX | trip::TX);
            ready::events(conn, fd, want)
        }
        got => got,
    };
    (got, seen)
}

/// What a level-triggered member is ready for. It is armed if that is nothing, or if it is `always`
/// to be.
fn level_of(conn: &'static Conn, fd: i32, want: u32, always: bool) -> Option<u32> {
    let interest = if events::ask_for_room(want) { trip::RX | trip::TX } else { trip::RX };
    if always {
        arm_member(conn, interest);
    }
    match ready::events(conn, fd, want) {
        Some(0) => {
            arm_member(conn, interest);
            ready::events(conn, fd, want)
        }
        got => got,
    }
}

/// Whether an edge-triggered member that is ready has something new to tell; if it is `told` now,
/// that is noted.
fn is_new_edge(
    guard: &mut Guard<'_>,
    fd: i32,
    conn: &'static Conn,
    (got, seen): (u32, u64),
    told: bool,
) -> bool {
    let member = *guard.member(fd);
    // What the peer has sent by tcp after the ring is new, too, and shows in no write position.
    let seen = seen | u64::from(conn.rx.path() == path::LAST) << 63;
    // Between hosts a read that finds the end may have to wait for what the link's end says of it.
    let ends = flag::SHUT_RD | flag::PEER_FIN | flag::PEER_HUP;
    let life = conn.flags.load(Ordering::Acquire) & (ends | flag::CUT);
    let room = events::ask_for_room(got) && conn.has(flag::TX_FULL);
    let fresh = member.flags & FRESH != 0 || room || seen != member.seen || life != member.life;
    if fresh && told {
        if room {
            conn.clear(flag::TX_FULL);
        }
        let place = guard.member(fd);
        (place.seen, place.life) = (seen, life);
        place.flags &= !FRESH;
    }
    fresh
}

impl Set {
    pub(super) fn take_hints(&self) {
        let scan = link::scan();
        if let Some(mut guard) = self.lock() {
            guard.relist(|state| &mut state.late);
            self.list_hinted(&scan, &mut guard, u64::MAX);
        }
    }

    pub(super) fn list_hinted(&self, scan: &link::Scan, guard: &mut Guard<'_>, until: u64) {
        let queue = self.queue.load(Ordering::Acquire);
        if queue == 0 || !scan.any(queue as usize - 1) {
            return;
        }
        let mut arrived = Arrived::new(until);
        let mixed = self.on_tcp.load(Ordering::Relaxed) != 0;
        scan.take(queue as usize - 1, |conn, when| {
            if mixed && !arm::woken(scan, conn) {
                guard.note_waking(conn);
            }
            arrived.add(guard, conn, when);
        });
        arrived.list(guard);
    }

    /// Takes hints and goes once through the list. With `places`, and the call that they are for:
    /// reports there what is ready. Without: looks only; what is ready stays on the list as it is,
    /// but armed, as those who watch from outside are to learn of more. Says how many are ready,
    /// and whether there was one of which that is being decided.
    pub(super) fn go_through(
        &self,
        scan: &link::Scan,
        guard: &mut Guard<'_>,
        places: Option<(&mut [libc::epoll_event], u64)>,
        hints: Hints,
    ) -> (usize, bool) {
        let (mut places, call) = match places {
            Some((places, call)) => (Some(places), Some(call)),
            None => (None, None),
        };
        if let Hints::Until(until) = hints {
            self.list_hinted(scan, guard, until);
        }
        let mut count = 0;
        let mut undecided = false;
        // With one member its peer is told where it is spun for.
        let here = self.here(call.unwrap_or(0));
        for _ in 0..guard.state().list.len {
            if places.as_ref().is_some_and(|places| count == places.len()) {
                break;
            }
            let Some(fd) = guard.take_first(|state| &mut state.list) else { break };
            match self.look_at(guard, fd, call) {
                Found::Nothing => {}
                Found::Undecided => {
                    undecided = true;
                    guard.list(fd);
                }
                Found::Ready(conn, got) => {
                    if let Some(places) = &mut places {
                        places[count] = libc::epoll_event { events: got, u64: guard.member(fd).data };
                        self.has_told(guard, fd, conn, call.unwrap_or(0), here);
                    } else {
                        guard.list(fd);
                    }
                    count += 1;
                }
            }
        }
        (count, undecided)
    }

    /// Looks at one member that has been taken off the list, for a call that tells of it, or for
    /// none.
    fn look_at(&self, guard: &mut Guard<'_>, fd: i32, call: Option<u64>) -> Found {
        let member = *guard.member(fd);
        let Some(conn) = member.conn else { return Found::Nothing };
        if member.flags & MOVED == 0 || member.flags & SPENT != 0 {
            return Found::Nothing;
        }
        if call.is_some_and(|call| member.told >= call) {
            // What has come since is for the next call.
            guard.put(fd, |state| &mut state.told);
            return Found::Nothing;
        }
        if !conn.is(table::conn(fd)) {
            // Where another number stands for the connection, it stays a member: whoever closes
            // this one gives it to the kernel's set (`forget`), when the ring is given up.
            if !has_other_number(conn, fd) {
                self.drop_member(guard, fd);
            }
            return Found::Nothing;
        }
        // Its offer may have been taken back, and its link be gone since: nothing of it is armed or
        // read then.
        if !conn.is_managed() {
            self.move_out(guard, fd);
            return Found::Nothing;
        }
        let edge = member.events & ET != 0;
        let want = member.events & MASK;
        let (got, seen) =
            if edge { edges_of(conn, fd, want) } else { (level_of(conn, fd, want, call.is_none()), 0) };
        let Some(got) = got else {
            self.move_out(guard, fd);
            return Found::Nothing;
        };
        if events::ask_for_room(want) && !events::ask_for_room(got) && waits_for_window(conn) {
            self.windows.store(1, Ordering::Release);
        }
        if member.flags & EARLY != 0 && path::is_ring(conn.rx.path()) {
            self.on_ring(guard, fd);
        }
        if got & ready::AGAIN != 0 {
            return Found::Undecided;
        }
        if got == 0 || edge && !is_new_edge(guard, fd, conn, (got, seen), call.is_some()) {
            return Found::Nothing;
        }
        Found::Ready(conn, got)
    }

    /// A call has told of a member.
    fn has_told(&self, guard: &mut Guard<'_>, fd: i32, conn: &'static Conn, call: u64, here: u64) {
        let member = guard.member(fd);
        let events = member.events;
        member.told = call;
        if here != 0 {
            guard.note_told(fd, conn, here);
        }
        if events & ONESHOT != 0 {
            guard.member(fd).flags |= SPENT;
        } else if events & ET == 0 {
            // Told again although the program has not read or written since: the kernel's members
            // are asked next.
            let came = 1
                + conn.counters.ring_in.load(Ordering::Relaxed)
                + conn.counters.ring_out.load(Ordering::Relaxed);
            if core::mem::replace(&mut guard.member(fd).seen, came) == came {
                self.crowded.store(1, Ordering::Relaxed);
            }
            guard.put(fd, |state| &mut state.told);
        }
    }

    pub(super) fn ask_inner(&self) {
        if let Some(mut guard) = self.lock() {
            self.drain_inner(&mut guard);
        }
    }

    /// Takes what is pending in the inner set: members go onto the list.
    pub(super) fn drain_inner(&self, guard: &mut Guard<'_>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        let inner = self.inner.load(Ordering::Acquire) - 1;
        loop {
            let count = sys::epoll_wait(inner, events.as_mut_ptr(), 64, 0).unwrap_or(0);
            for event in &events[..count] {
                let data = event.u64;
                if data == BELL_DATA {
                    // Before hints are taken: they are set before it is rung.
                    let queue = self.queue.load(Ordering::Acquire) as usize;
                    if queue != 0 {
                        self.silence(queue - 1);
                        // What it was rung for stands where it stands.
                        guard.relist(|state| &mut state.late);
                        self.list_hinted(&link::scan(), guard, u64::MAX);
                    }
                    continue;
                }
                let fd = (data % MEMBERS as u64) as i32;
                let Some(conn) = table::conn(fd).filter(|conn| inner_data(conn, fd) == data) else {
                    continue;
                };
                // Noted here, whatever path the connection reads on just now: this edge comes once.
                if kicks::of_peer(conn, fd, event.events as i16) & libc::POLLRDHUP != 0 {
                    conn.set(flag::PEER_FIN);
                }
                if event.events & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0 {
                    conn.set(flag::PEER_HUP);
                }
                ready::absorb_by(conn, fd, By::Set);
                if conn.state() == state::OFFERED {
                    rendezvous::answered(conn);
                }
                let member = guard.member(fd);
                if member.flags & MOVED != 0 {
                    if member.conn.is_some_and(|conn| is_edge(conn, event.events)) {
                        member.flags |= FRESH;
                    }
                    guard.list(fd);
                }
            }
            if count < 64 {
                return;
            }
        }
    }
}
