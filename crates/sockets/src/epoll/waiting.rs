//! epoll_wait(): what the list of candidates gives, what the kernel gives, and the sleep when neither gives anything.

use super::*;

/// The kernel's part of a set is asked at least this often while rings keep it busy.
const KERNEL_NS: u64 = 50_000;
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
        loop {
            let moved = self.moved.load(Ordering::Acquire) != 0;
            if moved {
                // The kernel's members come first when their turn has come, for at most half of the places (with one place:
                // for all of it), so that neither kind keeps the other waiting.
                let mut count = 0;
                let asked = ticks() - self.kernel_asked.load(Ordering::Relaxed);
                if self.crowded.swap(0, Ordering::Relaxed) != 0 || asked > ticks_of(KERNEL_NS) {
                    let half = places.len().div_ceil(2);
                    count = self.ask_kernel(&mut places[..half], Some(0), core::ptr::null())?.0;
                }
                let scan = link::scan();
                count += self.collect(&scan, &mut places[count..])?;
                if count > 0 {
                    drop(scan);
                    if count == places.len() {
                        self.crowded.store(1, Ordering::Relaxed);
                    }
                    self.pass_on();
                    return Ok(count);
                }
                if nanos != Some(0) && self.spin(&scan) {
                    continue;
                }
            }
            let (count, inner) = self.sleep(places, nanos, deadline, mask)?;
            if count > 0 {
                self.pass_on();
                return Ok(count);
            }
            if nanos == Some(0) || deadline.is_some_and(|deadline| ticks() >= deadline) {
                let count = if moved || inner { self.collect(&link::scan(), places)? } else { 0 };
                self.pass_on();
                return Ok(count);
            }
        }
    }

    pub(super) fn spin(&self, scan: &link::Scan) -> bool {
        let queue = self.queue.load(Ordering::Acquire);
        if queue == 0 {
            return false;
        }
        let mut learned = Learned::from_bits(self.learned.load(Ordering::Relaxed));
        let spun = learned.spin(process::spin_ticks(), self.peer_cpu(), || scan.any(queue as usize - 1));
        self.learned.store(learned.to_bits(), Ordering::Relaxed);
        spun == Spun::Won
    }

    /// With one member, where its peer waits.
    pub(super) fn peer_cpu(&self) -> u64 {
        if self.moved.load(Ordering::Relaxed) != 1 {
            return NO_CPU;
        }
        self.lock().and_then(|mut guard| guard.sole()).map_or(NO_CPU, wait::meet)
    }

    /// Sleeps in the kernel; events of the kernel's members are put in `places`.
    pub(super) fn sleep(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        deadline: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, bool), Errno> {
        let queue = self.queue.load(Ordering::Acquire);
        let scan = link::scan();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if queue != 0 && nanos != Some(0) {
            arm_sleep(&scan, queue - 1);
        }
        if self.lamp.load(Ordering::Acquire) != 0 && nanos != Some(0) {
            // Nothing was ready just now: a lamp that is still lit would keep us awake.
            self.settle();
        }
        // Another thread may have put a member on the list after we looked and before we counted as a sleeper.
        let listed = self.lock().is_some_and(|mut guard| guard.state().listed > 0);
        let waiting = listed || queue != 0 && scan.any(queue as usize - 1);
        drop(scan);
        let before = ticks();
        let left = match nanos {
            Some(0) => Some(0),
            _ if waiting => Some(0),
            _ => deadline.map(|deadline| nanos_of(deadline.saturating_sub(ticks()))),
        };
        let result = self.ask_kernel(places, left, mask);
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

    /// On the way out: if others sleep on the set while there is more to do, one of them is woken.
    pub(super) fn pass_on(&self) {
        // Those who watch from outside settle the set themselves.
        if self.sleepers.load(Ordering::SeqCst) <= self.watched.load(Ordering::SeqCst) {
            return;
        }
        let queue = self.queue.load(Ordering::Acquire);
        let mut more = None;
        if let Some(mut guard) = self.lock()
            && guard.state().listed > 0
        {
            more = Some(guard.state().head as i32 - 1);
        }
        if queue != 0 {
            let scan = link::scan();
            arm_sleep(&scan, queue - 1);
            if more.is_none() && scan.any(queue as usize - 1) {
                drop(scan);
                self.take_hints();
                if let Some(mut guard) = self.lock()
                    && guard.state().listed > 0
                {
                    more = Some(guard.state().head as i32 - 1);
                }
            }
        }
        if let Some(fd) = more {
            self.nudge(fd);
        }
    }

    pub(super) fn take_hints(&self) {
        let scan = link::scan();
        if let Some(mut guard) = self.lock() {
            self.list_hinted(&scan, &mut guard);
        }
    }

    pub(super) fn list_hinted(&self, scan: &link::Scan, guard: &mut Guard<'_>) {
        let queue = self.queue.load(Ordering::Acquire);
        if queue == 0 {
            return;
        }
        scan.take(queue as usize - 1, |conn| {
            table_fds(conn, |fd| {
                if (fd as usize) < MEMBERS && guard.member(fd).flags & MOVED != 0 {
                    guard.list(fd);
                }
            });
        });
    }

    /// Takes hints, goes once through the list, and reports what is ready.
    pub(super) fn collect(
        &self,
        scan: &link::Scan,
        places: &mut [libc::epoll_event],
    ) -> Result<usize, Errno> {
        let mut guard = self.lock().ok_or(Errno::EINTR)?;
        Ok(self.go_through(scan, &mut guard, Some(places)).0)
    }

    /// Takes hints and goes once through the list. With `places`: reports there what is ready. Without: looks only; what is ready stays
    /// on the list as it is, but armed, as those who watch from outside are to learn of more. Says how many are ready, and whether
    /// there was one of which that is being decided.
    pub(super) fn go_through(
        &self,
        scan: &link::Scan,
        guard: &mut Guard<'_>,
        mut places: Option<&mut [libc::epoll_event]>,
    ) -> (usize, bool) {
        self.list_hinted(scan, guard);
        let mut count = 0;
        let mut undecided = false;
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
            if !matches!(table::entry(fd), Entry::Conn(other) if core::ptr::eq(other, conn)) {
                self.drop_member(guard, fd);
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
                guard.list(fd);
            }
        }
        (count, undecided)
    }

    /// The kernel's part of the set: events of its own members go to `places`, those of the inner set onto the list. Says how many
    /// there are, and whether the inner set had any.
    pub(super) fn ask_kernel(
        &'static self,
        places: &mut [libc::epoll_event],
        nanos: Option<u64>,
        mask: *const libc::sigset_t,
    ) -> Result<(usize, bool), Errno> {
        let mut nanos = nanos;
        if self.holds.load(Ordering::SeqCst) != 0 {
            self.meet_nested(nanos, mask)?;
            nanos = Some(0);
        }
        let began = self.clock.fetch_add(1, Ordering::AcqRel);
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
            self.ask_inner();
        }
        Ok((count, place.is_some()))
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
                    if queue != 0
                        && let Some(fd) = process::bell_fd(queue - 1)
                    {
                        bell::silence(fd);
                    }
                    continue;
                }
                let fd = data as i32;
                if fd as usize >= MEMBERS {
                    continue;
                }
                if let Some(conn) = table::conn(fd) {
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

impl Guard<'_> {
    /// A promoted member, when there is one on the list's memory: for guessing where its peer runs.
    fn sole(&mut self) -> Option<&'static Conn> {
        (0..table::top().min(MEMBERS as i32))
            .map(|fd| *self.member(fd))
            .find(|member| member.flags & MOVED != 0)
            .and_then(|member| member.conn)
            .filter(|conn| conn.tx.path() != path::LAST)
    }
}

/// Whether what the kernel tells of a companion is an edge of the connection: not where the bytes go by rings.
fn is_edge(conn: &Conn, events: u32) -> bool {
    let ring = |path| matches!(path, path::SMALL | path::BIG);
    events & libc::EPOLLPRI as u32 != 0
        || events & ready::IN != 0 && !ring(conn.rx.path())
        || events & ready::OUT != 0 && !ring(conn.tx.path()) && conn.has(flag::TX_FULL)
}
