//! epoll_wait(): what the list of candidates gives, what the kernel gives, and the sleep when neither gives anything.

use core::mem::MaybeUninit;

use super::*;

/// The kernel's part of a set is asked at least this often while rings keep it busy.
const KERNEL_NS: u64 = 50_000;
/// Which hints are taken before the list is gone through: none, or those that were set until then (in ticks); later ones are set
/// aside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hints {
    None,
    Until(u64),
}

/// How long a bell is waited for that is about to be rung; and for how long none is after one that was not.
const RINGERS_NS: u64 = if cfg!(perturb) { 50_000_000 } else { 50_000 };
const IMPATIENT_NS: u64 = if cfg!(perturb) { 0 } else { 10_000_000 };
/// How often hints are taken again, at most, for what came before something that has been seen.
const LOOKS: usize = 4;
/// Event bits that are conditions, not modes.
const MASK: u32 = 0x0fff_ffff & !(1 << 28 | ONESHOT);

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
        let mut began = 0;
        loop {
            // Nothing has been told in this call so far; others may have told of members since it began.
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let moved = self.moved.load(Ordering::Acquire) != 0;
            if moved {
                let scan = link::scan();
                let count = self.look(&scan, places, call)?;
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
            let (count, inner) = self.sleep(places, nanos, (deadline, &mut began), mask)?;
            let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
            if count > 0 {
                // What came by rings before comes with it, at its place.
                let rings = match self.moved.load(Ordering::Acquire) {
                    0 => 0,
                    _ => self.collect(&link::scan(), &mut places[count..], Hints::None, call, false)?,
                };
                places[inner.unwrap_or(count)..count + rings].rotate_right(rings);
                self.pass_on();
                return Ok(count + rings);
            }
            if nanos == Some(0) || deadline.is_some_and(|deadline| ticks() >= deadline) {
                let count = match moved || inner.is_some() {
                    true => self.collect(&link::scan(), places, Hints::Until(u64::MAX), call, false)?,
                    false => 0,
                };
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

    /// What is ready now, of rings' members and, if their turn has come, of the kernel's, which have half of the places then (with one
    /// place: it), so that neither kind keeps the other waiting.
    ///
    /// What came first is told first, and nothing without what came before it: a program that writes to two connections may count on
    /// that with tcp. Hints are stamped by who sets them, and taken again after members were looked at. As long as bytes may come by
    /// tcp, too, the kernel is asked after what was on the list (with tcp, what was told of before stands before what came later, too),
    /// then come those that were hinted before it was asked: where the rings' bell stands among what it tells.
    fn look(
        &'static self,
        scan: &link::Scan,
        places: &mut [libc::epoll_event],
        call: u64,
    ) -> Result<usize, Errno> {
        let mixed = self.on_tcp.load(Ordering::Acquire) != 0 && places.len() > 1;
        let asked = ticks() - self.kernel_asked.load(Ordering::Relaxed);
        if !mixed && self.crowded.swap(0, Ordering::Relaxed) == 0 && asked <= ticks_of(KERNEL_NS) {
            return self.collect(scan, places, Hints::Until(u64::MAX), call, false);
        }
        let queue = self.queue.load(Ordering::Acquire);
        if mixed && queue != 0 {
            // For what comes from now on the bell is rung, which tells its place.
            self.arm_sleep(scan, queue - 1);
        }
        let half = places.len() / 2;
        let first = self.collect(scan, &mut places[..half], Hints::None, call, true)?;
        let before = if mixed { ticks() } else { u64::MAX };
        let (kernel, bell) = self.ask_kernel(&mut places[first..], Some(0), core::ptr::null())?;
        let count = first + kernel;
        let hinted = self.collect(scan, &mut places[count..], Hints::Until(before), call, false)?;
        places[first + bell.unwrap_or(kernel)..count + hinted].rotate_right(hinted);
        if mixed && queue != 0 {
            self.wait_for_ringers(scan, queue - 1);
        }
        Ok(count + hinted)
    }

    /// Whoever sets a hint disarms a sleep word next, and rings the bell. Where the hint has been taken before that, the bell would be
    /// pending when the next thing comes, and its place among what the kernel tells would be wrong. So it is waited for, which is not
    /// long, and taken off the kernel's list.
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
        let start = ticks();
        if start >= self.impatient.load(Ordering::Relaxed) {
            for conn in waking.into_iter().flatten() {
                while !wait::woken(scan, conn) {
                    let waited = ticks() - start;
                    if waited > ticks_of(RINGERS_NS) {
                        self.impatient.store(start + ticks_of(IMPATIENT_NS), Ordering::Relaxed);
                        break;
                    }
                    if waited > ticks_of(RINGERS_NS / 10) {
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
        while sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, inner, ready::IN, at) == Err(Errno::ENOMEM) {
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
        (deadline, began): (Option<u64>, &mut u64),
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
        // Another thread may have put a member on the list after we looked and before we counted as a sleeper.
        let listed = self.has_more();
        let waiting = listed || queue != 0 && scan.any(queue as usize - 1);
        drop(scan);
        let before = ticks();
        let left = match nanos {
            Some(0) => Some(0),
            _ if waiting => Some(0),
            _ => deadline.map(|deadline| nanos_of(deadline.saturating_sub(ticks()))),
        };
        let left = match left {
            Some(0) => left,
            _ => {
                if *began == 0 {
                    *began = before;
                }
                idle::before_sleep(left, *began)
            }
        };
        let windows = self.windows.swap(0, Ordering::AcqRel) != 0;
        let left = if windows { Some(left.unwrap_or(u64::MAX).min(wait::STALL_NS)) } else { left };
        let (left, looks) = overdue::limit(left);
        let result = self.ask_kernel(places, left, mask);
        if windows && result == Ok((0, None)) {
            self.list_windows();
        }
        if looks && result == Ok((0, None)) {
            let fd = self.fd.load(Ordering::Relaxed);
            overdue::check("epoll_wait", || self.owed_one(), |nanos| sys::waits_for(fd, libc::POLLIN, nanos));
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            // The sleep words stay armed: to disarm them could undo the arming of a thread that begins to sleep just now. A
            // stale one costs one bell.
            let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
            learned.slept(ticks() - before, process::spin_ticks());
            self.learned.store(learned.to_bits(), Ordering::Relaxed);
        }
        result
    }

    /// Members whose windows of messages were full are looked at once more: their peers may not read ([`io::stuck_for_long`]), and nobody would tell.
    #[cold]
    fn list_windows(&self) {
        let Some(mut guard) = self.lock() else { return };
        for fd in 0..table::top().min(MEMBERS as i32) {
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
        (0..table::top().min(MEMBERS as i32)).find(|&fd| {
            let member = *guard.member(fd);
            let Some(conn) = member.conn.filter(|_| member.flags & (MOVED | SPENT) == MOVED) else {
                return false;
            };
            if !matches!(table::entry(fd), Entry::Conn(now) if core::ptr::eq(now, conn)) || !conn.is_managed()
            {
                return false;
            }
            let written = conn.word(W);
            let got = ready::events(conn, fd, member.events & MASK).filter(|got| got & ready::AGAIN == 0);
            let is_new =
                member.events & ET == 0 || member.flags & FRESH != 0 || written != member.seen & !(1 << 63);
            got.is_some_and(|got| got & ready::IN != 0 && is_new || got != 0 && member.events & ET == 0)
        })
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
            if mixed && !wait::woken(scan, conn) {
                guard.note_waking(conn);
            }
            arrived.add(guard, conn, when);
        });
        arrived.list(guard);
    }

    /// Goes through the list, and reports what is ready. `more`: the same call goes through it again, and must not report the same
    /// once more.
    fn collect(
        &self,
        scan: &link::Scan,
        places: &mut [libc::epoll_event],
        hints: Hints,
        call: u64,
        more: bool,
    ) -> Result<usize, Errno> {
        let mut guard = self.lock().ok_or(Errno::EINTR)?;
        if hints != Hints::None {
            // The kernel has been asked since.
            guard.relist(|state| &mut state.late);
        }
        let mut count = self.go_through(scan, &mut guard, Some((&mut *places, call)), hints).0;
        let queue = self.queue.load(Ordering::Acquire) as usize;
        // What came before something that has been looked at late: its hint was set before that was written.
        for _ in 0..LOOKS {
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
        Ok(count)
    }

    /// Takes hints and goes once through the list. With `places`, and the call that they are for: reports there what is ready. Without: looks only; what is ready stays
    /// on the list as it is, but armed, as those who watch from outside are to learn of more. Says how many are ready, and whether
    /// there was one of which that is being decided.
    pub(super) fn go_through(
        &self,
        scan: &link::Scan,
        guard: &mut Guard<'_>,
        places: Option<(&mut [libc::epoll_event], u64)>,
        hints: Hints,
    ) -> (usize, bool) {
        let (mut places, call) = places.map_or((None, 0), |(places, call)| (Some(places), call));
        if let Hints::Until(until) = hints {
            self.list_hinted(scan, guard, until);
        }
        let mut count = 0;
        let mut undecided = false;
        // With one member its peer is told where it is spun for.
        let here = self.here(call);
        for _ in 0..guard.state().listed {
            if places.as_ref().is_some_and(|places| count == places.len()) {
                break;
            }
            let Some(fd) = guard.unlist_first() else { break };
            let member = *guard.member(fd);
            let Some(conn) = member.conn else { continue };
            if member.flags & MOVED == 0 || member.flags & SPENT != 0 {
                continue;
            }
            if places.is_some() && member.told >= call {
                // What has come since is for the next call.
                guard.set_aside(fd, |state| &mut state.told);
                continue;
            }
            if !matches!(table::entry(fd), Entry::Conn(other) if core::ptr::eq(other, conn)) {
                // Where another number stands for the connection, it stays a member: whoever closes this one gives it to the kernel's set (`forget`), when the ring is given up.
                let mut others = false;
                table_fds(conn, |other| others |= other != fd);
                if !others {
                    self.drop_member(guard, fd);
                }
                continue;
            }
            // Its offer may have been taken back, and its link be gone since: nothing of it is armed or read then.
            if !conn.is_managed() {
                self.move_out(guard, fd);
                continue;
            }
            let edge = member.events & ET != 0;
            let want = member.events & MASK;
            let mut seen = 0;
            let got = if edge {
                // Armed before we look: what comes before is an edge to report now, what comes later fires.
                let room = want & ready::OUT != 0 && conn.has(flag::TX_FULL);
                arm(conn, if room { trip::RX | trip::TX } else { trip::RX });
                seen = conn.word(W);
                match ready::events(conn, fd, want) {
                    // No room although nobody told us so (filled before it became a member): its edge is awaited, too.
                    Some(got) if want & !got & ready::OUT != 0 && !room => {
                        conn.set(flag::TX_FULL);
                        arm(conn, trip::RX | trip::TX);
                        ready::events(conn, fd, want)
                    }
                    got => got,
                }
            } else {
                let interest = if want & ready::OUT != 0 { trip::RX | trip::TX } else { trip::RX };
                if places.is_none() {
                    arm(conn, interest);
                }
                match ready::events(conn, fd, want) {
                    Some(0) => {
                        arm(conn, interest);
                        ready::events(conn, fd, want)
                    }
                    got => got,
                }
            };
            let Some(got) = got else {
                self.move_out(guard, fd);
                continue;
            };
            if want & !got & ready::OUT != 0 && waits_for_window(conn) {
                self.windows.store(1, Ordering::Release);
            }
            if member.flags & EARLY != 0 && matches!(conn.rx.path(), path::SMALL | path::BIG) {
                self.on_ring(guard, fd);
            }
            if got & ready::AGAIN != 0 {
                undecided = true;
                guard.list(fd);
                continue;
            }
            if got == 0 {
                continue;
            }
            if edge {
                // What the peer has sent by tcp after the ring is new, too, and shows in no write position.
                seen |= u64::from(conn.rx.path() == path::LAST) << 63;
                let life = conn.flags.load(Ordering::Acquire) & (flag::PEER_FIN | flag::PEER_HUP);
                let room = got & ready::OUT != 0 && conn.has(flag::TX_FULL);
                let fresh = member.flags & FRESH != 0 || room || seen != member.seen || life != member.life;
                if !fresh {
                    continue;
                }
                if places.is_none() {
                    guard.list(fd);
                    count += 1;
                    continue;
                }
                if room {
                    conn.clear(flag::TX_FULL);
                }
                let place = guard.member(fd);
                (place.seen, place.life) = (seen, life);
                place.flags &= !FRESH;
            }
            count += 1;
            let Some(places) = &mut places else {
                guard.list(fd);
                continue;
            };
            places[count - 1] = libc::epoll_event { events: got, u64: member.data };
            guard.member(fd).told = call;
            if here != 0 {
                guard.note_told(fd, conn, here);
            }
            if member.events & ONESHOT != 0 {
                guard.member(fd).flags |= SPENT;
            } else if !edge {
                // Told again although the program has not read or written since: the kernel's members are asked next.
                let came = 1
                    + conn.counters.ring_in.load(Ordering::Relaxed)
                    + conn.counters.ring_out.load(Ordering::Relaxed);
                if core::mem::replace(&mut guard.member(fd).seen, came) == came {
                    self.crowded.store(1, Ordering::Relaxed);
                }
                guard.set_aside(fd, |state| &mut state.told);
            }
        }
        (count, undecided)
    }

    /// A child has told of members of its parent's set. It may have taken the kernel's edge, of which there is one for both: there is another one, as a parent that
    /// waits is told as long as there is something to read.
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

    /// The kernel's part of the set: events of its own members go to `places`, those of the inner set onto the list. Says how many
    /// there are, and before which of them the inner set had any.
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
        let millis = nanos.map_or(-1, |nanos| nanos.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
        // SAFETY: the places are the program's, the mask too.
        let got = unsafe {
            real::epoll_pwait()(
                self.fd.load(Ordering::Relaxed),
                places.as_mut_ptr(),
                places.len().min(i32::MAX as usize) as i32,
                millis,
                mask,
            )
        };
        self.kernel_asked.store(ticks(), Ordering::Relaxed);
        if got < 0 {
            return Err(Errno::new(real::errno()));
        }
        let mut count = got as usize;
        if count < places.len() {
            self.emptied.fetch_max(began, Ordering::AcqRel);
        }
        let ours = core::ptr::from_ref(self) as u64;
        let place = places[..count].iter().position(|event| event.u64 == ours);
        if let Some(place) = place {
            places.copy_within(place + 1..count, place);
            count -= 1;
            if places.len() == 1 {
                // The inner set has taken the only place, which a member of the kernel's may want. Where there are more, the next call tells of
                // it: to ask again here could tell of one twice.
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
                let Some(conn) = table::conn(fd).filter(|conn| members::inner_data(conn, fd) == data) else {
                    continue;
                };
                {
                    // Noted here, whatever path the connection reads on just now: this edge comes once.
                    if event.events & ready::RDHUP != 0 {
                        conn.set(flag::PEER_FIN);
                    }
                    if event.events & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0 {
                        conn.set(flag::PEER_HUP);
                    }
                    ready::absorb_by(conn, fd, By::Set);
                    if conn.state() == state::OFFERED {
                        rendezvous::answered(conn);
                    }
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

/// Hinted members on their way to the list, in the order in which their hints were set, but for those hinted later than `until`.
struct Arrived {
    /// The first `count` are set: to clear all of them would cost each call more than what it does with them.
    members: [MaybeUninit<(u64, i32)>; ARRIVED],
    count: usize,
    until: u64,
}

/// So many are put in order at a time.
const ARRIVED: usize = 128;

impl Arrived {
    fn new(until: u64) -> Arrived {
        Arrived { members: [const { MaybeUninit::uninit() }; ARRIVED], count: 0, until }
    }

    fn add(&mut self, guard: &mut Guard<'_>, conn: &'static Conn, when: u64) {
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

    fn list(&mut self, guard: &mut Guard<'_>) {
        let set = core::mem::take(&mut self.count);
        let first = self.members.as_mut_ptr().cast::<(u64, i32)>();
        // SAFETY: `add` has set the first `count`, of at most ARRIVED.
        let members = unsafe { core::slice::from_raw_parts_mut(first, set) };
        members.sort_unstable();
        for &(when, fd) in &*members {
            if when <= self.until { guard.list(fd) } else { guard.set_aside(fd, |state| &mut state.late) }
        }
    }
}

/// Whether what the kernel tells of a companion is an edge of the connection: not where the bytes go by rings, but where they come by tcp behind what is unread there.
fn is_edge(conn: &Conn, events: u32) -> bool {
    let ring = |path| matches!(path, path::SMALL | path::BIG);
    events & libc::EPOLLPRI as u32 != 0
        || events & ready::IN != 0 && (!ring(conn.rx.path()) || conn.word(TCP_AT) != 0)
        || events & ready::OUT != 0 && !ring(conn.tx.path()) && conn.has(flag::TX_FULL)
}

/// Whether room for it may be missing only because messages have not been acknowledged.
fn waits_for_window(conn: &'static Conn) -> bool {
    conn.is_via() && conn.tx.path() == path::SMALL
}
