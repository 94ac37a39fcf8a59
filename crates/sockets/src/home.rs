//! The home: the memfd that holds a process's connections. A shared mapping, so that children of fork() share it and `shunt stat`
//! can read it through /proc/PID/fd (no attaching, no root, and it goes when the process goes). No peer maps it.

use core::ffi::CStr;
use fabric::shm::Map;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};

use fabric::sys;

use crate::conn::{Conn, flag, state};
use crate::{close, descriptors, layout, process};

/// Name of the memfd, by which `shunt stat` finds it.
pub const NAME: &CStr = c"shunt:home";
/// Connections that a process can have at once under Shunt, if its address space is not limited (setrlimit(RLIMIT_AS)).
pub const CONNS: usize = 1 << 16;
/// First word of the file: "SHUNTHO" and the layout's version.
pub const MAGIC: u64 = 0x5348_554e_5448_4f0a;
/// Where the connections begin.
pub const FIRST: usize = 4096;
/// Bytes of the file.
pub const BYTES: usize = FIRST + CONNS * size_of::<Conn>();

/// Bytes that are mapped for so many connections.
fn mapped(room: usize) -> usize {
    FIRST + room * size_of::<Conn>()
}

/// The page before the connections.
#[repr(C)]
pub struct Header {
    pub magic: AtomicU64,
    pub conn_bytes: AtomicU32,
    pub pid: AtomicU32,
    /// Connections ever used, the length of the array to read.
    pub used: AtomicU32,
    /// Head of the free list: index + 1, with a tag in the upper half against reuse.
    free: AtomicU64,
}

/// The home of this process, made when first needed.
static HOME: AtomicU64 = AtomicU64::new(0);
/// Its descriptor, +1, of a guest.
static GUESTS_FD: AtomicU32 = AtomicU32::new(0);
/// All homes that this process has mapped, its own and those of the processes from which it came by fork().
static MAPPED: [Mapped; 16] = [const { Mapped { at: AtomicU64::new(0), room: AtomicU32::new(0) } }; 16];

/// One of them. How much of it is mapped is never read from the home itself: a child may have changed its user past our hooks, and write there what it wants.
/// No number from there becomes an address before it is compared with this.
struct Mapped {
    at: AtomicU64,
    room: AtomicU32,
}

impl Mapped {
    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed) as usize
    }

    /// Which connection of it lies at an address.
    fn index_of(&self, address: u64) -> Option<usize> {
        let at = self.at.load(Ordering::Acquire);
        let index = address.checked_sub(at + FIRST as u64)? as usize / size_of::<Conn>();
        (at != 0 && index < self.room()).then_some(index)
    }

    fn header(&self) -> Option<&'static Header> {
        let at = self.at.load(Ordering::Acquire);
        // SAFETY: `at` is the base of a mapping of at least one page that is never unmapped; Header is all atomics.
        (at != 0).then(|| unsafe { &*(at as *const Header) })
    }
}

/// The one in which a connection lies, and where.
fn home_of(conn: &Conn) -> Option<(&'static Mapped, usize)> {
    let address = core::ptr::from_ref(conn) as u64;
    MAPPED.iter().find_map(|mapped| Some((mapped, mapped.index_of(address)?)))
}

/// How many connections the home at `at` has room for.
fn room_at(at: u64) -> u32 {
    let mapped = MAPPED.iter().find(|mapped| mapped.at.load(Ordering::Acquire) == at);
    mapped.map_or(0, |mapped| mapped.room.load(Ordering::Relaxed))
}

fn header() -> Option<&'static Header> {
    let at = HOME.load(Ordering::Acquire);
    let at = if at != 0 { at } else { create()? };
    // SAFETY: `at` is the base of a mapping of `mapped` bytes that is never unmapped; Header is all atomics.
    Some(unsafe { &*(at as *const Header) })
}

