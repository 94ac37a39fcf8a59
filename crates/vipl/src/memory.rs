//! Registered memory.

use core::ffi::{c_ulong, c_void};

use via::abi::{MemAttributes, Return};
use via::memory::{Attributes, Rights};
use via::nic;

use crate::{Handle, given, told};

/// # Safety
/// `attributes` and `to` are null or point to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRegisterMem(
    nic: Handle,
    address: *mut c_void,
    length: c_ulong,
    attributes: *const MemAttributes,
    to: *mut u32,
) -> Return {
    // SAFETY: the caller vouches for it.
    let attributes = unsafe { attributes.as_ref() }.map(read).unwrap_or_default();
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || nic::register(nic, address.addr(), length as usize, attributes)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipDeregisterMem(nic: Handle, address: *mut c_void, region: u32) -> Return {
    told(nic::deregister(nic, address.addr(), region))
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipAllocateMem(nic: Handle, length: c_ulong, to: *mut *mut c_void) -> Return {
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || nic::allocate(nic, length as usize)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipFreeMem(nic: Handle, address: *mut c_void) -> Return {
    told(nic::free(nic, address.addr()))
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryMem(
    nic: Handle,
    address: *mut c_void,
    region: u32,
    to: *mut MemAttributes,
) -> Return {
    let query = || {
        let found = nic::query_memory(nic, address.addr(), region)?;
        let (write, read) = (found.rights.write, found.rights.read);
        Ok(MemAttributes { ptag: found.ptag, enable_rdma_write: write.into(), enable_rdma_read: read.into() })
    };
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, query) }
}

/// # Safety
/// `attributes` is null or points to some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetMemAttributes(
    nic: Handle,
    address: *mut c_void,
    region: u32,
    attributes: *const MemAttributes,
) -> Return {
    // SAFETY: the caller vouches for it.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return Return::InvalidParameter };
    told(nic::set_memory_attributes(nic, address.addr(), region, read(attributes)))
}

fn read(attributes: &MemAttributes) -> Attributes {
    let rights = Rights { write: attributes.enable_rdma_write != 0, read: attributes.enable_rdma_read != 0 };
    Attributes { ptag: attributes.ptag, rights }
}
