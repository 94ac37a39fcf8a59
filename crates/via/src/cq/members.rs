//! The completion queues themselves: which Virtual Interfaces belong to one, and the memory in
//! which hints for it are set.

use core::ffi::c_void;
use std::collections::VecDeque;

use fabric::hints;
use fabric::shm::Map;
use fabric::sync::{AtomicU64, Ordering};

use crate::abi::Return;
use crate::handlers;
use crate::handles::{Found, Kind, Place, Pool};
use crate::limits::{MAX_CQ_ENTRIES, MAX_CQS};
use crate::lock::{Guard, Lock};
use crate::opened;
use crate::segment::{self, wake};

/// Virtual Interfaces of a completion queue.
pub const MAX_VIS: usize = hints::SLOTS;
/// Where the hints lie in a completion queue's memory.
pub(super) const HINTS: usize = 0;

/// A completion queue.
pub struct Cq {
    nic: AtomicU64,
    pub(super) inner: Lock<Inner>,
}

pub(super) struct Inner {
    /// The memory in which peers set hints; made when the place is first used, and kept.
    pub(super) memory: Option<(Map, i32)>,
    /// By number: the handle of a Virtual Interface.
    pub(super) members: Vec<Option<Member>>,
    pub(super) watched: VecDeque<u16>,
    /// How many polls may be in vain before idle Virtual Interfaces are no longer watched.
    pub(super) polls: usize,
}

// SAFETY: handles are numbers.
unsafe impl Send for Inner {}

#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) vi: *mut c_void,
    pub(super) watched: bool,
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
        inner: Lock::new(Inner { memory: None, members: Vec::new(), watched: VecDeque::new(), polls: 0 }),
    })
}; MAX_CQS];

/// `VipCreateCQ`. `InvalidParameter` for no entries, `ErrorResource` for more than a NIC offers, or
/// without memory.
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
    inner.polls = 0;
    cq.nic.store(nic as u64, Ordering::Release);
    Ok(handle)
}

/// `VipDestroyCQ`. `ErrorResource` while a Virtual Interface uses it. Threads that wait for it
/// return.
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

/// `VipResizeCQ`. There is nothing to resize; a wrong number is an error.
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

    /// Says that something may be done in the work queue. True if the library's thread must check
    /// as well.
    pub fn hint(&self) -> bool {
        hint(&self.map, self.slot)
    }
}

/// Sets a hint in a completion queue's memory, and wakes threads that sleep there. True if the
/// library's thread of its process must be woken.
pub fn hint(map: &Map, slot: usize) -> bool {
    let armed = hints::set(map, HINTS, slot);
    if armed & wake::SLEEPERS != 0 {
        segment::wake_sleepers(map, HINTS + hints::SLEEP);
    }
    armed & wake::AGENT != 0
}

/// Binds a Virtual Interface to a completion queue. `InvalidParameter` if that is none of this NIC
/// handle's, `ErrorResource` if it has too many.
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
    pub(super) fn lock(&self) -> Result<Guard<'_, Inner>, Return> {
        self.standing(self.inner.lock())
    }
}

/// Whether a completion queue exists.
pub(crate) fn check(handle: *mut c_void) -> Result<(), Return> {
    find(handle).map(drop)
}

pub(super) fn find(handle: *mut c_void) -> Result<Found<Cq>, Return> {
    CQS.find(handle).ok_or(Return::InvalidParameter)
}
