//! Completion queues: one place to look for whatever is done in many work queues (specification, section 2.4).
//!
//! A completion queue keeps no entries. Each of its Virtual Interfaces has a number; those where something may be done are on a list of
//! *watched* ones, which are looked at in turn, and come there by a hint: a bit that the peer sets in this process's memory when it has sent
//! a message and found the tripwire armed (CLAN's event queue: delivering and finding one costs the same however many Virtual Interfaces
//! there are). So nothing can overflow, and nothing that is done is told of twice, or after its Virtual Interface is gone.

use core::ffi::c_void;
use std::collections::VecDeque;

use fabric::shm::Map;
use fabric::sync::{AtomicU64, Ordering};
use fabric::{hints, trip};

use crate::abi::Return;
use crate::handles::{Found, Kind, Place, Pool};
use crate::limits::{MAX_CQ_ENTRIES, MAX_CQS};
use crate::lock::{Guard, Lock};
use crate::opened;
use crate::segment::{self, wake};
pub use crate::until::Until;
use crate::{handlers, vi};

/// Virtual Interfaces of a completion queue.
pub const MAX_VIS: usize = hints::SLOTS;
/// Watched Virtual Interfaces that may always stay so while nothing is done in them.
const IDLE_WATCHED: usize = 4;
/// Looks in vain that one that is not in vain makes up for: a look costs a line of memory that this processor has, a hint three that go
/// from one to the other.
const LOOKS: usize = 16;
/// So many of them can be saved up.
const MOST_LOOKS: usize = 4 * MAX_VIS;
/// Where the hints lie in a completion queue's memory.
const HINTS: usize = 0;

/// A completion queue.
pub struct Cq {
    nic: AtomicU64,
    inner: Lock<Inner>,
}

struct Inner {
    /// What peers set hints in; made when the place is first used, and kept.
    memory: Option<(Map, i32)>,
    /// By number: the handle of a Virtual Interface.
    members: Vec<Option<Member>>,
    watched: VecDeque<u16>,
    /// How many looks in vain there may be before those where nothing is done are watched no more.
    looks: usize,
}

// SAFETY: handles are numbers.
unsafe impl Send for Inner {}

#[derive(Clone, Copy)]
struct Member {
    vi: *mut c_void,
    watched: bool,
}

/// # Safety
/// As of [`Pool::begin_anew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { CQS.begin_anew() };
}

static CQS: Pool<Cq> = Pool::new(Kind::Cq, &PLACES);
static PLACES: [Place<Cq>; MAX_CQS] = [const {
    Place::new(Cq {
        nic: AtomicU64::new(0),
        inner: Lock::new(Inner { memory: None, members: Vec::new(), watched: VecDeque::new(), looks: 0 }),
    })
}; MAX_CQS];

/// `VipCreateCQ`. `InvalidParameter` for no entries, `ErrorResource` for more than a NIC offers, or without memory.
pub fn create(nic: *mut c_void, entries: usize) -> Result<*mut c_void, Return> {
    opened::check(nic)?;
    check_entries(entries)?;
    let (handle, cq) = CQS.give_out().ok_or(Return::ErrorResource)?;
    let mut inner = cq.lock()?;
    if inner.memory.is_none() {
        match Map::create(c"via-queue", hints::BYTES) {
            Ok(memory) => inner.memory = Some(memory),
            Err(_) => {
                CQS.take_back(&cq);
                return Err(Return::ErrorResource);
            }
        }
    }
    inner.members.clear();
    inner.watched.clear();
    inner.looks = 0;
    cq.nic.store(nic as u64, Ordering::Release);
    Ok(handle)
}

/// `VipDestroyCQ`. `ErrorResource` while a Virtual Interface uses it. Those who wait for it return.
pub fn destroy(handle: *mut c_void) -> Result<(), Return> {
    let cq = find(handle)?;
    let inner = cq.lock()?;
    if inner.members.iter().any(Option::is_some) {
        return Err(Return::ErrorResource);
    }
    if !CQS.take_back(&cq) {
        return Err(Return::InvalidParameter);
    }
    if let Some((map, _)) = &inner.memory {
        hints::disarm_sleep(map, HINTS);
        segment::wake_sleepers(map, HINTS + hints::SLEEP);
    }
    drop(inner);
    handlers::forget(handle);
    Ok(())
}

