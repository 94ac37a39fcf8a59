//! The home: the memfd that holds a process's connections. A shared mapping, so that children of
//! fork() share it and `shunt stat` can read it through /proc/PID/fd (no attaching, no root, and it
//! goes when the process goes). No peer maps it.

use core::ffi::CStr;
use fabric::shm::{Map, Unseen};
use fabric::sync::{AtomicU32, AtomicU64, Ordering};

use fabric::sys;

use crate::conn::{Conn, flag, state};
use crate::descriptors::{self, Hidden, Kept};
use crate::{layout, process};

/// Name of the memfd, by which `shunt stat` finds it.
pub const NAME: &CStr = c"shunt:home";
/// Connections that a process can have at once under Shunt, if its address space is not limited
/// (setrlimit(RLIMIT_AS)).
pub const CONNS: usize = 1 << 16;
/// Places for what is learnt of services. Several may share one.
pub const SERVICES: usize = 64;
/// First word of the file: "SHUNTHO" and the layout's version.
pub const MAGIC: u64 = 0x5348_554e_5448_4f0b;
/// Where the connections begin.
pub const FIRST: usize = 4096;
/// Bytes of the file.
pub const BYTES: usize = FIRST + CONNS * size_of::<Conn>();

/// The connections are mapped in parts, each when it is first needed: what is mapped is the
/// program's no more, and most have few. The first part has so many, each other one as many as all
/// before it.
const PART: usize = 256;
const PARTS: usize = 1 + (CONNS / PART).ilog2() as usize;
const _: () = assert!((PART * size_of::<Conn>()).is_multiple_of(4096) && FIRST.is_multiple_of(4096));

/// Which part a connection lies in.
fn part_of(index: usize) -> usize {
    (index / PART).checked_ilog2().map_or(0, |doubled| 1 + doubled as usize)
}

/// The connections of a part.
fn indices(part: usize) -> core::ops::Range<usize> {
    match part {
        0 => 0..PART,
        part => PART << (part - 1)..PART << part,
    }
}

/// Where in the file a connection lies.
fn offset(index: usize) -> usize {
    FIRST + index * size_of::<Conn>()
}

/// The page before the connections.
#[repr(C)]
pub struct Header {
    pub magic: AtomicU64,
    pub conn_bytes: AtomicU32,
    pub pid: AtomicU32,
    /// Connections ever used, the length of the array to read.
    pub used: AtomicU32,
    unused: AtomicU32,
    /// Head of the free list: index + 1, with a tag in the upper half against reuse.
    free: AtomicU64,
    /// What is learnt of each service, by all who have its connections.
    pub learnt: [AtomicU32; SERVICES],
}

/// What this process has mapped of a home. Not in the home itself: others may write there.
struct Home {
    /// Where the file's parts are mapped; the first one, with the header, tells whether there is a
    /// home. They are never unmapped.
    parts: [AtomicU64; PARTS],
    /// Connections of the first part: fewer where the address space was limited.
    few: AtomicU32,
    /// The file of the process's own home.
    file: Kept,
}

/// All homes that this process has mapped, its own and those of the processes from which it came by
/// fork().
static HOMES: [Home; 16] = [const {
    Home { parts: [const { AtomicU64::new(0) }; PARTS], few: AtomicU32::new(0), file: Kept::new() }
}; 16];
/// The number of its own one, +1, made when first needed.
static OWN: AtomicU32 = AtomicU32::new(0);

fn homes() -> impl Iterator<Item = &'static Home> {
    HOMES.iter().filter(|home| home.parts[0].load(Ordering::Acquire) != 0)
}

fn own() -> Option<&'static Home> {
    match OWN.load(Ordering::Acquire) {
        0 => create(),
        number => HOMES.get(number as usize - 1),
    }
}

#[cold]
fn create() -> Option<&'static Home> {
    let few = layout::entries_within(sys::address_space_limit(), PART, size_of::<Conn>());
    let (map, fd) = descriptors::made(|| Map::create_part(NAME, BYTES, offset(few))).ok()?;
    // The descriptor stays open: it is how others find the home.
    let (map, fd) = (Unseen::new(map), Hidden::new(fd));
    let header = Header::of(map.map());
    header.conn_bytes.store(size_of::<Conn>() as u32, Ordering::Relaxed);
    header.pid.store(process::pid(), Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    let at = map.map().base() as u64;
    let free = |home: &&Home| {
        // Of one that is being made its maker alone writes the rest; others know it by its number.
        home.parts[0].compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    // Of one that is not noted it could not be said later what it shares.
    let (home, number) = HOMES.iter().zip(1..).find(|(home, _)| free(home))?;
    home.few.store(few as u32, Ordering::Relaxed);
    home.file.set(fd.fd());
    if let Err(other) = OWN.compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire) {
        home.file.forget();
        home.parts[0].store(0, Ordering::Release);
        return HOMES.get(other as usize - 1);
    }
    map.keep();
    fd.keep();
    Some(home)
}

