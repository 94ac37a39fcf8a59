//! The memory of one producer copy's end of one stream: a pool of slots for its buffers, a word for
//! each slot (is it in use?), and for each copy of the consumer a queue of entries. The producer
//! copy is the only writer, except for counts that consumers store and slots that they give back.
//! Where producer and consumer have no memory in common, the receiving process plays the producer's
//! part.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use fabric::Mapped as _;

use crate::layout::StreamDef;
use crate::memory::{NOTE_MOST, Pool, Segment, Shape};
use crate::ring::{self, INLINE, Place};
use fabric::sync::Ordering;

/// Room for entries that are no buffers (ends of units of work), beyond the credits.
const MARKERS: usize = 32;

/// The layout of an outlet's memory. It follows from the stream and the number of consumer copies,
/// so it is not transmitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Entries of each queue.
    pub capacity: usize,
    consumers: usize,
    /// Measures of the pool.
    pub shape: Shape,
}

impl Geometry {
    /// For a stream whose consumer has so many copies.
    pub fn new(stream: &StreamDef, consumers: usize) -> Geometry {
        let capacity = (stream.credits + MARKERS).next_power_of_two();
        let shape = Shape::new(stream.buffer_size, (stream.credits * consumers + 2) * 2);
        Geometry { capacity, consumers, shape }
    }

    /// Where the queue to this consumer copy begins.
    pub fn queue(&self, consumer: usize) -> usize {
        assert!(consumer < self.consumers);
        consumer * self.stride()
    }

    /// Queues begin at pairs of lines.
    fn stride(&self) -> usize {
        ring::bytes(self.capacity).next_multiple_of(128)
    }

    fn slot_word(&self, slot: usize) -> usize {
        assert!(slot < self.shape.slots);
        self.consumers * self.stride() + slot * 8
    }

    fn bytes(&self) -> usize {
        self.consumers * self.stride() + self.shape.slots * 8
    }
}

/// The memory.
#[derive(Debug)]
pub struct Outlet {
    words: Segment,
    pool: Pool,
    geometry: Geometry,
}

impl Outlet {
    /// Makes it.
    pub fn create(geometry: Geometry) -> io::Result<Arc<Outlet>> {
        let words = Segment::create(geometry.bytes())?;
        Ok(Arc::new(Outlet { words, pool: Pool::create(geometry.shape)?, geometry }))
    }

    /// Maps a peer's.
    pub fn open(geometry: Geometry, words: &OwnedFd, pool: &OwnedFd) -> io::Result<Arc<Outlet>> {
        let words = Segment::open(words, geometry.bytes())?;
        Ok(Arc::new(Outlet { words, pool: Pool::open(pool, geometry.shape)?, geometry }))
    }

    /// The files of words and pool, where this process made them.
    pub fn files(&self) -> Option<(&OwnedFd, &OwnedFd)> {
        self.words.file().zip(self.pool.file())
    }

    /// The words.
    pub fn words(&self) -> &fabric::shm::Map {
        self.words.map()
    }

    /// The buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How it is laid out.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Whether the slot is free. Acquire: the reader that gave it back has read it to the end.
    pub fn is_free(&self, slot: usize) -> bool {
        self.words().atomic(self.geometry.slot_word(slot)).load(Ordering::Acquire) == 0
    }

    /// Marks the slot as used.
    pub fn occupy(&self, slot: usize) {
        // The entry that hands it over is published with release.
        self.words().atomic(self.geometry.slot_word(slot)).store(1, Ordering::Relaxed);
    }

    /// Gives it back.
    pub fn free(&self, slot: usize) {
        self.words().atomic(self.geometry.slot_word(slot)).store(0, Ordering::Release);
    }
}

/// The slots of an outlet as their only writer sees them: which one is next to be written.
#[derive(Debug)]
pub struct Slots {
    outlet: Arc<Outlet>,
    /// The outlet reference of the draft that was sent last, for the next one: counting references
    /// costs as much as a small buffer.
    spare: Option<Arc<Outlet>>,
    /// How many were ever used; those beyond have no memory yet.
    grown: usize,
    next: usize,
}

