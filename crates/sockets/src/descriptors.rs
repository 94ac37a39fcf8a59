//! Descriptors of our own, kept out of the program's way: it counts on getting the lowest number
//! that is free, and on getting all numbers below its limit (RLIMIT_NOFILE).
//!
//! Under a large limit ours lie in its upper part, where no program gets to. Under a small one they
//! lie above it: the soft limit is raised for the moment in which a number is given out, never
//! above the hard one. During that moment (some microseconds, when the process meets a new peer)
//! other threads of the program can see the raised limit; one that runs out of numbers right then
//! gets a high one instead of EMFILE, and a child made right then by vfork() or posix_spawn() keeps
//! the raised limit. fork() waits for the moment to pass. Where the hard limit leaves no room, ours
//! are the highest numbers that are free; with none free nothing of ours can be made, and
//! connections stay on tcp.

use fabric::lock::Lock;
use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use fabric::words::bits;

use crate::signals::Blocked;
use crate::table::{self, Entry};
use crate::{errno, process, thread};

/// Limits from here on are large.
const LARGE: u64 = 4096;
/// Under a large limit, ours begin below this, so that the kernel's table does not grow for them.
const HIGH: u64 = 8192;
/// Under a small limit, ours begin here if the hard limit allows: a program may raise its soft
/// limit to the usual 1024 later.
const USUAL: u64 = 1024;
/// How many numbers above the soft limit are ours, at most: for each link its socket and the peer's
/// bells.
const ROOM: u64 = (crate::layout::LINKS * (1 + crate::layout::BELLS)) as u64;

/// Held while the limit is raised. A leaf: nothing is locked under it.
static RAISING: Lock = Lock::unlocked();
/// While it is raised: where our numbers begin. 0 if it is not.
static FLOOR: AtomicU32 = AtomicU32::new(0);

/// Makes something that takes a descriptor, if need be by a number above the limit, to be hidden or
/// closed by the caller.
pub fn made<T>(make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EMFILE) => {
            let _raised = Raised::new();
            make()
        }
        result => result,
    }
}

/// Moves a descriptor of our own out of the program's way (lowest-fd order, rule S2) and marks it
/// as ours.
pub fn hide(fd: i32) -> i32 {
    let moved = match moved(fd) {
        Some(moved) => {
            sys::close(fd);
            moved
        }
        None => fd,
    };
    note(moved);
    moved
}

fn note(fd: i32) {
    table::own(fd, if process::is_guest() { sys::identity(fd) } else { 0 });
}

/// Marks as ours one that must never be closed: it stays where it is.
pub fn hide_unclosed(fd: i32) {
    // What it is it is not asked: who has passed it may let that take as long as it pleases.
    table::own(fd, 0);
    keep_from_closing(fd);
}

/// Closes a descriptor of our own.
pub fn unhide(fd: i32) {
    let intact = intact(fd);
    table::swap(fd, Entry::None);
    if intact {
        sys::close(fd);
    }
}

/// Whether a descriptor of our own is still what it was. The hooks keep programs from closing ours;
/// where we are a guest, one that closes all its descriptors (a daemon, by os.closerange()) closes
/// ours as well, and may get their numbers for files of its own. To be asked before anything is
/// written to one, read from it, or passed on.
pub fn intact(fd: i32) -> bool {
    !process::is_guest() || table::is_own_as(fd, sys::identity(fd))
}

/// How many threads of ours are in the middle of opening something, and how many of the program's
/// in the middle of closing; whether the latter are counted.
static OPENING: AtomicU32 = AtomicU32::new(0);
static CLOSING: AtomicU32 = AtomicU32::new(0);
static COUNTED: AtomicBool = AtomicBool::new(false);

/// There may be a thread of ours: from now on, before the program has threads, closing is counted.
pub fn count_closing() {
    COUNTED.store(true, Ordering::Relaxed);
}

/// While it lives, a thread of ours has numbers that are not out of the program's way yet: those of
/// files that the dynamic linker and libc open by themselves, and each new one until it is hidden.
/// A program that closes a number twice, which is harmless as long as nobody else opens anything,
/// would close one of these, and get it for a file of its own that we would close then. So nothing
/// is closed meanwhile ([`Closing`]).
pub struct Opening(());

impl Opening {
    pub fn begin() -> Opening {
        OPENING.fetch_add(1, Ordering::SeqCst);
        let start = sys::now();
        // close() may take long (SO_LINGER).
        while CLOSING.load(Ordering::SeqCst) != 0 && sys::now() - start < CLOSING_NS {
            sys::yield_now();
        }
        Opening(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::AcqRel);
    }
}

