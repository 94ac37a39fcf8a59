//! The folder where processes of several network namespaces of this host meet: abstract sockets
//! belong to one namespace, and files that both see do not. Each process has sockets in it, named
//! by a *token*: one for letters, a listener, and bells.
//!
//! Whoever is root in a container that has the folder can remove any socket, and put its own in the
//! place. So a socket is known by its file, too ([`Name`]): who makes one makes sure that its path
//! leads to it, and who goes to another's looks at the file first, and goes to that, by
//! `/proc/self/fd`.
//!
//! No socket of ours is passed to anybody there: it would be one of our network namespace. And
//! nobody can pass us a descriptor by letter, or before we know who it is: the last close of one
//! may take as long as it pleases who has sent it. A kernel that cannot keep descriptors out of a
//! socket (SO_PASSRIGHTS, Linux 6.16) has no meeting place.

use core::ffi::CStr;

use fabric::bell::Loud;
use fabric::lock::Lock;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use stream::spin::{ticks, ticks_of};

use crate::descriptors::{self, Hidden, Kept};
use crate::layout::BELLS;
use crate::{proc, process, signals, thread};

/// Names a process's socket there to others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Name {
    pub token: u64,
    /// The identity of the file ([`sys::identity`]).
    pub file: u64,
}

/// Which of a process's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    Letters,
    Links,
    Bell(u8),
}

impl Spot {
    /// What its path ends with.
    fn ending(self) -> u8 {
        match self {
            Spot::Letters => b'l',
            Spot::Links => b'k',
            Spot::Bell(number) => b'A' + number,
        }
    }

    fn kind(self) -> i32 {
        if self == Spot::Links { libc::SOCK_SEQPACKET } else { libc::SOCK_DGRAM }
    }
}

// Endings differ.
const _: () = assert!(BELLS <= 32);

/// Whether the folder is there: not known, no, yes.
static FOLDER: AtomicU32 = AtomicU32::new(0);
const NO: u32 = 1;
const YES: u32 = 2;

static TOKEN: AtomicU64 = AtomicU64::new(0);

/// Our own sockets, and the identities of their files.
static SPOTS: [(Kept, AtomicU64); 2 + BELLS] = [const { (Kept::new(), AtomicU64::new(0)) }; 2 + BELLS];

/// One thread makes one at a time, with its signals kept out, whose handlers may jump away.
static MAKING: Lock = Lock::unlocked();

/// What could not be made is not tried again before this time, in ticks, for each.
static NOT_BEFORE: [AtomicU64; 2 + BELLS] = [const { AtomicU64::new(0) }; 2 + BELLS];
const AGAIN_NS: u64 = 1_000_000_000;

/// Whether there is a meeting place.
pub fn is_open() -> bool {
    if !process::active() || process::ended() {
        return false;
    }
    match FOLDER.load(Ordering::Relaxed) {
        0 => look_for_folder(),
        known => known == YES,
    }
}

#[cold]
fn look_for_folder() -> bool {
    let folder = sys::open(process::options().meeting.as_c_str(), libc::O_PATH | libc::O_DIRECTORY, 0);
    let known = match folder {
        Ok(folder) => {
            sys::close(folder);
            YES
        }
        // It may be there: whoever asks next looks again.
        Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::EINTR) => return false,
        Err(_) => NO,
    };
    FOLDER.store(known, Ordering::Relaxed);
    known == YES
}

/// The path of a socket.
struct Path([u8; PATH]);

/// What a socket's address has room for.
const PATH: usize = 108;
/// Of a name: a token's digits and an ending.
const NAME: usize = 17;

impl Path {
    fn of(token: u64, spot: Spot) -> Option<Path> {
        let digits = (0..16).map(|digit| b"0123456789abcdef"[(token >> (60 - 4 * digit)) as usize & 15]);
        Path::named(digits.chain([spot.ending()]))
    }

    fn named(name: impl Iterator<Item = u8>) -> Option<Path> {
        let folder = process::options().meeting.as_bytes();
        let mut path = [0; PATH];
        if folder.len() + 1 + NAME >= PATH {
            return None;
        }
        for (place, byte) in path.iter_mut().zip(folder.iter().copied().chain([b'/']).chain(name)) {
            *place = byte;
        }
        Some(Path(path))
    }

    fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    fn address(&self) -> (libc::sockaddr_un, u32) {
        sys::unix_address(self.as_c_str().to_bytes().iter().copied())
    }

    fn file(&self) -> Option<File> {
        let path = || sys::open(self.as_c_str(), libc::O_PATH | libc::O_NOFOLLOW, 0);
        let file = Hidden::new(descriptors::made(path).ok()?);
        let identity = sys::identity(file.fd());
        (identity != 0).then_some(File { file, identity })
    }
}

