//! Jumps (longjmp) out of signal handlers: what the interrupted call has locked is given back.

use crate::{epoll, signals, thread};

/// The thread is about to jump (longjmp) to where its stack is at `target`: perhaps out of a signal
/// handler, and out of a call of ours that this had interrupted. What such calls have locked is
/// given back.
pub fn jumps(target: usize) {
    if signals::have_been_handled() {
        thread::abandoned(target, |lock| {
            let _undisturbed = signals::undisturbed();
            if !epoll::abandoned(lock) {
                lock.unlock();
            }
        });
    }
}
