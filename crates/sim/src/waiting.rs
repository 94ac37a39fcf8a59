//! How a simulated program waits until its connection is ready: by poll(), or by an epoll set.

use std::ffi::c_int;

use crate::image::Calls;
use crate::program::{dice, errno, fail, note};
use crate::world;

/// How a program waits for one of its connections.
#[derive(Default)]
pub struct Waiting {
    set: Option<Set>,
    /// The last read said that there is no more for now, and the last write that there is no room:
    /// a set that tells of edges tells of the next one.
    pub drained: bool,
    pub full: bool,
}

/// An epoll set with the one connection.
struct Set {
    fd: c_int,
    events: u32,
    /// It has told of an end.
    ended: bool,
}

/// What a program waits for: that it may read, or write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    In,
    Out,
}

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

impl Waiting {
    /// Waits by poll() or epoll_wait().
    pub fn wait(&mut self, calls: &Calls, fd: c_int, wait: Wait) {
        if dice(2) == 0 {
            self.wait_by_epoll(calls, fd, wait);
            return;
        }
        let events = if wait == Wait::In { libc::POLLIN } else { libc::POLLOUT };
        let mut fds = [libc::pollfd { fd, events, revents: 0 }];
        let millis = if dice(4) == 0 { 1 } else { -1 };
        // SAFETY: one entry is there.
        let (ready, _) = world::hearing(|| unsafe { (calls.poll)(fds.as_mut_ptr(), 1, millis) });
        let why = errno();
        if ready < 0 && why != libc::EINTR {
            fail(|| format!("poll fails: {why}"));
        }
        note(|| format!("poll({fd}, {events}, {millis}) = {ready}, {:#x}", fds[0].revents));
    }

    fn wait_by_epoll(&mut self, calls: &Calls, member: c_int, wait: Wait) {
        let wanted = if wait == Wait::In { libc::EPOLLIN | libc::EPOLLRDHUP } else { libc::EPOLLOUT } as u32;
        let edge = self.set.as_ref().is_some_and(|set| set.events == wanted | EDGE) && dice(4) > 0;
        let kind = if edge { EDGE } else { [0, EDGE, EDGE, ONCE][dice(4) as usize] };
        let mut event = libc::epoll_event { events: wanted | kind, u64: 7 };
        // Of what has been told by an edge only what is new is told again: a program that has not
        // taken all asks anew, which tells it.
        let anew = !edge || !(if wait == Wait::In { self.drained } else { self.full });
        // SAFETY: the calls take numbers and an event that lives through them.
        let set = unsafe {
            match &mut self.set {
                None => {
                    let fd = (calls.epoll_create1)(libc::EPOLL_CLOEXEC);
                    (calls.epoll_ctl)(fd, libc::EPOLL_CTL_ADD, member, &raw mut event);
                    self.set.insert(Set { fd, events: event.events, ended: false })
                }
                Some(set) => {
                    if anew {
                        (calls.epoll_ctl)(set.fd, libc::EPOLL_CTL_MOD, member, &raw mut event);
                        set.events = event.events;
                    }
                    set
                }
            }
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let millis = [1, -1, -1, -1, 0][dice(5) as usize];
        let polled = millis == 0 && anew && is_ready(calls, member, wait);
        let (fd, asked) = (set.fd, set.events);
        // SAFETY: the events have room for four.
        let epoll_wait = || unsafe { (calls.epoll_wait)(fd, events.as_mut_ptr(), 4, millis) };
        let (ready, _) = world::hearing(epoll_wait);
        let why = errno();
        if ready < 0 && why != libc::EINTR {
            fail(|| format!("epoll_wait fails: {why}"));
        }
        let told = events[0].events;
        if ready > 0 && told & !(libc::EPOLLIN | libc::EPOLLOUT) as u32 != 0 {
            self.set.as_mut().expect("a set").ended = true;
        }
        note(|| {
            format!(
                "epoll_wait({fd}: {asked:#x}{}, {millis}) = {ready}, {told:#x}",
                if anew { "" } else { " still" }
            )
        });
        if ready > 1 {
            fail(|| format!("epoll_wait({fd}) tells {ready} times of its one member"));
        }
        // What was unread in a ring that is left meanwhile may take all the room that tcp has.
        if polled && ready == 0 && (wait == Wait::In || is_ready(calls, member, wait)) {
            fail(|| format!("epoll_wait({fd}) tells of nothing just after poll({member}) did"));
        }
    }

    /// Whether the set has told of an end, which makes a short read say nothing.
    pub fn knows_of_end(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.ended)
    }

    /// The number was closed, and is the same connection's again: it still is the set's member.
    pub fn look_for_member(&mut self, calls: &Calls, number: c_int) {
        let Some(set) = &mut self.set else { return };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        // SAFETY: the event lives through the call.
        let added = unsafe { (calls.epoll_ctl)(set.fd, libc::EPOLL_CTL_ADD, number, &raw mut event) };
        if added == 0 || errno() != libc::EEXIST {
            fail(|| format!("{number} is no member any more since its number was another one's"));
        }
        // Not known to be asked for an edge.
        set.events = 0;
    }

    /// The set is of no use any more.
    pub fn end(&mut self, calls: &Calls) {
        if let Some(set) = self.set.take() {
            // SAFETY: the call takes a number.
            unsafe { (calls.close)(set.fd) };
        }
    }
}

/// Whether poll() says so, without waiting.
pub fn is_ready(calls: &Calls, fd: c_int, wait: Wait) -> bool {
    let events = if wait == Wait::In { libc::POLLIN } else { libc::POLLOUT };
    let mut fds = [libc::pollfd { fd, events, revents: 0 }];
    // SAFETY: one entry is there.
    let ready = unsafe { (calls.poll)(fds.as_mut_ptr(), 1, 0) };
    note(|| format!("poll({fd}, {events}, 0) = {ready}, {:#x}", fds[0].revents));
    ready > 0
}
