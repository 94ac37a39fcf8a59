//! The end of a stream that a producer copy writes: it chooses the consumer copy, waits for its
//! credit, and hands the buffer over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stream::spin::ticks;

use crate::error::Error;
use crate::flow::{Account, Choice, Flow, Meta, Policy};
use crate::layout::StreamDef;
use crate::link::Link;
use crate::memory::NOTE_MOST;
use crate::outlet::{Draft, Outlet, Slots};
use crate::ring::{Entry, Kind, Place, Writer};
use crate::running::Until;
use crate::sleeper::{Habit, Sleeper};
use crate::stats::Sent;
use crate::wake::Wake;

/// A function that chooses the copy of the consumer for a buffer, for [`Policy::User`]. It sees the
/// metadata of the buffer, and the state of the copies.
pub trait Chooser: Send {
    /// The copy's rank.
    fn choose(&mut self, buffer: &Meta, copies: &[Account]) -> Result<usize, Error>;
}

/// Metadata that goes with a buffer.
#[derive(Debug, Clone, Copy, Default)]
pub struct With<'a> {
    /// For [`Policy::Keyed`], and for the consumer to see.
    pub key: u64,
    /// At most [`NOTE_MOST`] bytes that the consumer sees beside the buffer.
    pub note: &'a [u8],
}

/// How often a copy polls for a slot when consumers keep all of them.
const SLOT_LOOK: Duration = Duration::from_millis(1);

/// How one copy of the consumer is reached.
pub enum Target {
    /// It maps the same memory, and sleeps on this word.
    Memory(Wake),
    /// Frames go to it by this link.
    Link(Arc<Link>),
}

/// The end.
pub struct Output {
    /// The stream's place in the layout.
    pub stream: usize,
    def: StreamDef,
    rank: usize,
    outlet: Arc<Outlet>,
    slots: Slots,
    writers: Vec<Writer>,
    targets: Vec<Target>,
    flow: Flow,
    chooser: Option<Box<dyn Chooser>>,
    counts: Vec<Arc<Sent>>,
    /// Ticks that the copy has waited for the buffer that is next.
    waited: u64,
}

/// The tools with which a copy waits.
pub struct Waiting<'a> {
    /// The sleeper on its word.
    pub sleeper: &'a Sleeper,
    /// Its experience with waiting.
    pub habit: &'a mut Habit,
    /// The end of the wait.
    pub until: Until<'a>,
}

impl Output {
    /// The end that copy `rank` of the producer writes. For each copy of the consumer: its target,
    /// and the place for counts.
    pub fn new(
        stream: usize,
        def: &StreamDef,
        rank: usize,
        outlet: Arc<Outlet>,
        targets: Vec<Target>,
        chooser: Option<Box<dyn Chooser>>,
        counts: Vec<Arc<Sent>>,
    ) -> Output {
        let geometry = *outlet.geometry();
        let writer = |consumer| Writer::new(geometry.queue(consumer), geometry.capacity);
        Output {
            stream,
            def: def.clone(),
            rank,
            slots: Slots::new(Arc::clone(&outlet)),
            outlet,
            writers: (0..targets.len()).map(writer).collect(),
            flow: Flow::new(def.policy.clone(), def.credits as u64, targets.len(), rank),
            targets,
            chooser,
            counts,
            waited: 0,
        }
    }

    /// The stream.
    pub fn def(&self) -> &StreamDef {
        &self.def
    }

    /// Memory for one buffer, to be filled and sent. Waits only if consumers keep more buffers than
    /// there are addresses for.
    #[inline(always)]
    pub fn reserve(&mut self, waiting: &mut Waiting) -> Result<Draft, Error> {
        if waiting.until.is_over() {
            return Err(Error::Cancelled);
        }
        match self.slots.reserve() {
            Some(draft) => Ok(draft),
            None => self.wait_for_slot(waiting),
        }
    }

