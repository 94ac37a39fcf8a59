//! Everything that is open in this process: NIC handles, and protection tags, registered memory,
//! and memory that peers map, which were made with them.

use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use fabric::sync::{AtomicU64, Ordering};

use crate::abi::Return;
use crate::arena::Arena;
use crate::handles::{Found, Kind, Place, Pool};
use crate::limits::{ADDRESS, MAX_PTAGS};
use crate::memory::Regions;
use crate::process::PerProcess;

const MAX_NICS: usize = 1024;

/// An opened NIC.
pub struct Nic {
    pub(crate) opened: Mutex<Opened>,
}

pub(crate) struct Opened {
    pub(crate) name: [u8; 64],
    pub(crate) address: [u8; ADDRESS],
}

/// A protection tag.
pub(crate) struct Ptag {
    pub(crate) nic: AtomicU64,
}

pub(crate) static NICS: Pool<Nic> = Pool::new(Kind::Nic, &NIC_PLACES);

static NIC_PLACES: [Place<Nic>; MAX_NICS] =
    [const { Place::new(Nic { opened: Mutex::new(Opened { name: [0; 64], address: [0; ADDRESS] }) }) };
        MAX_NICS];

pub(crate) static PTAGS: Pool<Ptag> = Pool::new(Kind::Ptag, &PTAG_PLACES);

static PTAG_PLACES: [Place<Ptag>; MAX_PTAGS] =
    [const { Place::new(Ptag { nic: AtomicU64::new(0) }) }; MAX_PTAGS];

impl Nic {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a NIC handle exists.
pub(crate) fn check(handle: *mut c_void) -> Result<(), Return> {
    find(handle).map(drop)
}

pub(crate) fn find(handle: *mut c_void) -> Result<Found<Nic>, Return> {
    NICS.find(handle).ok_or(Return::InvalidParameter)
}

pub(crate) fn find_ptag(nic: *mut c_void, handle: *mut c_void) -> Option<Found<Ptag>> {
    PTAGS.find(handle).filter(|ptag| ptag.nic.load(Ordering::Acquire) == nic as u64)
}

pub(crate) fn check_ptag(nic: *mut c_void, handle: *mut c_void) -> Result<(), Return> {
    if handle.is_null() || find_ptag(nic, handle).is_some() { Ok(()) } else { Err(Return::InvalidPtag) }
}

/// The process's regions, made when it opens its first NIC.
#[inline(always)]
pub(crate) fn regions() -> Result<&'static Regions, Return> {
    match REGIONS.get() {
        Some(regions) => Ok(regions),
        None => make_regions(),
    }
}

static REGIONS: PerProcess<OnceLock<Regions>> = PerProcess::new(OnceLock::new());

#[cold]
fn make_regions() -> Result<&'static Regions, Return> {
    let made = Regions::new().map_err(|_| Return::ErrorResource)?;
    Ok(REGIONS.get_or_init(|| made))
}

/// The process's memory that peers map, if it has allocated any. It is made only then, as tools
/// like valgrind keep track of all mappings.
pub(crate) fn arena() -> Option<&'static Arena> {
    ARENA.get().and_then(Option::as_ref)
}

pub(crate) static ARENA: PerProcess<OnceLock<Option<Arena>>> = PerProcess::new(OnceLock::new());

/// Regions and memory are the process's own. The parent's allocations stay mapped: the program may
/// read there what it wrote before.
///
/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe {
        REGIONS.renew(OnceLock::new());
        ARENA.renew(OnceLock::new());
        NICS.begin_anew();
        PTAGS.begin_anew();
    }
}
