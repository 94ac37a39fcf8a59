//! What the process knows of itself: its id, its options, its bells, whether promotion is on.

use core::cell::UnsafeCell;
use fabric::bell::{self, Loud};
use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys;
use options::{Options, PathMode};
use stream::spin::{nanos_of, ticks, ticks_of};

use crate::descriptors::{hide, intact, made, unhide};
use crate::layout::{BELLS, CALL_BELL, QUEUES};

struct Cell(UnsafeCell<Options>);
// SAFETY: written once by `start`, before STARTED is set; read only after.
unsafe impl Sync for Cell {}

static OPTIONS: Cell = Cell(UnsafeCell::new(Options::DEFAULT));
/// 0, then [`BEGUN`], then perhaps [`ENDED`].
static STARTED: AtomicU32 = AtomicU32::new(0);
const BEGUN: u32 = 1;
const ENDED: u32 = 2;
static PID: AtomicU32 = AtomicU32::new(0);
static SPIN_TICKS: AtomicU64 = AtomicU64::new(0);
static GATHER_TICKS: AtomicU64 = AtomicU64::new(0);
static BELL: [AtomicU32; BELLS] = [const { AtomicU32::new(0) }; BELLS];
/// Those that other users ring, for event queues; what they are called.
static LOUD: [AtomicU32; QUEUES] = [const { AtomicU32::new(0) }; QUEUES];
static LOUD_NAME: AtomicU64 = AtomicU64::new(0);
static LOUD_WORD: AtomicU64 = AtomicU64::new(0);
static CALL_BELL_TAKEN: AtomicU32 = AtomicU32::new(0);
/// Why nothing in this process is to be promoted: a [`crate::reason::Reason`], or 0.
static BARRED: AtomicU32 = AtomicU32::new(0);

/// Whether we are a guest: see [`is_guest`].
static GUEST: AtomicBool = AtomicBool::new(false);

/// Only those calls come to us that are meant for us (`native`); before [`start`].
pub fn be_guest() {
    GUEST.store(true, Ordering::Relaxed);
}

/// Whether the library was loaded (dlopen) by those who call it, and not preloaded: what the program itself does with descriptors, signals
/// and children does not come to us. In exchange, connections are used by nobody but those who made them.
#[inline(always)]
pub fn is_guest() -> bool {
    GUEST.load(Ordering::Relaxed)
}

/// Begins, with the options. Before it every call goes straight to libc.
pub fn start(options: Options) {
    PID.store(sys::getpid(), Ordering::Relaxed);
    // SAFETY: called once, from the library's constructor, before STARTED.
    unsafe { *OPTIONS.0.get() = options };
    SPIN_TICKS.store(if one_cpu() { 0 } else { ticks_of(options.spin_ns()) }, Ordering::Relaxed);
    GATHER_TICKS.store(ticks_of(GATHER_NS), Ordering::Relaxed);
    STARTED.store(BEGUN, Ordering::Release);
}

/// Whether the machine has one processor only, so that a peer cannot run while we spin. How many this process may use says nothing:
/// servers are pinned to one, and their peers to another (two on the same one are found out while they run).
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

/// Whether that has been done: then not even a system call is left that the program does not make itself.
pub fn ended() -> bool {
    STARTED.load(Ordering::Acquire) == ENDED
}

/// The options.
#[inline(always)]
pub fn options() -> &'static Options {
    // SAFETY: never written after `start`.
    unsafe { &*OPTIONS.0.get() }
}

/// How long to spin at most, in ticks.
#[inline(always)]
pub fn spin_ticks() -> u64 {
    SPIN_TICKS.load(Ordering::Relaxed)
}

/// How long a stream of small messages is let gather (see `io::gather`), in ticks.
#[inline(always)]
pub fn gather_ticks() -> u64 {
    GATHER_TICKS.load(Ordering::Relaxed)
}

const GATHER_NS: u64 = 500;

/// Whether the process uses a good part of a processor: more than a sixteenth, since the last time that this was looked at.
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
    for bell in &BELL {
        // The parent sleeps on these.
        let bell = bell.swap(0, Ordering::Relaxed);
        if bell != 0 && is_guest() {
            unhide(bell as i32 - 1);
        }
    }
    forget_loud(true);
    CALL_BELL_TAKEN.store(0, Ordering::Relaxed);
}

fn forget_loud(close: bool) {
    LOUD_NAME.store(0, Ordering::Relaxed);
    for bell in &LOUD {
        let bell = bell.swap(0, Ordering::Relaxed);
        if bell != 0 && close {
            unhide(bell as i32 - 1);
        }
    }
}