const CLOSING_NS: u64 = 20_000_000;

/// While it lives, the program closes a number. As a rule that takes no system call of ours: one
/// that has locked itself in may not make any.
pub struct Closing(bool);

impl Closing {
    #[inline]
    pub fn begin() -> Closing {
        let counted = COUNTED.load(Ordering::Relaxed) && !thread::is_ours();
        if counted {
            await_opening();
        }
        Closing(counted)
    }
}

impl Drop for Closing {
    #[inline]
    fn drop(&mut self) {
        if self.0 {
            CLOSING.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Counts this thread among those that close, when no thread of ours opens anything any more. Does
/// not wait for ever: the caller may have what the other thread waits for.
#[cold]
fn await_opening() {
    let mut start = None;
    loop {
        CLOSING.fetch_add(1, Ordering::SeqCst);
        if OPENING.load(Ordering::SeqCst) == 0 {
            return;
        }
        let began = *start.get_or_insert_with(sys::now);
        if sys::now() - began > OPENING_NS {
            return;
        }
        CLOSING.fetch_sub(1, Ordering::AcqRel);
        let _ = sys::ppoll(&mut [], Some(200_000));
    }
}

const OPENING_NS: u64 = 3_000_000_000;

/// Makes a descriptor for a library that a thread of ours has opened, by a function of libc's, out
/// of the program's way as our own are. Such a library keeps the numbers of its descriptors, so
/// they must stay what they are: under a limit of the program's that goes up to them later it finds
/// these numbers taken.
pub fn for_library(make: impl Fn() -> i32) -> i32 {
    let _opening = Opening::begin();
    let made = made(|| match make() {
        fd if fd >= 0 => Ok(fd),
        _ => Err(Errno::new(errno::get())),
    });
    let Ok(fd) = made else { return -1 };
    of_library(fd)
}

/// As [`for_library`], of one that was made just now.
pub fn of_library(fd: i32) -> i32 {
    // It was to be inherited, as most such libraries do not think of programs that execute others.
    let _ = sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    let fd = hide(fd);
    keep_from_closing(fd);
    fd
}

fn keep_from_closing(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Ordering::AcqRel);
    }
}

/// A library closes one.
pub fn library_closes(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Ordering::AcqRel);
    }
    unhide(fd);
}

/// Those of libraries, which a child of fork() closes: they are of no use to it, and what they lead
/// to would not end with its parent.
static OF_LIBRARIES: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

pub(crate) fn is_of_library(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
}

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OF_LIBRARIES.get(fd / 64)?, 1 << (fd % 64)))
}

/// A descriptor of our own, hidden, and closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Hidden(i32);

impl Hidden {
    /// Hides a descriptor ([`hide`]).
    pub(crate) fn new(fd: i32) -> Hidden {
        Hidden(hide(fd))
    }

    /// One that is hidden already.
    pub(crate) fn of(fd: i32) -> Hidden {
        Hidden(fd)
    }

    pub(crate) fn fd(&self) -> i32 {
        self.0
    }

    /// Leaves it open.
    pub(crate) fn keep(self) -> i32 {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        unhide(self.0);
    }
}

/// A place for a descriptor of our own that is kept. Zeroed memory is an empty one.
#[derive(Debug, Default)]
pub struct Kept(AtomicU32);

impl Kept {
    /// An empty place.
    pub const fn new() -> Kept {
        Kept(AtomicU32::new(0))
    }

    /// The descriptor, if there is one.
    pub fn get(&self) -> Option<i32> {
        self.0.load(Ordering::Acquire).checked_sub(1).map(|fd| fd as i32)
    }

    /// The descriptor, made if there is none. Of several threads that make one, one's is kept.
    pub fn get_or_make(&self, make: impl Fn() -> Result<i32, Errno>) -> Result<i32, Errno> {
        if let Some(fd) = self.get() {
            return Ok(fd);
        }
        let fd = hide(made(make)?);
        match self.0.compare_exchange(0, fd as u32 + 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(fd),
            Err(other) => {
                unhide(fd);
                Ok(other as i32 - 1)
            }
        }
    }

    /// Keeps a descriptor that is hidden already.
    pub fn set(&self, fd: i32) {
        self.0.store(fd as u32 + 1, Ordering::Release);
    }

