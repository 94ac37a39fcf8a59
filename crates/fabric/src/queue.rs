//! CLAN's distributed circular buffer of fixed messages ("VIA over the CLAN network", section 2.4):
//! slots and write index are in the receiver's memory, and the receiver pushes the read index back
//! to the sender's. One producer, one consumer.
//!
//! Layout from `base` in the receiver's segment: write index, padding to 64 bytes, then `SLOTS`
//! messages of [`MESSAGE`] bytes. The read index lies in the sender's segment, at an offset that
//! the sender names.

use crate::mem::{Local, Remote};

/// Bytes of a message.
pub const MESSAGE: usize = 64;
/// Messages that fit.
pub const SLOTS: u64 = if cfg!(loom) { 2 } else { 256 };
/// Bytes that a queue takes in the receiver's segment.
pub const BYTES: usize = 64 + MESSAGE * SLOTS as usize;

/// The sending end.
#[derive(Debug, Default, Clone, Copy)]
pub struct Producer {
    written: u64,
}

/// The receiving end.
#[derive(Debug, Default, Clone, Copy)]
pub struct Consumer {
    read: u64,
}

impl Producer {
    /// Puts a message. Returns false if the queue is full. `back` is the offset, in the own
    /// segment, to which the consumer pushes its read index.
    pub fn push<L: Local, R: Remote>(
        &mut self,
        remote: &R,
        base: usize,
        local: &L,
        back: usize,
        message: &[u8; MESSAGE],
    ) -> bool {
        let read = local.word(back);
        // Rule F2: an index that is not between (written - SLOTS) and written was not put by a sane
        // peer.
        if self.written.wrapping_sub(read) >= SLOTS {
            return false;
        }
        let slot = (self.written % SLOTS) as usize;
        // SAFETY: the message is a valid array; the provider checks the target.
        unsafe { remote.put(base + 64 + slot * MESSAGE, message.as_ptr(), MESSAGE) };
        self.written += 1;
        remote.put_word(base, self.written);
        true
    }
}

impl Consumer {
    /// Whether a message waits. An impossible index counts as none, so a hostile peer cannot keep
    /// us awake with it.
    pub fn ready<L: Local>(&self, local: &L, base: usize) -> bool {
        (1..=SLOTS).contains(&local.word(base).wrapping_sub(self.read))
    }

    /// Takes a message. `back` is the offset, in the producer's segment, of its copy of the read
    /// index.
    pub fn pop<L: Local, R: Remote>(
        &mut self,
        local: &L,
        base: usize,
        remote: &R,
        back: usize,
    ) -> Option<[u8; MESSAGE]> {
        let ahead = local.word(base).wrapping_sub(self.read);
        if ahead == 0 || ahead > SLOTS {
            return None;
        }
        let slot = (self.read % SLOTS) as usize;
        let mut message = [0; MESSAGE];
        // SAFETY: the target is a valid array; the provider checks the source.
        unsafe { local.get(base + 64 + slot * MESSAGE, message.as_mut_ptr(), MESSAGE) };
        self.read += 1;
        remote.put_word(back, self.read);
        Some(message)
    }
}
