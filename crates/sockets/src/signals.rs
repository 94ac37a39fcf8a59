//! What the program's signal handlers ask of calls that they interrupt, and what is left of calls
//! that they jump out of. The kernel restarts a call after a handler with SA_RESTART; where we wait
//! with poll, which it never restarts, we do so ourselves. The library counts handlers as they are
//! installed.

use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use stream::spin::{ticks, ticks_of};

use crate::{process, thread};

/// Signals with a handler that has SA_RESTART, and with one that has not.
static RESTART: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: AtomicU64 = AtomicU64::new(0);

/// Whether there has ever been one.
static EVER: AtomicBool = AtomicBool::new(false);

/// Signals are blocked until it is dropped.
pub struct Blocked(u64);

impl Blocked {
    pub fn all() -> Blocked {
        Blocked::but(0)
    }

    fn but(these: u64) -> Blocked {
        Blocked(sys::block_signals(!these))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        sys::block_signals(self.0);
    }
}

/// How many handlers have run in each thread, and how many of them without SA_RESTART. Threads may
/// share a place.
static RUN: [Run; THREADS] =
    [const { Run { all: AtomicU32::new(0), interrupting: AtomicU32::new(0) } }; THREADS];
const THREADS: usize = 4096;

struct Run {
    all: AtomicU32,
    interrupting: AtomicU32,
}

/// Whether a handler of it may end a wait.
pub fn may_be_counted(signal: i32) -> bool {
    (1..=64).contains(&signal) && FAULTS & signal_bit(signal) == 0
}

/// A handler of the program's begins to run. The kernel says in which thread: a program may have
/// changed the register by which a thread finds its memory, until its handler sets it right.
pub fn handler_runs(signal: i32) {
    let run = &RUN[sys::gettid() as usize % THREADS];
    if INTERRUPT.load(Ordering::Relaxed) & signal_bit(signal) != 0 {
        run.interrupting.fetch_add(1, Ordering::Relaxed);
    }
    run.all.fetch_add(1, Ordering::Relaxed);
}

/// How many have run in this thread: all, and those without SA_RESTART.
fn handlers_run() -> (u32, u32) {
    let run = &RUN[thread::tid() as usize % THREADS];
    (run.all.load(Ordering::Relaxed), run.interrupting.load(Ordering::Relaxed))
}

/// How many handlers had run in this thread before something that keeps them out. One that runs
/// when it is done would end no call that is then left to the kernel, as that has not begun.
pub(crate) struct HandlersRun {
    all: u32,
    interrupting: u32,
}

impl HandlersRun {
    pub(crate) fn by_now() -> HandlersRun {
        let (all, interrupting) = handlers_run();
        HandlersRun { all, interrupting }
    }

    /// Whether one without SA_RESTART has run since, and whether any has.
    pub(crate) fn since(&self) -> (bool, bool) {
        let (all, interrupting) = handlers_run();
        (interrupting != self.interrupting, all != self.all)
    }
}

/// The sleeps of one call. To the kernel they would be one wait, which a handler ends whenever it
/// runs; of ours it would end none if it ran between two. So signals are blocked there, and end the
/// next. Not in the first moment, unless the last wait was longer, as most waits end in it: of a
/// handler that has run there is only known that it has.
pub struct Sleeps {
    /// When the first began, in ticks; 0: none has. And how many handlers had run, all and those
    /// without SA_RESTART, then or when it was last asked whether they end the call.
    began: u64,
    run: u32,
    interrupting: u32,
    /// What signals were blocked before.
    blocked: Option<Blocked>,
    /// Until when the call waits, in ticks, once that has been asked.
    deadline: Option<Option<u64>>,
    /// Whether the call has moved bytes.
    moved: bool,
}

/// That moment. No round time, which a program may have set a timer to just before. Less would make
/// the timer of our sleep the next that goes off, which the kernel sets its clock for each time.
pub(crate) const MOMENT_NS: u64 = 20_300_000;

/// What a mistake of the thread's own raises is never kept from it.
const FAULTS: u64 = signal_bit(libc::SIGSEGV)
    | signal_bit(libc::SIGBUS)
    | signal_bit(libc::SIGFPE)
    | signal_bit(libc::SIGILL)
    | signal_bit(libc::SIGTRAP)
    | signal_bit(libc::SIGSYS);

const fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Whether the last wait was longer than a moment.
static LONG: AtomicBool = AtomicBool::new(false);

impl Drop for Sleeps {
    fn drop(&mut self) {
        if self.blocked.is_some() && self.is_moment() {
            LONG.store(false, Ordering::Relaxed);
        }
    }
}

impl Sleeps {
    pub(crate) const fn new() -> Sleeps {
        Sleeps { began: 0, run: 0, interrupting: 0, blocked: None, deadline: None, moved: false }
    }

    /// The call has moved bytes: interrupted, it returns how many, whatever the handler.
    pub(crate) fn moved(&mut self) {
        self.moved = true;
    }

    pub(crate) fn have_moved(&self) -> bool {
        self.moved
    }

