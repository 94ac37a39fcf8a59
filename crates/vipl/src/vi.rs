//! Virtual Interfaces, and posting and completing descriptors on them.

use core::ffi::{c_int, c_ulong, c_void};

use via::abi::{Descriptor, Return, State, ViAttributes};
use via::agent::{self, ViHandler, Which};
use via::cq::Until;
use via::vi::{self, Taken};

use crate::{Handle, given, told};

/// # Safety
/// `attributes` and `to` are null or point to what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateVi(
    nic: Handle,
    attributes: *const ViAttributes,
    send_cq: Handle,
    receive_cq: Handle,
    to: *mut Handle,
) -> Return {
    // SAFETY: the caller vouches for it.
    let Some(attributes) = (unsafe { attributes.as_ref() }) else { return Return::InvalidParameter };
    // SAFETY: the caller vouches for `to`.
    unsafe { given(to, || vi::create(nic, *attributes, send_cq, receive_cq)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyVi(vi: Handle) -> Return {
    told(vi::destroy(vi))
}

/// # Safety
/// Pointers are null, if that is not wanted, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryVi(
    vi: Handle,
    state: *mut State,
    attributes: *mut ViAttributes,
    send_empty: *mut c_int,
    receive_empty: *mut c_int,
) -> Return {
    let query = match vi::query(vi) {
        Ok(query) => query,
        Err(error) => return error,
    };
    // SAFETY: the caller vouches for those that are not null.
    unsafe {
        put(state, query.state);
        put(attributes, query.attributes);
        put(send_empty, query.send_empty.into());
        put(receive_empty, query.receive_empty.into());
    }
    Return::Success
}

/// # Safety
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { to.write(value) };
    }
}

/// # Safety
/// `attributes` is null or points to some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetViAttributes(vi: Handle, attributes: *const ViAttributes) -> Return {
    // SAFETY: the caller vouches for it.
    match unsafe { attributes.as_ref() } {
        Some(attributes) => told(vi::set_attributes(vi, *attributes)),
        None => Return::InvalidParameter,
    }
}

/// # Safety
/// Registered memory must be mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipPostSend(vi: Handle, descriptor: *mut Descriptor, region: u32) -> Return {
    // SAFETY: the caller vouches for it.
    told(unsafe { vi::post_send(vi, descriptor, region) })
}

/// # Safety
/// Registered memory must be mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut Descriptor, region: u32) -> Return {
    // SAFETY: the caller vouches for it.
    told(unsafe { vi::post_receive(vi, descriptor, region) })
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendDone(vi: Handle, to: *mut *mut Descriptor) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { taken(to, || vi::send_done(vi)) }
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvDone(vi: Handle, to: *mut *mut Descriptor) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { taken(to, || vi::receive_done(vi)) }
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendWait(vi: Handle, millis: c_ulong, to: *mut *mut Descriptor) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { taken(to, || vi::send_wait(vi, Until::after(millis))) }
}

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvWait(vi: Handle, millis: c_ulong, to: *mut *mut Descriptor) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { taken(to, || vi::receive_wait(vi, Until::after(millis))) }
}

/// Writes the descriptor that is done, null if none is.
///
/// # Safety
/// `to` is null or may be written.
unsafe fn taken(to: *mut *mut Descriptor, take: impl FnOnce() -> Result<Taken, Return>) -> Return {
    if to.is_null() {
        return Return::InvalidParameter;
    }
    let (descriptor, result) = match take() {
        Ok(Taken::Descriptor(done)) => {
            (done.descriptor, if done.errors == 0 { Return::Success } else { Return::DescriptorError })
        }
        Ok(Taken::Empty) => (core::ptr::null_mut(), Return::DescriptorError),
        Ok(Taken::NotYet) => (core::ptr::null_mut(), Return::NotDone),
        Err(error) => (core::ptr::null_mut(), error),
    };
    // SAFETY: the caller vouches for it, and it is not null.
    unsafe { to.write(descriptor) };
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn VipSendNotify(vi: Handle, context: *mut c_void, handler: Option<ViHandler>) -> Return {
    notify(vi, Which::Send, context, handler)
}

#[unsafe(no_mangle)]
pub extern "C" fn VipRecvNotify(vi: Handle, context: *mut c_void, handler: Option<ViHandler>) -> Return {
    notify(vi, Which::Receive, context, handler)
}

fn notify(vi: Handle, which: Which, context: *mut c_void, handler: Option<ViHandler>) -> Return {
    match handler {
        Some(handler) => told(agent::notify(vi, which, context, handler)),
        None => Return::InvalidParameter,
    }
}
