//! The end of a stream that a consumer copy reads: a queue for each copy of the producer, polled in
//! turn.

use std::ptr::NonNull;
use std::sync::Arc;

use stream::spin::{ticks, ticks_of};

use crate::error::Error;
use crate::layout::StreamDef;
use crate::link::Link;
use crate::memory::NOTE_MOST;
use crate::outlet::Outlet;
use crate::ring::{Entry, Kind, Place, Reader};
use crate::stats::Got;
use crate::wake::Wake;

/// A received buffer: bytes to be read where they lie. Its memory goes back to the producer when it
/// is dropped.
pub struct Buffer {
    /// Keeps its memory; None if its bytes came in the entry.
    outlet: Option<Arc<Reading>>,
    entry: Entry,
    /// The place among the copy's inputs.
    input: usize,
    producer: usize,
}

impl Buffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the entry was checked to lie inside the pool, or itself; the producer, a process
        // of the same group, writes a slot only after it was given back, which `drop` does.
        unsafe { std::slice::from_raw_parts(self.address().as_ptr(), self.entry.len as usize) }
    }

    /// The address of the bytes, for callers that cannot keep a borrow. A few bytes lie in the
    /// buffer itself, and move with it.
    pub fn address(&self) -> NonNull<u8> {
        match (&self.entry.place, &self.outlet) {
            (&Place::Slot(slot), Some(outlet)) => outlet.pool().at(slot as usize),
            (Place::Inline(words), _) => NonNull::from(words).cast(),
            (Place::Slot(_), None) => unreachable!("what is in a slot holds on to its outlet"),
        }
    }

    /// The note that the producer wrote beside it.
    pub fn note(&self) -> &[u8] {
        let (&Place::Slot(slot), Some(outlet)) = (&self.entry.place, &self.outlet) else { return &[] };
        let at = outlet.pool().note_at(slot as usize);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), self.entry.note as usize) }
    }

    /// The key that the producer gave it, or 0.
    pub fn key(&self) -> u64 {
        self.entry.key
    }

    /// Whether the write that it belongs to goes on in the next buffer of the same producer copy.
    pub fn more(&self) -> bool {
        self.entry.more
    }

    /// The copy's input by which it came: its place in [`crate::Context::inputs`].
    pub fn input(&self) -> usize {
        self.input
    }

    /// Which copy of the producer sent it.
    pub fn producer(&self) -> usize {
        self.producer
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Buffer").field("len", &self.entry.len).field("producer", &self.producer).finish()
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A producer that waits for a slot polls by itself: hardly any ever does, and a wake-up
        // would cost each buffer.
        if let (&Place::Slot(slot), Some(outlet)) = (&self.entry.place, &self.outlet) {
            outlet.free(slot as usize);
        }
    }
}

/// How long a consumer behind a link may delay an acknowledgement.
const TELL_NS: u64 = 50_000;

/// The producer copy that gets acknowledgements.
pub enum Source {
    /// The producer copy maps the same memory, and sleeps on this word.
    Memory(Wake),
    /// It is behind this link.
    Link(Arc<Link>),
}

/// An outlet as one consumer copy has it. It has a reference count of its own, so buffers do not
/// compete with the producer, and with other copies, for one count.
type Reading = Arc<Outlet>;

/// The queue from one copy of the producer.
struct Channel {
    outlet: Arc<Reading>,
    reader: Reader,
    source: Source,
    /// The unit of work whose end came last.
    ended: u64,
    /// When a producer behind a link was last told.
    told_at: u64,
    counts: Arc<Got>,
}

/// The result of a poll.
#[derive(Debug)]
pub enum Found {
    /// A buffer.
    Buffer(Buffer),
    /// Nothing yet.
    Nothing,
    /// All copies of the producer have written all of the unit of work.
    End,
}

/// The end.
pub struct Input {
    /// The stream's place in the layout.
    pub stream: usize,
    /// This input's place among the copy's.
    place: usize,
    rank: usize,
    def: StreamDef,
    channels: Vec<Channel>,
    next: usize,
    /// How many channels have not ended the current unit of work.
    open: usize,
}

impl Input {
    /// The end that copy `rank` of the consumer reads. For each copy of the producer: its outlet,
    /// the source, and the place for counts.
    pub fn new(
        stream: usize,
        place: usize,
        rank: usize,
        def: &StreamDef,
        channels: Vec<(Arc<Outlet>, Source, Arc<Got>)>,
    ) -> Input {
        let channels: Vec<Channel> = channels
            .into_iter()
            .map(|(outlet, source, counts)| {
                let geometry = *outlet.geometry();
                let reader = Reader::new(geometry.queue(rank), geometry.capacity, (def.credits / 4).max(1));
                Channel { outlet: Arc::new(outlet), reader, source, ended: 0, told_at: 0, counts }
            })
            .collect();
        Input { stream, place, rank, def: def.clone(), channels, next: 0, open: 0 }
    }

