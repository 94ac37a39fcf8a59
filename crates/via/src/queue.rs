//! The two work queues of a Virtual Interface: descriptors that wait, and those that are done and
//! not taken back yet. Each completes in the order of posting. Callers have the queue's lock.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::abi::{Descriptor, status};
use crate::descriptor::{Operation, Posted};
use crate::memory::{Asker, Regions};
use crate::segment::at;
use crate::transfer::{Memory, Receiver, Sender, Sent};
use crate::wire::Broken;

/// A descriptor that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Where it is.
    pub descriptor: *mut Descriptor,
    /// The errors in its status.
    pub errors: u32,
}

// SAFETY: the pointer is the program's, which gets it back.
unsafe impl Send for Done {}

/// The descriptors of a queue that are done.
#[derive(Default)]
pub struct Finished {
    list: VecDeque<Done>,
    /// How many of them the completion queue has reported.
    told: usize,
    /// The completion queue polls this queue by itself: it needs no hint.
    pub watched: bool,
}

impl Finished {
    /// Takes back the first one.
    pub fn pop(&mut self) -> Option<Done> {
        self.told = self.told.saturating_sub(1);
        self.list.pop_front()
    }

    /// For the completion queue: whether there is one that it has not reported; it is reported now.
    pub fn tell(&mut self) -> bool {
        let more = self.told < self.list.len();
        self.told += usize::from(more);
        more
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// The send queue.
#[derive(Default)]
pub struct SendQueue {
    /// Done ones.
    pub finished: Finished,
    waiting: VecDeque<Posted>,
    sender: Sender,
    /// Between hosts, the last question whether the peer has posted a descriptor, and for which
    /// message.
    asked: (u64, u64),
    /// Set while connected.
    pub memory: Option<Arc<Memory>>,
}

/// Extensions of a Virtual Interface beyond the standard.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// A send waits for the peer to post a descriptor, if there is none.
    pub patient: bool,
    /// A message that is longer than the peer's descriptor goes on in the next one.
    pub splits: bool,
}

/// The outcome of a descriptor that was posted to send, for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is done, and the peer was told.
    Done,
    /// It waits for the peer to post a descriptor.
    Deferred,
    /// It could not be done.
    Failed(Sent),
    /// The descriptor was wrong.
    Wrong,
}

/// Whether a send with this outcome is tried again when the peer has done something.
fn waits(sent: Sent, manner: Manner) -> bool {
    sent == Sent::NoRoom || sent == Sent::NoDescriptor && manner.patient
}

impl SendQueue {
    /// Descriptors that the library has, or has done.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.finished.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether some wait for the peer.
    pub fn is_deferred(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the peer is on another host.
    #[inline(always)]
    pub fn is_remote(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.theirs.wire().is_some())
    }

    /// Takes a descriptor, and carries out its operation.
    ///
    /// # Safety
    /// Its buffers must be mapped.
    #[inline(always)]
    pub unsafe fn post(
        &mut self,
        regions: &Regions,
        asker: Asker,
        mut posted: Posted,
        manner: Manner,
    ) -> Outcome {
        if self.memory.is_none() {
            posted.errors |= status::DESC_FLUSHED_ERROR;
            self.finish(regions, posted, 0);
            return Outcome::Done;
        }
        if !self.waiting.is_empty() {
            self.wait(regions, asker, posted);
            return Outcome::Deferred;
        }
        if posted.errors != 0 {
            self.finish(regions, posted, 0);
            return Outcome::Wrong;
        }
        // SAFETY: the caller vouches for the buffers.
        match unsafe { self.transfer(&posted, manner) } {
            Sent::Done => {
                let length = posted.length;
                self.finish(regions, posted, length);
                Outcome::Done
            }
            sent if waits(sent, manner) => {
                self.wait(regions, asker, posted);
                Outcome::Deferred
            }
            sent => self.failed(posted, sent),
        }
    }

    /// It is not done yet.
    fn wait(&mut self, regions: &Regions, asker: Asker, mut posted: Posted) {
        if posted.errors == 0 {
            posted.hold(regions, asker);
        }
        self.waiting.push_back(posted);
    }

