//! How a copy waits until there is something for it. It polls for a while, and reads the links of
//! its process meanwhile; then it sleeps on its word (see `wake`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::trip;
use stream::spin::{Learned, NO_CPU, Spun, ticks, ticks_of};

use crate::listener::Listener;
use crate::wake::Wake;

/// How long to poll before sleeping. Longer than sockets do: a copy that waits for a sleeping
/// neighbour waits for a wake-up (some 50 us) first, and where both sleep in turn each buffer costs
/// a part of two of them.
const SPIN_NS: u64 = 100_000;
/// How long a sleep lasts at most before the copy checks again; a wake-up ends it earlier. This
/// bounds the effect of a bug.
const NAP: Duration = Duration::from_secs(1);

/// The owner of a word.
pub struct Sleeper {
    wake: Wake,
    /// Links that it reads while it polls.
    links: Option<Arc<[Arc<Listener>]>>,
}

/// How long the sleeper has learned to spin.
#[derive(Debug, Default)]
pub struct Habit(Learned);

impl Sleeper {
    /// Of this word.
    pub fn new(wake: Wake) -> Sleeper {
        Sleeper { wake, links: None }
    }

    /// It reads these links while it polls.
    pub fn helps(&mut self, links: &Arc<[Arc<Listener>]>) {
        self.links = (!links.is_empty()).then(|| Arc::clone(links));
    }

    /// Sleeps until `ready` is true, which it checks after each wake-up, or until `deadline`.
    /// Returns whether it is ready.
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
        let map = self.wake.memory().map();
        loop {
            let before = ticks();
            trip::arm(map, self.wake.offset(), |_| trip::RX);
            if ready() {
                trip::disarm(map, self.wake.offset());
                return true;
            }
            let now = Instant::now();
            let left = deadline.map_or(NAP, |deadline| deadline.saturating_duration_since(now).min(NAP));
            if left.is_zero() {
                trip::disarm(map, self.wake.offset());
                return false;
            }
            let _ = trip::wait(map, self.wake.offset(), trip::RX, left.as_nanos() as u64);
            trip::disarm(map, self.wake.offset());
            habit.0.slept(ticks() - before, limit);
            if ready() {
                return true;
            }
        }
    }
}
