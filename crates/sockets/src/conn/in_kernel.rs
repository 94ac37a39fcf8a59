//! Calls that the kernel does by itself: a connection is not promoted beneath them.

use core::mem;

use fabric::sync::Ordering;

use super::Conn;

impl Conn {
    /// Enters a call that the kernel does by itself, which the guard is to be held for; `None` if
    /// calls are ours.
    #[inline(always)]
    pub fn enter_kernel(&'static self) -> Option<InKernel> {
        let turn = (self.users.fetch_add(1, Ordering::SeqCst) >> 32) as u32;
        let in_kernel = InKernel(Entered { conn: self, turn });
        (self.managed.load(Ordering::SeqCst) == 0).then_some(in_kernel)
    }
}

/// Gives the connection back when a call that the kernel does by itself ends, cancellation
/// included; unless it has been closed meanwhile, and this is another one.
pub struct InKernel(Entered);

/// What such a guard stands for; whoever keeps it instead must [`Entered::leave`].
#[derive(Clone, Copy)]
pub struct Entered {
    conn: &'static Conn,
    turn: u32,
}

impl InKernel {
    pub fn keep(self) -> Entered {
        let entered = self.0;
        mem::forget(self);
        entered
    }
}

impl Drop for InKernel {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Entered {
    #[inline(always)]
    pub fn leave(self) {
        let left = |users: u64| (users >> 32 == u64::from(self.turn)).then(|| users - 1);
        let _ = self.conn.users.fetch_update(Ordering::Release, Ordering::Relaxed, left);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_call_that_outlives_its_connection_does_not_count_for_the_next() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let (first, second) = (conn.enter_kernel().unwrap(), conn.enter_kernel().unwrap());
        drop(first);
        assert!(!conn.manage());
        conn.reset();
        let in_the_next = conn.enter_kernel().unwrap();
        drop(second);
        assert!(!conn.manage(), "one call is in the kernel");
        drop(in_the_next);
        assert!(conn.manage() && conn.enter_kernel().is_none());
    }
}
