//! Network interfaces: a program opens one before anything else (specification, section 2.1).
//!
//! There is one NIC in a process, whatever name it is opened by. Each opening has a handle of its
//! own, and everything that was made with a handle belongs to it. The NIC's address is the host's
//! IPv4 address behind two zero bytes: six bytes, for which programs have room.

use core::ffi::{c_char, c_ulong, c_void};
use std::net::Ipv4Addr;

use fabric::sync::Ordering;

use crate::abi::{NicAttributes, Return, reliability};
use crate::arena::Arena;
pub use crate::limits::{
    ADDRESS, MAX_CQ_ENTRIES, MAX_CQS, MAX_DESCRIPTORS, MAX_DISCRIMINATOR, MAX_PTAGS, MAX_SEGMENTS,
    MAX_TRANSFER, MAX_VIS,
};
use crate::memory::{self, Attributes};
use crate::opened::{ARENA, NICS, PTAGS, arena, check_ptag, find, find_ptag, regions};
use crate::{cq, fork, handlers, remote, vi};

/// `VipOpenNic`. All names that programs use stand for this host's one NIC: `via_lo`, `via_eth0`,
/// `clanvi0`, `VINIC`, `nic0` and their like, with or without a folder before them (some programs
/// say `/dev/via_lo`, one `/etc/via_lo`). `InvalidParameter` for any other name, `ErrorResource` if
/// too many are open, or the process has no memory or descriptor left.
pub fn open(device: &[u8]) -> Result<*mut c_void, Return> {
    let name = device.rsplit(|&byte| byte == b'/').next().unwrap_or(device);
    let kind = without_number(name);
    if !KINDS.contains(&kind) || device.len() > 63 {
        return Err(Return::InvalidParameter);
    }
    fork::prepare();
    regions()?;
    let in_cluster = || remote::cm().and_then(|cm| cm.own_address());
    let host =
        if kind == b"via_lo" { Ipv4Addr::LOCALHOST } else { in_cluster().unwrap_or_else(host_address) };
    let (handle, nic) = NICS.give_out().ok_or(Return::ErrorResource)?;
    let mut opened = nic.lock();
    opened.name = [0; 64];
    opened.name[..device.len()].copy_from_slice(device);
    opened.address[2..].copy_from_slice(&host.octets());
    Ok(handle)
}

const KINDS: [&[u8]; 5] = [b"via_lo", b"via_eth", b"clanvi", b"VINIC", b"nic"];

/// `VipCloseNic`: everything that was made with the handle and is left goes with it.
pub fn close(handle: *mut c_void) -> Result<(), Return> {
    let nic = NICS.find(handle).ok_or(Return::InvalidParameter)?;
    let opened = nic.lock();
    if !NICS.take_back(&nic) {
        return Err(Return::InvalidParameter);
    }
    drop(opened);
    vi::close(handle);
    cq::close(handle);
    handlers::forget_nic(handle);
    regions()?.close(handle);
    if let Some(arena) = arena() {
        arena.close(handle);
    }
    for (_, ptag) in PTAGS.all().filter(|(_, ptag)| ptag.nic.load(Ordering::Acquire) == handle as u64) {
        PTAGS.take_back(&ptag);
    }
    Ok(())
}

/// `VipQueryNic`: the properties of the NIC. The address that it points to stays until the NIC is
/// closed.
pub fn query(handle: *mut c_void) -> Result<NicAttributes, Return> {
    let nic = NICS.find(handle).ok_or(Return::InvalidParameter)?;
    let opened = nic.standing(nic.lock())?;
    Ok(NicAttributes {
        name: opened.name.map(|byte| byte as c_char),
        hardware_version: 1,
        provider_version: 1,
        nic_address_len: ADDRESS as u16,
        local_nic_address: opened.address.as_ptr(),
        thread_safe: 1,
        max_discriminator_len: MAX_DISCRIMINATOR as u16,
        max_register_bytes: memory::BYTES as c_ulong,
        max_register_regions: memory::REGIONS as c_ulong,
        max_register_block_bytes: memory::BYTES as c_ulong,
        max_vi: MAX_VIS as c_ulong,
        max_descriptors_per_queue: MAX_DESCRIPTORS as c_ulong,
        max_segments_per_desc: MAX_SEGMENTS as c_ulong,
        max_cq: MAX_CQS as c_ulong,
        max_cq_entries: MAX_CQ_ENTRIES as c_ulong,
        max_transfer_size: MAX_TRANSFER as c_ulong,
        native_mtu: MAX_TRANSFER as c_ulong,
        max_ptags: MAX_PTAGS as c_ulong,
        reliability_level_support: reliability::ALL,
        rdma_read_support: reliability::DELIVERY | reliability::RECEPTION,
    })
}

/// `VipCreatePtag`. `ErrorResource` if there are too many.
pub fn create_ptag(nic: *mut c_void) -> Result<*mut c_void, Return> {
    find(nic)?;
    let (handle, ptag) = PTAGS.give_out().ok_or(Return::ErrorResource)?;
    ptag.nic.store(nic as u64, Ordering::Release);
    Ok(handle)
}

