//! Reading a link. There is a thread for it, which sleeps in a read. But between two busy
//! processes that thread would wake for each buffer, and would wake the copy that waits for it. So
//! a waiting copy reads the links itself, as long as it polls and does not sleep, and the thread
//! naps meanwhile. A copy that goes to sleep calls the thread back.
//!
//! If all copies are busy while the thread naps, received frames wait for the end of its nap:
//! [`NAP_MOST`] at most.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use fabric::sync::{AtomicU32, AtomicU64, Ordering, futex_wait, futex_wake};
use fabric::{Mapped as _, sync};
use stream::spin::{ticks, ticks_of};

use crate::link::{Frame, Incoming, Link};
use crate::memory::NOTE_MOST;
use crate::outlet::Outlet;
use crate::ring::{self, Entry, Kind, Place};
use crate::running::Flag;
use crate::stand::Stand;
use crate::wake::Wake;

/// How long the thread naps first, and at most, in nanoseconds.
const NAP: u64 = 100_000;
const NAP_MOST: u64 = 500_000;

/// How many frames a copy reads at once, and the length of a buffer after which it stops.
const AT_ONCE: usize = 16;
const MUCH: usize = 128 << 10;

/// The reading end of one link.
pub struct Listener {
    link: Arc<Link>,
    frames: Mutex<Frames>,
    /// 1 while the thread naps.
    napping: AtomicU32,
    /// When a copy last read the link, or tried to, in ticks; [`HELPING`] while one does.
    helped: AtomicU64,
}

/// A copy is reading: receiving a large buffer takes longer than any nap.
const HELPING: u64 = u64::MAX;

impl Listener {
    /// For the frames of this link.
    pub fn new(link: &Arc<Link>, frames: Frames) -> Listener {
        Listener {
            link: Arc::clone(link),
            frames: Mutex::new(frames),
            napping: AtomicU32::new(0),
            helped: AtomicU64::new(0),
        }
    }

    /// The thread's loop, until the link ends.
    pub fn run(&self) {
        loop {
            let woke = match self.frames.lock().unwrap_or_else(PoisonError::into_inner).next(true, true) {
                Ok(Did::Woke) => true,
                Ok(_) => false,
                // Copies that write notice it, too, and the caller's process finds the peer lost,
                // if it is.
                Err(_) => break,
            };
            let mut nap = NAP;
            let mut first = woke;
            while first || self.was_helped(nap) {
                first = false;
                self.napping.store(1, Ordering::Release);
                futex_wait(&self.napping, 1, nap as i64);
                self.napping.store(0, Ordering::Release);
                nap = (nap * 2).min(NAP_MOST);
            }
        }
        self.link.close();
    }

    fn was_helped(&self, within: u64) -> bool {
        let helped = self.helped.load(Ordering::Relaxed);
        helped == HELPING || helped > 0 && ticks().saturating_sub(helped) < ticks_of(within)
    }

    /// Reads received frames, if no other thread does: for a copy that waits.
    pub fn help(&self) {
        let mut frames = match self.frames.try_lock() {
            Ok(frames) => frames,
            Err(TryLockError::Poisoned(frames)) => frames.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Another copy may be reading: its mark must stay.
                if self.helped.load(Ordering::Relaxed) != HELPING {
                    self.helped.store(ticks(), Ordering::Relaxed);
                }
                return;
            }
        };
        let helping = Helping::begin(&self.helped);
        // Not all that has come: frames are best used while they are in the cache.
        let mut ended = false;
        for _ in 0..AT_ONCE {
            match frames.next(false, false) {
                Ok(Did::Nothing | Did::DeliveredMuch) => break,
                Ok(_) => {}
                Err(_) => {
                    ended = true;
                    break;
                }
            }
        }
        drop(helping);
        if ended {
            // The thread finds it ended, too.
            self.link.close();
        }
    }

    /// A copy goes to sleep: the thread must read again.
    pub fn leave(&self) {
        if self.helped.load(Ordering::Relaxed) == HELPING {
            // Another copy reads it.
            return;
        }
        self.helped.store(0, Ordering::Relaxed);
        if self.napping.load(Ordering::Acquire) == 1 {
            self.napping.store(0, Ordering::Release);
            futex_wake(&self.napping, 1);
        }
    }
}

/// While it lives, a copy reads.
struct Helping<'a>(&'a AtomicU64);

impl Helping<'_> {
    fn begin(helped: &AtomicU64) -> Helping<'_> {
        helped.store(HELPING, Ordering::Relaxed);
        Helping(helped)
    }
}

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        self.0.store(ticks(), Ordering::Relaxed);
    }
}

/// The result for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// None had come, or it has to wait.
    Nothing,
    /// It was handed over.
    Delivered,
    /// It was, and it was large.
    DeliveredMuch,
    /// It was, to a copy that slept.
    Woke,
}