    #[cold]
    fn wait_for_slot(&mut self, waiting: &mut Waiting) -> Result<Draft, Error> {
        let before = ticks();
        let mut draft = None;
        // Nobody wakes it: see `Drop` of buffers.
        while draft.is_none() && !waiting.until.is_over() {
            let look = Instant::now() + SLOT_LOOK;
            waiting.sleeper.wait(waiting.habit, Some(look), || {
                draft = self.slots.reserve();
                draft.is_some() || waiting.until.is_over()
            });
        }
        self.waited += ticks() - before;
        draft.ok_or(Error::Cancelled)
    }

    /// The same without waiting: `None` if that would be needed.
    pub fn try_reserve(&mut self) -> Option<Draft> {
        self.slots.reserve()
    }

    /// Whether [`Output::send`] would have to wait now, or would run a function of the program's.
    pub fn would_wait(&mut self, meta: &Meta) -> bool {
        if self.chooser.is_some() {
            return true;
        }
        if !matches!(self.flow.choose(meta, None), Choice::Send(_)) {
            (0..self.targets.len()).for_each(|to| self.learn(to));
        }
        match self.flow.choose(meta, None) {
            Choice::Send(to) => match self.targets[to] {
                Target::Memory(_) => !self.writers[to].has_room(self.outlet.words()),
                Target::Link(_) => true,
            },
            _ => true,
        }
    }