/// `VipDestroyPtag`. `ErrorResource` while a region has it. (The specification leaves that open.)
pub fn destroy_ptag(nic: *mut c_void, handle: *mut c_void) -> Result<(), Return> {
    find(nic)?;
    let ptag = find_ptag(nic, handle).ok_or(Return::InvalidParameter)?;
    if regions()?.any_with(handle) {
        return Err(Return::ErrorResource);
    }
    if PTAGS.take_back(&ptag) { Ok(()) } else { Err(Return::InvalidParameter) }
}

/// `VipRegisterMem`; see [`Regions::register`](memory::Regions::register). `InvalidPtag` if the tag
/// is none of this NIC handle's.
pub fn register(
    nic: *mut c_void,
    address: usize,
    length: usize,
    attributes: Attributes,
) -> Result<u32, Return> {
    find(nic)?;
    check_ptag(nic, attributes.ptag)?;
    regions()?.register(nic, address, length, attributes)
}

/// `VipDeregisterMem`; see [`Regions::deregister`](memory::Regions::deregister).
pub fn deregister(nic: *mut c_void, address: usize, handle: u32) -> Result<(), Return> {
    find(nic)?;
    regions()?.deregister(nic, address, handle)?;
    vi::await_transfers();
    Ok(())
}

/// `VipAllocateMem`; see [`Arena::allocate`].
pub fn allocate(nic: *mut c_void, length: usize) -> Result<*mut c_void, Return> {
    find(nic)?;
    let arena = ARENA.get_or_init(|| Arena::new().ok()).as_ref();
    arena.ok_or(Return::ErrorResource)?.allocate(nic, length)
}

/// `VipFreeMem`; see [`Arena::free`]. `ErrorResource` while a region has any of it.
pub fn free(nic: *mut c_void, address: usize) -> Result<(), Return> {
    find(nic)?;
    let regions = regions()?;
    arena().ok_or(Return::InvalidParameter)?.free(nic, address, |start, bytes| regions.any_in(start, bytes))
}

/// `VipQueryMem`; see [`Regions::query`](memory::Regions::query).
pub fn query_memory(nic: *mut c_void, address: usize, handle: u32) -> Result<Attributes, Return> {
    find(nic)?;
    regions()?.query(nic, address, handle)
}

/// `VipSetMemAttributes`; see [`Regions::set_attributes`](memory::Regions::set_attributes).
pub fn set_memory_attributes(
    nic: *mut c_void,
    address: usize,
    handle: u32,
    to: Attributes,
) -> Result<(), Return> {
    find(nic)?;
    check_ptag(nic, to.ptag)?;
    regions()?.set_attributes(nic, address, handle, to)
}

/// The address from which this host would send to others; this sends nothing.
fn host_address() -> Ipv4Addr {
    let asked = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    match asked {
        Ok(std::net::SocketAddr::V4(address)) => *address.ip(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// A name without the number at its end.
fn without_number(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    &name[..name.len() - digits]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_programs_use_are_known() {
        for name in ["/dev/via_lo", "/etc/via_lo", "via_eth0", "/dev/clanvi0", "VINIC", "VINIC0", "nic0"] {
            let nic = open(name.as_bytes()).unwrap();
            let attributes = query(nic).unwrap();
            let told: Vec<u8> = attributes.name.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect();
            assert_eq!(told, name.as_bytes());
            assert_eq!(close(nic), Ok(()));
            assert_eq!(close(nic), Err(Return::InvalidParameter));
            assert!(query(nic).is_err());
        }
        for name in
            ["", "/", "eth0", "via_lo/x", "/dev/nic0a", &"/".repeat(60), &format!("{}/nic0", "x".repeat(60))]
        {
            assert_eq!(open(name.as_bytes()), Err(Return::InvalidParameter), "{name}");
        }
    }

    #[test]
    fn what_a_handle_made_is_its_own() {
        let (one, two) = (open(b"nic0").unwrap(), open(b"nic0").unwrap());
        assert_ne!(one, two);
        let tag = create_ptag(one).unwrap();
        let memory = [0u8; 100];
        let start = memory.as_ptr() as usize;
        let attributes = Attributes { ptag: tag, ..Attributes::default() };
        assert_eq!(register(two, start, 100, attributes), Err(Return::InvalidPtag));
        let region = register(one, start, 100, attributes).unwrap();
        assert_eq!(query_memory(one, start, region), Ok(attributes));
        assert_eq!(query_memory(two, start, region), Err(Return::InvalidParameter));
        assert_eq!(deregister(two, start, region), Err(Return::InvalidParameter));
        assert_eq!(destroy_ptag(two, tag), Err(Return::InvalidParameter));
        assert_eq!(destroy_ptag(one, tag), Err(Return::ErrorResource));
        assert_eq!(set_memory_attributes(one, start, region, Attributes::default()), Ok(()));
        assert_eq!(destroy_ptag(one, tag), Ok(()));
        assert_eq!(destroy_ptag(one, tag), Err(Return::InvalidParameter));
        assert_eq!(register(one, start, 100, attributes), Err(Return::InvalidPtag));
        assert_eq!(close(one), Ok(()));
        assert_eq!(query_memory(one, start, region), Err(Return::InvalidParameter));
        let other = create_ptag(two).unwrap();
        assert_eq!(close(two), Ok(()));
        assert_eq!(destroy_ptag(two, other), Err(Return::InvalidParameter));
    }
}