/// Whether the process has mapped any.
pub fn any() -> bool {
    homes().next().is_some()
}

/// Shares no home any more: those that are mapped become this process's alone, and a new connection
/// goes to a new one. Descriptors are closed by others.
pub(crate) fn renounce() {
    OWN.store(0, Ordering::Release);
    for home in homes() {
        home.file.forget();
        let used = home.header().conns();
        for (part, at) in home.parts.iter().enumerate() {
            let at = at.load(Ordering::Acquire);
            if at != 0 {
                let (begin, end) = home.bounds(part);
                let kept = offset(used).clamp(begin, end);
                // SAFETY: so much was mapped; no connection there is in memory any more.
                unsafe { sys::make_own(at as *mut u8, end - begin, kept - begin) };
            }
        }
    }
}

impl Header {
    fn of(map: &Map) -> &Header {
        // SAFETY: homes' mappings have more bytes than that, which is all atomics.
        unsafe { &*map.base().cast::<Header>() }
    }

    /// How many connections have ever been used. A child that has changed its user past our hooks
    /// may have written there.
    fn conns(&self) -> usize {
        self.used.load(Ordering::Acquire).min(CONNS as u32) as usize
    }

    /// Changes the head of the free list from what it was to another index + 1.
    fn free_is(&self, was: u64, index: u32) -> bool {
        let next = u64::from(index) | (was >> 32).wrapping_add(1) << 32;
        self.free.compare_exchange(was, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Another process's home, mapped for a while.
pub(crate) struct Foreign(Unseen);

/// Maps one, if it is of this version.
pub(crate) fn open(fd: i32) -> Option<Foreign> {
    let map = Unseen::new(Map::open(fd, BYTES).ok()?);
    let header = Header::of(map.map());
    let known = header.magic.load(Ordering::Acquire) == MAGIC
        && header.conn_bytes.load(Ordering::Relaxed) == size_of::<Conn>() as u32;
    known.then_some(Foreign(map))
}

impl Foreign {
    /// The connections that have ever been used in it.
    pub(crate) fn conns(&self) -> impl Iterator<Item = &Conn> {
        let map = self.0.map();
        (0..Header::of(map).conns()).map(|index| {
            // SAFETY: the mapping has room for CONNS of them, any bytes of which are a Conn, and
            // stays as long as `self`.
            unsafe { &*map.base().add(offset(index)).cast::<Conn>() }
        })
    }
}

/// In the child of fork(): connections that it makes go to a home of its own; inherited ones stay
/// where they are.
pub fn leave() {
    OWN.store(0, Ordering::Release);
    for home in homes() {
        // A guest's child shares nothing with its parent, and does not look as if it did.
        if process::is_guest() { home.file.close() } else { home.file.forget() }
    }
}

impl Home {
    fn header(&self) -> &'static Header {
        // SAFETY: the first part is mapped, as callers have found, and never unmapped; Header is
        // all atomics.
        unsafe { &*(self.parts[0].load(Ordering::Acquire) as *const Header) }
    }

    /// Where a part begins and ends in the file, as far as it is mapped.
    fn bounds(&self, part: usize) -> (usize, usize) {
        match part {
            0 => (0, offset(self.few.load(Ordering::Relaxed) as usize)),
            part => (offset(indices(part).start), offset(indices(part).end)),
        }
    }

    /// A connection, if what it lies in is mapped.
    fn conn(&self, index: u32) -> Option<&'static Conn> {
        let part = part_of(index as usize);
        let at = self.parts.get(part)?.load(Ordering::Acquire);
        let (begin, end) = self.bounds(part);
        let (from, to) = (offset(index as usize), offset(index as usize + 1));
        // SAFETY: it lies in the part, which is mapped from `begin` to `end` and never unmapped; a
        // zeroed Conn is a valid, free one.
        (at != 0 && to <= end).then(|| unsafe { &*((at as usize + from - begin) as *const Conn) })
    }

    /// As [`Home::conn`], in the process's own home: maps what is missing, if the address space has
    /// room for it.
    fn conn_made(&self, index: u32) -> Option<&'static Conn> {
        if let Some(conn) = self.conn(index) {
            return Some(conn);
        }
        let part = part_of(index as usize);
        let place = self.parts.get(part).filter(|_| part > 0)?;
        let (begin, end) = self.bounds(part);
        let fd = self.file.get()?;
        let all = indices(part).end;
        if layout::entries_within(sys::address_space_limit(), all, size_of::<Conn>()) < all
            || !descriptors::intact(fd)
        {
            return None;
        }
        let at = sys::mmap_shared_from(fd, begin, end - begin).ok()?;
        if place.compare_exchange(0, at as u64, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at, end - begin);
        }
        self.conn(index)
    }

    /// The index of a connection that lies here.
    fn index(&self, conn: &Conn) -> Option<u32> {
        let conn = core::ptr::from_ref(conn).addr();
        self.parts.iter().enumerate().find_map(|(part, at)| {
            let at = at.load(Ordering::Acquire) as usize;
            let (begin, end) = self.bounds(part);
            let within = at != 0 && (at..at + (end - begin)).contains(&conn);
            within.then(|| ((begin + (conn - at) - FIRST) / size_of::<Conn>()) as u32)
        })
    }
}