    /// The stream.
    pub fn def(&self) -> &StreamDef {
        &self.def
    }

    /// Begins to read this unit of work.
    pub fn begin(&mut self, uow: u64) {
        self.open = self.channels.iter().filter(|channel| channel.ended < uow).count();
    }

    /// Whether something waits that matters to this unit of work.
    pub fn has_news(&self, uow: u64) -> bool {
        let news = |channel: &Channel| channel.ended < uow && channel.reader.is_ready(channel.outlet.words());
        self.channels.iter().any(news)
    }

    /// Polls for a buffer of the unit of work; each copy of the producer has its turn. `idle` is
    /// how many ticks the copy has waited.
    #[inline(always)]
    pub fn poll(&mut self, uow: u64, idle: &mut u64) -> Result<Found, Error> {
        let count = self.channels.len();
        for step in 0..count {
            let at = (self.next + step) % count;
            while self.channels[at].ended < uow {
                let Some(entry) = self.channels[at].reader.peek(self.channels[at].outlet.words()) else {
                    break;
                };
                match entry.kind {
                    Kind::EndOfWork => {
                        self.take(at, false)?;
                        self.channels[at].ended = entry.uow;
                        if entry.uow >= uow {
                            self.open -= 1;
                        }
                    }
                    Kind::Data => {
                        let buffer = self.start(at, entry)?;
                        if entry.uow != uow {
                            // Left over from a unit of work that this copy has not read to its end.
                            self.channels[at].counts.unread.add(1);
                            continue;
                        }
                        let counts = &self.channels[at].counts;
                        counts.buffers.add(1);
                        counts.bytes.add(u64::from(entry.len));
                        counts.latency.record(ticks().saturating_sub(entry.sent));
                        if *idle > 0 {
                            counts.idle.add(std::mem::take(idle));
                        }
                        self.next = (at + 1) % count;
                        return Ok(Found::Buffer(buffer));
                    }
                }
            }
        }
        Ok(if self.open == 0 { Found::End } else { Found::Nothing })
    }

    /// Drops, and counts, what waits of this unit of work. Returns whether all of it has come.
    pub fn drain(&mut self, uow: u64) -> Result<bool, Error> {
        loop {
            match self.poll(uow, &mut 0)? {
                Found::Buffer(buffer) => {
                    let counts = &self.channels[buffer.producer].counts;
                    counts.unread.add(1);
                }
                Found::Nothing => return Ok(false),
                Found::End => return Ok(true),
            }
        }
    }

    /// Takes an entry and tells the producer.
    #[inline(always)]
    fn take(&mut self, at: usize, starts: bool) -> Result<(), Error> {
        let channel = &mut self.channels[at];
        let soon = channel.reader.take(channel.outlet.words(), starts);
        match &channel.source {
            // The counts in shared memory are true at any time.
            Source::Memory(wake) => {
                if soon {
                    wake.fire();
                }
            }
            // Behind a link the producer must be told for its counts to be true. Policies that
            // choose by counts depend on those of slow consumers: so only fast ones save frames.
            Source::Link(link) => {
                let now = ticks();
                if soon || now - channel.told_at > ticks_of(TELL_NS) {
                    channel.reader.has_told();
                    channel.told_at = now;
                    link.send_taken(
                        self.stream,
                        at,
                        self.rank,
                        channel.reader.taken(),
                        channel.reader.started(),
                    )?;
                }
            }
        }
        Ok(())
    }

    /// Starts on a buffer: acknowledges it.
    #[inline(always)]
    fn start(&mut self, at: usize, entry: Entry) -> Result<Buffer, Error> {
        let shape = self.channels[at].outlet.geometry().shape;
        // Rule F2.
        if !entry.fits(shape.slots, shape.size, NOTE_MOST) {
            let what = format!(
                "stream '{}': copy {at} of its producer wrote an entry that cannot be",
                self.def.name
            );
            return Err(Error::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, what)));
        }
        self.take(at, true)?;
        let channel = &self.channels[at];
        let outlet = matches!(entry.place, Place::Slot(_)).then(|| Arc::clone(&channel.outlet));
        Ok(Buffer { outlet, entry, input: self.place, producer: at })
    }
}
