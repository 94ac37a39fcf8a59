//! The members of an epoll set: EPOLL_CTL_ADD, MOD and DEL, and the moves between the program's
//! set, which is the kernel's, and the inner one.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::trip;

use super::edges::{BELL_DATA, EDGES, ET, ONESHOT, each_membership, has_other_number, inner_data, numbers};
use super::queues::{arm_member, give_queue, take_queue};
use super::set::{
    Asked, EARLY, FRESH, Guard, INNER, LISTED, MEMBERS, MOVED, Member, PRESENT, SPENT, Set, State, each_set,
    places_of,
};
use crate::conn::{Conn, flag, path};
use crate::handover;
use crate::reason::Reason;
use crate::wake::arm;
use crate::{bells, descriptors, events, thread};

impl Set {
    /// EPOLL_CTL_ADD of a connection that is managed already.
    pub(super) fn add_moved(&'static self, mut guard: Guard<'_>, asked: Asked) -> Result<(), Errno> {
        let Asked { fd, conn, .. } = asked;
        let inner = self.inner()?;
        let member = *guard.member(fd);
        let parked = member.flags & INNER != 0 && conn.is(member.conn);
        if !parked {
            sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, fd, EDGES, inner_data(conn, fd))?;
        }
        let flags = member.flags & LISTED | PRESENT | MOVED | FRESH | INNER | early(conn);
        *guard.member(fd) = member.anew(asked, flags);
        conn.epolls.fetch_add(1, Ordering::AcqRel);
        conn.queue.store(self.queue.load(Ordering::Acquire), Ordering::Release);
        self.moved.fetch_add(1, Ordering::AcqRel);
        if flags & EARLY != 0 {
            self.on_tcp.fetch_add(1, Ordering::AcqRel);
        }
        guard.list_and_wake(fd);
        Ok(())
    }

    /// EPOLL_CTL_DEL of a promoted member: it stays in the inner set, where its events are
    /// nobody's.
    pub(super) fn park(&self, guard: &mut Guard<'_>, fd: i32, conn: &'static Conn) {
        self.on_ring(guard, fd);
        guard.member(fd).flags &= LISTED | INNER;
        conn.set(flag::PARKED);
        self.moved.fetch_sub(1, Ordering::AcqRel);
        // A set that it stays in is told by kicks: which queue is that one's is not known here.
        conn.queue.store(0, Ordering::Release);
        conn.epolls.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes a member out of the kernel's set and into the inner one. `armed`: the program has just
    /// registered it.
    pub(super) fn move_in(&'static self, fd: i32, armed: bool) {
        let Some(mut guard) = self.lock() else { return };
        let member = *guard.member(fd);
        let Some(conn) = member.conn else { return };
        if member.flags & PRESENT == 0 {
            return;
        }
        if member.flags & MOVED != 0 {
            // It has another slot now, whose tripwire nobody has armed.
            if member.flags & EARLY == 0 {
                guard.member(fd).flags |= EARLY;
                self.on_tcp.fetch_add(1, Ordering::AcqRel);
            }
            guard.member(fd).flags |= FRESH;
            guard.member(fd).cpu = 0;
            return guard.list_and_wake(fd);
        }
        let Ok(inner) = self.inner() else {
            drop(guard);
            handover::go_back(conn, fd, Reason::NoDescriptors);
            return;
        };
        // Writable at once, so adding (or changing) it wakes whoever sleeps on the set: they look
        // at the list.
        let op = if member.flags & INNER != 0 { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
        if sys::epoll_ctl(inner, op, fd, EDGES, inner_data(conn, fd)).is_err() {
            drop(guard);
            handover::go_back(conn, fd, Reason::NoDescriptors);
            return;
        }
        let _ = sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, fd, 0, 0);
        // The kernel may have had an edge for it that nobody has taken yet.
        let untold = armed
            || member.seen >= self.emptied.load(Ordering::Acquire)
            || sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0) > 0;
        // A one-shot member is promoted while the program arms it, which has not happened yet:
        // another thread would tell of it once more.
        let spent = member.events & ONESHOT != 0 && self.is_arming(conn);
        let place = guard.member(fd);
        place.flags |= INNER | MOVED | EARLY | if untold { FRESH } else { 0 };
        place.flags |= if spent { SPENT } else { 0 };
        place.seen = 0;
        place.cpu = 0;
        // Calls that are under way may have been told of it by the kernel.
        place.told = self.calls.load(Ordering::Relaxed);
        conn.queue.store(self.queue.load(Ordering::Acquire), Ordering::Release);
        self.moved.fetch_add(1, Ordering::AcqRel);
        guard.list(fd);
    }

    /// Whether this thread is about to arm the connection in this set.
    fn is_arming(&self, conn: &Conn) -> bool {
        let arming = conn.arming.load(Ordering::Acquire);
        arming >> 32 == u64::from(thread::tid()) && arming as u32 as i32 == self.fd.load(Ordering::Relaxed)
    }

    /// A member gets nothing by tcp any more.
    pub(super) fn on_ring(&self, guard: &mut Guard<'_>, fd: i32) {
        let member = guard.member(fd);
        if member.flags & EARLY != 0 {
            member.flags &= !EARLY;
            self.on_tcp.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Gives a member back to the kernel's set: its connection is on tcp for good.
    pub(super) fn move_out(&self, guard: &mut Guard<'_>, fd: i32) {
        let member = *guard.member(fd);
        if member.flags & MOVED == 0 {
            return;
        }
        self.leave_inner(fd);
        let events = if member.flags & SPENT != 0 { ONESHOT } else { member.events };
        let set = self.fd.load(Ordering::Relaxed);
        if sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, member.data) == Err(Errno::EEXIST) {
            // A parent or child, whose kernel's set it is, too, was first.
            let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, member.data);
        }
        self.on_ring(guard, fd);
        guard.member(fd).flags &= !(MOVED | SPENT | INNER);
        self.given_back.store(1, Ordering::Relaxed);
        self.moved.fetch_sub(1, Ordering::AcqRel);
        self.on_tcp.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes a member out of the inner set, and drops it.
    pub(super) fn drop_member(&self, guard: &mut Guard<'_>, fd: i32) {
        if guard.member(fd).flags & INNER != 0 {
            self.leave_inner(fd);
        }
        self.drop_unregistered(guard, fd);
    }

    /// Drops a member, but leaves the kernel's registration of it: that ends with the set, or with
    /// the connection's last descriptor.
    fn drop_unregistered(&self, guard: &mut Guard<'_>, fd: i32) {
        self.on_ring(guard, fd);
        let member = *guard.member(fd);
        if member.flags & MOVED != 0 {
            self.moved.fetch_sub(1, Ordering::AcqRel);
        } else if member.flags & PRESENT != 0 {
            self.on_tcp.fetch_sub(1, Ordering::AcqRel);
        }
        if let Some(conn) = member.conn {
            // In this order: see `arm`.
            conn.queue.store(0, Ordering::Release);
            conn.epolls.fetch_sub(1, Ordering::AcqRel);
        }
        let place = guard.member(fd);
        place.flags &= LISTED;
        place.conn = None;
    }

    /// `stays`: another number of this process's stands for the connection; `shared`: a parent or
    /// child has it, too.
    pub(super) fn forget(&self, conn: &'static Conn, fd: i32, stays: bool, shared: bool) {
        if fd as usize >= MEMBERS {
            return;
        }
        let Some(mut guard) = self.lock() else { return };
        let member = *guard.member(fd);
        // Others have the same inner set: its registration stays, as that of a member would with
        // tcp.
        if member.flags & (PRESENT | INNER) == INNER {
            if !shared {
                self.leave_inner(fd);
            }
            guard.member(fd).flags &= LISTED;
            guard.member(fd).conn = None;
            return;
        }
        if member.is(conn) {
            // In a child, of its parent's set: the parent gives it back to the kernel's, with what
            // it is registered for by then.
            if stays && !(shared && self.inherited.load(Ordering::Relaxed) != 0) {
                self.move_out(&mut guard, fd);
                self.put_stand_in(conn, fd, &member);
            }
            if shared {
                self.drop_unregistered(&mut guard, fd);
            } else {
                self.drop_member(&mut guard, fd);
            }
        }
    }

    /// The inner set, made when first needed. Under the lock.
    pub(super) fn inner(&'static self) -> Result<i32, Errno> {
        let known = self.inner.load(Ordering::Acquire);
        if known != 0 {
            return Ok(known - 1);
        }
        let inner = descriptors::hide(descriptors::made(sys::epoll_create)?);
        let at = core::ptr::from_ref(self) as u64;
        if let Err(errno) =
            sys::epoll_ctl(self.fd.load(Ordering::Relaxed), libc::EPOLL_CTL_ADD, inner, events::IN, at)
        {
            descriptors::unhide(inner);
            return Err(errno);
        }
        if let Some(queue) = take_queue() {
            let bell = bells::bell_fd(queue as usize);
            let add = |bell| sys::epoll_ctl(inner, libc::EPOLL_CTL_ADD, bell, events::IN | ET, BELL_DATA);
            if bell.is_some_and(|bell| add(bell).is_ok()) {
                self.owed.store(0, Ordering::Relaxed);
                self.queue.store(queue + 1, Ordering::Release);
                if let Some(loud) = bells::loud_fd(queue as usize) {
                    let _ = add(loud);
                }
                if bells::make_far(queue as usize).is_some_and(|far| add(far).is_err()) {
                    bells::give_up_far(queue as usize);
                }
            } else {
                give_queue(queue);
            }
        }
        self.inner.store(inner + 1, Ordering::Release);
        Ok(inner)
    }

    pub(super) fn release(&'static self) {
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let mut held = self.lock();
        if let Some(guard) = &mut held {
            let parts = guard.state().parts;
            if self.inner.load(Ordering::Acquire) != 0 || !parts[0].is_null() {
                for fd in numbers() {
                    if guard.member(fd).flags & PRESENT != 0 {
                        // close() takes nothing out of the kernel's set, which a parent or child
                        // may go on with.
                        self.drop_unregistered(guard, fd);
                    }
                }
            }
            *guard.state() = State::new(parts);
            for (part, at) in parts.into_iter().enumerate().filter(|(_, at)| !at.is_null()) {
                sys::madvise(at.cast(), places_of(part) * size_of::<Member>(), libc::MADV_DONTNEED);
            }
        }
        // Under the lock, as those who settle all sets may come by.
        for own in [&self.inner, &self.lamp] {
            let fd = own.swap(0, Ordering::AcqRel);
            if fd != 0 {
                descriptors::unhide(fd - 1);
            }
        }
        drop(held);
        self.unwatch();
        self.holds.store(0, Ordering::SeqCst);
        let queue = self.queue.swap(0, Ordering::AcqRel);
        if queue != 0 {
            give_queue(queue - 1);
        }
        self.moved.store(0, Ordering::Relaxed);
        self.on_tcp.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Release);
    }

    /// After a call that was left in the middle: all promoted members are on the list, in any
    /// order, and each has an edge to tell.
    pub(super) fn put_in_order(&self, mut guard: Guard<'_>) {
        let parts = guard.state().parts;
        if parts[0].is_null() {
            return;
        }
        *guard.state() = State::new(parts);
        let (mut moved, mut on_tcp) = (0, 0);
        let (set, inner) = (self.fd.load(Ordering::Relaxed), self.inner.load(Ordering::Acquire));
        if inner != 0 {
            // It is taken out for a moment now and then.
            let _ = sys::epoll_ctl(
                set,
                libc::EPOLL_CTL_ADD,
                inner - 1,
                events::IN,
                core::ptr::from_ref(self) as u64,
            );
        }
        for fd in numbers() {
            let member = guard.member(fd);
            member.flags &= !LISTED;
            member.next = 0;
            if member.flags & MOVED != 0 {
                moved += 1;
                on_tcp += u32::from(member.flags & EARLY != 0);
                member.flags |= FRESH;
                guard.list(fd);
                // What the kernel had told of it, and nobody has noted, comes again.
                self.nudge(fd);
            } else if member.flags & PRESENT != 0 {
                on_tcp += 1;
            }
        }
        self.moved.store(moved, Ordering::Release);
        self.on_tcp.store(on_tcp, Ordering::Release);
    }
}

