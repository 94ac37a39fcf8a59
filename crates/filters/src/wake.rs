//! How a copy sleeps until there is something for it: one word for each copy, in memory that its neighbours map, which it arms as a tripwire
//! before it sleeps on it as a futex. Whoever changes something that it may wait for fires it (see [`fabric::trip`]): any
//! number of changes costs one wake-up, and none if nobody sleeps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{Mapped as _, Remote as _, sys, trip};
use stream::spin::{Learned, NO_CPU, Spun, ticks, ticks_of};

use crate::listener::Listener;
use crate::memory::Segment;

/// Bytes that a word has for itself, so that neighbours do not share a line.
pub const STRIDE: usize = 128;
/// How long to look before sleeping. Longer than sockets do: whoever waits for a neighbour that sleeps itself waits for a wake-up (some 50 us) first, and
/// where both sleep in turn each buffer costs a part of two of them.
const SPIN_NS: u64 = 100_000;
/// So long a sleep lasts at most before things are looked at again; whoever fires makes it shorter. It bounds what a bug could do.
const NAP: Duration = Duration::from_secs(1);

/// The word of one copy.
#[derive(Clone)]
pub struct Wake {
    memory: Arc<Segment>,
    offset: usize,
    /// Links that the owner reads while it looks.
    links: Option<Arc<[Arc<Listener>]>>,
}

/// How long the sleeper has learned to spin.
#[derive(Debug, Default)]
pub struct Habit(Learned);

impl Wake {
    /// The word number `index` of a segment of words.
    pub fn new(memory: &Arc<Segment>, index: usize) -> Wake {
        Wake { memory: Arc::clone(memory), offset: index * STRIDE, links: None }
    }

    /// The owner reads these links while it looks.
    pub fn helps(&mut self, links: &Arc<[Arc<Listener>]>) {
        self.links = (!links.is_empty()).then(|| Arc::clone(links));
    }

    /// Wakes the owner if it sleeps; whether it did. What it is to see must have been written before.
    pub fn fire(&self) -> bool {
        let slept = self.memory.map().stimulate(self.offset, trip::RX) != 0;
        if slept {
            sys::futex_wake(self.word(), u32::MAX);
        }
        slept
    }

    /// Sleeps until `ready`, which is asked again after each wake-up; until `deadline` at most. Whether it is ready.
    pub fn wait(
        &self,
        habit: &mut Habit,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let limit = ticks_of(SPIN_NS);
        let links = self.links.as_deref().unwrap_or_default();
        let look = || {
            ready() || {
                links.iter().for_each(|link| link.help());
                !links.is_empty() && ready()
            }
        };
        if habit.0.spin(limit, NO_CPU, look) == Spun::Won {
            return true;
        }
        links.iter().for_each(|link| link.leave());
        let map = self.memory.map();
        loop {
            let before = ticks();
            trip::arm(map, self.offset, |_| trip::RX);
            if ready() {
                trip::disarm(map, self.offset);
                return true;
            }
            let now = Instant::now();
            let left = deadline.map_or(NAP, |deadline| deadline.saturating_duration_since(now).min(NAP));
            if left.is_zero() {
                trip::disarm(map, self.offset);
                return false;
            }
            sys::futex_wait(self.word(), trip::RX as u32, left.as_nanos() as i64);
            trip::disarm(map, self.offset);
            habit.0.slept(ticks() - before, limit);
            if ready() {
                return true;
            }
        }
    }

    /// The half of the word that changes, as a futex is 32 bits.
    fn word(&self) -> *const u32 {
        let word: *const u32 = std::ptr::from_ref(self.memory.map().atomic(self.offset)).cast();
        if cfg!(target_endian = "big") { word.wrapping_add(1) } else { word }
    }
}
