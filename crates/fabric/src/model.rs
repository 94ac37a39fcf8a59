//! The provider for the model checker: a segment whose words are loom's atomics and whose bytes are
//! loom's cells. The model fails if a byte is read before its writer has published it, or
//! overwritten before its reader has given it back. It fails, too, if a thread sleeps and nobody
//! will ring its [`Bell`]. The orderings are not chosen here: [`crate::mem`] decides them for this
//! provider and for `shm` alike.
//!
//! [`Flawed`] is the same segment with one fence or ordering left out. Models that run on it must
//! fail: that shows that they check what they claim to check.

use crate::mem::{Local, Mapped, Remote};
use crate::sync::{AtomicU64, Ordering};
use loom::cell::UnsafeCell;
use std::sync::Arc;

/// A segment of a few words, and bytes after them.
#[derive(Debug, Clone)]
pub struct Segment(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    words: Vec<AtomicU64>,
    bytes: Vec<UnsafeCell<u8>>,
}

impl Segment {
    /// A zeroed segment: `words` words from offset 0 on, then `bytes` bytes.
    pub fn new(words: usize, bytes: usize) -> Segment {
        let words = (0..words).map(|_| AtomicU64::new(0)).collect();
        let bytes = (0..bytes).map(|_| UnsafeCell::new(0)).collect();
        Segment(Arc::new(Memory { words, bytes }))
    }

    fn cell(&self, offset: usize) -> &UnsafeCell<u8> {
        &self.0.bytes[offset - self.0.words.len() * 8]
    }
}

impl Mapped for Segment {
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        &self.0.words[offset / 8]
    }
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller vouches for `to`; loom checks that nobody writes the cell
            // meanwhile.
            self.cell(offset + i).with(|from| unsafe { *to.add(i) = *from });
        }
    }
    unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) {
        for i in 0..len {
            // SAFETY: the caller vouches for `from`; loom checks that nobody else uses the cell
            // meanwhile.
            self.cell(offset + i).with_mut(|to| unsafe { *to = *from.add(i) });
        }
    }
}

// SAFETY: accesses to the cells are what the model checks; loom serialises its threads.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

/// The fence or ordering that a [`Flawed`] segment leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// No fence between the put of data and the check of the tripwire.
    StimulateWithoutFence,
    /// Words are put without release.
    PutRelaxed,
    /// Words are read without acquire.
    ReadRelaxed,
    /// A tripwire is tested and cleared in two steps, so that two writers can fire it, or wipe out
    /// a new arming.
    FireInTwoSteps,
}

/// A segment with a flaw.
#[derive(Debug, Clone)]
pub struct Flawed(pub Segment, pub Flaw);

impl Local for Flawed {
    fn word(&self, offset: usize) -> u64 {
        match self.1 {
            Flaw::ReadRelaxed => self.0.atomic(offset).load(Ordering::Relaxed),
            _ => self.0.word(offset),
        }
    }
    fn set_word(&self, offset: usize, value: u64) {
        self.0.set_word(offset, value);
    }
    fn swap_word(&self, offset: usize, value: u64) -> u64 {
        self.0.swap_word(offset, value)
    }
    fn replace_word(&self, offset: usize, old: u64, new: u64) -> Result<(), u64> {
        self.0.replace_word(offset, old, new)
    }
    unsafe fn get(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller vouches for `to`.
        unsafe { self.0.get(offset, to, len) };
    }
}

impl Remote for Flawed {
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for `from`.
        unsafe { self.0.put(offset, from, len) };
    }
    fn put_word(&self, offset: usize, value: u64) {
        match self.1 {
            Flaw::PutRelaxed => self.0.atomic(offset).store(value, Ordering::Relaxed),
            _ => self.0.put_word(offset, value),
        }
    }
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        let word = self.0.atomic(offset);
        match self.1 {
            Flaw::StimulateWithoutFence if word.load(Ordering::Relaxed) & interest == 0 => 0,
            Flaw::StimulateWithoutFence => word.swap(0, Ordering::AcqRel),
            Flaw::FireInTwoSteps => {
                crate::sync::fence(Ordering::SeqCst);
                let held = word.load(Ordering::Relaxed);
                if held & interest == 0 {
                    return 0;
                }
                word.store(0, Ordering::Release);
                held
            }
            _ => self.0.stimulate(offset, interest),
        }
    }
    fn armed(&self, offset: usize, interest: u64) -> bool {
        self.0.armed(offset, interest)
    }
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        self.0.or_word(offset, bits)
    }
}

/// Wakes a thread of the model from [`sleep`]. A ring is remembered, as an eventfd's is, or a byte
/// on the companion.
#[derive(Debug, Clone)]
pub struct Bell(loom::thread::Thread);

impl Bell {
    /// The bell of a thread. Not of the model's main thread: loom lets a ring end its joins.
    pub fn of<T>(thread: &loom::thread::JoinHandle<T>) -> Bell {
        Bell(thread.thread().clone())
    }
    /// Rings it.
    pub fn ring(&self) {
        self.0.unpark();
    }
}

/// Sleeps until the thread's bell rings. If nobody will ever ring it, the model fails as a
/// deadlock.
pub fn sleep() {
    loom::thread::park();
}

/// Runs a model through every interleaving with at most `preemptions` preemptions (`None`: all).
pub fn check(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(model);
}

/// Panics unless the model fails with `message` ([`ASLEEP`], [`RACE`]): the segment or step that
/// the model uses lacks something that it needs.
pub fn must_fail(preemptions: Option<usize>, message: &str, model: impl Fn() + Send + Sync + 'static) {
    let run = std::panic::AssertUnwindSafe(|| check(preemptions, model));
    let Err(panic) = std::panic::catch_unwind(run) else { panic!("the model did not notice the flaw") };
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| said.to_string())).unwrap_or_default();
    assert!(said.contains(message), "the model failed otherwise: {said}");
}

/// Loom's message when a thread sleeps for ever.
pub const ASLEEP: &str = "deadlock";
/// Loom's message when bytes were read or overwritten without an order between the two.
pub const RACE: &str = "Causality violation";
