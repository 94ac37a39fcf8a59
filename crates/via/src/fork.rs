//! Children of fork(). A child has no part in its parent's handles and connections: the handles are
//! invalid there, the connections are not kept open, and everything that the child opens, registers
//! and allocates is its own. So all statics begin anew in the child, whatever threads of the parent
//! were doing with them just then: nothing there is locked, read or freed.

use std::sync::Once;

/// Registers the handler that makes children begin anew. To be called before anything is opened.
pub(crate) fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded: it has
        // threads.
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