/// `VipResizeCQ`. There is nothing to resize; what is wrong with the number is told.
pub fn resize(handle: *mut c_void, entries: usize) -> Result<(), Return> {
    find(handle)?;
    check_entries(entries)
}

fn check_entries(entries: usize) -> Result<(), Return> {
    match entries {
        0 => Err(Return::InvalidParameter),
        1..=MAX_CQ_ENTRIES => Ok(()),
        _ => Err(Return::ErrorResource),
    }
}

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

/// A work queue's place in a completion queue.
#[derive(Clone, Copy)]
pub struct Bound {
    /// The completion queue.
    pub handle: *mut c_void,
    /// The number in it.
    pub slot: usize,
    map: Map,
    memfd: i32,
}

// SAFETY: handles are numbers.
unsafe impl Send for Bound {}
// SAFETY: as above.
unsafe impl Sync for Bound {}

impl Bound {
    /// The completion queue's memory, for peers.
    pub fn memfd(&self) -> i32 {
        self.memfd
    }

    /// Says that something may be done in the work queue. True if the library's thread is to look as well.
    pub fn hint(&self) -> bool {
        hint(&self.map, self.slot)
    }
}

/// Sets a hint in a completion queue's memory, and wakes who sleeps there. True if the library's thread of its process is to be woken.
pub fn hint(map: &Map, slot: usize) -> bool {
    let armed = hints::set(map, HINTS, slot);
    if armed & wake::SLEEPERS != 0 {
        segment::wake_sleepers(map, HINTS + hints::SLEEP);
    }
    armed & wake::AGENT != 0
}

/// Binds a Virtual Interface to a completion queue. `InvalidParameter` if that is none of this NIC handle's, `ErrorResource` if it has too
/// many.
pub fn join(handle: *mut c_void, nic: *mut c_void, vi: *mut c_void) -> Result<Bound, Return> {
    let cq = find(handle)?;
    let mut inner = cq.lock()?;
    if cq.nic.load(Ordering::Acquire) != nic as u64 {
        return Err(Return::InvalidParameter);
    }
    let Some((map, memfd)) = inner.memory else { return Err(Return::ErrorResource) };
    let slot = match inner.members.iter().position(Option::is_none) {
        Some(slot) => slot,
        None if inner.members.len() < MAX_VIS => {
            inner.members.push(None);
            inner.members.len() - 1
        }
        None => return Err(Return::ErrorResource),
    };
    inner.members[slot] = Some(Member { vi, watched: true });
    inner.watched.push_back(slot as u16);
    Ok(Bound { handle, slot, map, memfd })
}

/// Undoes [`join`].
pub fn leave(bound: &Bound) {
    let Ok(cq) = find(bound.handle) else { return };
    let Ok(mut inner) = cq.lock() else { return };
    if let Some(member) = inner.members.get_mut(bound.slot) {
        *member = None;
    }
    inner.watched.retain(|&slot| usize::from(slot) != bound.slot);
}

/// Destroys the completion queues of a NIC handle that is being closed.
pub fn close(nic: *mut c_void) {
    for (handle, _) in CQS.all().filter(|(_, cq)| cq.nic.load(Ordering::Acquire) == nic as u64) {
        let _ = destroy(handle);
    }
}

impl Found<Cq> {
    fn lock(&self) -> Result<Guard<'_, Inner>, Return> {
        self.standing(self.inner.lock())
    }
}

/// Whether a completion queue stands.
pub(crate) fn check(handle: *mut c_void) -> Result<(), Return> {
    find(handle).map(drop)
}

fn find(handle: *mut c_void) -> Result<Found<Cq>, Return> {
    CQS.find(handle).ok_or(Return::InvalidParameter)
}
