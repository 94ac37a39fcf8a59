//! Connections between hosts. Their link is one of `ofi`'s, made and served by one thread of this
//! process, the *progress thread* (the crate `progress`), since libfabric's calls allocate and
//! lock, and a program may call us from a signal handler. What this side writes goes into the
//! shadow of the peer's segment and, as work requests in their order, into the link's outbox
//! ([`Wire`]); the progress thread puts it into the peer's memory. What the peer puts is in our
//! segment, where it is looked for as on one host.
//!
//! What differs from one host follows from this: nothing that was put is known to have come, until
//! the peer has *echoed* ([`Wire::settle`]). So
//!
//! * before anything goes by the companion that the peer must not mistake (kicks, tcp behind a
//!   demotion, the end), what was put before has been echoed;
//! * tripwires are fired by the progress thread of the end that armed them. It rings its own bells
//!   and sets its own hints; only for a kick it asks the peer's;
//! * an offer cannot be taken back, only be refused: whoever wants it back asks for that, and waits
//!   for the answer;
//! * fork() takes connections back to tcp before it: a child has no progress thread.

use fabric::bell;
use fabric::outbox::{Doorbell, Outbox, WorkRequest};
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, spin_hint};
use fabric::sys;

use crate::conn::{Direction, Half, Held};
use crate::thread;

/// What is to be done, in a [`WorkRequest`] of a link.
pub mod what {
    /// These bytes of the shadow (offset, length) go to the peer.
    pub const BYTES: u64 = 1;
    /// This word (offset, value) does.
    pub const WORD: u64 = 2;
    /// These bits (offset, bits) are set there.
    pub const OR: u64 = 3;
    /// The tripwire there (offset, interest) is stimulated.
    pub const STIMULATE: u64 = 4;
    /// The peer's progress thread is called (one of [`super::call`], value).
    pub const CALL: u64 = 5;
}

/// What progress threads tell each other, after all that was put before is there.
pub mod call {
    /// Answer with [`ECHOED`] and this number.
    pub const ECHO: u64 = 1;
    /// All that was put before the [`ECHO`] of this number is there.
    pub const ECHOED: u64 = 2;
    /// The end on this slot sleeps where only a kick wakes it.
    pub const KICK: u64 = 3;
    /// It has been counted, and comes.
    pub const KICKED: u64 = 4;
    /// The end on this slot wants the other one to go on by tcp, perhaps with what is unread in its
    /// ring, and waits for that.
    pub const RECALL: u64 = 5;
    /// An END comes to the end on this slot by the companion.
    pub const HEAR: u64 = 6;
    /// The offer of this slot has been taken. Who has taken it goes to the ring, and sends records,
    /// only when it is known that whoever made it has heard of that.
    pub const TAKEN: u64 = 7;
}

/// The way from the shadow to the peer. Lies in memory that forked children share; never unmapped.
#[repr(C)]
pub struct Wire {
    pub outbox: Outbox,
    /// Echoes asked for, and answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// The peer has not answered in time, and not since.
    silent: AtomicU32,
    /// The peer knows that this process ends.
    end_told: AtomicU32,
    /// Begins what progress threads put among the bytes of tcp.
    pub(crate) mark: u128,
}

impl core::fmt::Debug for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_over() { "Wire, over" } else { "Wire" })
    }
}

/// How long a peer may take for an echo before the link is given up.
const SETTLE_NS: u64 = 2_000_000_000;

/// Looks without letting others run.
const POLLS: usize = 200;