/// EARLY, if the peer has not changed over to the ring as far as we have read.
fn early(conn: &Conn) -> u32 {
    if matches!(conn.rx.path(), path::SMALL | path::BIG) { 0 } else { EARLY }
}

/// How often the promotion of a member with unread bytes is put off.
const PUT_OFF_MOST: u32 = 16;

/// A connection was promoted: sets that have it as a member take it over.
pub fn adopt(conn: &'static Conn) {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    each_membership(conn, |set, fd| set.move_in(fd, false));
}

/// Whether now is a bad time to promote the connection, because only the kernel knows what its sets
/// are owed: whether the shot of a one-shot member is fired (it is not while the program arms it),
/// whether an edge-triggered one was told of the bytes that are there, and what came before them.
/// The latter two are put off a few times only: an edge told twice is what a program must cope
/// with, as more bytes could have come.
pub fn untimely(conn: &'static Conn) -> bool {
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return false;
    }
    let mut unknown = false;
    each_membership(conn, |set, fd| {
        let events = set.lock().map_or(0, |mut guard| guard.member(fd).events);
        unknown |= events & ONESHOT != 0 && !set.is_arming(conn);
    });
    unknown
        || sys::ioctl_int(conn.descriptor(), libc::FIONREAD).unwrap_or(0) > 0
            && conn.put_off.fetch_add(1, Ordering::Relaxed) < PUT_OFF_MOST
}

