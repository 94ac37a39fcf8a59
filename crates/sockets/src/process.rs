//! What the process knows of itself: its id, its options, whether promotion is on.

use core::cell::UnsafeCell;
use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys;
use options::{Options, PathMode};
use stream::spin::{begin, nanos_of, ticks, ticks_of};

use crate::reason::Reason;

struct Cell(UnsafeCell<Options>);
// SAFETY: written once by `set_options`, before STARTED is set; read only after.
unsafe impl Sync for Cell {}

static OPTIONS: Cell = Cell(UnsafeCell::new(Options::DEFAULT));
/// 0, then [`BEGUN`], then perhaps [`ENDED`].
static STARTED: AtomicU32 = AtomicU32::new(0);
const BEGUN: u32 = 1;
const ENDED: u32 = 2;
static PID: AtomicU32 = AtomicU32::new(0);
/// Or [`UNKNOWN`], until they are first needed: most processes have no connection.
static SPIN_TICKS: AtomicU64 = AtomicU64::new(UNKNOWN);
static GATHER_TICKS: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX;
/// Why nothing in this process is to be promoted: a [`Reason`], or 0.
static BARRED: AtomicU32 = AtomicU32::new(0);
static BARRED_FOR_NOW: AtomicU32 = AtomicU32::new(0);

/// Whether we are a guest: see [`is_guest`].
static GUEST: AtomicBool = AtomicBool::new(false);

/// Only those calls come to us that are meant for us (`native`); before [`start`].
pub fn be_guest() {
    GUEST.store(true, Ordering::Relaxed);
}

/// Whether the library was loaded (dlopen) by those who call it, and not preloaded: what the
/// program itself does with descriptors, signals and children does not come to us. In exchange,
/// connections are used by nobody but those who made them.
#[inline(always)]
pub fn is_guest() -> bool {
    GUEST.load(Ordering::Relaxed)
}

/// Changes the options, which have their defaults: once, before [`start`].
pub fn set_options(change: impl FnOnce(&mut Options)) -> &'static Options {
    // SAFETY: called once, from the library's constructor, before STARTED: nobody else reads them.
    unsafe { change(&mut *OPTIONS.0.get()) };
    options()
}

/// Begins. Before it every call goes straight to libc.
pub fn start() {
    PID.store(sys::getpid(), Ordering::Relaxed);
    begin();
    STARTED.store(BEGUN, Ordering::Release);
}

/// Whether the machine has one processor only, so that a peer cannot run while we spin. How many
/// this process may use says nothing: servers are pinned to one, and their peers to another (two on
/// the same one are found out while they run).
fn one_cpu() -> bool {
    let mut online = [0; 64];
    let read = sys::open(c"/sys/devices/system/cpu/online", libc::O_RDONLY, 0).and_then(|fd| {
        let read = sys::pread(fd, &mut online, 0);
        sys::close(fd);
        read
    });
    match read {
        // Like 0-3 or 0,2.
        Ok(len) => !online[..len].iter().any(|&byte| byte == b'-' || byte == b','),
        Err(_) => sys::cpus() <= 1,
    }
}

/// Whether connections are to be followed at all.
#[inline(always)]
pub fn active() -> bool {
    STARTED.load(Ordering::Acquire) == BEGUN && options().path == PathMode::Auto
}

/// Ends what `start` began: from now on every call goes straight to libc.
pub fn end() {
    STARTED.store(ENDED, Ordering::Release);
}

/// Whether that has been done: then not even a system call is left that the program does not make
/// itself.
pub fn ended() -> bool {
    STARTED.load(Ordering::Acquire) == ENDED
}

/// The options.
#[inline(always)]
pub fn options() -> &'static Options {
    // SAFETY: never written after `set_options`.
    unsafe { &*OPTIONS.0.get() }
}

/// How long to spin at most, in ticks.
#[inline(always)]
pub fn spin_ticks() -> u64 {
    known(&SPIN_TICKS, || if one_cpu() { 0 } else { ticks_of(options().spin_ns()) })
}

#[inline(always)]
fn known(ticks: &AtomicU64, find: impl FnOnce() -> u64) -> u64 {
    match ticks.load(Ordering::Relaxed) {
        UNKNOWN => found(ticks, find),
        known => known,
    }
}

#[cold]
fn found(ticks: &AtomicU64, find: impl FnOnce() -> u64) -> u64 {
    let found = find();
    ticks.store(found, Ordering::Relaxed);
    found
}

/// How long a stream of small messages is let gather (see `gather` in `io/recv.rs`), in ticks.
#[inline(always)]
pub fn gather_ticks() -> u64 {
    known(&GATHER_TICKS, || ticks_of(GATHER_NS))
}

const GATHER_NS: u64 = 500;

/// Whether the process uses a good part of a processor: more than a sixteenth, since the last time
/// that this was looked at.
pub fn busy() -> bool {
    let (now, looked) = (ticks(), LOOKED.load(Ordering::Relaxed));
    if now.wrapping_sub(looked) > ticks_of(BUSY_NS)
        && LOOKED.compare_exchange(looked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        let cpu = sys::cpu_time();
        // After fork() less than it was.
        let used = cpu.saturating_sub(CPU_TIME.swap(cpu, Ordering::Relaxed));
        BUSY.store(u32::from(looked != 0 && used > nanos_of(now - looked) / 16), Ordering::Relaxed);
    }
    BUSY.load(Ordering::Relaxed) != 0
}

/// When that was, in ticks; the processor time used by then; and what came out.
static LOOKED: AtomicU64 = AtomicU64::new(0);
static CPU_TIME: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU32 = AtomicU32::new(0);
const BUSY_NS: u64 = 100_000_000;

/// The process's id.
#[inline(always)]
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Whether we are in a child of vfork(), which shares our memory and must leave it alone.
pub fn borrowed() -> bool {
    sys::getpid() != pid()
}

/// In the child of fork().
pub fn forked() {
    sys::locking::forked();
    PID.store(sys::getpid(), Ordering::Relaxed);
}

/// Bars promotion in this process from now on.
pub fn bar(reason: Reason) {
    BARRED.store(reason as u32, Ordering::Relaxed);
}

/// Bars promotion until [`unbar`]: while a library is loaded that takes libc's functions before
/// ours.
pub fn bar_for_now() {
    BARRED_FOR_NOW.fetch_add(1, Ordering::AcqRel);
}

/// Ends what [`bar_for_now`] began.
pub fn unbar() {
    BARRED_FOR_NOW.fetch_sub(1, Ordering::AcqRel);
}

/// Why promotion is barred, if it is.
pub fn barred() -> Option<Reason> {
    let loading = BARRED_FOR_NOW.load(Ordering::Acquire) != 0;
    Reason::of(BARRED.load(Ordering::Relaxed)).or(loading.then_some(Reason::DeepBind))
}
