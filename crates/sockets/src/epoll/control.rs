//! epoll_ctl().

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};

use super::edges::{ET, ONESHOT, each_membership};
use super::set::{Asked, FRESH, Guard, INNER, LISTED, MEMBERS, MOVED, Member, PRESENT, SPENT, Set};
use super::standin;
use crate::conn::flag;
use crate::reason::Reason;
use crate::table;
use crate::{events, relay, rendezvous, thread};

/// Why a set without an inner one cannot have a connection that is in memory.
fn without_inner(errno: Errno) -> Reason {
    match errno {
        Errno::EMFILE | Errno::ENFILE => Reason::NoDescriptors,
        // It lies as deep in others as sets may.
        _ => Reason::TableFull,
    }
}

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
        // A set that we do not know (inherited through exec, or passed, or made without memory for
        // ours): its members must stay the kernel's, and what is unread must be there, too.
        relay::hand_over(conn, fd, Reason::Shared, false);
        return None;
    };
    let (events, data) = event.map_or((0, 0), |event| (event.events, event.u64));
    let asked = Asked { op, fd, conn, events, data };
    let done = if (fd as usize) < MEMBERS { set.control(asked) } else { Err(Reason::TableFull) };
    let reason = match done {
        Ok(result) => return Some(result),
        Err(reason) => reason,
    };
    let whole = relay::hand_over(conn, fd, reason, false);
    // Nobody takes a copy of the peer's descriptor then: what is unread may have to stay in the
    // ring, of which the kernel's set would not tell.
    (reason == Reason::NoDescriptors && !whole).then_some(Err(Errno::EMFILE))
}

impl Set {
    /// epoll_ctl() on a connection; `Err`: why it cannot be ours.
    fn control(&'static self, asked: Asked) -> Result<Result<(), Errno>, Reason> {
        let Asked { op, fd, conn, events, .. } = asked;
        let set = self.fd.load(Ordering::Relaxed);
        if op != libc::EPOLL_CTL_DEL && events & EXCLUSIVE != 0 {
            // Nothing becomes exclusive that is a member already, and it may ask for little.
            let may_be = op == libc::EPOLL_CTL_ADD && events & !EXCLUSIVE_OK == 0;
            if !may_be {
                return Ok(Err(Errno::EINVAL));
            }
        }
        if op == libc::EPOLL_CTL_MOD && events & ONESHOT != 0 && !conn.is_managed() {
            conn.arming.store(u64::from(thread::tid()) << 32 | set as u64, Ordering::Release);
            rendezvous::tick(conn, fd);
            conn.arming.store(0, Ordering::Release);
        }
        let Some(mut guard) = self.lock() else { return Ok(Err(Errno::EINTR)) };
        if op == libc::EPOLL_CTL_ADD && !guard.make_place(fd) {
            return Err(Reason::TableFull);
        }
        if op == libc::EPOLL_CTL_ADD && conn.is_managed() {
            self.inner().map_err(without_inner)?;
        }
        Ok(self.control_with(guard, asked))
    }

    /// As [`Set::control`], of a member that is in the inner set.
    fn control_moved(&'static self, mut guard: Guard<'_>, asked: Asked) -> Result<(), Errno> {
        let Asked { op, fd, conn, events, data } = asked;
        let member = guard.member(fd);
        match op {
            libc::EPOLL_CTL_ADD => Err(Errno::EEXIST),
            // To change an exclusive member it must be taken out.
            libc::EPOLL_CTL_MOD if member.events & EXCLUSIVE != 0 => Err(Errno::EINVAL),
            libc::EPOLL_CTL_MOD => {
                member.events = events;
                member.data = data;
                member.flags = member.flags & !SPENT | FRESH;
                guard.list_and_wake(fd);
                Ok(())
            }
            libc::EPOLL_CTL_DEL => {
                self.park(&mut guard, fd, conn);
                drop(guard);
                if conn.epolls.load(Ordering::Acquire) != 0 {
                    // Those that it stays in may have been told in our queue, which is the last one
                    // that it was in.
                    each_membership(conn, |set, fd| set.list_and_wake(fd));
                }
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn control_with(&'static self, mut guard: Guard<'_>, asked: Asked) -> Result<(), Errno> {
        let Asked { op, fd, conn, events, data } = asked;
        let set = self.fd.load(Ordering::Relaxed);
        let member = guard.member(fd);
        let known = member.is(conn);
        if known && member.flags & MOVED != 0 {
            return self.control_moved(guard, asked);
        }
        if !known && op == libc::EPOLL_CTL_ADD && conn.is_managed() {
            if conn.is_demoted() || conn.has(flag::OWN_WISH) {
                // The kernel may know it by this number, from when that stood for it before:
                // EEXIST. For nothing, as others wait there.
                sys::epoll_ctl(set, op, fd, 0, data)?;
                let _ = sys::epoll_ctl(set, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            return self.add_moved(guard, asked);
        }
        if !known && op != libc::EPOLL_CTL_ADD && member.flags & INNER != 0 {
            return Err(Errno::ENOENT);
        }
        sys::epoll_ctl(set, op, fd, events, data)?;
        standin::drop_stand_in(conn, set, fd);
        let registered = self.clock.fetch_add(1, Ordering::AcqRel);
        let member = guard.member(fd);
        if op == libc::EPOLL_CTL_DEL {
            if known {
                self.on_tcp.fetch_sub(1, Ordering::AcqRel);
                // Still in the inner set, if an offer was taken back: until it is promoted again,
                // or closed.
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
        let flags = member.flags & (LISTED | INNER) | PRESENT;
        *member = Member { seen: registered, ..member.anew(asked, flags) };
        drop(guard);
        if conn.is_managed() {
            self.move_in(fd, true);
        }
        Ok(())
    }
}
