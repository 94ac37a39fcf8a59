//! Children of fork(). A child has no part in what its parent has opened: the parent's handles are worth nothing there, its connections are not kept open,
//! and what the child opens, registers and allocates is its own. So all that a process keeps in statics begins anew in the child, whatever
//! threads of the parent were doing with it just then: nothing there is locked, read or freed.

use std::sync::Once;

/// Sees to it that children begin anew. Before anything is opened.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded: it has threads.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

extern "C" fn in_child() {
    // SAFETY: a child has one thread, and it is in fork(), not in this library.
    unsafe {
        crate::process::in_child();
        crate::handlers::in_child();
        crate::agent::in_child();
        crate::opened::in_child();
        crate::vi::in_child();
        crate::cq::in_child();
        crate::connect::in_child();
        crate::names::in_child();
        crate::arena::in_child();
    }
}
