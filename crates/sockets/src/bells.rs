//! The bells of this process, by which peers wake its calls and its event queues: eventfds, and
//! sockets for peers of other users.

use fabric::bell::{self, Loud};
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::{sys, trip};

use crate::descriptors::{Kept, intact};
use crate::layout::{BELLS, CALL_BELL, QUEUES};
use crate::process::{is_guest, options};
use crate::thread;

static BELL: [Kept; BELLS] = [const { Kept::new() }; BELLS];

/// Those that other users ring, for event queues; what they are called.
static LOUD: [Kept; QUEUES] = [const { Kept::new() }; QUEUES];

static LOUD_NAME: AtomicU64 = AtomicU64::new(0);

static LOUD_WORD: AtomicU64 = AtomicU64::new(0);

/// The thread that has the bell of single calls.
static CALL_BELL_TAKEN: AtomicU32 = AtomicU32::new(0);

/// Whether peers of new links get our bells. A guest whose bells were closed has none from then on,
/// and is woken by kicks: those who know the old ones would not ring new ones.
pub fn has_bells() -> bool {
    options().bells && BELL.iter().all(|bell| bell.get().is_none_or(intact))
}

/// The bell with this number, made when first asked for; `None` without descriptors or with `bells`
/// off.
pub fn bell_fd(index: usize) -> Option<i32> {
    if !options().bells {
        return None;
    }
    BELL[index].get_or_make(bell::create).ok().filter(|&bell| intact(bell))
}

/// How other users ring; made when first asked for, under the lock on states.
pub fn loud() -> Option<Loud> {
    if !options().bells || is_guest() {
        return None;
    }
    if LOUD_NAME.load(Ordering::Acquire) == 0 {
        let loud = Loud::new()?;
        LOUD_WORD.store(loud.word, Ordering::Relaxed);
        LOUD_NAME.store(loud.name, Ordering::Release);
    }
    Some(Loud { name: LOUD_NAME.load(Ordering::Acquire), word: LOUD_WORD.load(Ordering::Relaxed) })
}

/// The bell of an event queue that other users ring, made when first asked for; `None` if there are
/// no such users, or no descriptors.
pub fn loud_fd(queue: usize) -> Option<i32> {
    let name = LOUD_NAME.load(Ordering::Acquire);
    if name == 0 {
        return None;
    }
    let loud = Loud { name, word: LOUD_WORD.load(Ordering::Relaxed) };
    LOUD[queue].get_or_make(|| loud.create(queue as u8)).ok()
}

/// The bell of single calls, if this sleeper has it, until dropped: there is one.
pub struct CallBell(Option<i32>);

impl CallBell {
    /// Claims it, if that is `wanted` and it is free.
    pub fn claim_if(wanted: bool) -> CallBell {
        let bell = if wanted { bell_fd(CALL_BELL) } else { None };
        CallBell(bell.filter(|_| CallBell::is_claimed()))
    }

    /// It is free, too, if the thread that has it was cancelled, or is this one, which has jumped
    /// out of its sleep. If this one is in a handler that has interrupted the sleep, both have it:
    /// what was interrupted does not sleep on.
    fn is_claimed() -> bool {
        let me = thread::tid();
        let take =
            |owner| CALL_BELL_TAKEN.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).err();
        match take(0) {
            None => true,
            Some(owner) if owner == me => true,
            Some(owner) => !sys::thread_lives(owner) && take(owner).is_none(),
        }
    }

    pub fn is_had(&self) -> bool {
        self.0.is_some()
    }

    /// How the sleeper is to be woken, as in a tripwire: by kicks, if it has no bell.
    pub fn how(&self) -> u64 {
        if self.is_had() { trip::armed(0, trip::BELL, CALL_BELL as u8) } else { trip::KICK }
    }

    /// Its place among the descriptors that the sleeper polls; none, if it has no bell.
    pub fn polled(&self) -> libc::pollfd {
        libc::pollfd { fd: self.0.unwrap_or(-1), events: libc::POLLIN, revents: 0 }
    }

    /// After that poll.
    pub fn silence_if(&self, polled: &libc::pollfd) {
        if polled.revents != 0 {
            bell::silence(polled.fd);
        }
    }
}

impl Drop for CallBell {
    fn drop(&mut self) {
        if self.is_had() {
            let _ = CALL_BELL_TAKEN.compare_exchange(thread::tid(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// In the child of fork().
pub(crate) fn forked() {
    for bell in &BELL {
        // The parent sleeps on these.
        if is_guest() { bell.close() } else { bell.forget() }
    }
    LOUD_NAME.store(0, Ordering::Relaxed);
    LOUD.iter().for_each(Kept::close);
    CALL_BELL_TAKEN.store(0, Ordering::Relaxed);
}

/// Its bells are no more; who calls closes their descriptors.
pub(crate) fn renounce() {
    LOUD_NAME.store(0, Ordering::Relaxed);
    BELL.iter().chain(&LOUD).for_each(Kept::forget);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_bell_is_one_threads_until_it_has_ended() {
        let ((had, has), (end, ends)) = (channel(), channel::<()>());
        let other = std::thread::spawn(move || {
            // Cancelled in its sleep.
            core::mem::forget(CallBell::claim_if(true));
            had.send(()).unwrap();
            let _ = ends.recv();
        });
        has.recv().unwrap();
        assert!(!CallBell::claim_if(true).is_had(), "it is the other's");
        drop(end);
        other.join().unwrap();
        while !CallBell::claim_if(true).is_had() {
            std::thread::yield_now(); // joined a moment before the kernel has it no more
        }
        // Jumped out of its sleep.
        core::mem::forget(CallBell::claim_if(true));
        assert!(CallBell::claim_if(true).is_had());
    }
}