impl Wire {
    /// A new one.
    pub(super) fn make(mark: u128) -> Option<&'static Wire> {
        let at = sys::mmap_common(size_of::<Wire>()).ok()?.cast::<Wire>();
        // SAFETY: as below; nobody else has it.
        unsafe { (*at).mark = mark };
        // SAFETY: zeroed memory of this size, aligned to a page, which stays mapped; zeroes are a
        // valid wire.
        Some(unsafe { &*at })
    }

    /// This process ends, as the peer was told before all was settled.
    pub(super) fn end_is_told(&self) {
        self.end_told.store(1, Ordering::Relaxed);
    }

    /// Whether the peer knows that.
    pub(super) fn has_told_end(&self) -> bool {
        self.end_told.load(Ordering::Relaxed) != 0
    }

    fn post(&self, what: u64, at: u64, value: u64) {
        self.outbox.post(WorkRequest { what, at, value }, wait_for_room);
        ring();
    }

    pub fn bytes(&self, offset: usize, len: usize) {
        if len > 0 {
            self.post(what::BYTES, offset as u64, len as u64);
        }
    }

    pub fn word(&self, offset: usize, value: u64) {
        self.post(what::WORD, offset as u64, value);
    }

    pub fn or(&self, offset: usize, bits: u64) {
        self.post(what::OR, offset as u64, bits);
    }

    pub fn stimulate(&self, offset: usize, interest: u64) {
        self.post(what::STIMULATE, offset as u64, interest);
    }

    /// Calls the peer's progress thread.
    pub fn call(&self, what: u64, value: u64) {
        self.post(what::CALL, what, value);
    }

    /// Asks for an echo; its number.
    pub fn ask(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.call(call::ECHO, number);
        number
    }

    /// Whether it has come.
    pub fn has_echoed(&self, number: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= number
    }

    /// It has.
    pub fn echoed(&self, number: u64) {
        // Rule F2: not one that was not asked for.
        if number <= self.asked.load(Ordering::Acquire) {
            self.answered.fetch_max(number, Ordering::AcqRel);
            self.silent.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until all that was put is there; false if the link is over. Not for the progress
    /// thread, which has to bring it there.
    pub fn settle(&self) -> bool {
        let (number, start) = (self.ask(), sys::now());
        let mut polls = 0;
        while !self.has_echoed(number) {
            if self.is_over() {
                return false;
            }
            polls += 1;
            if polls < POLLS {
                spin_hint();
                continue;
            }
            if sys::now() - start > SETTLE_NS {
                self.fell_silent();
                self.end();
                return false;
            }
            sys::yield_now();
        }
        true
    }

    /// As [`Wire::settle`]; the progress thread, which cannot wait, asks once, notes for what in
    /// `echo`, and comes back.
    pub fn has_settled(&self, echo: &mut u64) -> bool {
        if !is_progress_thread() {
            return self.settle();
        }
        if *echo == 0 {
            *echo = self.ask();
        }
        let settled = !self.is_over() && self.has_echoed(*echo);
        if settled {
            *echo = 0;
        }
        settled
    }

    /// The peer has not answered in time: nobody waits for it in vain again, where that may be left
    /// out.
    pub(crate) fn fell_silent(&self) {
        self.silent.store(1, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) != 0
    }

    /// The link is over: nothing that is put comes any more.
    pub fn end(&self) {
        self.outbox.close();
        ring();
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.outbox.is_closed()
    }
}

/// Whoever posts where there is no room waits for the progress thread, which itself makes room.
pub(super) fn wait_for_room() {
    if is_progress_thread() {
        let work = WORK.load(Ordering::Acquire);
        if work != 0 {
            // SAFETY: only `serve` stores here.
            unsafe { core::mem::transmute::<usize, fn()>(work)() };
        }
    } else {
        sys::yield_now();
    }
}

static DOORBELL: Doorbell = Doorbell::new();

/// The progress thread's bell, +1.
static BELL: AtomicI32 = AtomicI32::new(0);

/// The progress thread, 0 if there is none.
static PROGRESS: AtomicU32 = AtomicU32::new(0);

static WORK: AtomicUsize = AtomicUsize::new(0);

/// The progress thread is this thread: `bell` wakes it, `work` does what waits in the links'
/// outboxes.
pub fn serve(bell: i32, work: fn()) {
    BELL.store(bell + 1, Ordering::Release);
    WORK.store(work as usize, Ordering::Release);
    PROGRESS.store(thread::tid(), Ordering::Release);
}

/// Whether this thread is the progress thread, whose own connections are none of ours.
#[inline]
pub fn is_progress_thread() -> bool {
    is_progress(thread::tid())
}

/// Whether a thread of this id is it.
#[inline]
pub(crate) fn is_progress(tid: u32) -> bool {
    let progress = PROGRESS.load(Ordering::Relaxed);
    progress != 0 && progress == tid
}

/// A direction, for which this waits if the progress thread has it: that has it for moments, but
/// may be off its processor meanwhile.
pub(crate) fn past_progress<T: Half>(direction: &Direction<T>) -> Option<Held<'_, T>> {
    let start = sys::now();
    loop {
        let held = direction.try_lock();
        let holder = direction.holder();
        let may_come = holder == 0 || is_progress(holder);
        if held.is_some() || !may_come || sys::now() - start > SETTLE_NS {
            return held;
        }
        sys::yield_now();
    }
}