/// Whether the program has been seen to wait for all sets that the connection is in, be it from
/// outside.
pub(crate) fn waited_for(conn: &'static Conn) -> bool {
    let mut all = true;
    each_membership(conn, |set, _| {
        all &= set.calls.load(Ordering::Relaxed) != 0 || set.watched.load(Ordering::Relaxed) != 0;
    });
    all
}

/// The descriptor of a connection is about to be closed, and has left the table; `last`: no other
/// one stands for it.
pub fn forget(conn: &'static Conn, fd: i32, last: bool) {
    if conn.epolls.load(Ordering::Acquire) == 0 && !conn.has(flag::PARKED) {
        return;
    }
    // A member stays in its sets while another number stands for the connection (epoll(7), question
    // 6). Only the kernel can keep a member whose number is closed.
    let others = !last && has_other_number(conn, fd);
    if others {
        handover::go_back(conn, fd, Reason::Duplicated);
    }
    let shared = is_shared(conn, 0);
    each_set(|set| set.forget(conn, fd, others, shared));
}

/// As [`forget`], of this process's last number for a connection that a parent or child may have,
/// before the hold on it is given back: when these have it alone they count its sets anew
/// ([`count_members`](super::count_members)).
pub fn part(conn: &'static Conn, fd: i32) {
    let shared = is_shared(conn, 1);
    each_set(|set| set.forget(conn, fd, false, shared));
}

/// Whether a parent or child has the connection, too; so many of its holders are this call's.
fn is_shared(conn: &Conn, own: u32) -> bool {
    conn.has(flag::SHARED) && conn.refs.load(Ordering::Acquire) > own
}

/// A descriptor is not followed any more: sets that have it as a member give it back to the
/// kernel's.
pub fn leave(conn: &'static Conn, fd: i32) {
    if conn.epolls.load(Ordering::Acquire) != 0 {
        let shared = is_shared(conn, 0);
        each_set(|set| set.forget(conn, fd, true, shared));
    }
}

/// A write found no room: the set must learn when there is some.
pub fn want_room(conn: &'static Conn) {
    conn.set(flag::TX_FULL);
    if conn.epolls.load(Ordering::Acquire) == 0 {
        return;
    }
    let seen = arm::Seen::now(conn);
    arm_member(conn, trip::RX | trip::TX);
    // By tcp another thread may have taken the kernel's edge before it was known that it is one.
    let by_tcp = || matches!(conn.tx.path(), path::TCP | path::LAST) && sys::writable(conn.descriptor());
    if arm::Seen::now(conn) != seen || by_tcp() {
        each_membership(conn, |set, fd| set.list_and_wake(fd));
    }
}