impl Slots {
    /// Of this outlet, none of them used.
    pub fn new(outlet: Arc<Outlet>) -> Slots {
        Slots { outlet, spare: None, grown: 0, next: 0 }
    }

    /// A free slot, to be filled; `None` if all slots with addresses are in use.
    pub fn reserve(&mut self) -> Option<Draft> {
        let slot = self.take()?;
        let outlet = self.spare.take().unwrap_or_else(|| Arc::clone(&self.outlet));
        Some(Draft(Some(Held { outlet, slot })))
    }

    /// Where the reader of a draft will find its first `len` bytes and the note.
    #[inline]
    pub fn place(&mut self, mut draft: Draft, len: usize, note: &[u8]) -> Place {
        if len > INLINE || !note.is_empty() {
            draft.note(note.len()).copy_from_slice(note);
            return Place::Slot(self.hand_over(draft) as u32);
        }
        let mut words = [[0; 8]; INLINE / 8];
        words.as_flattened_mut()[..len].copy_from_slice(&draft.bytes()[..len]);
        self.take_back(draft);
        Place::Inline(words.map(u64::from_ne_bytes))
    }

    /// Takes back a draft whose bytes have been copied elsewhere.
    pub fn take_back(&mut self, draft: Draft) {
        let slot = self.hand_over(draft);
        self.outlet.free(slot);
    }

    /// The slot of a draft that is sent. From now on its reader gives it back.
    pub fn hand_over(&mut self, mut draft: Draft) -> usize {
        let Held { outlet, slot } = draft.0.take().expect(HELD);
        self.spare = Some(outlet);
        slot
    }

    /// The slot that was given out longest ago is most likely free again; new ones are begun only
    /// if it is not.
    fn take(&mut self) -> Option<usize> {
        for _ in 0..self.grown {
            let slot = self.next;
            self.next = if slot + 1 == self.grown { 0 } else { slot + 1 };
            if self.outlet.is_free(slot) {
                self.outlet.occupy(slot);
                return Some(slot);
            }
        }
        if self.grown == self.outlet.geometry.shape.slots {
            return None;
        }
        let slot = self.grown;
        self.grown += 1;
        self.outlet.occupy(slot);
        Some(slot)
    }
}

/// A slot that its producer is filling. It is given back if it is not sent.
#[derive(Debug)]
pub struct Draft(Option<Held>);

#[derive(Debug)]
struct Held {
    outlet: Arc<Outlet>,
    slot: usize,
}

const HELD: &str = "only a draft that was handed over holds nothing";

impl Draft {
    fn held(&self) -> &Held {
        self.0.as_ref().expect(HELD)
    }

    /// The bytes to write, as many as a buffer of the stream has. Their old contents are still
    /// there.
    pub fn bytes(&mut self) -> &mut [u8] {
        let size = self.outlet().geometry.shape.size;
        // SAFETY: the slot is occupied by this draft alone, in a pool that this process made;
        // nobody reads it before it is sent.
        unsafe { std::slice::from_raw_parts_mut(self.address(), size) }
    }

    /// The first `len` bytes of the note beside them.
    pub fn note(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= NOTE_MOST);
        let Held { outlet, slot } = self.held();
        // SAFETY: as above; a slot ends with room for a note.
        unsafe { std::slice::from_raw_parts_mut(outlet.pool.note_at(*slot).as_ptr(), len) }
    }

    /// The address of the bytes, for callers that cannot keep a borrow (a buffer of Python's); as
    /// many as [`Draft::bytes`] has.
    pub fn address(&self) -> *mut u8 {
        let Held { outlet, slot } = self.held();
        outlet.pool.at(*slot).as_ptr()
    }

    /// The outlet that it belongs to.
    pub fn outlet(&self) -> &Arc<Outlet> {
        &self.held().outlet
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(Held { outlet, slot }) = &self.0 {
            outlet.free(*slot);
        }
    }
}
