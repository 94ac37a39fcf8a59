//! Messages: their number and length, their immediate data, and where in the stream the last of
//! them end.

/// Bytes of a buffer: of the longest message (SOVIA's MTU).
pub const MTU: usize = if cfg!(loom) { 2 } else { 8192 };
/// Messages that may be under way, at most: buffers of a direction.
pub const MOST: usize = if cfg!(loom) { 1 } else { 32 };
/// Descriptors for acknowledgements: more than there can be under way, so none ever waits.
pub(super) const ACKS: usize = if cfg!(loom) { 1 } else { 2 * MOST };
/// Messages whose ends are remembered: all that may be under way, and the one before them.
pub(super) const KNOWN: usize = 2 * MOST;

/// The kind of a message, in the lower half of its immediate data. The upper half acknowledges, if
/// the kind says so.
pub(super) mod what {
    pub const DATA: u32 = 1;
    pub const ACK: u32 = 2;
    pub const DATA_AND_ACK: u32 = DATA | ACK;
}

/// The lengths of the last messages, and which of them are in their entries; and where the last two
/// end, in bytes of the stream. Each connection has this at each end, whether it goes by Virtual
/// Interfaces or not, so it is small. `count` is the number of messages so far.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Last {
    /// The ends of messages with even numbers, and with odd ones: the next one's is set before it
    /// counts.
    ends: [u64; 2],
    lengths: [u16; KNOWN],
}

const IN_ENTRY: u16 = 1 << 15;
const _: () = assert!(MTU < IN_ENTRY as usize);

impl Default for Last {
    fn default() -> Last {
        Last { ends: [0; 2], lengths: [0; KNOWN] }
    }
}

impl Last {
    /// Where the last message ends.
    pub(super) fn end(&self, count: u64) -> u64 {
        if count == 0 { 0 } else { self.ends[(count - 1) as usize % 2] }
    }

    /// Where message `number` begins, one of the last [`KNOWN`] or the next one: where the one
    /// before it ends.
    pub(super) fn start(&self, number: u64, count: u64) -> u64 {
        let behind =
            (number.max(count.saturating_sub(KNOWN as u64))..count).map(|number| self.length(number));
        self.end(count).saturating_sub(behind.sum())
    }

    pub(super) fn length(&self, number: u64) -> u64 {
        (self.lengths[number as usize % KNOWN] & !IN_ENTRY).into()
    }

    pub(super) fn is_in_entry(&self, number: u64) -> bool {
        self.lengths[number as usize % KNOWN] & IN_ENTRY != 0
    }

    /// Notes the next message, number `count`. It counts only when the count has been raised.
    pub(super) fn set(&mut self, count: u64, length: u16, in_entry: bool) {
        self.ends[count as usize % 2] = self.end(count) + u64::from(length);
        self.lengths[count as usize % KNOWN] = length | if in_entry { IN_ENTRY } else { 0 };
    }
}

/// The full count for the 16 bits of an acknowledgement, which is not far from `near`.
pub(super) fn full(near: u64, said: u32) -> u64 {
    let ahead = (said as u16).wrapping_sub(near as u16) as i16;
    near.saturating_add_signed(ahead.into())
}