#[cold]
fn create() -> Option<u64> {
    let room = layout::entries_within(sys::address_space_limit(), CONNS, size_of::<Conn>());
    let (map, fd) = descriptors::made(|| Map::create_part(NAME, BYTES, mapped(room))).ok()?;
    // The descriptor stays open: it is how others find the home.
    let fd = descriptors::hide(fd);
    let at = map.base() as u64;
    // SAFETY: as in `header`.
    let header = unsafe { &*(at as *const Header) };
    header.conn_bytes.store(size_of::<Conn>() as u32, Ordering::Relaxed);
    header.pid.store(process::pid(), Ordering::Relaxed);
    header.magic.store(MAGIC, Ordering::Release);
    // Of one that is not noted it could not be said later what it shares, and nobody takes a connection there.
    let Some(noted) = note(at, room as u32) else {
        // SAFETY: nobody has seen our mapping.
        unsafe { map.unmap() };
        descriptors::unhide(fd);
        return None;
    };
    match HOME.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            if process::is_guest() {
                GUESTS_FD.store(fd as u32 + 1, Ordering::Relaxed);
            }
            Some(at)
        }
        Err(other) => {
            noted.at.store(0, Ordering::Release);
            // SAFETY: nobody has seen our mapping.
            unsafe { map.unmap() };
            descriptors::unhide(fd);
            Some(other)
        }
    }
}

fn note(at: u64, room: u32) -> Option<&'static Mapped> {
    let free =
        |mapped: &&Mapped| mapped.at.compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    // Nobody knows of the home before it has been noted.
    MAPPED.iter().find(free).inspect(|mapped| mapped.room.store(room, Ordering::Release))
}

/// Whether the process has mapped any.
pub fn any() -> bool {
    MAPPED.iter().any(|mapped| mapped.at.load(Ordering::Acquire) != 0)
}

/// Shares no home any more: those that are mapped become this process's alone, and a new connection goes to a new one. Descriptors are closed by others.
pub(crate) fn renounce() {
    HOME.store(0, Ordering::Release);
    GUESTS_FD.store(0, Ordering::Relaxed);
    for place in &MAPPED {
        if let Some(header) = place.header() {
            let room = place.room();
            let used = header.used.load(Ordering::Acquire) as usize;
            let at = core::ptr::from_ref(header).cast_mut().cast();
            // SAFETY: so much was mapped; no connection there is in memory any more.
            unsafe { sys::make_own(at, mapped(room), mapped(used.min(room))) };
        }
    }
}

/// Another process's home, mapped for a while.
pub(crate) struct Home(Map);

/// Maps one, if it is of this version.
pub(crate) fn open(fd: i32) -> Option<Home> {
    let home = Home(Map::open(fd, BYTES).ok()?);
    let header = home.header();
    let known = header.magic.load(Ordering::Acquire) == MAGIC
        && header.conn_bytes.load(Ordering::Relaxed) == size_of::<Conn>() as u32;
    known.then_some(home)
}

impl Home {
    fn header(&self) -> &Header {
        // SAFETY: the mapping has BYTES, more than the header, which is all atomics, and stays as long as `self`.
        unsafe { &*self.0.base().cast::<Header>() }
    }

    /// The connections that have ever been used in it.
    pub(crate) fn conns(&self) -> impl Iterator<Item = &Conn> {
        let used = self.header().used.load(Ordering::Acquire).min(CONNS as u32) as usize;
        (0..used).map(|index| {
            // SAFETY: the mapping has room for CONNS of them, any bytes of which are a Conn, and stays as long as `self`.
            unsafe { &*self.0.base().add(FIRST + index * size_of::<Conn>()).cast::<Conn>() }
        })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // SAFETY: nothing that was borrowed of it is left.
        unsafe { self.0.unmap() };
    }
}

/// In the child of fork(): connections that it makes go to a home of its own; inherited ones stay where they are.
pub fn leave() {
    HOME.store(0, Ordering::Release);
    let fd = GUESTS_FD.swap(0, Ordering::Relaxed);
    if fd != 0 {
        // A guest's child shares nothing with its parent, and does not look as if it did.
        descriptors::unhide(fd as i32 - 1);
    }
}

fn conn_at(header: &'static Header, index: u32) -> &'static Conn {
    let base = core::ptr::from_ref(header).cast::<u8>();
    // SAFETY: index < room is checked by the callers; the mapping is never unmapped; a zeroed Conn is a valid, free one.
    unsafe { &*base.add(FIRST + index as usize * size_of::<Conn>()).cast::<Conn>() }
}

/// How many connections the process's home, with this header, has room for.
fn room_of(header: &'static Header) -> u32 {
    room_at(core::ptr::from_ref(header) as u64)
}

/// The connection with this index in the process's home, if there is such.
pub fn conn(index: u32) -> Option<&'static Conn> {
    let header = header()?;
    (index < header.used.load(Ordering::Acquire).min(room_of(header))).then(|| conn_at(header, index))
}

