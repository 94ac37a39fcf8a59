//! The queue of entries from one copy of a producer to one copy of its consumer: one writer, one
//! reader, in memory that both map. Each entry is a line of 64 bytes with its own number in the
//! word that is written last, so the reader reads nothing but the entry itself. In words of its own
//! line the reader stores how many entries it has taken, and how many of those were buffers that it
//! has started on (acknowledgements).
//!
//! Rule F2: the reader checks an entry before it uses it ([`Entry::fits`]); the writer ignores
//! impossible counts.

use fabric::{Local, Remote};

/// Bytes of an entry.
pub const ENTRY: usize = 64;
/// From the base of a queue: how many entries the reader has taken.
pub const TAKEN: usize = 0;
/// How many buffers it has started on.
pub const ACKNOWLEDGED: usize = 8;
/// Where the entries begin: two lines on, as processors fetch them in pairs.
pub const ENTRIES: usize = if cfg!(loom) { 16 } else { 128 };

/// How many entries ahead the writer begins to fetch the line that it will write. So it does not
/// wait for the reader's processor.
const AHEAD: u64 = 3;

/// Bytes of a queue with room for `capacity` entries, a power of two.
pub const fn bytes(capacity: usize) -> usize {
    ENTRIES + capacity * ENTRY
}

/// Where an entry's number is, and the rest of it. The model has words first and bytes after them.
fn places(base: usize, capacity: u64, index: u64) -> (usize, usize) {
    let (place, first) = ((index & (capacity - 1)) as usize, base + ENTRIES);
    if cfg!(loom) {
        return (first + place * 8, first + capacity as usize * 8 + place * (ENTRY - 8));
    }
    let at = first + place * ENTRY;
    (at, at + 8)
}

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A buffer.
    Data,
    /// The producer copy has written all of this unit of work.
    EndOfWork,
}

/// The most bytes of a buffer that lies in its entry.
pub const INLINE: usize = 16;

/// Where a buffer lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In the slot of this number.
    Slot(u32),
    /// In the entry itself, if it has at most [`INLINE`] bytes and no note: its reader fetches no
    /// line but the entry's, and has nothing to give back. Words, so that it is aligned as in a
    /// slot.
    Inline([u64; INLINE / 8]),
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its kind.
    pub kind: Kind,
    /// The unit of work.
    pub uow: u64,
    /// Where the buffer lies.
    pub place: Place,
    /// Its bytes.
    pub len: u32,
    /// Bytes of the note beside it.
    pub note: u16,
    /// Whether the same write goes on in the next buffer.
    pub more: bool,
    /// Its key.
    pub key: u64,
    /// When it was sent, in ticks of the processor.
    pub sent: u64,
}

impl Entry {
    /// The end of a unit of work.
    pub fn end_of(uow: u64) -> Entry {
        Entry {
            kind: Kind::EndOfWork,
            uow,
            place: Place::Slot(0),
            len: 0,
            note: 0,
            more: false,
            key: 0,
            sent: 0,
        }
    }

    /// Whether it lies inside `slots` slots of `size` bytes, with a note of at most `note` bytes,
    /// or inside the entry.
    pub fn fits(&self, slots: usize, size: usize, note: usize) -> bool {
        let (len, noted) = (self.len as usize, self.note as usize);
        match self.place {
            Place::Slot(slot) => (slot as usize) < slots && len <= size && noted <= note,
            Place::Inline(_) => len <= size.min(INLINE) && noted == 0,
        }
    }

    /// All but the number, which comes first in memory and is written last.
    fn words(&self) -> [u64; 7] {
        let kind = match self.kind {
            Kind::Data => 0,
            Kind::EndOfWork => 1,
        };
        let (slot, inline, [low, high]) = match self.place {
            Place::Slot(slot) => (slot, 0, [0; 2]),
            Place::Inline(words) => (0, 1 << 9, words),
        };
        let flags = u64::from(self.more) << 8 | inline;
        let lengths = u64::from(slot) | u64::from(self.len) << 32;
        [self.uow, lengths, kind | flags | u64::from(self.note) << 16, self.key, self.sent, low, high]
    }

