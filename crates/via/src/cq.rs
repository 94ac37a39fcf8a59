//! Completion queues: one place to look for whatever is done in many work queues (specification, section 2.4).
//!
//! A completion queue keeps no entries. Each of its Virtual Interfaces has a number; those where something may be done are on a list of
//! *watched* ones, which are looked at in turn, and come there by a hint: a bit that the peer sets in this process's memory when it has sent
//! a message and found the tripwire armed (CLAN's event queue: delivering and finding one costs the same however many Virtual Interfaces
//! there are). So nothing can overflow, and nothing that is done is told of twice, or after its Virtual Interface is gone.

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
/// Looks in vain that one that is not in vain makes up for: a look costs a line of memory that this processor has, a hint three that go
/// from one to the other.
const LOOKS: usize = 16;
/// So many of them can be saved up.
const MOST_LOOKS: usize = 4 * MAX_VIS;

/// `VipCQDone`: a work queue in which one more descriptor is done: a Virtual Interface, and whether it is the receive queue.
pub fn done(handle: *mut c_void) -> Result<(*mut c_void, bool), Return> {
    let cq = find(handle)?;
    let mut inner = cq.lock()?;
    inner.look(handle, false).ok_or(Return::NotDone)
}

/// `VipCQWait`: as [`done`], and sleeps until there is one, at most until `until`.
pub fn wait(handle: *mut c_void, until: Until) -> Result<(*mut c_void, bool), Return> {
    let cq = find(handle)?;
    loop {
        let map = {
            let mut inner = cq.lock()?;
            if let Some(found) = inner.look(handle, false) {
                return Ok(found);
            }
            let Some((map, _)) = inner.memory else { return Err(Return::ErrorResource) };
            arm(&map, wake::SLEEPERS);
            if let Some(found) = inner.look(handle, true) {
                return Ok(found);
            }
            map
        };
        let Some(nanos) = until.left() else { return Err(Return::Timeout) };
        segment::sleep(&map, HINTS + hints::SLEEP, nanos);
    }
}

/// For the library's thread: as [`done`], but if there is none, it is woken when there may be one.
pub(crate) fn done_or_arm(handle: *mut c_void) -> Result<(*mut c_void, bool), Return> {
    let cq = find(handle)?;
    let mut inner = cq.lock()?;
    if let Some(found) = inner.look(handle, false) {
        return Ok(found);
    }
    if let Some((map, _)) = &inner.memory {
        arm(map, wake::AGENT);
    }
    inner.look(handle, true).ok_or(Return::NotDone)
}

/// Arms the sleep word for one of [`wake`] as well.
fn arm(map: &Map, whom: u64) {
    trip::arm(map, HINTS + hints::SLEEP, |was| was | trip::RX | whom);
}

impl Inner {
    /// The next work queue in which something is done. `last`: the caller goes to sleep if there is none, so nothing stays watched.
    fn look(&mut self, handle: *mut c_void, last: bool) -> Option<(*mut c_void, bool)> {
        loop {
            let mut left = self.watched.len();
            while left > 0 {
                left -= 1;
                let slot = self.watched.pop_front()?;
                let Some(member) = self.members.get(usize::from(slot)).copied().flatten() else { continue };
                let patient = !last && (self.looks > 0 || self.watched.len() < IDLE_WATCHED);
                match vi::tell(member.vi, handle, patient) {
                    vi::Told::Done { receive } => {
                        self.looks = (self.looks + LOOKS).min(MOST_LOOKS);
                        self.watched.push_back(slot);
                        return Some((member.vi, receive));
                    }
                    vi::Told::Nothing if patient => {
                        self.looks = self.looks.saturating_sub(1);
                        self.watched.push_back(slot);
                    }
                    vi::Told::Nothing => member_of(&mut self.members, slot, |member| member.watched = false),
                }
            }
            if !self.take_hints() {
                return None;
            }
        }
    }

    /// Puts those on the list for which there are hints. False if there is none that was not there.
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

/// Does something with the member of that number, if there is one.
fn member_of(members: &mut [Option<Member>], slot: u16, act: impl FnOnce(&mut Member)) {
    if let Some(Some(member)) = members.get_mut(usize::from(slot)) {
        act(member);
    }
}