/// Whether a connection lies in the home of this process, not in that of one which it came from by fork().
pub fn is_ours(conn: &'static Conn) -> bool {
    let home = HOME.load(Ordering::Acquire);
    home != 0 && home_of(conn).is_some_and(|(mapped, _)| mapped.at.load(Ordering::Acquire) == home)
}

/// How many connections were in use when those were last looked for whose processes have gone.
static SWEPT: AtomicU32 = AtomicU32::new(0);
const SWEEP_AFTER: u32 = 1024;

/// Gives back connections that a child took over and died with, or ended without closing. To be done when twice as many are in use as
/// after the last time.
#[cold]
fn sweep(header: &'static Header) {
    let used = header.used.load(Ordering::Acquire).min(room_of(header));
    let mut live = 0;
    for conn in (0..used).map(|index| conn_at(header, index)) {
        let owner = conn.pid.load(Ordering::Relaxed);
        let gone = owner != process::pid()
            && !conn.has(flag::SHARED)
            && conn.state() == state::PROMOTED
            && !sys::process_lives(owner);
        if gone {
            close::abandon(conn);
        } else if conn.state() != state::FREE {
            live += 1;
        }
    }
    SWEPT.store(live, Ordering::Relaxed);
}

/// A free connection.
pub fn take() -> Option<&'static Conn> {
    let header = header()?;
    let (mut swept, room) = (false, room_of(header));
    loop {
        let free = header.free.load(Ordering::Acquire);
        let index = (free & 0xffff_ffff) as u32;
        if index == 0 {
            let used = header.used.load(Ordering::Acquire);
            if used >= room.min(SWEPT.load(Ordering::Relaxed).max(SWEEP_AFTER / 2) * 2) && !swept {
                swept = true;
                sweep(header);
                continue;
            }
            if used >= room {
                return None;
            }
            if header.used.compare_exchange(used, used + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let conn = conn_at(header, used);
                conn.index.store(used, Ordering::Relaxed);
                return Some(conn);
            }
            continue;
        }
        if index > room {
            return None;
        }
        let conn = conn_at(header, index - 1);
        let next = u64::from(conn.next_free.load(Ordering::Relaxed)) | (free >> 32).wrapping_add(1) << 32;
        if header.free.compare_exchange(free, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Some(conn);
        }
    }
}

/// Gives a connection back to the home that it lies in.
pub fn give(conn: &'static Conn) {
    conn.state.store(state::FREE, Ordering::Release);
    let Some((mapped, index)) = home_of(conn) else { return };
    let (Some(header), index) = (mapped.header(), index as u32) else { return };
    loop {
        let free = header.free.load(Ordering::Acquire);
        conn.next_free.store((free & 0xffff_ffff) as u32, Ordering::Relaxed);
        let next = u64::from(index + 1) | (free >> 32).wrapping_add(1) << 32;
        if header.free.compare_exchange(free, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_a_home_is_a_connection_of_it() {
        let base = 1u64 << 40;
        let mapped = Mapped { at: AtomicU64::new(base), room: AtomicU32::new(3) };
        let conn = |index: usize| base + (FIRST + index * size_of::<Conn>()) as u64;
        assert_eq!([0, 2].map(|index| mapped.index_of(conn(index))), [Some(0), Some(2)]);
        for outside in [0, base, conn(0) - 1, conn(3), u64::MAX] {
            assert_eq!(mapped.index_of(outside), None);
        }
        assert_eq!(Mapped { at: AtomicU64::new(0), room: AtomicU32::new(3) }.index_of(conn(0)), None);
    }

    #[test]
    fn what_is_given_back_is_taken_again() {
        let conn = take().unwrap();
        let (mapped, index) = home_of(conn).unwrap();
        assert!(is_ours(conn) && core::ptr::eq(conn_at(mapped.header().unwrap(), index as u32), conn));
        give(conn);
        assert_eq!(conn.state(), state::FREE);
    }
}