    /// Gives it to who calls.
    pub(crate) fn take(&self) -> Option<Hidden> {
        self.0.swap(0, Ordering::AcqRel).checked_sub(1).map(|fd| Hidden(fd as i32))
    }

    /// Keeps it no longer, and leaves it open.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// Keeps it no longer, and closes it.
    pub fn close(&self) {
        if let Some(fd) = self.0.swap(0, Ordering::AcqRel).checked_sub(1) {
            unhide(fd as i32);
        }
    }

    /// As [`Kept::close`], unless it is another one by now.
    pub fn close_this(&self, fd: i32) {
        if self.0.compare_exchange(fd as u32 + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            unhide(fd);
        }
    }
}

/// A copy of `fd` where ours belong; `None` if `fd` may as well stay.
fn moved(fd: i32) -> Option<i32> {
    let raised = Raised::new();
    let copy = |from: u64| sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, from as usize);
    if raised.floor != 0 {
        if fd as u64 >= raised.floor {
            return None;
        }
        if let Ok(moved) = copy(raised.floor) {
            return Some(moved);
        }
    }
    drop(raised);
    let soft = sys::nofile_limit().rlim_cur.min(HIGH);
    let from = soft - soft / 4;
    if soft >= LARGE {
        return copy(from).ok();
    }
    // The highest that is free.
    (from.max(fd as u64 + 1)..soft)
        .rev()
        .filter(|&number| !table::is_own(number as i32))
        .find_map(|number| copy(number).ok())
}

/// The soft limit, raised if it is small and the hard limit allows it; put back when dropped.
pub(crate) struct Raised {
    /// Where our numbers begin; 0 if the limit has not been raised.
    floor: u64,
    /// What is to be put back, and what it was raised to.
    limits: Option<(libc::rlimit, libc::rlimit)>,
    /// If it is this one's. A handler that jumped away would leave the limit raised.
    locked: Option<Blocked>,
}

impl Raised {
    pub(crate) fn new() -> Raised {
        let blocked = Blocked::all();
        if !RAISING.lock(thread::tid()) {
            // Inside another one of this thread.
            return Raised { floor: FLOOR.load(Ordering::Relaxed).into(), limits: None, locked: None };
        }
        let (floor, limits) = raise().unzip();
        let floor = floor.unwrap_or(0);
        FLOOR.store(floor as u32, Ordering::Relaxed);
        Raised { floor, limits, locked: Some(blocked) }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some((limit, raised)) = self.limits {
            put_back(limit, raised);
        }
        if self.locked.is_some() {
            FLOOR.store(0, Ordering::Relaxed);
            RAISING.unlock();
        }
    }
}

/// Raises the soft limit: where our numbers begin, the limits before, and now.
fn raise() -> Option<(u64, (libc::rlimit, libc::rlimit))> {
    let seen = sys::nofile_limit();
    let (soft, hard) = (seen.rlim_cur, seen.rlim_max);
    if soft >= LARGE || hard <= soft {
        return None;
    }
    let floor = soft.max(USUAL.min(hard - hard / 4));
    let raised = libc::rlimit { rlim_cur: hard.min(floor + ROOM), rlim_max: hard };
    // Another thread of the program may have set it since: what is put back is what was there.
    let was = sys::swap_nofile_limit(raised).ok()?;
    Some((floor, (was, raised)))
}

/// Puts the limit back, unless another thread of the program has set it meanwhile: then that one
/// stands.
fn put_back(limit: libc::rlimit, raised: libc::rlimit) {
    if let Ok(found) = sys::swap_nofile_limit(limit)
        && (found.rlim_cur, found.rlim_max) != (raised.rlim_cur, raised.rlim_max)
    {
        let _ = sys::swap_nofile_limit(found);
    }
}

/// Before fork(): no limit is raised until [`thaw`], so that no child begins with one. False if
/// this thread has raised it.
pub fn freeze() -> bool {
    RAISING.lock(thread::tid())
}

/// After fork(), in the parent.
pub fn thaw() {
    RAISING.unlock();
}

/// In the child of fork().
pub fn forked() {
    RAISING.reset();
    FLOOR.store(0, Ordering::Relaxed);
    OPENING.store(0, Ordering::Relaxed);
    CLOSING.store(0, Ordering::Relaxed);
    for (index, word) in OF_LIBRARIES.iter().enumerate() {
        bits(word.swap(0, Ordering::AcqRel)).for_each(|bit| unhide((index * 64 + bit) as i32));
    }
}
