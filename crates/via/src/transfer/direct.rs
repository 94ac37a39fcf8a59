//! Transfers without the eager buffer: into and out of the memory of the peer's program, behind the
//! gate.

use fabric::{Local, Remote, sys};

use crate::abi::Segment as Buffer;
use crate::descriptor::{self, Posted};
use crate::gate;
use crate::limits::{MAX_SEGMENTS, MAX_TRANSFER};
use crate::memory::{self, Asker, Regions, Rights};
use crate::remote::link::reply;
use crate::segment::at;
use crate::transfer::buffers::{copy, iovec, put_all, scatter};
use crate::transfer::ends::{Memory, Sent};
use crate::wire::Cookie;

/// Passes the gate before the peer's buffers; false if it is shut.
#[inline]
pub(super) fn enter(memory: &Memory) -> bool {
    gate::enter(memory.mine.map(), at::SHUT, &memory.theirs, at::BUSY)
}

/// # Safety
/// The buffers must be mapped.
pub(super) unsafe fn write_to_cookie(
    memory: &Memory,
    from: &[Buffer],
    length: usize,
    cookie: &Cookie,
) -> Sent {
    let through = || {
        let mut list = [Buffer::default(); MAX_SEGMENTS];
        let to = if cookie.scattered {
            let local = [iovec(list.as_mut_ptr() as u64, size_of_val(&list))];
            let remote = [iovec(cookie.place, size_of_val(&list))];
            // SAFETY: `list` has room.
            if unsafe { sys::process_vm_readv(memory.pid, &local, &remote) } != Ok(size_of_val(&list)) {
                return false;
            }
            &list[..]
        } else {
            list[0] = Buffer { address: cookie.place, handle: 0, length: length as u32 };
            &list[..1]
        };
        // SAFETY: the caller vouches for the buffers.
        unsafe { copy(memory.pid, from, to, length, true) }
    };
    if !memory.is_direct() || !enter(memory) {
        return Sent::Lost;
    }
    let done = through();
    gate::leave(&memory.theirs, at::BUSY);
    if done { Sent::Done } else { Sent::Lost }
}

/// # Safety
/// The buffers must be mapped.
pub(super) unsafe fn rdma(memory: &Memory, posted: &Posted, remote: descriptor::Remote, write: bool) -> Sent {
    let mapped = memory.mapped(remote.address, posted.length);
    if mapped.is_none() && !memory.is_direct() || !enter(memory) {
        return Sent::Lost;
    }
    let may = if write { memory.rights.write } else { memory.rights.read };
    // Looked up behind the gate: a process that takes a region back waits for transfers that have
    // passed it.
    let allows = |regions: memory::Table| {
        regions.allows(memory.asker, remote.handle, remote.address, posted.length, write)
    };
    let sent = if !may || !memory.regions.is_some_and(allows) {
        Sent::Forbidden
    } else if let Some((map, offset)) = mapped {
        if write {
            // SAFETY: the caller vouches for the buffers.
            unsafe { put_all(map, offset, posted.segments()) };
        } else {
            // SAFETY: as above.
            unsafe {
                scatter(posted.segments(), posted.length, |from, to, count| {
                    map.get(offset + from, to, count)
                });
            }
        }
        Sent::Done
    } else {
        let to = [Buffer { address: remote.address, handle: 0, length: posted.length as u32 }];
        // SAFETY: the caller vouches for the buffers.
        if unsafe { copy(memory.pid, posted.segments(), &to, posted.length, write) } {
            Sent::Done
        } else {
            Sent::Lost
        }
    };
    gate::leave(&memory.theirs, at::BUSY);
    sent
}

/// Carries out the peer's request for RDMA, from another host. Returns one of [`reply`]. `asker`
/// and `rights` are the Virtual Interface's here, whose connection must stay meanwhile.
///
/// # Safety
/// Registered memory must be mapped.
pub unsafe fn serve(memory: &Memory, regions: &Regions, asker: Asker, rights: Rights) -> u64 {
    let mine = memory.mine.map();
    // Rule F2: read once, and checked.
    let (address, what) = (mine.word(at::ASKED), mine.word(at::ASKED + 8));
    let (handle, length, write) = (what as u32, (what >> 32) as usize & 0x7fff_ffff, what >> 63 != 0);
    if length > MAX_TRANSFER {
        return reply::WRONG;
    }
    let may = if write { rights.write } else { rights.read };
    if !may || !regions.lend(asker, handle, address, length, write) {
        return reply::FORBIDDEN;
    }
    if write {
        // SAFETY: all of it is in a region, which stays registered meanwhile.
        unsafe { mine.get(at::ASKED + 64, address as *mut u8, length) };
    } else {
        // SAFETY: as above.
        unsafe { memory.theirs.put(at::GOT, address as *const u8, length) };
    }
    regions.release(handle);
    reply::DONE
}
