//! epoll_ctl().

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};

use super::edges::{ET, ONESHOT, each_membership};
use super::set::{FRESH, Guard, INNER, LISTED, MEMBERS, MOVED, Member, PRESENT, SPENT, Set};
use crate::conn::{Conn, flag};
use crate::reason::Reason;
use crate::table;
use crate::{demote, events, rendezvous, thread};

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// What an exclusive member may ask for.
const EXCLUSIVE_OK: u32 = events::IN
    | events::OUT
    | (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLWAKEUP | libc::EPOLLEXCLUSIVE) as u32
    | ET;

/// epoll_ctl() on a connection; `None`: the kernel's call, as it is.
pub fn control(set_fd: i32, op: i32, fd: i32, event: Option<libc::epoll_event>) -> Option<Result<(), Errno>> {
    let conn = table::conn(fd)?;
    let Some(set) = table::set(set_fd) else {
        // A set that we do not know (inherited through exec, or passed): its members must stay the kernel's.
        demote::now(conn, fd, Reason::Shared);
        return None;
    };
    let done = if (fd as usize) < MEMBERS { set.control(op, fd, conn, event) } else { None };
    if done.is_none() {
        demote::now(conn, fd, Reason::TableFull);
    }
    done
}

impl Set {
    /// epoll_ctl() on a connection; `None`: there is no place for it.
    pub(super) fn control(
        &'static self,
        op: i32,
        fd: i32,
        conn: &'static Conn,
        event: Option<libc::epoll_event>,
    ) -> Option<Result<(), Errno>> {
        let set = self.fd.load(Ordering::Relaxed);
        let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
        if op != libc::EPOLL_CTL_DEL && events & EXCLUSIVE != 0 {
            // Nothing becomes exclusive that is a member already, and it may ask for little.
            let may_be = op == libc::EPOLL_CTL_ADD && events & !EXCLUSIVE_OK == 0;
            if !may_be {
                return Some(Err(Errno::EINVAL));
            }
        }
        if op == libc::EPOLL_CTL_MOD && events & ONESHOT != 0 && !conn.is_managed() {
            conn.arming.store(u64::from(thread::tid()) << 32 | set as u64, Ordering::Release);
            rendezvous::tick(conn, fd);
            conn.arming.store(0, Ordering::Release);
        }
        let Some(mut guard) = self.lock() else { return Some(Err(Errno::EINTR)) };
        if op == libc::EPOLL_CTL_ADD && !guard.make_place(fd) {
            return None;
        }
        Some(self.control_with(guard, (op, set, fd), conn, events, data))
    }

    /// As [`Set::control`], of a member that is in the inner set.
    fn control_moved(
        &'static self,
        mut guard: Guard<'_>,
        op: i32,
        fd: i32,
        conn: &'static Conn,
        (events, data): (u32, u64),
    ) -> Result<(), Errno> {
        let member = guard.member(fd);
        match op {
            libc::EPOLL_CTL_ADD => Err(Errno::EEXIST),
            // To change an exclusive member it must be taken out.
            libc::EPOLL_CTL_MOD if member.events & EXCLUSIVE != 0 => Err(Errno::EINVAL),
            libc::EPOLL_CTL_MOD => {
                member.events = events;
                member.data = data;
                member.flags = member.flags & !SPENT | FRESH;
                guard.list(fd);
                drop(guard);
                if self.sleepers.load(Ordering::Acquire) != 0 {
                    self.nudge(fd);
                }
                Ok(())
            }
            libc::EPOLL_CTL_DEL => {
                self.park(&mut guard, fd, conn);
                drop(guard);
                if conn.epolls.load(Ordering::Acquire) != 0 {
                    // Those that it stays in may have been told in our queue, which is the last one that it was in.
                    each_membership(conn, |set, fd| set.list_and_wake(fd));
                }
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn control_with(
        &'static self,
        mut guard: Guard<'_>,
        (op, set, fd): (i32, i32, i32),
        conn: &'static Conn,
        events: u32,
        data: u64,
    ) -> Result<(), Errno> {
        let member = guard.member(fd);
        let known =
            member.flags & PRESENT != 0 && member.conn.is_some_and(|other| core::ptr::eq(other, conn));
        if known && member.flags & MOVED != 0 {
            return self.control_moved(guard, op, fd, conn, (events, data));
        }
        if !known && op == libc::EPOLL_CTL_ADD && conn.is_managed() {
            if conn.has(flag::DEMOTING) {
                // The kernel may know it by this number, from when that stood for it before: EEXIST. For nothing, as others wait there.
                sys::epoll_ctl(set, op, fd, 0, data)?;
                let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            return self.add_moved(guard, fd, conn, events, data);
        }
        if !known && op != libc::EPOLL_CTL_ADD && member.flags & INNER != 0 {
            return Err(Errno::ENOENT);
        }
        sys::epoll_ctl(set, op, fd, events, data)?;
        let registered = self.clock.fetch_add(1, Ordering::AcqRel);
        let member = guard.member(fd);
        if op == libc::EPOLL_CTL_DEL {
            if known {
                self.on_tcp.fetch_sub(1, Ordering::AcqRel);
                // Still in the inner set, if an offer was taken back: until it is promoted again, or closed.
                member.flags &= LISTED | INNER;
                if member.flags & INNER == 0 {
                    member.conn = None;
                } else {
                    conn.set(flag::PARKED);
                }
                conn.epolls.fetch_sub(1, Ordering::AcqRel);
            }
            return Ok(());
        }
        if !known {
            conn.epolls.fetch_add(1, Ordering::AcqRel);
            self.on_tcp.fetch_add(1, Ordering::AcqRel);
        }
        *member = Member {
            conn: Some(conn),
            data,
            events,
            flags: member.flags & (LISTED | INNER) | PRESENT,
            next: member.next,
            seen: registered,
            life: 0,
            told: member.told,
            cpu: 0,
        };
        drop(guard);
        if conn.is_managed() {
            self.move_in(fd, true);
        }
        Ok(())
    }
}
