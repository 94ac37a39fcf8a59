//! Handles: a program's references to a NIC, a protection tag, a Virtual Interface, a completion
//! queue or a connection request. A handle is a number in the type of a pointer, never an address:
//! kind, place in the kind's pool, and how often that place has been given out. So a handle of
//! another kind or of something destroyed, or any other value, is found out, and nothing is read
//! through it.
//!
//! The memory of a pool is never freed, only given out again. A thread that found something just
//! before another one destroyed it has memory of the right type still. It locks it, by
//! [`Found::standing`], and learns that it came too late.

use core::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use fabric::sync::{AtomicU32, Ordering};

use crate::abi::Return;
use crate::process::PerProcess;

/// The kinds of things that have handles.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Nic = 1,
    Ptag = 2,
    Vi = 3,
    Cq = 4,
    Request = 5,
}

const PLACE_BITS: u32 = 20;
const TURN_BITS: u32 = 23;
const KIND_SHIFT: u32 = PLACE_BITS + TURN_BITS;

/// One place of a pool.
pub struct Place<T> {
    /// How often it was given out or taken back: odd while it is in use.
    turn: AtomicU32,
    what: T,
}

impl<T> Place<T> {
    /// A free one.
    pub const fn new(what: T) -> Place<T> {
        Place { turn: AtomicU32::new(0), what }
    }
}

/// All places of one kind.
pub struct Pool<T: 'static> {
    kind: Kind,
    places: &'static [Place<T>],
    free: PerProcess<Mutex<Free>>,
}

struct Free {
    /// Places that were given back, the last one first.
    given_back: Vec<u32>,
    /// Places below have been given out before.
    used: u32,
}

/// Something that a handle names.
pub struct Found<T: 'static> {
    place: &'static Place<T>,
    turn: u32,
}

impl<T: 'static> Pool<T> {
    /// A pool of what lies at `places`.
    pub const fn new(kind: Kind, places: &'static [Place<T>]) -> Pool<T> {
        assert!(places.len() <= 1 << PLACE_BITS);
        let free = Mutex::new(Free { given_back: Vec::new(), used: 0 });
        Pool { kind, places, free: PerProcess::new(free) }
    }

    /// Gives out a place, as its last user left it; none if all are in use.
    pub fn give_out(&self) -> Option<(*mut c_void, Found<T>)> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let index = free.given_back.pop().or_else(|| {
            let next = free.used;
            (next < self.places.len() as u32).then(|| {
                free.used += 1;
                next
            })
        })?;
        let place = &self.places[index as usize];
        let turn = place.turn.fetch_add(1, Ordering::AcqRel) + 1;
        Some((self.handle(index, turn), Found { place, turn }))
    }

    /// Finds the thing that a handle names.
    #[inline(always)]
    pub fn find(&self, handle: *mut c_void) -> Option<Found<T>> {
        let bits = handle as u64;
        if bits >> KIND_SHIFT != self.kind as u64 {
            return None;
        }
        let place = self.places.get((bits & ((1 << PLACE_BITS) - 1)) as usize)?;
        let turn = place.turn.load(Ordering::Acquire);
        (turn & 1 == 1 && self.handle_of(bits & ((1 << PLACE_BITS) - 1), turn) == bits)
            .then_some(Found { place, turn })
    }

    /// Takes a place back: its handles are invalid from now on. For callers that hold the locks of
    /// the thing there. False if another thread did it before.
    pub fn take_back(&self, found: &Found<T>) -> bool {
        let next = found.turn.wrapping_add(1);
        if found.place.turn.compare_exchange(found.turn, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let start = self.places.as_ptr() as usize;
        let index = (core::ptr::from_ref(found.place) as usize - start) / size_of::<Place<T>>();
        self.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.push(index as u32);
        true
    }

    /// All that is in use now.
    pub fn all(&self) -> impl Iterator<Item = (*mut c_void, Found<T>)> {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).used;
        (0..used).filter_map(|index| {
            let place = &self.places[index as usize];
            let turn = place.turn.load(Ordering::Acquire);
            (turn & 1 == 1).then(|| (self.handle(index, turn), Found { place, turn }))
        })
    }

    /// In a child of fork(): its parent's handles are invalid, and the places that its parent has
    /// used are not given out again, as threads that do not exist here may have had their locks.
    ///
    /// # Safety
    /// As of `PerProcess::renew`.
    pub unsafe fn begin_anew(&self) {
        let mut used = 0;
        for place in self.places {
            match place.turn.load(Ordering::Acquire) {
                0 => break,
                turn if turn & 1 == 1 => place.turn.store(turn + 1, Ordering::Release),
                _ => {}
            }
            used += 1;
        }
        // SAFETY: the caller vouches for it.
        unsafe { self.free.renew(Mutex::new(Free { given_back: Vec::new(), used })) };
    }

    fn handle(&self, index: u32, turn: u32) -> *mut c_void {
        self.handle_of(u64::from(index), turn) as *mut c_void
    }

    fn handle_of(&self, index: u64, turn: u32) -> u64 {
        let turn = u64::from(turn >> 1) & ((1 << TURN_BITS) - 1);
        (self.kind as u64) << KIND_SHIFT | turn << PLACE_BITS | index
    }
}

