//! An outbox: work requests that any thread of a process, or of its forked children, posts for one
//! thread that serves them, in the order in which they were posted. A poster takes a ticket, writes
//! its entry, and rings if the server has gone to sleep. It waits only for room, and holds no lock.
//!
//! A poster that dies between ticket and entry stops the server at that entry. The server asks
//! [`Outbox::stuck`] how long an entry has been missing whose ticket was taken, and gives the
//! outbox up.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Entries that can wait.
pub const ENTRIES: u64 = if cfg!(loom) { 2 } else { 4096 };

/// A work request: a kind and two words, whose meaning its users define.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkRequest {
    /// The kind.
    pub what: u64,
    /// The first word.
    pub at: u64,
    /// The second.
    pub value: u64,
}

/// The outbox. Zeroed memory is an empty one (without loom).
#[repr(C)]
pub struct Outbox {
    /// Tickets taken.
    tail: Line,
    /// Entries done.
    head: Line,
    /// No more work requests are carried out.
    closed: AtomicU32,
    entries: [Entry; ENTRIES as usize],
}

#[repr(C, align(64))]
struct Line(AtomicU64);

/// `turn` is twice the number of the lap in which the entry is free, and one more when it is
/// written.
#[repr(C, align(32))]
struct Entry {
    turn: AtomicU64,
    what: AtomicU64,
    at: AtomicU64,
    value: AtomicU64,
}

/// Whether the server sleeps, for all outboxes that it serves. Zeroed: it does not.
#[repr(transparent)]
pub struct Doorbell(AtomicU32);

impl Outbox {
    /// Posts a work request. Calls `wait` while there is no room. Returns false if the outbox is
    /// closed: the request will not be carried out.
    pub fn post(&self, request: WorkRequest, mut wait: impl FnMut()) -> bool {
        let ticket = self.tail.0.fetch_add(1, Ordering::AcqRel);
        let (entry, free) = (&self.entries[(ticket % ENTRIES) as usize], ticket / ENTRIES * 2);
        while entry.turn.load(Ordering::Acquire) != free {
            if self.is_closed() {
                return false;
            }
            wait();
        }
        entry.what.store(request.what, Ordering::Relaxed);
        entry.at.store(request.at, Ordering::Relaxed);
        entry.value.store(request.value, Ordering::Relaxed);
        entry.turn.store(free + 1, Ordering::Release);
        !self.is_closed()
    }

    /// The next work request, for the server alone.
    pub fn take(&self) -> Option<WorkRequest> {
        let ticket = self.head.0.load(Ordering::Relaxed);
        let (entry, free) = (&self.entries[(ticket % ENTRIES) as usize], ticket / ENTRIES * 2);
        if entry.turn.load(Ordering::Acquire) != free + 1 {
            return None;
        }
        let request = WorkRequest {
            what: entry.what.load(Ordering::Relaxed),
            at: entry.at.load(Ordering::Relaxed),
            value: entry.value.load(Ordering::Relaxed),
        };
        self.head.0.store(ticket + 1, Ordering::Relaxed);
        entry.turn.store(free + 2, Ordering::Release);
        Some(request)
    }

    /// Whether there is room for one more, as far as can be known.
    pub fn has_room(&self) -> bool {
        let (head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        tail.wrapping_sub(head) < ENTRIES
    }

    /// For the server, when it has found nothing: whether a ticket was taken whose work request has
    /// not been written. Returns its number, so that the server can tell whether it is still the
    /// same one.
    pub fn stuck(&self) -> Option<u64> {
        let done = self.head.0.load(Ordering::Relaxed);
        (self.tail.0.load(Ordering::Acquire) != done).then_some(done)
    }

    /// Whether nothing waits, as far as can be known.
    pub fn is_empty(&self) -> bool {
        self.stuck().is_none()
    }

    /// Closes the outbox: no more is carried out, and posters that wait for room go on.
    pub fn close(&self) {
        self.closed.store(1, Ordering::Release);
    }

    /// Whether it is closed.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire) != 0
    }
}

impl Doorbell {
    /// A doorbell whose server is awake.
    #[cfg(not(loom))]
    pub const fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }

    /// The server calls this before it sleeps; then it must check its outboxes once more.
    pub fn arm(&self) {
        self.0.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// The server is awake again.
    pub fn disarm(&self) {
        self.0.swap(0, Ordering::AcqRel);
    }

    /// After something was posted: whether the server must be woken, and by this caller.
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::AcqRel) != 0
    }
}

#[cfg(not(loom))]
impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell::new()
    }
}

#[cfg(loom)]
impl Outbox {
    /// An empty outbox.
    pub fn new() -> Outbox {
        let word = || AtomicU64::new(0);
        let entry = |_| Entry { turn: word(), what: word(), at: word(), value: word() };
        Outbox {
            tail: Line(word()),
            head: Line(word()),
            closed: AtomicU32::new(0),
            entries: core::array::from_fn(entry),
        }
    }
}

#[cfg(loom)]
impl Doorbell {
    /// A doorbell whose server is awake.
    pub fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }
}
