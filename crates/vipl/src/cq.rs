//! Completion queues.

use core::ffi::{c_int, c_ulong, c_void};

use via::abi::Return;
use via::agent::{self, CqHandler};
use via::cq::{self, Until};

use crate::{Handle, given, told};

/// # Safety
/// `to` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateCQ(nic: Handle, entries: c_ulong, to: *mut Handle) -> Return {
    // SAFETY: the caller vouches for it.
    unsafe { given(to, || cq::create(nic, entries as usize)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyCQ(cq: Handle) -> Return {
    told(cq::destroy(cq))
}

#[unsafe(no_mangle)]
pub extern "C" fn VipResizeCQ(cq: Handle, entries: c_ulong) -> Return {
    told(cq::resize(cq, entries as usize))
}

/// # Safety
/// `vi` and `receive` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQDone(cq: Handle, vi: *mut Handle, receive: *mut c_int) -> Return {
    // SAFETY: the caller vouches for both.
    unsafe { found(vi, receive, || cq::done(cq)) }
}

/// # Safety
/// `vi` and `receive` are null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQWait(
    cq: Handle,
    millis: c_ulong,
    vi: *mut Handle,
    receive: *mut c_int,
) -> Return {
    // SAFETY: the caller vouches for both.
    unsafe { found(vi, receive, || cq::wait(cq, Until::after(millis))) }
}

/// # Safety
/// `vi` and `receive` are null or may be written.
unsafe fn found(
    vi: *mut Handle,
    receive: *mut c_int,
    find: impl FnOnce() -> Result<(Handle, bool), Return>,
) -> Return {
    if vi.is_null() || receive.is_null() {
        return Return::InvalidParameter;
    }
    match find() {
        Ok((handle, receives)) => {
            // SAFETY: the caller vouches for both, and neither is null.
            unsafe {
                vi.write(handle);
                receive.write(receives.into());
            }
            Return::Success
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn VipCQNotify(cq: Handle, context: *mut c_void, handler: Option<CqHandler>) -> Return {
    match handler {
        Some(handler) => told(agent::notify_queue(cq, context, handler)),
        None => Return::InvalidParameter,
    }
}