/// The destinations of a link's frames.
pub struct Frames {
    incoming: Incoming,
    aborted: Arc<Flag>,
    /// The destinations of received buffers, by stream and producer copy.
    arriving: HashMap<(u32, u32), Arriving>,
    /// The outlets that acknowledgements are for, likewise.
    departing: HashMap<(u32, u32), Departing>,
    /// A buffer for which there was no slot.
    waiting: Option<Frame>,
}

struct Arriving {
    stand: Stand,
    /// The sleepers' words: none for consumer copies of other processes.
    wakes: Vec<Option<Wake>>,
}

struct Departing {
    outlet: Arc<Outlet>,
    /// Whether each consumer copy is the peer's.
    theirs: Vec<bool>,
    wake: Wake,
}

impl Frames {
    /// For a link; it has no destinations yet.
    pub fn new(link: &Link, aborted: Arc<Flag>) -> Frames {
        Frames {
            incoming: link.incoming(),
            aborted,
            arriving: HashMap::new(),
            departing: HashMap::new(),
            waiting: None,
        }
    }

    /// Delivers buffers of this stream and producer copy to this stand. For each copy of the
    /// consumer: its word, if it is in this process.
    pub fn arrive(&mut self, stream: usize, producer: usize, outlet: &Arc<Outlet>, wakes: Vec<Option<Wake>>) {
        let stand = Stand::new(Arc::clone(outlet), wakes.len());
        self.arriving.insert((stream as u32, producer as u32), Arriving { stand, wakes });
    }

    /// Delivers acknowledgements for this stream and producer copy to this outlet. For each copy of
    /// the consumer: whether it is the peer's.
    pub fn depart(
        &mut self,
        stream: usize,
        producer: usize,
        outlet: &Arc<Outlet>,
        theirs: Vec<bool>,
        wake: Wake,
    ) {
        let departing = Departing { outlet: Arc::clone(outlet), theirs, wake };
        self.departing.insert((stream as u32, producer as u32), departing);
    }

    /// Takes the next frame, and delivers it. Waits for one if `wait`, and for a slot if `patient`:
    /// copies must not wait for slots, as they may hold all buffers themselves.
    pub fn next(&mut self, wait: bool, patient: bool) -> io::Result<Did> {
        let frame = match self.waiting.take() {
            Some(frame) => Some(frame),
            None => self.incoming.frame(wait)?,
        };
        let Some(frame) = frame else { return Ok(Did::Nothing) };
        // Rule F2: every number in a frame is checked, never trusted.
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a frame for nobody here");
        let mut much = false;
        let woke = match frame {
            Frame::Entry { stream, producer, consumer, entry } => {
                let Arriving { stand, wakes } =
                    self.arriving.get_mut(&(stream, producer)).ok_or_else(wrong)?;
                let wake = wakes.get(consumer as usize).and_then(Option::as_ref).ok_or_else(wrong)?;
                let Some(entry) = receive(&mut self.incoming, stand, entry, patient, &self.aborted)? else {
                    self.waiting = Some(frame);
                    return Ok(Did::Nothing);
                };
                much = entry.len as usize > MUCH;
                if !stand.put(consumer as usize, &entry) {
                    return Err(wrong());
                }
                wake.fire()
            }
            Frame::Taken { stream, producer, consumer, taken, started } => {
                let Departing { outlet, theirs, wake } =
                    self.departing.get(&(stream, producer)).ok_or_else(wrong)?;
                if !theirs.get(consumer as usize).is_some_and(|&theirs| theirs) {
                    return Err(wrong());
                }
                let queue = outlet.geometry().queue(consumer as usize);
                // The producer ignores impossible counts.
                outlet.words().atomic(queue + ring::ACKNOWLEDGED).store(started, sync::Ordering::Release);
                outlet.words().atomic(queue + ring::TAKEN).store(taken, sync::Ordering::Release);
                wake.fire()
            }
        };
        Ok(match (woke, much) {
            (true, _) => Did::Woke,
            (false, true) => Did::DeliveredMuch,
            (false, false) => Did::Delivered,
        })
    }
}

/// Reads note and bytes of a buffer into a slot of the stand. `None` if there is no slot, which
/// happens only while consumers keep more buffers than there are addresses for.
fn receive(
    incoming: &mut Incoming,
    stand: &mut Stand,
    entry: Entry,
    patient: bool,
    aborted: &Flag,
) -> io::Result<Option<Entry>> {
    if entry.kind == Kind::EndOfWork {
        return Ok(Some(entry));
    }
    let shape = stand.shape();
    if !entry.fits(shape.slots, shape.size, NOTE_MOST) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a buffer that is larger than the stream's"));
    }
    let mut draft = loop {
        match stand.reserve() {
            Some(draft) => break draft,
            None if !patient => return Ok(None),
            None if aborted.is_set() => return Err(io::ErrorKind::ConnectionAborted.into()),
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    incoming.bytes(draft.note(entry.note as usize))?;
    incoming.bytes(&mut draft.bytes()[..entry.len as usize])?;
    Ok(Some(Entry { place: Place::Slot(stand.hand_over(draft) as u32), ..entry }))
}