impl<T> Found<T> {
    /// The locked thing, if the handle still names it. Another thread may have destroyed it, under
    /// that lock, since it was found, and the place may be another one's: `InvalidParameter` then.
    #[inline(always)]
    pub fn standing<G>(&self, guard: G) -> Result<G, Return> {
        if self.stands() { Ok(guard) } else { Err(Return::InvalidParameter) }
    }

    #[inline(always)]
    fn stands(&self) -> bool {
        self.place.turn.load(Ordering::Acquire) == self.turn
    }
}

impl<T> core::ops::Deref for Found<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.place.what
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    static PLACES: [Place<AtomicUsize>; 3] = [const { Place::new(AtomicUsize::new(0)) }; 3];

    #[test]
    fn only_what_was_given_out_is_found() {
        let pool = Pool::new(Kind::Vi, &PLACES);
        let other = Pool::new(Kind::Cq, &PLACES);
        let (first, found) = pool.give_out().unwrap();
        assert!(!first.is_null());
        assert!(pool.find(first).is_some());
        assert!(other.find(first).is_none());
        for noise in [0usize, 1, usize::MAX, first as usize + 1, first as usize + 3, first as usize | 1 << 60]
        {
            assert!(pool.find(noise as *mut c_void).is_none(), "{noise:x}");
        }
        let more: Vec<_> = core::iter::from_fn(|| pool.give_out()).collect();
        assert_eq!(more.len(), 2);
        assert_eq!(pool.all().count(), 3);
        assert!(found.stands());
        assert!(pool.take_back(&found));
        assert!(!pool.take_back(&found));
        assert!(!found.stands());
        assert!(pool.find(first).is_none());
        let (again, _) = pool.give_out().unwrap();
        assert_ne!(again, first);
        assert!(pool.find(first).is_none());
        assert!(pool.give_out().is_none());
    }

    #[test]
    fn a_child_has_none_of_its_parents_places() {
        static PLACES: [Place<AtomicUsize>; 4] = [const { Place::new(AtomicUsize::new(0)) }; 4];
        let pool = Pool::new(Kind::Vi, &PLACES);
        let (kept, _) = pool.give_out().unwrap();
        let (_, found) = pool.give_out().unwrap();
        pool.take_back(&found);
        // SAFETY: nobody else uses this pool.
        unsafe { pool.begin_anew() };
        assert!(pool.find(kept).is_none());
        assert_eq!(pool.all().count(), 0);
        let own: Vec<_> = core::iter::from_fn(|| pool.give_out()).collect();
        assert_eq!(own.len(), 2);
        assert!(own.iter().all(|&(handle, _)| handle != kept));
    }
}
