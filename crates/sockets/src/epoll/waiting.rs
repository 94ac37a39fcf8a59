//! epoll_wait(): what the list of candidates gives, what the kernel gives, and the sleep when
//! neither gives anything.

use core::fmt::Write;

use fabric::bell;
use fabric::sync::{Ordering, spin_hint};
use fabric::sys::{self, Errno};
use stream::spin::{Learned, Spun, nanos_of, ticks, ticks_of};

use super::candidates::{Hints, MASK, waits_for_window};
use super::edges::{ET, numbers};
use super::queues::{rings, silence};
use super::set::{FRESH, Guard, MOVED, SPENT, Set};
use crate::conn::{Conn, flag};
use crate::layout::W;
use crate::path::room;
use crate::signals::Sleeps;
use crate::wake::arm;
use crate::{bells, events, idle, link, next, overdue, process, ready, table};

/// The kernel's part of a set is asked at least this often while rings keep it busy.
const KERNEL_NS: u64 = 50_000;

/// How long a bell is waited for that is about to be rung: as long as whoever rings it may have to
/// wait for a processor. After one that did not come none is waited for: whoever sets hints and
/// never rings takes one part in a hundred of our time.
const RINGERS_NS: u64 = if cfg!(perturb) { 50_000_000 } else { 10_000_000 };
const IMPATIENT_NS: u64 = if cfg!(perturb) { 0 } else { 100 * RINGERS_NS };
/// It is waited for without a system call for so long.
const RINGERS_SPIN_NS: u64 = 5_000;
/// How often hints are taken again, at most, for what came before something that has been seen.
const POLLS: usize = 4;

/// What comes before and after a look at what is ready.
struct Next {
    /// The kernel has been asked just now, in a sleep of this call.
    asked: bool,
    /// The thread may spin, if nothing is ready.
    spins: bool,
}

