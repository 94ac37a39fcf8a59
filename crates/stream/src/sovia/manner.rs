//! The parameters of a connection by Virtual Interfaces.

use super::message::MOST;

/// The parameters, the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manner {
    /// Messages that may be under way, 1 to [`MOST`]. With 1 each message waits for the
    /// acknowledgement of the one before it.
    pub window: u32,
    /// How many messages are taken out before all are acknowledged together; less than the window.
    /// With 0 each is acknowledged at once.
    pub delayed: u32,
    /// Whether data acknowledges data of the other direction.
    pub piggyback: bool,
    /// Whether small messages are joined.
    pub combine: bool,
}

impl Manner {
    /// The parameters as one word that is not 0, for the offer and to keep.
    pub fn word(self) -> u32 {
        let bits = u32::from(self.piggyback) << 16 | u32::from(self.combine) << 17;
        self.window.clamp(1, MOST as u32) | self.delayed.min(MOST as u32) << 8 | bits
    }

    /// The parameters in such a word. Any word gives valid ones.
    pub fn of(word: u32) -> Manner {
        let window = (word & 0xff).clamp(1, MOST as u32);
        let delayed = (word >> 8 & 0xff).min(window - 1);
        Manner { window, delayed, piggyback: word >> 16 & 1 != 0, combine: word >> 17 & 1 != 0 }
    }
}