/// A socket's file that has been looked at: what is done with it is done with that, whatever its
/// path leads to by now.
struct File {
    file: Hidden,
    identity: u64,
}

impl File {
    fn path(&self) -> Path {
        let number = self.file.fd() as u64;
        let digits = (0..10).rev().map(|digit| (number / 10u64.pow(digit) % 10) as u8);
        let digits = digits.skip_while(|&digit| digit == 0).map(|digit| b'0' + digit);
        let mut path = [0; PATH];
        for (place, byte) in path.iter_mut().zip(b"/proc/self/fd/".iter().copied().chain(digits)) {
            *place = byte;
        }
        Path(path)
    }

    fn connect(&self, kind: i32) -> Result<Hidden, Errno> {
        let socket = socket(kind)?;
        let (address, len) = self.path().address();
        sys::connect(socket.fd(), (&raw const address).cast(), len).map(|()| socket)
    }
}

/// One that takes no descriptors in.
fn socket(kind: i32) -> Result<Hidden, Errno> {
    let kind = kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = Hidden::new(descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0))?);
    if keep_descriptors_out(socket.fd()) {
        return Ok(socket);
    }
    FOLDER.store(NO, Ordering::Relaxed);
    Err(Errno::ENOPROTOOPT)
}

fn index(spot: Spot) -> usize {
    match spot {
        Spot::Letters => 0,
        Spot::Links => 1,
        Spot::Bell(number) => 2 + usize::from(number) % BELLS,
    }
}

fn place(spot: Spot) -> &'static (Kept, AtomicU64) {
    &SPOTS[index(spot)]
}

/// A socket of ours, made if need be, and its name. A bell hears this `word`.
pub(crate) fn own(spot: Spot, word: Option<u64>) -> Option<(i32, Name)> {
    let not_before = &NOT_BEFORE[index(spot)];
    let may_be_made = || is_open() && ticks() >= not_before.load(Ordering::Relaxed);
    let making = (known(spot).is_none() && may_be_made()).then(signals::undisturbed);
    if making.is_some() && MAKING.try_lock(thread::tid()) {
        if known(spot).is_none() && make(spot, word).is_none() {
            not_before.store(ticks() + ticks_of(AGAIN_NS), Ordering::Relaxed);
        }
        MAKING.unlock();
    }
    known(spot)
}

/// The same, if it is made.
pub(crate) fn known(spot: Spot) -> Option<(i32, Name)> {
    let (kept, file) = place(spot);
    let token = TOKEN.load(Ordering::Acquire);
    let socket = kept.get().filter(|&socket| token != 0 && descriptors::intact(socket))?;
    Some((socket, Name { token, file: file.load(Ordering::Relaxed) }))
}

/// One of ours is of no use.
pub(crate) fn give_up(spot: Spot) {
    let (kept, _) = place(spot);
    NOT_BEFORE[index(spot)].store(u64::MAX, Ordering::Relaxed);
    kept.close();
}

fn token() -> Option<u64> {
    if TOKEN.load(Ordering::Acquire) == 0 {
        tidy();
        let _ = TOKEN.compare_exchange(0, sys::try_random()? | 1, Ordering::AcqRel, Ordering::Acquire);
    }
    Some(TOKEN.load(Ordering::Acquire))
}

#[cold]
fn make(spot: Spot, word: Option<u64>) -> Option<()> {
    let path = Path::of(token()?, spot)?;
    // What a name of ours leads to that is not ours any more.
    let _ = sys::unlink(path.as_c_str());
    let made = socket(spot.kind()).ok()?;
    let (address, len) = path.address();
    sys::bind(made.fd(), (&raw const address).cast(), len).ok()?;
    let file = listens(&path, spot, &made, word);
    if file.is_none() {
        let _ = sys::unlink(path.as_c_str());
    }
    let (kept, identity) = place(spot);
    identity.store(file?, Ordering::Relaxed);
    kept.set(made.keep());
    Some(())
}

/// Has a socket that is bound take in what it is for, if its path leads to it: the identity of its
/// file.
fn listens(path: &Path, spot: Spot, made: &Hidden, word: Option<u64>) -> Option<u64> {
    if spot == Spot::Links {
        sys::listen(made.fd(), 64).ok()?;
    }
    let file = path.file().filter(|file| leads_to(file, spot, made.fd()))?;
    if let Some(word) = word {
        Loud { name: 0, word }.hear_only_the_word(made.fd()).ok()?;
    }
    // Whoever has no part in a connection has nothing to say here that is believed.
    sys::chmod(file.path().as_c_str(), 0o666).ok()?;
    Some(file.identity)
}

/// Nobody can pass a descriptor by this socket any more. False if the kernel does not know that.
pub(crate) fn keep_descriptors_out(socket: i32) -> bool {
    sys::setsockopt(socket, libc::SOL_SOCKET, sys::SO_PASSRIGHTS, 0).is_ok()
}

