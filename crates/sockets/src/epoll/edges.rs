//! Memberships of a connection, and edges for its sets: what has come, and the kernel has told
//! nobody of, is told by changing a registration in the inner set.

use fabric::sync::{AtomicU32, Ordering};
use fabric::sys;

use super::set::{Guard, MEMBERS, MOVED, Set, each_set};
use crate::conn::Conn;
use crate::events;
use crate::table;

/// What a companion is watched for in an inner set. It is writable at once, so that adding (or
/// changing) it is an event.
pub(super) const EDGES: u32 = events::IN | events::OUT | events::RDHUP | libc::EPOLLPRI as u32 | ET;

pub(super) const ET: u32 = libc::EPOLLET as u32;

pub(super) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;

/// Data of the queue's bell in an inner set; descriptors are smaller.
pub(super) const BELL_DATA: u64 = u64::MAX;

/// Data of the lamp there.
pub(super) const LAMP_DATA: u64 = u64::MAX - 1;

/// The sets of others that a connection was in are gone: it is in those of this process only.
pub(crate) fn count_members(conn: &'static Conn) {
    let mut count = 0;
    each_membership(conn, |_, _| count += 1);
    conn.epolls.store(count, Ordering::Release);
}

/// Something has come that may have been for sets, too, and the kernel has no edge of it, or has it
/// no more (a kick that was taken): they get one. Under the lock of a direction, so without the
/// sets' own; a set that the connection is not in refuses.
#[cold]
pub(crate) fn another_edge(conn: &Conn) {
    each_set(|set| {
        if set.inner.load(Ordering::Acquire) != 0 {
            table_fds(conn, |fd| set.nudge(fd));
        }
    });
}

pub(super) fn each_membership(conn: &'static Conn, mut each: impl FnMut(&'static Set, i32)) {
    table_fds(conn, |fd| {
        each_set(|set| {
            if set.has(conn, fd) {
                each(set, fd);
            }
        });
    });
}

/// The descriptors of a connection: nearly always the one it was made with.
pub(super) fn table_fds(conn: &Conn, mut each: impl FnMut(i32)) {
    let first = conn.descriptor();
    let is = |fd: i32| conn.is(table::conn(fd));
    if conn.refs.load(Ordering::Acquire) == 1 && is(first) {
        return each(first);
    }
    table::for_each(|fd, _| {
        if is(fd) {
            each(fd);
        }
    });
}

/// The descriptors that members may have.
pub(super) fn numbers() -> core::ops::Range<i32> {
    0..table::top().min(MEMBERS as i32)
}

/// Whether another number than `fd` stands for a connection.
pub(super) fn has_other_number(conn: &Conn, fd: i32) -> bool {
    let mut others = false;
    table_fds(conn, |other| others |= other != fd);
    others
}

/// What the inner set tells of a member: its number, and which connection it stood for. One that
/// this process has closed and another one has still goes on being told of here, when the number
/// may be another connection's.
pub(super) fn inner_data(conn: &'static Conn, fd: i32) -> u64 {
    (core::ptr::from_ref(conn) as u64 / align_of::<Conn>() as u64 * MEMBERS as u64) | fd as u64
}

/// How many sets are watched.
pub(super) static WATCHED: AtomicU32 = AtomicU32::new(0);

/// The descriptor is going to be waited on from outside, if it is one of our sets; says whether it
/// is.
pub fn watch(fd: i32) -> bool {
    let Some(set) = table::set(fd) else { return false };
    if set.watched.swap(1, Ordering::SeqCst) == 0 {
        set.sleepers.fetch_add(1, Ordering::SeqCst);
        WATCHED.fetch_add(1, Ordering::SeqCst);
    }
    true
}

impl Guard<'_> {
    /// A member may be ready: puts it on the list, and wakes a thread that sleeps on the set.
    pub(super) fn list_and_wake(mut self, fd: i32) {
        self.list(fd);
        let set = self.0;
        drop(self);
        if set.sleepers.load(Ordering::SeqCst) != 0 {
            set.nudge(fd);
        }
    }
}

impl Set {
    pub(super) fn has(&self, conn: &'static Conn, fd: i32) -> bool {
        (fd as usize) < MEMBERS && self.lock().is_some_and(|mut guard| guard.member(fd).is(conn))
    }

    pub(super) fn list_and_wake(&self, fd: i32) {
        if let Some(mut guard) = self.lock()
            && guard.member(fd).flags & MOVED != 0
        {
            guard.list(fd);
        }
        if self.sleepers.load(Ordering::Acquire) != 0 {
            self.nudge(fd);
        }
    }

    /// Puts all promoted members on the list.
    pub(super) fn list_all(&self) {
        let Some(mut guard) = self.lock() else { return };
        if self.moved.load(Ordering::Acquire) == 0 {
            return;
        }
        for fd in numbers() {
            if guard.member(fd).flags & MOVED != 0 {
                guard.list(fd);
            }
        }
    }

    /// Wakes a thread that sleeps on the set: re-arming an edge that is there (writable) is an
    /// event.
    pub(super) fn nudge(&self, fd: i32) {
        let Some(conn) = table::conn(fd) else { return };
        let inner = self.inner.load(Ordering::Acquire) - 1;
        let _ = sys::epoll_ctl(inner, libc::EPOLL_CTL_MOD, fd, EDGES, inner_data(conn, fd));
    }

    /// Takes a number out of the inner set.
    pub(super) fn leave_inner(&self, fd: i32) {
        let _ = sys::epoll_ctl(self.inner.load(Ordering::Acquire) - 1, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// The set is at its end.
    pub(super) fn unwatch(&self) {
        if self.watched.swap(0, Ordering::SeqCst) != 0 {
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
            WATCHED.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
