//! Model of the work queues' lock. `crates/fabric/tests/loom_trip.rs` says how models are run.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use via::lock::Lock;

#[test]
fn one_at_a_time_who_sees_what_the_last_one_did() {
    fabric::model::check(None, || {
        let lock = Arc::new(Lock::new(UnsafeCell::new(0u32)));
        let add = |lock: &Lock<UnsafeCell<u32>>| {
            // SAFETY: the holder of the lock is alone; the checker would report it if not.
            lock.lock().with_mut(|number| unsafe { *number += 1 });
        };
        let other = lock.clone();
        let thread = thread::spawn(move || add(&other));
        add(&lock);
        thread.join().unwrap();
        // SAFETY: as above.
        assert_eq!(lock.lock().with(|number| unsafe { *number }), 2);
    });
}
