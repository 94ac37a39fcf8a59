//! The way to a peer on another machine, which a link has in place of the peer's memory: a link of
//! the crate `ofi`, and its events.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fabric::shm::Map;
use fabric::sync::{AtomicBool, AtomicU64, Ordering};
use fabric::{Mapped as _, Remote, sys};
use ofi::Owner;

use crate::segment;
use crate::sys::Bell;

/// How often each end of a link asks the other, and how long the other may leave it without an
/// answer, in nanoseconds.
pub const ASK: u64 = 500_000_000;
pub(super) const SILENCE: u64 = 3_000_000_000;
/// How long a thread waits to send to a peer that takes nothing: it delays all others meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// The calls of one end of a link to the other: give this back; here it is.
pub(super) const GIVE_BACK: u64 = 1;
pub(super) const HERE: u64 = 2;

/// An end of a link, which gets its events. It only notes them: the link reports them in the middle
/// of other things.
pub struct End {
    /// The peer's number.
    pub peer: u16,
    pub(super) number: u64,
    /// Bytes of the peer's queue.
    pub(super) size: usize,
    /// Rung for a receiver that sleeps.
    pub(super) bell: Arc<Bell>,
    /// Rung when the keeper must check the link.
    keeper: Arc<Bell>,
    pub(super) ready: AtomicBool,
    pub(super) over: OnceLock<String>,
    /// The number that the peer has asked for, and the one that it has returned; 0: none.
    pub(super) asked: AtomicU64,
    pub(super) given: AtomicU64,
    /// The number that it must return, and since when.
    pub(super) wanted: AtomicU64,
    pub(super) since: AtomicU64,
}

impl End {
    pub(super) fn new(keeper: &Arc<Bell>, peer: u16, size: usize) -> io::Result<Arc<End>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Ok(Arc::new(End {
            peer,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            size,
            bell: Arc::new(Bell::new()?),
            keeper: Arc::clone(keeper),
            ready: AtomicBool::new(false),
            over: OnceLock::new(),
            asked: AtomicU64::new(0),
            given: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }))
    }

    fn end(&self, why: &str) {
        let _ = self.over.set(why.into()); // the first reason is the reason
        self.keeper.ring();
    }
}

impl Owner for End {
    fn number(&self) -> u64 {
        self.number
    }
    fn ready(&self, _link: &ofi::Link) {
        self.ready.store(true, Ordering::Release);
        self.keeper.ring();
    }
    fn fired(&self, _link: &ofi::Link, _offset: usize, _held: u64) {
        self.bell.ring();
    }
    fn called(&self, _link: &ofi::Link, what: u64, value: u64) {
        match what {
            GIVE_BACK => self.asked.store(value, Ordering::Relaxed),
            HERE => self.given.store(value, Ordering::Relaxed),
            _ => {}
        }
    }
    fn over(&self, _link: &ofi::Link, why: &str) {
        self.end(why);
    }
    fn most(&self) -> usize {
        segment::bytes(self.size)
    }
    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }
    fn failed(&self, error: &ofi::Error) {
        self.end(&error.to_string());
    }
}

/// The way to a peer on another machine, for its [link](mod@crate::link).
pub struct RemotePath {
    pub(super) link: Arc<ofi::Link>,
    pub(super) end: Arc<End>,
    /// As large as the peer's segment.
    pub(super) shadow: Map,
    pub(super) provider: String,
}

impl fmt::Debug for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePath")
            .field("peer", &self.end.peer)
            .field("provider", &self.provider)
            .finish_non_exhaustive()
    }
}

impl RemotePath {
    /// The segment that the peer writes into.
    pub fn mine(&self) -> Map {
        self.link.mine()
    }

    /// Bytes of the peer's queue.
    pub fn size(&self) -> usize {
        self.end.size
    }

    /// Rung for a receiver that sleeps.
    pub fn bell(&self) -> &Arc<Bell> {
        &self.end.bell
    }

    /// The peer's segment.
    pub fn remote(&self) -> &ofi::Link {
        &self.link
    }

    /// libfabric's provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// Why it is over, if it is.
    pub fn why_over(&self) -> Option<&str> {
        self.end.over.get().map(String::as_str).or_else(|| self.link.why_over())
    }

    /// Puts a frame: `put` writes the parts of its record, which lie next to each other and go in
    /// one write.
    pub fn gather<T>(&self, put: impl FnOnce(&Gather) -> T) -> T {
        let gather = Gather { path: self, range: Cell::new((0, 0)) };
        let done = put(&gather);
        gather.flush();
        done
    }

    /// Answers the peer and asks it; called by the keeper each [`ASK`]. False: the peer has been
    /// silent for too long.
    pub fn ask(&self, now: u64) -> bool {
        let end = &self.end;
        match end.asked.swap(0, Ordering::Relaxed) {
            0 => {}
            asked => self.link.call(HERE, asked),
        }
        let wanted = end.wanted.load(Ordering::Relaxed);
        if wanted == 0 || end.given.load(Ordering::Relaxed) == wanted {
            // A peer that does not read what we send cannot know it, and so cannot make us keep
            // more and more for it.
            let next = sys::random() | 1;
            end.wanted.store(next, Ordering::Relaxed);
            end.since.store(now, Ordering::Relaxed);
            self.link.call(GIVE_BACK, next);
        }
        now.saturating_sub(end.since.load(Ordering::Relaxed)) < SILENCE
    }
}

impl Drop for RemotePath {
    fn drop(&mut self) {
        self.link.close();
    }
}

/// The peer's segment, for one frame: parts that lie next to each other wait in the shadow and go
/// in one write.
pub struct Gather<'a> {
    path: &'a RemotePath,
    range: Cell<(usize, usize)>,
}

impl Gather<'_> {
    fn flush(&self) {
        let (start, end) = self.range.replace((0, 0));
        self.path.link.put_shadowed(start, end - start);
    }
}

impl Remote for Gather<'_> {
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        if self.range.get().1 != offset {
            self.flush();
            self.range.set((offset, offset));
        }
        // SAFETY: the caller vouches for `from`; the shadow checks the range.
        unsafe { self.path.shadow.copy_in(offset, from, len) };
        self.range.set((self.range.get().0, offset + len));
    }
    fn put_word(&self, offset: usize, value: u64) {
        self.flush();
        self.path.link.put_word(offset, value);
    }
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        self.flush();
        self.path.link.stimulate(offset, interest)
    }
    fn armed(&self, offset: usize, interest: u64) -> bool {
        self.path.link.armed(offset, interest)
    }
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        self.flush();
        self.path.link.or_word(offset, bits)
    }
}
