//! The memory of both ends of a connection, as one end has it, and the outcomes of a message.

use std::sync::Arc;

use fabric::shm::Map;
use fabric::sync::{AtomicBool, Ordering};
use fabric::sys;

use crate::arena::Theirs;
use crate::gate;
use crate::memory::{self, Asker};
use crate::remote::peer::Peer;
use crate::segment::{EAGER, EAGER_ALL, Segment, at};

/// The memory of both ends of a connection, as one end has it.
pub struct Memory {
    /// Own segment.
    pub mine: Arc<Segment>,
    /// The peer's.
    pub theirs: Peer,
    /// The peer's process; 0 between hosts.
    pub pid: u32,
    /// Whether the kernel lets each end reach the memory of the other one.
    pub direct: AtomicBool,
    /// The peer's region table; between hosts none.
    pub regions: Option<memory::Table>,
    /// The peer's memory that is mapped here as well.
    pub arena: Option<Theirs>,
    /// The peer's Virtual Interface, with its rights in its own process.
    pub asker: Asker,
    /// Whether it lets us write, and read, its memory by RDMA.
    pub rights: memory::Rights,
    /// Where hints for the peer's completion queues lie, if its queues have any: that of its
    /// receive queue, that of its send queue.
    pub queues: [Option<Hints>; 2],
}

/// A completion queue's memory, and the place in it.
#[derive(Debug, Clone, Copy)]
pub struct Hints {
    /// The memory.
    pub map: Map,
    /// The number of the Virtual Interface there.
    pub slot: usize,
}

impl Memory {
    /// Whether bytes can be placed in the peer's memory, and taken from there.
    #[inline]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Where the peer's `length` bytes at `address` are, if they are mapped here.
    #[inline]
    pub(super) fn mapped(&self, address: u64, length: usize) -> Option<(&Map, usize)> {
        let arena = self.arena.as_ref()?;
        Some((arena.map(), arena.offset(address, length)?))
    }

    /// Waits until the peer writes to, and reads from, no buffers of this process that it found
    /// registered before. Between hosts it never does.
    pub fn await_transfers(&self) {
        while self.theirs.wire().is_none()
            && gate::is_busy(self.mine.map(), at::BUSY)
            && sys::process_lives(self.pid)
        {
            sys::yield_now();
        }
    }

    /// Bytes of either end's eager buffer that are used.
    #[inline]
    pub(super) fn eager(&self) -> usize {
        if self.is_direct() { EAGER } else { EAGER_ALL }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(regions) = self.regions {
            // SAFETY: all users of the memory borrow it from here.
            unsafe { regions.unmap() };
        }
        for queue in self.queues.iter().flatten() {
            // SAFETY: as above.
            unsafe { queue.map.unmap() };
        }
    }
}

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It is in the peer's memory.
    Done,
    /// The peer has no descriptor posted for it.
    NoDescriptor,
    /// There will be room for it when the peer has read others.
    NoRoom,
    /// It is longer than the buffers of the peer's descriptor, which knows it.
    TooLong,
    /// It may not access that memory of the peer.
    Forbidden,
    /// The connection is over.
    Lost,
}

/// Wakes the peer for something that has come: a message, or a cookie.
#[inline(always)]
pub fn notify(memory: &Memory, trip: usize) -> u64 {
    memory.theirs.fire(trip)
}