    /// Goes on with descriptors that wait for the peer. Returns the outcome of the last one that it
    /// tried, if it tried one.
    ///
    /// # Safety
    /// Their buffers must be mapped.
    pub unsafe fn go_on(&mut self, regions: &Regions, manner: Manner) -> Option<Outcome> {
        let mut outcome = None;
        while let Some(posted) = self.waiting.pop_front() {
            if posted.errors != 0 {
                self.sender.give_up();
                self.finish(regions, posted, 0);
                return Some(Outcome::Wrong);
            }
            // SAFETY: the caller vouches for the buffers.
            match unsafe { self.transfer(&posted, manner) } {
                Sent::Done => {}
                sent if waits(sent, manner) => {
                    self.waiting.push_front(posted);
                    break;
                }
                sent => return Some(self.failed(posted, sent)),
            }
            let length = posted.length;
            self.finish(regions, posted, length);
            outcome = Some(Outcome::Done);
        }
        outcome
    }

    /// # Safety
    /// The buffers must be mapped.
    #[inline(always)]
    unsafe fn transfer(&mut self, posted: &Posted, manner: Manner) -> Sent {
        // SAFETY: the caller vouches for the buffers.
        match unsafe { self.try_transfer(posted, manner) } {
            // SAFETY: as above.
            Sent::NoDescriptor if !manner.patient => unsafe { self.transfer_if_asked(posted, manner) },
            sent => sent,
        }
    }

    /// # Safety
    /// The buffers must be mapped.
    #[inline(always)]
    unsafe fn try_transfer(&mut self, posted: &Posted, manner: Manner) -> Sent {
        let Some(memory) = &self.memory else { return Sent::Lost };
        // SAFETY: the caller vouches for the buffers.
        unsafe {
            match posted.operation {
                Operation::Send | Operation::Receive => self.sender.send(memory, posted, manner.splits),
                Operation::Write(to) => self.sender.write(memory, posted, to),
                Operation::Read(from) => self.sender.read(memory, posted, from),
            }
        }
    }

    /// For this end it looks as if the peer has posted no descriptor.
    ///
    /// # Safety
    /// The buffers must be mapped.
    #[cold]
    unsafe fn transfer_if_asked(&mut self, posted: &Posted, manner: Manner) -> Sent {
        loop {
            if let Some(sent) = self.ask() {
                return sent;
            }
            // SAFETY: the caller vouches for the buffers.
            match unsafe { self.try_transfer(posted, manner) } {
                Sent::NoDescriptor => {}
                sent => return sent,
            }
        }
    }

    /// Between hosts the peer may have posted one, before the message would have arrived, and this
    /// end does not know yet: so it asks. None if the peer has posted one.
    fn ask(&mut self) -> Option<Sent> {
        let Some(memory) = &self.memory else { return Some(Sent::Lost) };
        let Some(wire) = memory.theirs.wire() else { return Some(Sent::NoDescriptor) };
        let message = self.sender.count() + 1;
        if self.asked.1 != message {
            self.asked = (wire.ask(), message);
        }
        if wire.answered() < self.asked.0 {
            return Some(Sent::NoRoom);
        }
        self.asked = (0, 0);
        if self.sender.has_cookie(memory) { None } else { Some(Sent::NoDescriptor) }
    }

    /// Whether the peer must be told of a part of a message whose rest was not sent. Once.
    pub fn take_untold(&mut self) -> bool {
        self.sender.take_untold()
    }

    /// [`SendQueue::end_failed`] ends the descriptor.
    fn failed(&mut self, posted: Posted, sent: Sent) -> Outcome {
        self.waiting.push_front(posted);
        Outcome::Failed(sent)
    }

    /// Whether the descriptor that failed last was to read from the peer.
    pub fn has_failed_to_read(&self) -> bool {
        self.waiting.front().is_some_and(|posted| matches!(posted.operation, Operation::Read(_)))
    }

    /// Ends the descriptor that failed last: with its error, or without where errors are not
    /// reported.
    pub fn end_failed(&mut self, regions: &Regions, errors: u32) {
        self.sender.give_up();
        if let Some(mut posted) = self.waiting.pop_front() {
            posted.errors = errors;
            let length = if errors == 0 { posted.length } else { 0 };
            self.finish(regions, posted, length);
        }
    }

    #[inline(always)]
    fn finish(&mut self, regions: &Regions, mut posted: Posted, length: usize) {
        let op = posted.op();
        posted.complete(regions, op, length, None);
        self.finished.list.push_back(Done { descriptor: posted.descriptor(), errors: posted.errors });
    }