/// Its bells are no more; who calls closes their descriptors.
pub(crate) fn renounce() {
    BELL.iter().for_each(|bell| bell.store(0, Ordering::Relaxed));
    forget_loud(false);
}

/// Bars promotion in this process from now on.
pub fn bar(reason: crate::reason::Reason) {
    BARRED.store(reason as u32, Ordering::Relaxed);
}

/// Bars promotion if the process has an io_uring already: one that was made by code that makes its system calls itself. Looked for
/// once, before the first connection is posted; a program that has one makes it early. No matter to a guest, whose connections nobody
/// gives to a ring.
pub fn look_for_rings() {
    if is_guest() || LOOKED_FOR_RINGS.swap(1, Ordering::Relaxed) != 0 {
        return;
    }
    crate::proc::each_descriptor("self", |fd| {
        let known = RINGS.iter().any(|ring| ring.load(Ordering::Relaxed) == fd as u32 + 1);
        let is_ring = fd < RING_NUMBERS
            && !known
            && crate::proc::target("self", fd, &mut [0; 32]) == b"anon_inode:[io_uring]";
        if is_ring {
            bar(crate::reason::Reason::IoUring);
        }
        is_ring || fd >= RING_NUMBERS
    });
}

/// A ring of which is known what is submitted to it. False if there are too many.
pub fn look_after_ring(fd: i32) -> bool {
    let free = |ring: &AtomicU32| {
        ring.compare_exchange(0, fd as u32 + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    RINGS.iter().any(free)
}

/// One of those has ended.
pub fn ring_ended(fd: i32) {
    for ring in &RINGS {
        let _ = ring.compare_exchange(fd as u32 + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The numbers of rings that are looked after, +1.
static RINGS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];
static LOOKED_FOR_RINGS: AtomicU32 = AtomicU32::new(0);
/// Rings have low numbers.
const RING_NUMBERS: i32 = 1024;

/// Whether promotion is barred: the reason's code or 0.
pub fn barred() -> u32 {
    BARRED.load(Ordering::Relaxed)
}

/// Whether peers of new links get our bells. A guest whose bells were closed has none from then on, and is woken by kicks: those who know the
/// old ones would not ring new ones.
pub fn has_bells() -> bool {
    let intact = |bell: u32| bell == 0 || intact(bell as i32 - 1);
    options().bells && BELL.iter().all(|bell| intact(bell.load(Ordering::Acquire)))
}

/// The bell with this number, made when first asked for; `None` without descriptors or with `bells` off.
pub fn bell_fd(index: usize) -> Option<i32> {
    if !options().bells {
        return None;
    }
    let known = BELL[index].load(Ordering::Acquire);
    if known != 0 {
        return Some(known as i32 - 1).filter(|&bell| intact(bell));
    }
    let fd = hide(made(bell::create).ok()?);
    match BELL[index].compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fd),
        Err(other) => {
            unhide(fd);
            Some(other as i32 - 1)
        }
    }
}

/// How other users ring; made when first asked for, under the lock on states.
pub fn loud() -> Option<Loud> {
    if !options().bells || is_guest() {
        return None;
    }
    if LOUD_NAME.load(Ordering::Acquire) == 0 {
        let loud = Loud::new()?;
        LOUD_WORD.store(loud.word, Ordering::Relaxed);
        LOUD_NAME.store(loud.name, Ordering::Release);
    }
    Some(Loud { name: LOUD_NAME.load(Ordering::Acquire), word: LOUD_WORD.load(Ordering::Relaxed) })
}

/// The bell of an event queue that other users ring, made when first asked for; `None` if there are no such users, or no descriptors.
pub fn loud_fd(queue: usize) -> Option<i32> {
    let name = LOUD_NAME.load(Ordering::Acquire);
    if name == 0 {
        return None;
    }
    let known = LOUD[queue].load(Ordering::Acquire);
    if known != 0 {
        return Some(known as i32 - 1);
    }
    let loud = Loud { name, word: LOUD_WORD.load(Ordering::Relaxed) };
    let fd = hide(made(|| loud.create(queue as u8)).ok()?);
    match LOUD[queue].compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fd),
        Err(other) => {
            unhide(fd);
            Some(other as i32 - 1)
        }
    }
}

/// Claims the bell of single calls, for one sleeper.
pub fn claim_bell() -> Option<i32> {
    let fd = bell_fd(CALL_BELL)?;
    CALL_BELL_TAKEN.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).ok()?;
    Some(fd)
}

/// Gives it back.
pub fn release_bell() {
    CALL_BELL_TAKEN.store(0, Ordering::Release);
}
