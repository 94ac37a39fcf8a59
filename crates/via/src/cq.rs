//! Completion queues: one place to wait for descriptors that are done in many work queues
//! (specification, section 2.4).
//!
//! A completion queue keeps no entries. Each of its Virtual Interfaces has a number; those where
//! something may be done are on a list of *watched* ones, which are polled in turn. A hint puts
//! them there: a bit that the peer sets in this process's memory when it has sent a message and
//! found the tripwire armed (CLAN's event queue: delivering and finding one costs the same however
//! many Virtual Interfaces there are). So nothing can overflow, and no descriptor is reported
//! twice, or after its Virtual Interface is gone.

use core::ffi::c_void;

use fabric::shm::Map;
use fabric::{hints, trip};

use crate::abi::Return;
use crate::segment::{self, wake};
pub use crate::until::Until;
use crate::vi;

pub(crate) mod members;

pub use members::{Bound, Cq, MAX_VIS, close, create, destroy, hint, join, leave, resize};
use members::{HINTS, Inner, Member, find};
pub(crate) use members::{check, in_child};

/// Watched Virtual Interfaces that may always stay so while nothing is done in them.
const IDLE_WATCHED: usize = 4;
/// Polls in vain that one successful poll makes up for: a poll costs a line of memory that this
/// processor has, a hint three lines that move from one processor to the other.
const POLLS: usize = 16;
/// So many of them can be saved up.
const MOST_POLLS: usize = 4 * MAX_VIS;

/// `VipCQDone`: a work queue in which one more descriptor is done: a Virtual Interface, and whether
/// it is the receive queue.
pub fn done(handle: *mut c_void) -> Result<(*mut c_void, bool), Return> {
    let cq = find(handle)?;
    loop {
        let polled = cq.lock()?.poll(handle, false);
        match polled {
            Polled::Done(vi, receive) => return Ok((vi, receive)),
            Polled::Nothing => return Err(Return::NotDone),
            Polled::Broken(vi, breach) => breach.end(vi),
        }
    }
}

/// `VipCQWait`: as [`done`], and sleeps until there is one, at most until `until`.
pub fn wait(handle: *mut c_void, until: Until) -> Result<(*mut c_void, bool), Return> {
    loop {
        let map = match poll_or_arm(handle, wake::SLEEPERS)? {
            Ok(found) => return Ok(found),
            Err(map) => map,
        };
        let Some(nanos) = until.left() else { return Err(Return::Timeout) };
        segment::sleep(&map, HINTS + hints::SLEEP, nanos);
    }
}

/// For the library's thread: as [`done`]; but if there is none, the thread is woken when there may
/// be one. A connection that is found to be broken is not ended here: the caller has locks.
pub(crate) fn done_or_arm(handle: *mut c_void) -> Result<Polled, Return> {
    poll_and_arm(handle, wake::AGENT).map(|(polled, _)| polled)
}

/// As [`done`]. If there is none, the sleep word is armed for one of [`wake`], and the result is
/// the memory in which it is.
fn poll_or_arm(handle: *mut c_void, whom: u64) -> Result<Result<(*mut c_void, bool), Map>, Return> {
    loop {
        match poll_and_arm(handle, whom)? {
            (Polled::Done(vi, receive), _) => return Ok(Ok((vi, receive))),
            (Polled::Nothing, map) => return Ok(Err(map)),
            (Polled::Broken(vi, breach), _) => breach.end(vi),
        }
    }
}

fn poll_and_arm(handle: *mut c_void, whom: u64) -> Result<(Polled, Map), Return> {
    let cq = find(handle)?;
    let mut inner = cq.lock()?;
    let Some((map, _)) = inner.memory else { return Err(Return::ErrorResource) };
    let mut polled = inner.poll(handle, false);
    if matches!(polled, Polled::Nothing) {
        arm(&map, whom);
        polled = inner.poll(handle, true);
    }
    Ok((polled, map))
}

/// The result of polling a completion queue.
pub(crate) enum Polled {
    /// One more descriptor is done: in which Virtual Interface, and whether in its receive queue.
    Done(*mut c_void, bool),
    Nothing,
    /// The peer of that Virtual Interface breaks the rules.
    Broken(*mut c_void, vi::Breach),
}

/// Arms the sleep word for one of [`wake`], besides those that it is armed for.
fn arm(map: &Map, whom: u64) {
    trip::arm(map, HINTS + hints::SLEEP, |was| was | trip::RX | whom);
}

impl Inner {
    /// The next work queue in which something is done. `last`: the caller goes to sleep if there is
    /// none, so nothing stays watched.
    fn poll(&mut self, handle: *mut c_void, last: bool) -> Polled {
        loop {
            let mut left = self.watched.len();
            while left > 0 {
                left -= 1;
                let Some(slot) = self.watched.pop_front() else { break };
                let Some(member) = self.members.get(usize::from(slot)).copied().flatten() else { continue };
                let patient = !last && (self.polls > 0 || self.watched.len() < IDLE_WATCHED);
                match vi::tell(member.vi, handle, patient) {
                    vi::Completion::Done { receive } => {
                        self.polls = (self.polls + POLLS).min(MOST_POLLS);
                        self.watched.push_back(slot);
                        return Polled::Done(member.vi, receive);
                    }
                    vi::Completion::Broken(breach) => {
                        self.watched.push_front(slot);
                        return Polled::Broken(member.vi, breach);
                    }
                    vi::Completion::Nothing if patient => {
                        self.polls = self.polls.saturating_sub(1);
                        self.watched.push_back(slot);
                    }
                    vi::Completion::Nothing => {
                        member_of(&mut self.members, slot, |member| member.watched = false)
                    }
                }
            }
            if !self.take_hints() {
                return Polled::Nothing;
            }
        }
    }

    /// Puts those with hints on the list. False if there is none that was not there.
    fn take_hints(&mut self) -> bool {
        let Inner { memory: Some((map, _)), members, watched, .. } = self else { return false };
        let mut found = false;
        hints::take(
            map,
            HINTS,
            |_| {},
            |slot| {
                member_of(members, slot as u16, |member| {
                    if !core::mem::replace(&mut member.watched, true) {
                        watched.push_back(slot as u16);
                        found = true;
                    }
                });
            },
        );
        found
    }
}

/// Calls `act` with the member of that number, if there is one.
fn member_of(members: &mut [Option<Member>], slot: u16, act: impl FnOnce(&mut Member)) {
    if let Some(Some(member)) = members.get_mut(usize::from(slot)) {
        act(member);
    }
}
