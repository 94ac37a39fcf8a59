//! The stand-in, in a consumer's process, for the outlet of a producer without memory in common:
//! frames are received into it.

use std::sync::Arc;

use crate::memory::Shape;
use crate::outlet::{Draft, Outlet, Slots};
use crate::ring::{Entry, Writer};

/// The receiving process writes here: the outlet that stands for the one of a producer without
/// memory in common.
#[derive(Debug)]
pub struct Stand {
    outlet: Arc<Outlet>,
    slots: Slots,
    writers: Vec<Writer>,
}

impl Stand {
    /// For so many copies of the consumer.
    pub fn new(outlet: Arc<Outlet>, consumers: usize) -> Stand {
        let geometry = *outlet.geometry();
        Stand {
            slots: Slots::new(Arc::clone(&outlet)),
            outlet,
            writers: (0..consumers).map(|to| Writer::new(geometry.queue(to), geometry.capacity)).collect(),
        }
    }

    /// A slot to receive into; None if consumers keep all that there are addresses for.
    pub fn reserve(&mut self) -> Option<Draft> {
        self.slots.reserve()
    }

    /// See [`Slots::hand_over`].
    pub fn hand_over(&mut self, draft: Draft) -> usize {
        self.slots.hand_over(draft)
    }

    /// Publishes an entry. False if its queue is full, which does not happen with a producer that
    /// keeps to its credits.
    pub fn put(&mut self, to: usize, entry: &Entry) -> bool {
        let room = self.writers[to].has_room(self.outlet.words());
        if room {
            self.writers[to].put(self.outlet.words(), entry);
        }
        room
    }

    /// The measures of its buffers.
    pub fn shape(&self) -> Shape {
        self.outlet.geometry().shape
    }
}
