//! Connections that [`super::peers`] is making. Below the Virtual Interfaces, which cancel them.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use fabric::sys;

use crate::abi::{Return, ViAttributes};
use crate::process::PerProcess;

/// A connection that is not made yet, or has failed and whose result nobody has asked for.
pub(super) struct Pending {
    pub(super) result: Mutex<Option<Result<ViAttributes, Return>>>,
    pub(super) told: Condvar,
    /// Written to end the wait.
    pub(super) bell: i32,
}

// SAFETY: the pointers in the attributes are null.
unsafe impl Sync for Pending {}

// SAFETY: as above.
unsafe impl Send for Pending {}

impl Drop for Pending {
    fn drop(&mut self) {
        sys::close(self.bell);
    }
}

/// By the handle's number.
pub(super) type AllPending = HashMap<usize, Arc<Pending>>;

pub(super) static PENDING: PerProcess<Mutex<Option<AllPending>>> = PerProcess::new(Mutex::new(None));

/// # Safety
/// As of [`PerProcess::renew`].
pub(crate) unsafe fn in_child() {
    // SAFETY: the caller vouches for it.
    unsafe { PENDING.renew(Mutex::new(None)) };
}

/// A Virtual Interface is disconnected: stops looking for its peer.
pub(crate) fn cancel(handle: *mut c_void) {
    let pending = PENDING
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .as_mut()
        .and_then(|all| all.remove(&handle.addr()));
    let Some(pending) = pending else { return };
    fabric::bell::ring(pending.bell);
    let mut result = pending.result.lock().unwrap_or_else(PoisonError::into_inner);
    while result.is_none() {
        result = pending.told.wait(result).unwrap_or_else(PoisonError::into_inner);
    }
}