impl Set {
    pub(super) fn wait(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<usize, Errno> {
        let deadline = match nanos {
            None | Some(0) => None,
            Some(nanos) => Some(ticks().saturating_add(ticks_of(nanos))),
        };
        let (mut sleeps, mut asked) = (Sleeps::new(), false);
        loop {
            // Nothing has been told in this call so far; others may have told of members since it
            // began.
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let moved = self.moved.load(Ordering::Acquire) != 0;
            if moved {
                let scan = link::scan();
                let spins = nanos != Some(0) && self.may_spin();
                let count = self.poll(&scan, places, call, Next { asked, spins })?;
                if count > 0 {
                    drop(scan);
                    if count == places.len() {
                        self.crowded.store(1, Ordering::Relaxed);
                    }
                    self.pass_on();
                    self.give_way();
                    return Ok(count);
                }
                if nanos != Some(0) && self.spin(&scan) {
                    continue;
                }
            }
            let (count, inner) = self.sleep(places, nanos, deadline, &mut sleeps, mask)?;
            asked = true;
            if count > 0 {
                // What came by rings before comes with it, at its place. Not of members that others
                // have told of, or moved to memory, since this call began: the kernel may just have
                // told of them.
                let rings = match self.moved.load(Ordering::Acquire) {
                    0 => 0,
                    _ => self.collect(&link::scan(), &mut places[count..], Hints::None, call, false)?.0,
                };
                places[inner.unwrap_or(count)..count + rings].rotate_right(rings);
                self.pass_on();
                return Ok(count + rings);
            }
            if nanos == Some(0) || deadline.is_some_and(|deadline| ticks() >= deadline) {
                let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
                let (count, undecided) = match moved || inner.is_some() {
                    true => self.collect(&link::scan(), places, Hints::Until(u64::MAX), call, false)?,
                    false => (0, false),
                };
                if count == 0 && undecided {
                    // Not nothing: poll() may have told of it before.
                    sys::yield_now();
                    continue;
                }
                if count == 0 && self.given_back.load(Ordering::Relaxed) != 0 {
                    self.given_back.store(0, Ordering::Relaxed);
                    // What is ready may be the kernel's since it was asked.
                    continue;
                }
                self.pass_on();
                return Ok(count);
            }
        }
    }

    fn may_spin(&self) -> bool {
        let learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
        self.queue.load(Ordering::Acquire) != 0 && learned.may_spin(process::spin_ticks())
    }

    /// What is ready now, of rings' members and, if their turn has come, of the kernel's, so that
    /// neither kind keeps the other waiting. Where rings have filled all places, the kernel's have
    /// half of them next time (with one place: it). A thread that goes to sleep at once, as rings
    /// have nothing, asks for the kernel's with that.
    ///
    /// What came first is told first, and nothing without what came before it: a program that
    /// writes to two connections may count on that with tcp. Hints are stamped by who sets them,
    /// and taken again after members were looked at. As long as bytes may come by tcp, too, the
    /// kernel is asked after what was on the list (with tcp, what was told of before stands before
    /// what came later, too), then come those that were hinted before it was asked: where the
    /// rings' bell stands among what it tells.
    fn poll(
        &'static self,
        scan: &link::Scan,
        places: &mut [libc::epoll_event],
        call: u64,
        next: Next,
    ) -> Result<usize, Errno> {
        let mixed = self.on_tcp.load(Ordering::Acquire) != 0 && places.len() > 1;
        let queue = self.queue.load(Ordering::Acquire);
        let all = Hints::Until(u64::MAX);
        if !mixed && self.crowded.swap(0, Ordering::Relaxed) == 0 {
            let since = ticks() - self.kernel_asked.load(Ordering::Relaxed);
            if next.asked || since <= ticks_of(KERNEL_NS) {
                return Ok(self.collect(scan, places, all, call, false)?.0);
            }
            let mut count = self.collect(scan, places, all, call, true)?.0;
            let mut inner = None;
            if count < places.len() && (count > 0 || next.spins) {
                let (kernel, place) = self.ask_kernel(&mut places[count..], Some(0), core::ptr::null())?;
                (count, inner) = (count + kernel, place);
            }
            // What the inner set had is on the list now.
            let rest = if inner.is_some() { &mut places[count..] } else { &mut [] };
            let hints = if inner.is_some() { all } else { Hints::None };
            return Ok(count + self.collect(scan, rest, hints, call, false)?.0);
        }
        if mixed && queue != 0 {
            // For what comes from now on the bell is rung, which tells its place.
            self.arm_sleep(scan, queue - 1);
        }
        let half = places.len() / 2;
        let first = self.collect(scan, &mut places[..half], Hints::None, call, true)?.0;
        let before = if mixed { ticks() } else { u64::MAX };
        let (kernel, bell) = self.ask_kernel(&mut places[first..], Some(0), core::ptr::null())?;
        let count = first + kernel;
        let hinted = self.collect(scan, &mut places[count..], Hints::Until(before), call, false)?.0;
        places[first + bell.unwrap_or(kernel)..count + hinted].rotate_right(hinted);
        if mixed && queue != 0 {
            self.wait_for_ringers(scan, queue - 1);
        }
        Ok(count + hinted)
    }

    /// Whoever sets a hint disarms a sleep word next, and rings the bell. Where the hint has been
    /// taken before that, the bell would be pending when the next thing comes, and its place among
    /// what the kernel tells would be wrong. So it is waited for, which is not long, and taken off
    /// the kernel's list.
    fn wait_for_ringers(&'static self, scan: &link::Scan, queue: u32) {
        let Some(mut guard) = self.lock() else { return };
        let any = guard.state().waking[0].is_some()
            || self.owed.load(Ordering::Relaxed) != 0
            || scan.disarmed(queue as usize);
        // If there is more that has not been told, the bell is rung for that.
        if !any || scan.any(queue as usize) || guard.state().late.first != 0 {
            return;
        }
        let Some(bell) = bells::bell_fd(queue as usize) else { return };
        let waking = core::mem::take(&mut guard.state().waking);
        drop(guard);
        let start = ticks();
        if start >= self.impatient.load(Ordering::Relaxed) {
            for conn in waking.into_iter().flatten() {
                while !arm::woken(scan, conn) {
                    let waited = ticks() - start;
                    if waited > ticks_of(RINGERS_NS) {
                        self.impatient.store(start + ticks_of(IMPATIENT_NS), Ordering::Relaxed);
                        break;
                    }
                    if waited > ticks_of(RINGERS_SPIN_NS) {
                        sys::yield_now();
                    } else {
                        spin_hint();
                    }
                }
            }
        }
        self.arm_sleep(scan, queue);
        let rung = rings(queue as usize);
        // Of one that has not come yet it is not known whether it ever will.
        self.owed.store(0, Ordering::Relaxed);
        if !rung {
            return;
        }
        silence(queue as usize);
        let (set, inner) = (self.fd.load(Ordering::Relaxed), self.inner.load(Ordering::Acquire) - 1);
        let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, inner, 0, 0);
        if scan.any(queue as usize) {
            // Set meanwhile, and its ring is silenced.
            bell::ring(bell);
        }
        let at = core::ptr::from_ref(self) as u64;
        while sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, inner, events::IN, at) == Err(Errno::ENOMEM) {
            sys::yield_now();
        }
    }

    /// Whether a promoted member is to be looked at.
    fn has_more(&self) -> bool {
        self.moved.load(Ordering::Acquire) != 0 && self.lock().is_some_and(|mut guard| guard.next().is_some())
    }

    pub(super) fn spin(&self, scan: &link::Scan) -> bool {
        let queue = self.queue.load(Ordering::Acquire);
        if self.has_more() {
            return true;
        }
        if queue == 0 {
            return false;
        }
        let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
        let spun = learned.spin(process::spin_ticks(), self.peer_cpu(), || scan.any(queue as usize - 1));
        self.learned.store(learned.to_bits(), Ordering::Relaxed);
        spun == Spun::Won
    }

    /// Sleeps in the kernel; events of the kernel's members are put in `places`.
    pub(super) fn sleep(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        deadline: Option<u64>,
        sleeps: &mut Sleeps,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, Option<usize>), Errno> {
        let queue = self.queue.load(Ordering::Acquire);
        let scan = link::scan();
        self.unslept.store(0, Ordering::Relaxed);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            self.arm_sleep(&scan, queue - 1);
        }
        if self.lamp.load(Ordering::Acquire) != 0 && nanos != Some(0) {
            // Nothing was ready just now: a lamp that is still lit would keep us awake.
            self.settle();
        }
        // Another thread may have put a member on the list after we looked and before we counted as
        // a sleeper.
        let listed = self.has_more();
        let hinted = queue != 0 && scan.any(queue as usize - 1);
        drop(scan);
        let waiting = if hinted && self.moved.load(Ordering::Acquire) == 0 {
            // Of a member that has left: nobody else takes it once all have.
            self.take_hints();
            self.has_more()
        } else {
            listed || hinted
        };
        let before = ticks();
        let left = match nanos {
            Some(0) => Some(0),
            _ if waiting => Some(0),
            _ => deadline.map(|deadline| nanos_of(deadline.saturating_sub(ticks()))),
        };
        let part = match left {
            Some(0) => left,
            _ => idle::before_sleep(left, sleeps.began()),
        };
        let windows = self.windows.swap(0, Ordering::AcqRel) != 0;
        let part = if windows { Some(part.unwrap_or(u64::MAX).min(room::STALL_NS)) } else { part };
        let (part, looks) = overdue::limit(part);
        let result = match sleeps.part(left, part) {
            Ok(part) => self.ask_kernel(places, part, sleeps.mask(mask)),
            Err(errno) => Err(errno),
        };
        if windows && result == Ok((0, None)) {
            self.list_windows();
        }
        if looks && result == Ok((0, None)) {
            let fd = self.fd.load(Ordering::Relaxed);
            overdue::check_and_explain(
                "epoll_wait",
                || self.owed_one(),
                |nanos| sys::waits_for(fd, libc::POLLIN, nanos),
                |fd, text| self.explain(fd, text),
            );
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            // The sleep words stay armed: to disarm them could undo the arming of a thread that
            // begins to sleep just now. A stale one costs one bell.
            let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
            match result {
                Ok((1.., None)) => learned.ended_elsewhere(),
                _ => learned.slept(ticks() - before, process::spin_ticks()),
            }
            self.learned.store(learned.to_bits(), Ordering::Relaxed);
        }
        result
    }

    /// Members whose windows of messages were full are looked at once more: their peers may not
    /// read ([`room::stuck_for_long`]), and nobody would tell.
    #[cold]
    fn list_windows(&self) {
        let Some(mut guard) = self.lock() else { return };
        for fd in numbers() {
            let member = *guard.member(fd);
            if member.flags & (MOVED | SPENT) == MOVED && member.conn.is_some_and(waits_for_window) {
                guard.list(fd);
            }
        }
    }

    /// A member that is ready and should have been told of, for [`overdue`].
    #[cold]
    fn owed_one(&self) -> Option<i32> {
        let mut guard = self.lock()?;
        numbers().find(|&fd| {
            let member = *guard.member(fd);
            let Some(conn) = member.conn.filter(|_| member.flags & (MOVED | SPENT) == MOVED) else {
                return false;
            };
            if !conn.is(table::conn(fd)) || !conn.is_managed() {
                return false;
            }
            let written = conn.word(W);
            let got = ready::events(conn, fd, member.events & MASK).filter(|got| got & ready::AGAIN == 0);
            let is_new =
                member.events & ET == 0 || member.flags & FRESH != 0 || written != member.seen & !(1 << 63);
            got.is_some_and(|got| got & events::IN != 0 && is_new || got != 0 && member.events & ET == 0)
        })
    }

    /// What is known of the set, and of this member.
    #[cold]
    fn explain(&self, fd: i32, text: &mut impl Write) {
        let [moved, on_tcp, sleepers, queue] = [&self.moved, &self.on_tcp, &self.sleepers, &self.queue]
            .map(|count| count.load(Ordering::Relaxed));
        let calls = self.calls.load(Ordering::Relaxed);
        let _ = writeln!(
            text,
            "  set: {moved} moved, {on_tcp} on tcp, {sleepers} sleepers, queue {queue} (+1), {calls} calls"
        );
        let Some(mut guard) = self.lock() else { return };
        let state = guard.state();
        let lists = [state.list, state.late, state.told].map(|list| list.len);
        let member = *guard.member(fd);
        let _ = writeln!(
            text,
            "  member: flags {:#x}, events {:#x}, told in call {}, seen {}; listed, late, told: {lists:?}",
            member.flags, member.events, member.told, member.seen
        );
    }

    /// On the way out: if others sleep on the set while there is more to do, one of them is woken.
    pub(super) fn pass_on(&self) {
        // Those who watch from outside settle the set themselves.
        if self.sleepers.load(Ordering::SeqCst) <= self.watched.load(Ordering::SeqCst) {
            return;
        }
        let queue = self.queue.load(Ordering::Acquire);
        let mut more = self.lock().and_then(|mut guard| guard.next());
        if queue != 0 {
            let scan = link::scan();
            self.arm_sleep(&scan, queue - 1);
            if more.is_none() && scan.any(queue as usize - 1) {
                drop(scan);
                self.take_hints();
                more = self.lock().and_then(|mut guard| guard.next());
            }
        }
        if let Some(fd) = more {
            self.nudge(fd);
        }
    }

    /// Goes through the list, and reports what is ready: how many are, and whether there was a
    /// member of which it is being decided whether its calls are ours. `more`: the same call goes
    /// through the list again, and must not report the same once more.
    fn collect(
        &self,
        scan: &link::Scan,
        places: &mut [libc::epoll_event],
        hints: Hints,
        call: u64,
        more: bool,
    ) -> Result<(usize, bool), Errno> {
        let mut guard = self.lock().ok_or(Errno::EINTR)?;
        if hints != Hints::None {
            // The kernel has been asked since.
            guard.relist(|state| &mut state.late);
        }
        let (mut count, undecided) = self.go_through(scan, &mut guard, Some((&mut *places, call)), hints);
        let queue = self.queue.load(Ordering::Acquire) as usize;
        // What came before something that has been looked at late: its hint was set before that was
        // written.
        for _ in 0..POLLS {
            let any = hints != Hints::None && queue != 0 && scan.any(queue - 1);
            if count == 0 || count == places.len() || !any {
                break;
            }
            count += self.go_through(scan, &mut guard, Some((&mut places[count..], call)), hints).0;
        }
        if !more {
            if self.inherited.load(Ordering::Relaxed) != 0 {
                self.leave_for_parent(&mut guard);
            }
            guard.relist(|state| &mut state.told);
        }
        Ok((count, undecided))
    }

    /// A child has told of members of its parent's set. It may have taken the kernel's edge, of
    /// which there is one for both: there is another one, as a parent that waits is told as long as
    /// there is something to read.
    #[cold]
    fn leave_for_parent(&self, guard: &mut Guard<'_>) {
        let mut next = guard.state().told.first;
        while next != 0 {
            let fd = next as i32 - 1;
            let member = *guard.member(fd);
            next = member.next;
            let shared = |conn: &&Conn| conn.has(flag::SHARED) && conn.refs.load(Ordering::Acquire) > 1;
            if member.flags & MOVED != 0 && member.conn.as_ref().is_some_and(shared) {
                self.nudge(fd);
            }
        }
    }

    /// The kernel's part of the set: events of its own members go to `places`, those of the inner
    /// set onto the list. Says how many there are, and before which of them the inner set had any.
    pub(super) fn ask_kernel(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, Option<usize>), Errno> {
        let mut nanos = nanos;
        let began = self.clock.fetch_add(1, Ordering::AcqRel);
        if self.holds.load(Ordering::SeqCst) != 0 {
            if !self.meet_nested(nanos, mask)? {
                self.kernel_asked.store(ticks(), Ordering::Relaxed);
                self.emptied.fetch_max(began, Ordering::AcqRel);
                return Ok((0, None));
            }
            nanos = Some(0);
        }
        let got = next::epoll_pwait(self.fd.load(Ordering::Relaxed), places, nanos, mask);
        self.kernel_asked.store(ticks(), Ordering::Relaxed);
        let mut count = got?;
        if count < places.len() {
            self.emptied.fetch_max(began, Ordering::AcqRel);
        }
        let ours = core::ptr::from_ref(self) as u64;
        let place = places[..count].iter().position(|event| event.u64 == ours);
        if let Some(place) = place {
            places.copy_within(place + 1..count, place);
            count -= 1;
            if places.len() == 1 {
                // The inner set has taken the only place, which a member of the kernel's may want.
                // Where there are more, the next call tells of it: to ask again here could tell of
                // one twice.
                count += self.ask_for_one(&mut places[0]);
            }
            self.ask_inner();
        }
        Ok((count, place))
    }

    /// One more event of the kernel's members, if there is one.
    #[cold]
    fn ask_for_one(&self, place: &mut libc::epoll_event) -> usize {
        let got = sys::epoll_wait(self.fd.load(Ordering::Relaxed), place, 1, 0);
        usize::from(got == Ok(1) && place.u64 != core::ptr::from_ref(self) as u64)
    }
}

/// epoll_wait(); `None`: the set is not one of ours, or the arguments are the kernel's to refuse.
///
/// # Safety
/// `events` is null or has room for `max` events.
pub unsafe fn wait(
    set_fd: i32,
    events: *mut libc::epoll_event,
    max: i32,
    nanos: Option<u64>,
    mask: *const libc::sigset_t,
) -> Option<Result<usize, Errno>> {
    let set = table::set(set_fd)?;
    // Sets without promoted members, too: one may be promoted while we sleep, and its event is not
    // the program's.
    if max <= 0 || events.is_null() {
        return None;
    }
    // SAFETY: the program vouches for max places.
    let places = unsafe { core::slice::from_raw_parts_mut(events, max as usize) };
    Some(set.wait(places, nanos, mask))
}