/// Before the progress thread sleeps; then it looks once more.
pub fn arm() {
    DOORBELL.arm();
}

/// It is awake.
pub fn disarm() {
    DOORBELL.disarm();
}

pub(super) fn ring() {
    // A child does not know whether its parent's progress thread sleeps.
    if PROGRESS.load(Ordering::Relaxed) == 0 || DOORBELL.must_ring() {
        let bell = BELL.load(Ordering::Acquire);
        if bell > 0 {
            bell::ring(bell - 1);
        }
    }
}

/// What is known of a connection's other end that our kernel does not show: from agents, if they
/// were asked and have found it, or by a proof.
#[derive(Debug, Default)]
pub struct Other {
    token: AtomicU64,
    cookie: AtomicU64,
    index: AtomicU32,
    pub(super) is_asked_for: AtomicU32,
    by_proof: AtomicU32,
}

/// Where it is: its process, its socket's cookie, and its index among the posted there.
#[derive(Debug, Clone, Copy)]
pub struct Introduced {
    pub token: u64,
    pub cookie: u64,
    pub index: u32,
    /// It has proved itself by the connection: its process is on this host, in another network
    /// namespace.
    pub by_proof: bool,
}

impl Other {
    pub(crate) fn reset(&self) {
        self.token.store(0, Ordering::Relaxed);
        self.is_asked_for.store(0, Ordering::Relaxed);
    }

    pub fn introduce(&self, Introduced { token, cookie, index, by_proof }: Introduced) {
        self.cookie.store(cookie, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
        self.by_proof.store(by_proof.into(), Ordering::Relaxed);
        self.token.store(token, Ordering::Release);
    }

    /// What was known is not so any more.
    pub(crate) fn forget(&self) {
        self.token.store(0, Ordering::Release);
    }

    pub fn introduced(&self) -> Option<Introduced> {
        let token = self.token.load(Ordering::Acquire);
        let (cookie, index) = (self.cookie.load(Ordering::Relaxed), self.index.load(Ordering::Relaxed));
        let by_proof = self.by_proof.load(Ordering::Relaxed) != 0;
        (token != 0).then_some(Introduced { token, cookie, index, by_proof })
    }
}

/// The progress thread is not to be woken any more.
pub(crate) fn silence() {
    BELL.store(0, Ordering::Release);
}

/// There is none.
pub(crate) fn forget_progress_thread() {
    PROGRESS.store(0, Ordering::Release);
}

pub(crate) fn has_progress_thread() -> bool {
    PROGRESS.load(Ordering::Acquire) != 0
}

/// What is to be done that is not of one link.
pub mod task {
    /// A connection (its index among the posted, its cookie) may have its other end on another
    /// host.
    pub const POST: u64 = 1;
    /// It is no longer to be introduced.
    pub const WITHDRAW: u64 = 2;
    /// Nobody uses the link with this number any more.
    pub const RELEASE: u64 = 3;
}