    /// The connection is over: descriptors that wait are done, flushed.
    pub fn flush(&mut self, regions: &Regions) {
        self.memory = None;
        self.asked = (0, 0);
        self.sender = Sender::default();
        while let Some(mut posted) = self.waiting.pop_front() {
            posted.errors |= status::DESC_FLUSHED_ERROR;
            self.finish(regions, posted, 0);
        }
    }
}

/// The receive queue.
#[derive(Default)]
pub struct ReceiveQueue {
    /// Done ones.
    pub finished: Finished,
    waiting: VecDeque<(Posted, Option<u16>)>,
    receiver: Receiver,
    /// Set while connected.
    pub memory: Option<Arc<Memory>>,
}

impl ReceiveQueue {
    /// Descriptors that the library has, or has done.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.finished.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the peer is on another host.
    #[inline(always)]
    pub fn is_remote(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.theirs.wire().is_some())
    }

    /// Takes a descriptor, and announces it to the peer.
    #[inline(always)]
    pub fn post(&mut self, mut posted: Posted) {
        let slot = match &self.memory {
            Some(memory) if posted.errors == 0 => Some(self.receiver.post(memory, &mut posted)),
            _ => None,
        };
        self.waiting.push_back((posted, slot));
    }

    /// The connection exists now: announces all descriptors to the peer.
    pub fn connect(&mut self, memory: Arc<Memory>) {
        for (posted, slot) in self.waiting.iter_mut().filter(|(posted, _)| posted.errors == 0) {
            *slot = Some(self.receiver.post(&memory, posted));
        }
        self.memory = Some(memory);
    }

    /// Checks whether the message of the first waiting descriptor has come. True if one is done now
    /// that was not.
    ///
    /// # Safety
    /// Its buffers must be mapped.
    #[inline(always)]
    pub unsafe fn go_on(&mut self, regions: &Regions) -> Result<bool, Broken> {
        let next = self.waiting.get(1).and_then(|(_, slot)| *slot);
        let Some((posted, slot)) = self.waiting.front_mut() else { return Ok(false) };
        let (op, length, immediate) = match (&self.memory, slot) {
            _ if posted.errors != 0 => (status::OP_RECEIVE, 0, None),
            (Some(memory), Some(slot)) => {
                // SAFETY: the caller vouches for the buffers.
                match unsafe { self.receiver.receive(memory, posted, *slot, next) }? {
                    Some(received) => (received.op, received.length, received.immediate),
                    None => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        posted.complete(regions, op, length, immediate);
        let done = Done { descriptor: posted.descriptor(), errors: posted.errors };
        self.waiting.pop_front();
        self.finished.list.push_back(done);
        Ok(true)
    }

    /// The connection is over: messages that have come are received, and descriptors that wait are
    /// done, flushed.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub unsafe fn flush(&mut self, regions: &Regions) {
        // SAFETY: the caller vouches for the buffers.
        while unsafe { self.go_on(regions) } == Ok(true) {}
        self.memory = None;
        self.receiver = Receiver::default();
        while let Some((mut posted, _)) = self.waiting.pop_front() {
            posted.errors |= status::DESC_FLUSHED_ERROR;
            posted.complete(regions, status::OP_RECEIVE, 0, None);
            self.finished.list.push_back(Done { descriptor: posted.descriptor(), errors: posted.errors });
        }
    }

    /// The connection was not made: the descriptors stay posted, for another one.
    pub fn forget_cookies(&mut self) {
        self.memory = None;
        self.receiver = Receiver::default();
        self.waiting.iter_mut().for_each(|(_, slot)| *slot = None);
    }

    /// Whether the peer's agent must be told that there is room for the messages that it waits to
    /// send. Once.
    #[inline]
    pub fn wakes(&mut self) -> bool {
        core::mem::take(&mut self.receiver.wakes)
    }

    /// Drops all descriptors, with the Virtual Interface.
    pub fn clear(&mut self, regions: &Regions) {
        for (mut posted, _) in self.waiting.drain(..) {
            posted.let_go(regions);
        }
        self.finished = Finished::default();
    }

    /// Arms the tripwire for `whom`.
    pub fn arm(&self, whom: u64) {
        if let Some(memory) = &self.memory {
            memory.mine.arm(at::TRIP, whom);
        }
    }
}