    fn of(words: [u64; 7]) -> Entry {
        let [uow, lengths, rest, key, sent, low, high] = words;
        let inline = rest >> 9 & 1 == 1;
        Entry {
            kind: if rest & 0xff == 1 { Kind::EndOfWork } else { Kind::Data },
            uow,
            place: if inline { Place::Inline([low, high]) } else { Place::Slot(lengths as u32) },
            len: (lengths >> 32) as u32,
            note: (rest >> 16) as u16,
            more: rest >> 8 & 1 == 1,
            key,
            sent,
        }
    }
}

/// The writing end.
#[derive(Debug, Clone, Copy)]
pub struct Writer {
    base: usize,
    capacity: u64,
    written: u64,
    /// The count of taken entries when it was last read.
    taken: u64,
}

impl Writer {
    /// Of the queue at `base`.
    pub fn new(base: usize, capacity: usize) -> Writer {
        assert!(capacity.is_power_of_two());
        Writer { base, capacity: capacity as u64, written: 0, taken: 0 }
    }

    /// Whether there is room for an entry.
    pub fn has_room<M: Local>(&mut self, memory: &M) -> bool {
        if self.written - self.taken < self.capacity {
            return true;
        }
        let taken = memory.word(self.base + TAKEN);
        // Acquire (in `word`): the reader had read the entry whose place we shall write before it
        // stored this.
        if (self.taken..=self.written).contains(&taken) {
            self.taken = taken;
        }
        self.written - self.taken < self.capacity
    }

    /// Writes an entry, for which there must be room.
    pub fn put<M: Remote>(&mut self, memory: &M, entry: &Entry) {
        let (at, rest) = places(self.base, self.capacity, self.written);
        let words = entry.words();
        // SAFETY: the source is an array of words; the provider checks the target.
        unsafe { memory.put(rest, words.as_ptr().cast(), size_of_val(&words)) };
        self.written += 1;
        memory.put_word(at, self.written);
        memory.expect(places(self.base, self.capacity, self.written + AHEAD).0);
    }

    /// On how many buffers the reader has started, as it claims.
    pub fn acknowledged<M: Local>(&self, memory: &M) -> u64 {
        memory.word(self.base + ACKNOWLEDGED)
    }
}

/// The reading end.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    base: usize,
    capacity: u64,
    taken: u64,
    started: u64,
    /// After how many entries it tells a writer that waits.
    every: u64,
    told: u64,
}

impl Reader {
    /// Of the queue at `base`. A writer that waits for room is told after `every` entries that were
    /// taken, and whenever the queue is empty. After each one it could only write one entry and
    /// wait again.
    pub fn new(base: usize, capacity: usize, every: usize) -> Reader {
        assert!(capacity.is_power_of_two());
        Reader { base, capacity: capacity as u64, taken: 0, started: 0, every: every as u64, told: 0 }
    }

    fn places(&self) -> (usize, usize) {
        places(self.base, self.capacity, self.taken)
    }

    /// Whether an entry waits.
    pub fn is_ready<M: Local>(&self, memory: &M) -> bool {
        memory.word(self.places().0) == self.taken + 1
    }

    /// The entry that waits, which stays there.
    pub fn peek<M: Local>(&self, memory: &M) -> Option<Entry> {
        if !self.is_ready(memory) {
            return None;
        }
        let mut words = [0u64; 7];
        // SAFETY: the target is an array of words; the provider checks the source.
        unsafe { memory.get(self.places().1, words.as_mut_ptr().cast(), size_of_val(&words)) };
        Some(Entry::of(words))
    }

    /// Takes the entry that waits: its place may be written again. `starts` if that begins a
    /// buffer, which acknowledges it. Returns whether a writer that waits must be woken. If not, it
    /// will be for a later entry: there is one.
    #[must_use]
    pub fn take<M: Local + Remote>(&mut self, memory: &M, starts: bool) -> bool {
        if starts {
            self.started += 1;
            memory.put_word(self.base + ACKNOWLEDGED, self.started);
        }
        self.taken += 1;
        memory.put_word(self.base + TAKEN, self.taken);
        let soon = self.taken - self.told >= self.every || !self.is_ready(memory);
        if soon {
            self.told = self.taken;
        }
        soon
    }

    /// The writer was told in another way.
    pub fn has_told(&mut self) {
        self.told = self.taken;
    }

    /// Buffers that were started on so far.
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Entries that were taken so far.
    pub fn taken(&self) -> u64 {
        self.taken
    }
}
