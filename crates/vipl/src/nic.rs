//! NICs and protection tags.

use core::ffi::{CStr, c_char};

use via::abi::{NicAttributes, Return};
use via::nic;

use crate::{Handle, given, told};

/// # Safety
/// `name` is null or a string; `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipOpenNic(name: *const c_char, to: *mut Handle) -> Return {
    if name.is_null() {
        return Return::InvalidParameter;
    }
    cm::install();
    // SAFETY: the caller's string.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || nic::open(name.to_bytes())) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipCloseNic(nic: Handle) -> Return {
    told(nic::close(nic))
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryNic(nic: Handle, to: *mut NicAttributes) -> Return {
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || nic::query(nic)) }
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreatePtag(nic: Handle, to: *mut Handle) -> Return {
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || nic::create_ptag(nic)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyPtag(nic: Handle, ptag: Handle) -> Return {
    told(nic::destroy_ptag(nic, ptag))
}
