//! How a copy is woken when there is something for it: each copy has a word, in memory that its
//! neighbours map. It arms the word as a tripwire before it sleeps on it as a futex (see
//! `sleeper`). A neighbour that changes something that the copy may wait for fires it (see
//! [`fabric::trip`]): any number of changes costs one wake-up, and none if nobody sleeps.

use std::sync::Arc;

use fabric::{Remote as _, trip};

use crate::memory::Segment;

/// Bytes between two words, so that neighbours do not share a line.
pub const STRIDE: usize = 128;
/// The word of one copy.
#[derive(Clone)]
pub struct Wake {
    memory: Arc<Segment>,
    offset: usize,
}

impl Wake {
    /// The word number `index` of a segment of words.
    pub fn new(memory: &Arc<Segment>, index: usize) -> Wake {
        Wake { memory: Arc::clone(memory), offset: index * STRIDE }
    }

    /// Wakes the owner if it sleeps; returns whether it did. The data for the owner must have been
    /// written before.
    pub fn fire(&self) -> bool {
        let slept = self.memory.map().stimulate(self.offset, trip::RX) != 0;
        if slept {
            trip::wake(self.memory.map(), self.offset, 1);
        }
        slept
    }

    /// The memory that holds the word.
    pub fn memory(&self) -> &Segment {
        &self.memory
    }

    /// Where the word is in it.
    pub fn offset(&self) -> usize {
        self.offset
    }
}
