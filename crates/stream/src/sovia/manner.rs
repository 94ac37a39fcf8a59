//! What can be chosen for a connection by Virtual Interfaces.

use super::message::MOST;

/// What can be chosen, the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// Messages that may be under way, 1 to [`MOST`]. 1: the next one waits for the acknowledgement of the last.
    pub window: u32,
    /// So many are taken out before they are acknowledged all together, less than the window. 0: each at once.
    pub delayed: u32,
    /// Whether data acknowledges what came the other way.
    pub piggyback: bool,
    /// Whether small messages are joined.
    pub combine: bool,
}

impl Manner {
    /// As one word that is not 0, to tell the peer and to keep.
    pub fn word(self) -> u32 {
        let bits = u32::from(self.piggyback) << 16 | u32::from(self.combine) << 17;
        self.window.clamp(1, MOST as u32) | self.delayed.min(MOST as u32) << 8 | bits
    }

    /// What such a word says. Whatever it is, what comes out can be worked with.
    pub fn of(word: u32) -> Manner {
        let window = (word & 0xff).clamp(1, MOST as u32);
        let delayed = (word >> 8 & 0xff).min(window - 1);
        Manner { window, delayed, piggyback: word >> 16 & 1 != 0, combine: word >> 17 & 1 != 0 }
    }
}
