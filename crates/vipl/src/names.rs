//! The name service, error handling, and management.

use core::ffi::{CStr, c_char, c_ulong, c_void};

use via::abi::{NetAddress, Return};
use via::agent::{self, ErrorHandler};
use via::names;
use via::nic::ADDRESS;

use crate::{Handle, connect, told};

#[unsafe(no_mangle)]
pub extern "C" fn VipErrorCallback(
    nic: Handle,
    context: *mut c_void,
    handler: Option<ErrorHandler>,
) -> Return {
    told(agent::set_error_handler(nic, context, handler))
}

/// There is no network to discover: any kind of information is `VIP_INVALID_PARAMETER`, except
/// autodiscovery, which is `VIP_ERROR_NOT_SUPPORTED`.
#[unsafe(no_mangle)]
pub extern "C" fn VipQuerySystemManagementInfo(nic: Handle, kind: c_ulong, _to: *mut c_void) -> Return {
    match via::nic::query(nic) {
        Ok(_) if kind == AUTODISCOVERY => Return::ErrorNotSupported,
        Ok(_) => Return::InvalidParameter,
        Err(error) => error,
    }
}

const AUTODISCOVERY: c_ulong = 1;

#[unsafe(no_mangle)]
pub extern "C" fn VipNSInit(nic: Handle, _info: *mut c_void) -> Return {
    told(names::init(nic))
}

#[unsafe(no_mangle)]
pub extern "C" fn VipNSShutdown(nic: Handle) -> Return {
    told(names::shutdown(nic))
}

/// # Safety
/// `name` is null or a string; `to` is null or points to an address with room for a host's bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByName(
    nic: Handle,
    name: *const c_char,
    to: *mut NetAddress,
    index: c_ulong,
) -> Return {
    if name.is_null() || to.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    let Ok(name) = name.to_str() else { return Return::ErrorNameService };
    match names::by_name(nic, name, index as usize) {
        Ok(host) => {
            // SAFETY: the caller vouches for room for a host's bytes, and for no more than them.
            unsafe {
                (&raw mut (*to).host_address_len).write_unaligned(ADDRESS as u16);
                let bytes = (&raw mut (*to).host_address).cast::<u8>();
                bytes.copy_from_nonoverlapping(host.as_ptr(), host.len());
            }
            Return::Success
        }
        Err(error) => error,
    }
}

/// # Safety
/// `address` points to an address; `name` may be written, as many bytes as `length` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipNSGetHostByAddr(
    nic: Handle,
    address: *const NetAddress,
    name: *mut c_char,
    length: *mut c_ulong,
) -> Return {
    if length.is_null() || name.is_null() {
        return Return::InvalidParameter;
    }
    // SAFETY: the caller vouches for it.
    let found = unsafe { connect::read(address) }.and_then(|address| {
        let host = address.host().try_into().map_err(|_| Return::InvalidParameter)?;
        names::by_address(nic, host)
    });
    match found {
        Ok(found) => {
            // SAFETY: the caller vouches for both.
            unsafe {
                let room = length.read() as usize;
                length.write(found.len() as c_ulong + 1);
                if room <= found.len() {
                    return Return::ErrorResource;
                }
                name.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len());
                name.add(found.len()).write(0);
            }
            Return::Success
        }
        Err(error) => error,
    }
}