    /// Writes bytes: one buffer, or as many as it takes if the stream splits.
    pub fn write(&mut self, bytes: &[u8], with: With, waiting: &mut Waiting) -> Result<(), Error> {
        let size = self.def.buffer_size;
        if bytes.len() > size && !self.def.split {
            return Err(Error::Usage(format!(
                "stream '{}': a write of {} bytes does not fit into a buffer of {size}; give the stream a larger buffer_size, or split=True",
                self.def.name,
                bytes.len()
            )));
        }
        let mut rest = bytes;
        loop {
            let (part, after) = rest.split_at(rest.len().min(size));
            let mut draft = self.reserve(waiting)?;
            draft.bytes()[..part.len()].copy_from_slice(part);
            self.send(draft, part.len(), with, !after.is_empty(), waiting)?;
            rest = after;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Sends the first `len` bytes of a draft, which must be of this end. `more` if the same write
    /// goes on in the next buffer.
    #[inline(always)]
    pub fn send(
        &mut self,
        mut draft: Draft,
        len: usize,
        with: With,
        more: bool,
        waiting: &mut Waiting,
    ) -> Result<(), Error> {
        if !Arc::ptr_eq(draft.outlet(), &self.outlet) {
            return Err(Error::Usage(format!(
                "stream '{}': a buffer that was reserved on another stream",
                self.def.name
            )));
        }
        if len > self.def.buffer_size || with.note.len() > NOTE_MOST {
            return Err(Error::Usage(format!(
                "stream '{}': {len} bytes with a note of {} do not fit (buffer_size is {}, a note has at most {NOTE_MOST} bytes)",
                self.def.name,
                with.note.len(),
                self.def.buffer_size
            )));
        }
        let to = self.choose(&Meta { key: with.key, len, note: with.note }, waiting)?;
        // A credit is room, too, unless the queue is full of ends of units of work.
        self.wait_for_room(to, waiting)?;
        let mut entry = Entry {
            kind: Kind::Data,
            uow: waiting.until.uow(),
            place: Place::Slot(0),
            len: len as u32,
            note: with.note.len() as u16,
            more,
            key: with.key,
            sent: ticks(),
        };
        match &self.targets[to] {
            Target::Memory(wake) => {
                entry.place = self.slots.place(draft, len, with.note);
                self.writers[to].put(self.outlet.words(), &entry);
                wake.fire();
            }
            Target::Link(link) => {
                let bytes = &draft.bytes()[..len];
                link.send_data(self.stream, self.rank, to, &entry, bytes, with.note)?;
                self.slots.take_back(draft);
            }
        }
        self.flow.sent(to);
        self.count(to, len);
        Ok(())
    }

    /// Tells all consumer copies that this copy has written all of the unit of work.
    pub fn end_of_work(&mut self, waiting: &mut Waiting) -> Result<(), Error> {
        let entry = Entry::end_of(waiting.until.uow());
        for to in 0..self.targets.len() {
            if let Target::Link(link) = &self.targets[to] {
                link.send_data(self.stream, self.rank, to, &entry, &[], &[])?;
                continue;
            }
            self.wait_for_room(to, waiting)?;
            self.writers[to].put(self.outlet.words(), &entry);
            let Target::Memory(wake) = &self.targets[to] else { continue };
            wake.fire();
        }
        Ok(())
    }

    #[inline(always)]
    fn choose(&mut self, meta: &Meta, waiting: &mut Waiting) -> Result<usize, Error> {
        // With one consumer there is nothing to choose, only credits to wait for.
        let by_demand =
            self.targets.len() > 1 && matches!(self.def.policy, Policy::DemandDriven | Policy::User);
        if by_demand {
            (0..self.targets.len()).for_each(|to| self.learn(to));
        }
        let wanted = match &mut self.chooser {
            Some(chooser) => {
                let wanted = chooser.choose(meta, self.flow.accounts())?;
                if wanted >= self.targets.len() {
                    return Err(Error::Usage(format!(
                        "stream '{}': its policy chose copy {wanted} of the consumer, which has {}",
                        self.def.name,
                        self.targets.len()
                    )));
                }
                Some(wanted)
            }
            None => None,
        };
        loop {
            if waiting.until.is_over() {
                return Err(Error::Cancelled);
            }
            let whom = match self.flow.choose(meta, wanted) {
                Choice::Send(to) => return Ok(to),
                Choice::WaitFor(whom) => Some(whom),
                Choice::WaitForAny => None,
            };
            let before = ticks();
            let Waiting { sleeper, habit, until } = waiting;
            let all = 0..self.targets.len();
            sleeper.wait(habit, None, || {
                match whom {
                    Some(whom) => self.learn(whom),
                    None => all.clone().for_each(|to| self.learn(to)),
                }
                let free = match whom {
                    Some(whom) => self.flow.has_credit(whom),
                    None => all.clone().any(|to| self.flow.has_credit(to)),
                };
                free || until.is_over()
            });
            self.waited += ticks() - before;
        }
    }

    /// Reads the acknowledgements of a copy.
    fn learn(&mut self, to: usize) {
        self.flow.acknowledged(to, self.writers[to].acknowledged(self.outlet.words()));
    }

    fn wait_for_room(&mut self, to: usize, waiting: &mut Waiting) -> Result<(), Error> {
        if matches!(self.targets[to], Target::Link(_)) || self.writers[to].has_room(self.outlet.words()) {
            return Ok(());
        }
        let Waiting { sleeper, habit, until } = waiting;
        let (writer, words) = (&mut self.writers[to], self.outlet.words());
        sleeper.wait(habit, None, || writer.has_room(words) || until.is_over());
        if self.writers[to].has_room(self.outlet.words()) { Ok(()) } else { Err(Error::Cancelled) }
    }

    fn count(&mut self, to: usize, len: usize) {
        // The known count may be old, and the true one smaller. It is read again only where it
        // would be a record.
        if self.flow.accounts()[to].unacknowledged() > self.counts[to].most.value() {
            self.learn(to);
            let now = self.flow.accounts()[to].unacknowledged();
            let most = &self.counts[to].most;
            most.set(most.value().max(now));
        }
        let counts = &self.counts[to];
        counts.buffers.add(1);
        counts.bytes.add(len as u64);
        if self.waited > 0 {
            counts.blocked.add(std::mem::take(&mut self.waited));
        }
    }
}
