//! An outbox: what any thread of a process, and its forked children, want done by one thread that serves them, in the order in which they said so. Whoever posts takes a
//! ticket, writes its entry, and rings if the server has gone to sleep; nobody waits but for room, and no lock is held.
//!
//! A poster that dies between ticket and entry stops the server there: it asks [`Outbox::stuck`] for how long nothing has come although a ticket was taken, and gives the
//! outbox up.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Entries that can wait.
pub const ENTRIES: u64 = if cfg!(loom) { 2 } else { 4096 };

/// What is to be done: a kind and two words, which mean what their users say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errand {
    /// Which kind.
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
    /// Nothing is done any more.
    closed: AtomicU32,
    entries: [Entry; ENTRIES as usize],
}

#[repr(C, align(64))]
struct Line(AtomicU64);

/// `turn` is twice the lap in which the entry is free, and one more when it is written.
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
    /// Posts an errand. While there is no room, `wait` is called. False if the outbox is closed: it will not be done.
    pub fn post(&self, errand: Errand, mut wait: impl FnMut()) -> bool {
        let ticket = self.tail.0.fetch_add(1, Ordering::AcqRel);
        let (entry, free) = (&self.entries[(ticket % ENTRIES) as usize], ticket / ENTRIES * 2);
        while entry.turn.load(Ordering::Acquire) != free {
            if self.is_closed() {
                return false;
            }
            wait();
        }
        entry.what.store(errand.what, Ordering::Relaxed);
        entry.at.store(errand.at, Ordering::Relaxed);
        entry.value.store(errand.value, Ordering::Relaxed);
        entry.turn.store(free + 1, Ordering::Release);
        !self.is_closed()
    }

    /// The next errand, for the server alone.
    pub fn take(&self) -> Option<Errand> {
        let ticket = self.head.0.load(Ordering::Relaxed);
        let (entry, free) = (&self.entries[(ticket % ENTRIES) as usize], ticket / ENTRIES * 2);
        if entry.turn.load(Ordering::Acquire) != free + 1 {
            return None;
        }
        let errand = Errand {
            what: entry.what.load(Ordering::Relaxed),
            at: entry.at.load(Ordering::Relaxed),
            value: entry.value.load(Ordering::Relaxed),
        };
        self.head.0.store(ticket + 1, Ordering::Relaxed);
        entry.turn.store(free + 2, Ordering::Release);
        Some(errand)
    }

    /// Whether there is room for one more, as far as can be told.
    pub fn has_room(&self) -> bool {
        let (head, tail) = (self.head.0.load(Ordering::Relaxed), self.tail.0.load(Ordering::Relaxed));
        tail.wrapping_sub(head) < ENTRIES
    }

    /// Whether a ticket was taken whose errand has not come: for the server, which found nothing. Says which, so that it can tell whether it is still the same one.
    pub fn stuck(&self) -> Option<u64> {
        let done = self.head.0.load(Ordering::Relaxed);
        (self.tail.0.load(Ordering::Acquire) != done).then_some(done)
    }

    /// Whether nothing waits, as far as can be told.
    pub fn is_empty(&self) -> bool {
        self.stuck().is_none()
    }

    /// Nothing is done any more: whoever waits for room goes on.
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
    /// Nobody sleeps.
    #[cfg(not(loom))]
    pub const fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }

    /// Before the server sleeps; then it must look once more.
    pub fn arm(&self) {
        self.0.swap(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// It is awake.
    pub fn disarm(&self) {
        self.0.swap(0, Ordering::AcqRel);
    }

    /// After something was posted: whether the server must be woken, by this caller alone.
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
    /// An empty one.
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
    /// Nobody sleeps.
    pub fn new() -> Doorbell {
        Doorbell(AtomicU32::new(0))
    }
}