/// Whether a connection lies in the home of this process, not in that of one which it came from by
/// fork().
pub fn is_ours(conn: &'static Conn) -> bool {
    let own = HOMES.get((OWN.load(Ordering::Acquire) as usize).wrapping_sub(1));
    own.is_some_and(|own| own.index(conn).is_some())
}

/// The header of the home that a connection lies in.
pub fn header(conn: &Conn) -> Option<&'static Header> {
    homes().find(|home| home.index(conn).is_some()).map(Home::header)
}

/// How many connections were in use when those were last looked for whose processes have gone.
static SWEPT: AtomicU32 = AtomicU32::new(0);
const SWEEP_AFTER: u32 = 1024;

/// Gives back connections that a child took over and died with, or ended without closing. To be
/// done when twice as many are in use as after the last time.
#[cold]
fn sweep(home: &Home, abandon: impl Fn(&'static Conn)) {
    let mut live = 0;
    for conn in (0..home.header().conns() as u32).filter_map(|index| home.conn(index)) {
        let owner = conn.pid.load(Ordering::Relaxed);
        let gone = owner != process::pid()
            && !conn.has(flag::SHARED)
            && conn.state() == state::PROMOTED
            && !sys::process_lives(owner);
        if gone {
            abandon(conn);
        } else if conn.state() != state::FREE {
            live += 1;
        }
    }
    SWEPT.store(live, Ordering::Relaxed);
}

/// A free connection. `abandon`: what is done with those whose processes have gone, when there are
/// many.
pub fn take(abandon: impl Fn(&'static Conn) + Copy) -> Option<&'static Conn> {
    let home = own()?;
    let header = home.header();
    let mut swept = false;
    loop {
        let free = header.free.load(Ordering::Acquire);
        let index = (free & 0xffff_ffff) as u32;
        if index != 0 {
            let conn = home.conn(index - 1)?;
            if header.free_is(free, conn.next_free.load(Ordering::Relaxed)) {
                return Some(conn);
            }
            continue;
        }
        let used = header.used.load(Ordering::Acquire);
        let many = SWEPT.load(Ordering::Relaxed).max(SWEEP_AFTER / 2) * 2;
        let fresh = if used >= many && !swept { None } else { home.conn_made(used) };
        match fresh {
            Some(conn) => {
                if header.used.compare_exchange(used, used + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    return Some(conn);
                }
            }
            None if swept => return None,
            None => {
                swept = true;
                sweep(home, abandon);
            }
        }
    }
}

/// Gives a connection back to the home that it lies in.
pub fn give(conn: &'static Conn) {
    conn.state.store(state::FREE, Ordering::Release);
    let lies = homes().find_map(|home| Some((home, home.index(conn)?)));
    let Some((home, index)) = lies else { return };
    let header = home.header();
    loop {
        let free = header.free.load(Ordering::Acquire);
        conn.next_free.store((free & 0xffff_ffff) as u32, Ordering::Relaxed);
        if header.free_is(free, index + 1) {
            return;
        }
    }
}