    /// Until when the call waits in all, in ticks: for so many, which is asked once, from its first
    /// sleep on.
    pub(crate) fn deadline(&mut self, limit: impl FnOnce() -> Option<u64>) -> Option<u64> {
        let began = self.began();
        *self.deadline.get_or_insert_with(|| limit().map(|ticks| began + ticks))
    }

    /// Whether any handler ends the call, SA_RESTART or not: one that has moved bytes, or has a
    /// time limit (signal(7)).
    pub(crate) fn end_by_any(&self) -> bool {
        self.moved || self.deadline.flatten().is_some()
    }

    /// When the first of them began, which may be now.
    pub(crate) fn began(&mut self) -> u64 {
        if self.began == 0 {
            self.began = ticks();
            (self.run, self.interrupting) = handlers_run();
        }
        self.began
    }

    #[inline(always)]
    pub(crate) fn are_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Whether signals are blocked between them; or are to be, if that is `wanted`.
    pub(crate) fn are_one(&self, wanted: bool) -> bool {
        self.blocked.is_some() || wanted && self.began != 0 && have_been_handled() && !self.is_moment()
    }

    fn is_moment(&self) -> bool {
        ticks() - self.began < ticks_of(MOMENT_NS)
    }

    /// Before a sleep that is to end after `part` for a look, while the program waits for `left`.
    /// How long to sleep; EINTR if a handler has run meanwhile ([`Sleeps::end_the_call`]). No time
    /// at all is a look, which no handler ends.
    pub(crate) fn part(&mut self, left: Option<u64>, part: Option<u64>) -> Result<Option<u64>, Errno> {
        self.began();
        if self.blocked.is_some() || !have_been_handled() || part == Some(0) {
            return Ok(part);
        }
        let first = self.is_moment();
        if !first {
            LONG.store(true, Ordering::Relaxed);
        }
        if !first || part != left && LONG.load(Ordering::Relaxed) {
            self.blocked = Some(Blocked::but(FAULTS));
        }
        if handlers_run().0 != self.run {
            return Err(Errno::EINTR);
        }
        if part != left && self.blocked.is_none() {
            return Ok(Some(part.unwrap_or(u64::MAX).min(MOMENT_NS)));
        }
        Ok(part)
    }

    /// After EINTR: whether the call ends with it, as a handler without SA_RESTART has run; else it
    /// goes on. Of handlers that are not counted (of faults, and in a guest) it is only known which
    /// kinds there are.
    pub(crate) fn end_the_call(&mut self) -> bool {
        let (run, interrupting) = handlers_run();
        if core::mem::replace(&mut self.run, run) == run || process::is_guest() {
            return !restarts();
        }
        interrupting != self.interrupting
    }

    /// The mask to sleep with: the program's, or its thread's; null where that is as it was. The
    /// kernel's has 64 bits.
    pub(crate) fn mask(&self, programs: *const libc::sigset_t) -> *const libc::sigset_t {
        match &self.blocked {
            Some(Blocked(before)) if programs.is_null() => core::ptr::from_ref(before).cast(),
            _ => programs,
        }
    }
}

/// Keeps the program's handlers out until dropped: what the kernel has done and what we note of it
/// go together, also for those who jump out of a handler. Only if the program has handlers: it
/// takes two calls.
pub fn undisturbed() -> Option<Blocked> {
    EVER.load(Ordering::Relaxed).then(Blocked::all)
}

/// Whether the program has ever had a handler.
pub(crate) fn have_been_handled() -> bool {
    EVER.load(Ordering::Relaxed)
}

/// A handler for `signal` was installed (`None`: removed), with these flags.
pub fn installed(signal: i32, flags: Option<i32>) {
    if !(1..=64).contains(&signal) {
        return;
    }
    let bit = 1u64 << (signal - 1);
    RESTART.fetch_and(!bit, Ordering::Relaxed);
    INTERRUPT.fetch_and(!bit, Ordering::Relaxed);
    if flags.is_some() {
        EVER.store(true, Ordering::Relaxed);
    }
    match flags {
        Some(flags) if flags & libc::SA_RESTART != 0 => RESTART.fetch_or(bit, Ordering::Relaxed),
        Some(_) => INTERRUPT.fetch_or(bit, Ordering::Relaxed),
        None => 0,
    };
}

/// Whether this thread may be in a signal handler: signals that have one are blocked.
pub fn may_be_in_handler() -> bool {
    let handled = RESTART.load(Ordering::Relaxed) | INTERRUPT.load(Ordering::Relaxed);
    handled != 0 && sys::blocked_signals() & handled != 0
        || process::is_guest() && sys::blocked_signals() != 0
}

/// After EINTR by a handler that is not counted: whether to go on waiting. With handlers of both
/// kinds the call is ended: programs that have any handler without SA_RESTART must cope with EINTR.
/// A guest does not hear of handlers, and those who call it cope with EINTR.
pub fn restarts() -> bool {
    INTERRUPT.load(Ordering::Relaxed) == 0 && !process::is_guest()
}
