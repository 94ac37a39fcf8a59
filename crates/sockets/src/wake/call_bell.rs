//! The bells of single calls: a thread that is going to sleep in one claims a bell, so that what
//! rings wakes nobody else. There are [`CALL_BELLS`]; whoever finds none is woken by kicks.

use fabric::sync::{AtomicU32, Ordering};
use fabric::{bell, sys, trip};
use stream::spin::ticks;

use crate::conn::Conn;
use crate::layout::{CALL_BELL, CALL_BELLS};
use crate::{bells, thread};

/// The threads that have them.
static TAKEN: [AtomicU32; CALL_BELLS] = [const { AtomicU32::new(0) }; CALL_BELLS];

/// How many descriptors a sleeper polls for its bell.
pub(crate) const POLLED: usize = 3;

/// A bell of single calls that this thread has until it is dropped; or none.
pub(crate) struct CallBell(Option<Claimed>);

struct Claimed {
    place: usize,
    fd: i32,
    /// This thread had it before: it is in a handler that has interrupted its sleep, which goes on
    /// with the bell, or has jumped out of that.
    kept: bool,
}

impl CallBell {
    /// Claims one, if that is `wanted` and one is free.
    pub(crate) fn claim_if(wanted: bool) -> CallBell {
        let place = if wanted { claim() } else { None };
        CallBell(place.and_then(|(place, kept)| {
            let fd = bells::bell_fd(CALL_BELL + place);
            if fd.is_none() && !kept {
                give_back(place);
            }
            Some(Claimed { place, fd: fd?, kept })
        }))
    }

    /// As [`CallBell::claim_if`], to sleep on one connection: none, too, if its peer does not get
    /// it.
    pub(crate) fn claim_for(conn: &Conn, wanted: bool) -> CallBell {
        let bell = CallBell::claim_if(wanted);
        if bell.how(conn) == trip::KICK { CallBell(None) } else { bell }
    }

    pub(crate) fn is_had(&self) -> bool {
        self.0.is_some()
    }

    /// How the sleeper is to be woken for a connection, as in a tripwire: by kicks, if it has no
    /// bell, or the peer cannot ring it.
    pub(crate) fn how(&self, conn: &Conn) -> u64 {
        let number = self.0.as_ref().map(|claimed| CALL_BELL + claimed.place);
        match number.filter(|&number| conn.link().gives(number)) {
            Some(number) => trip::armed(0, trip::BELL, number as u8),
            None => trip::KICK,
        }
    }

    /// What the sleeper polls beside its own: what peers of this user ring, and others; none, if it
    /// has no bell.
    pub(crate) fn polled(&self) -> [libc::pollfd; POLLED] {
        let own = self.0.as_ref().map_or(-1, |claimed| claimed.fd);
        let known = |bell: fn(usize) -> Option<i32>| {
            self.0.as_ref().and_then(|claimed| bell(CALL_BELL + claimed.place)).unwrap_or(-1)
        };
        [own, known(bells::known_loud_fd), known(bells::known_far_fd)].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        })
    }

    /// After that poll. What other users have rung more than once wakes it again.
    pub(crate) fn silence(&self, polled: &[libc::pollfd]) {
        let [own, others @ ..] = polled else { return };
        if own.revents != 0 {
            bell::silence(own.fd);
        }
        for loud in others.iter().filter(|loud| loud.revents != 0) {
            bell::take_loud(loud.fd);
        }
    }
}

impl Drop for CallBell {
    fn drop(&mut self) {
        if let Some(claimed) = self.0.as_ref().filter(|claimed| !claimed.kept) {
            give_back(claimed.place);
        }
    }
}

/// Takes one: the first, which every peer has from the start, then from a place of the thread's own
/// on, so that it finds one again that its peers have got before. And whether it had it already.
fn claim() -> Option<(usize, bool)> {
    let me = thread::tid();
    let mut places = core::iter::once(0).chain((0..CALL_BELLS).map(|next| (me as usize + next) % CALL_BELLS));
    let free = |place: usize| {
        let owner = TAKEN[place].load(Ordering::Relaxed);
        (owner == me || owner == 0 && take(place, owner, me)).then_some((place, owner == me))
    };
    places.find_map(free).or_else(|| {
        // All are taken: one of their owners may have been cancelled.
        let place = ticks() as usize % CALL_BELLS;
        let owner = TAKEN[place].load(Ordering::Relaxed);
        (!sys::thread_lives(owner) && take(place, owner, me)).then_some((place, false))
    })
}

fn take(place: usize, owner: u32, me: u32) -> bool {
    TAKEN[place].compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

fn give_back(place: usize) {
    let _ = TAKEN[place].compare_exchange(thread::tid(), 0, Ordering::Release, Ordering::Relaxed);
}

/// Wakes all who sleep by one.
pub(crate) fn ring_all() {
    for (place, owner) in TAKEN.iter().enumerate() {
        if owner.load(Ordering::Acquire) != 0
            && let Some(bell) = bells::bell_fd(CALL_BELL + place)
        {
            bell::ring(bell);
        }
    }
}

/// In the child of fork().
pub(crate) fn forked() {
    TAKEN.iter().for_each(|owner| owner.store(0, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// The place of one that this thread claims and keeps, as if it were cancelled in its sleep.
    fn claimed() -> Option<usize> {
        let bell = core::mem::ManuallyDrop::new(CallBell::claim_if(true));
        bell.0.as_ref().map(|claimed| claimed.place)
    }

    #[test]
    fn a_bell_is_one_threads_until_it_has_ended() {
        let ((had, has), (end, ends)) = (channel(), channel::<()>());
        let ends = std::sync::Arc::new(std::sync::Mutex::new(ends));
        let others: Vec<_> = (0..CALL_BELLS)
            .map(|_| {
                let (had, ends) = (had.clone(), ends.clone());
                std::thread::spawn(move || {
                    had.send(claimed()).unwrap();
                    let _ = ends.lock().unwrap().recv();
                })
            })
            .collect();
        let mut places: Vec<_> = (0..CALL_BELLS).map(|_| has.recv().unwrap().unwrap()).collect();
        places.sort();
        assert!(places.into_iter().eq(0..CALL_BELLS), "each has one of its own");
        assert!(!CallBell::claim_if(true).is_had(), "all are taken");
        drop(end);
        others.into_iter().for_each(|other| other.join().unwrap());
        while !CallBell::claim_if(true).is_had() {
            std::thread::yield_now(); // joined a moment before the kernel has it no more
        }
        // Jumped out of its sleep.
        let own = claimed();
        assert!(own.is_some() && own == claimed(), "its own is found again");
        drop(CallBell::claim_if(true));
        let taken = TAKEN[own.unwrap()].load(Ordering::Relaxed);
        assert_eq!(taken, thread::tid(), "a handler leaves it to the sleep that it has interrupted");
    }
}
