//! What a thread knows of itself. Const-initialised and without destructors, so that hooks may use it at any time, in threads
//! that are starting or ending and in signal handlers.

use core::cell::Cell;
use fabric::sys;

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// The thread's id, cached.
#[inline(always)]
pub fn tid() -> u32 {
    let tid = TID.get();
    if tid != 0 { tid } else { learn() }
}

/// Forgets the id: in the child of fork().
pub fn forget() {
    TID.set(0);
}

#[cold]
fn learn() -> u32 {
    let tid = sys::gettid();
    TID.set(tid);
    tid
}