/// Who is at the other end is known: descriptors may be passed.
pub(crate) fn let_descriptors_in(socket: i32) -> bool {
    sys::setsockopt(socket, libc::SOL_SOCKET, sys::SO_PASSRIGHTS, 1).is_ok()
}

/// Whether a file is that of this socket, which has just been made.
fn leads_to(file: &File, spot: Spot, made: i32) -> bool {
    let Ok(socket) = file.connect(spot.kind()) else { return false };
    if spot == Spot::Links {
        // Who has connected to another one is not there to be accepted.
        let accepted = sys::accept(made, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        let Ok(other) = accepted.map(Hidden::new) else { return false };
        // As its listener does, it keeps descriptors out.
        let kept_out = sys::getsockopt::<i32>(other.fd(), libc::SOL_SOCKET, sys::SO_PASSRIGHTS) == Ok(0);
        return kept_out && says(socket.fd(), other.fd());
    }
    says(socket.fd(), made)
}

/// Whether what is said to one comes at the other.
fn says(one: i32, other: i32) -> bool {
    let Some(word) = sys::try_random() else { return false };
    let (sent, mut come) = (word.to_ne_bytes(), [0; 8]);
    sys::send(one, sent.as_ptr(), sent.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) == Ok(8)
        && sys::recv_some(other, &mut come, libc::MSG_DONTWAIT) == Ok(8)
        && come == sent
}

/// A socket of this process that is connected to one of another process, whose identity `is_it`,
/// and that identity.
pub(crate) fn reach(token: u64, spot: Spot, is_it: impl Fn(u64) -> bool) -> Option<(Hidden, u64)> {
    let file = Path::of(token, spot)?.file().filter(|file| is_it(file.identity))?;
    let socket = file.connect(spot.kind()).ok()?;
    Some((socket, file.identity))
}

/// Removes sockets of processes that were killed, as far as they are ours to remove. Each process
/// looks at some, wherever these are among many.
fn tidy() {
    let folder = process::options().meeting.as_c_str();
    let (mut names, mut seen) = (0, 0);
    proc::each_name(folder, |_, _| {
        names += 1;
        names >= COUNTED
    });
    let from = sys::try_random().unwrap_or(0) as usize % names.saturating_sub(TIDIED).max(1);
    proc::each_name(folder, |_, name| {
        seen += 1;
        if seen > from {
            remove_if_over(name.to_bytes());
        }
        seen >= from + TIDIED
    });
}

/// So many names are counted, and looked at, by each process.
const COUNTED: usize = 1024;
const TIDIED: usize = 8;

fn remove_if_over(name: &[u8]) {
    let path = Path::named(name.iter().copied()).filter(|_| name.len() == NAME);
    let Some((path, file)) = path.and_then(|path| path.file().map(|file| (path, file))) else { return };
    // To a listener that lives this is a socket of the wrong kind.
    if file.connect(libc::SOCK_DGRAM).err() == Some(Errno::ECONNREFUSED) {
        let _ = sys::unlink(path.as_c_str());
    }
}

/// How the sockets are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// The process ends.
    Closed,
    /// It gets other rights: who calls closes them.
    Open,
    /// It becomes another one, which may fail: only their files go.
    InUse,
}

/// The process's sockets go.
pub fn leave(how: Leave) {
    let token = match how {
        Leave::InUse => TOKEN.load(Ordering::Acquire),
        _ => TOKEN.swap(0, Ordering::AcqRel),
    };
    if token == 0 {
        return;
    }
    let bells = (0..BELLS as u8).map(Spot::Bell);
    for spot in [Spot::Letters, Spot::Links].into_iter().chain(bells) {
        let (kept, identity) = place(spot);
        if kept.get().is_none() {
            continue;
        }
        match how {
            Leave::Closed => kept.close(),
            Leave::Open => kept.forget(),
            Leave::InUse => {}
        }
        let path = Path::of(token, spot);
        let ours =
            |path: &Path| path.file().is_some_and(|file| file.identity == identity.load(Ordering::Relaxed));
        if let Some(path) = path.filter(ours) {
            let _ = sys::unlink(path.as_c_str());
        }
    }
}

/// It has not become another one: to be found again it makes sockets anew. Bells are with those who
/// have them.
pub(crate) fn stay() {
    [Spot::Letters, Spot::Links].into_iter().for_each(|spot| place(spot).0.close());
}

/// In the child of fork(): they are its parent's.
pub(crate) fn forked() {
    MAKING.reset();
    TOKEN.store(0, Ordering::Relaxed);
    NOT_BEFORE.iter().for_each(|time| time.store(0, Ordering::Relaxed));
    SPOTS.iter().for_each(|(kept, _)| kept.close());
}
