//! The board: a file of hints about who holds which end of a connection, keyed by network namespace
//! and 4-tuple. It is read and written with pread and pwrite and never mapped, so that nobody can
//! kill us by truncating it; an entry that is damaged, stale or a lie costs a promotion and nothing
//! else, because every pairing is proved by the kernel afterwards. It needs no lock: two posters
//! that hit the same place lose one hint, and post again.

use fabric::Plain;
use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use host::addr::Addr;
use options::Options;

use crate::descriptors::{Kept, intact};
use crate::process;
use crate::reason::Reason;

/// One posted end.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Post {
    magic: u32,
    check: u32,
    /// Hash of (network namespace, own address, peer's address).
    pub key: u64,
    /// Names the process's rendezvous socket.
    pub token: u64,
    pub cookie: u64,
    pub pid: u32,
    pub index: u32,
    /// When it was posted, in milliseconds since boot, without those above 2^32.
    pub time: u32,
    unused: [u32; 3],
}

// SAFETY: integers; those of 32 bits before and after the others are an even number.
unsafe impl Plain for Post {}

const MAGIC: u32 = 0x5342_0001;
const ENTRY: usize = size_of::<Post>();
const WAYS: usize = 16;
const BUCKETS: u64 = 8192;
/// "SHUNTBD" and the version.
const HEADER: [u8; 8] = *b"SHUNTBD\x01";
const FIRST: u64 = 4096;

static BOARD: Kept = Kept::new();
/// It could not be opened, and is not tried again.
static UNUSABLE: AtomicBool = AtomicBool::new(false);
/// How often we were not let in, and how often we ask again, each time after some more calls.
static REFUSED: AtomicU32 = AtomicU32::new(0);
const MOST_REFUSED: u32 = 16;
static NETNS: AtomicU64 = AtomicU64::new(0);

impl Post {
    /// A post of this process.
    pub fn new(key: u64, token: u64, cookie: u64, index: u32) -> Post {
        let time = now();
        let post =
            Post { magic: MAGIC, key, token, cookie, pid: process::pid(), index, time, ..Post::default() };
        Post { check: post.sum(), ..post }
    }

    fn sum(&self) -> u32 {
        let mut sum = mix(self.key ^ mix(self.token) ^ mix(self.cookie.rotate_left(17)));
        sum = mix(sum ^ u64::from(self.pid) << 32 ^ u64::from(self.index));
        (sum ^ sum >> 32) as u32 ^ self.time
    }

    /// A post in the first bytes of a place on the board; `None` if it is empty, damaged or another
    /// version's.
    pub fn parse(bytes: &[u8]) -> Option<Post> {
        Post::of(bytes).filter(|post| post.magic == MAGIC && post.check == post.sum())
    }
}

/// [`Post::time`] of what is posted now.
pub fn now() -> u32 {
    (sys::now() / 1_000_000) as u32
}

/// The key of the end whose own address is `own`.
pub fn key(own: Addr, peer: Addr) -> u64 {
    let ports = u64::from(own.port) << 16 | u64::from(peer.port);
    let parts = own.halves().into_iter().chain(peer.halves()).chain([ports]);
    parts.fold(mix(netns()), |sum, part| mix(sum ^ part))
}

/// Posts an end and looks for the other: (where it is posted, the other end's post). The board is
/// written before it is read, so of two ends at least the second finds the first.
pub fn post(post: &Post, other: u64) -> Result<(u64, Option<Post>), Reason> {
    let board = board()?;
    let at = FIRST + (post.key ^ other) % BUCKETS * (WAYS * ENTRY) as u64;
    let mut bucket = [0; WAYS * ENTRY];
    read(board, &mut bucket, at)?;
    // Where it stands already, else a free one, else the oldest.
    let way = (0..WAYS).min_by_key(|way| match Post::parse(&bucket[way * ENTRY..]) {
        Some(known) if known.key == post.key => (0, 0),
        None => (1, 0),
        Some(known) => (2, known.time),
    });
    let place = at + (way.unwrap_or(0) * ENTRY) as u64;
    sys::pwrite(board, post.bytes(), place).map_err(|_| Reason::NoBoard)?;
    read(board, &mut bucket, at)?;
    Ok((place, find(&bucket, other)))
}

/// Looks for the other end of a posted one.
pub fn look(key: u64, other: u64) -> Result<Option<Post>, Reason> {
    let board = board()?;
    let mut bucket = [0; WAYS * ENTRY];
    read(board, &mut bucket, FIRST + (key ^ other) % BUCKETS * (WAYS * ENTRY) as u64)?;
    Ok(find(&bucket, other))
}

/// Posts an end by a key that others may have, too, and that is not known by addresses: where.
pub fn post_by(post: &Post) -> Result<u64, Reason> {
    let board = board()?;
    let at = bucket_of(post.key);
    let mut bucket = [0; WAYS * ENTRY];
    read(board, &mut bucket, at)?;
    let way = (0..WAYS).min_by_key(|way| match Post::parse(&bucket[way * ENTRY..]) {
        None => (0, 0),
        Some(known) => (1, known.time),
    });
    let place = at + (way.unwrap_or(0) * ENTRY) as u64;
    sys::pwrite(board, post.bytes(), place).map_err(|_| Reason::NoBoard)?;
    Ok(place)
}

/// The posts by such a key.
pub fn look_by(key: u64, mut each: impl FnMut(&Post)) -> Result<(), Reason> {
    let mut bucket = [0; WAYS * ENTRY];
    read(board()?, &mut bucket, bucket_of(key))?;
    bucket
        .chunks_exact(ENTRY)
        .filter_map(Post::parse)
        .filter(|post| post.key == key)
        .for_each(|post| each(&post));
    Ok(())
}

fn bucket_of(key: u64) -> u64 {
    FIRST + key % BUCKETS * (WAYS * ENTRY) as u64
}

/// The key of the end that was accepted by a SYN with this time stamp, from this port, or, 0, from
/// any.
pub fn key_of_stamp(stamp: u32, port: u16) -> u64 {
    mix(mix(u64::from_be_bytes(*b"SYNstamp")) ^ u64::from(port) << 32 ^ u64::from(stamp))
}

/// Takes a post down, if it still stands at `place`.
pub fn remove(place: u64, key: u64) {
    let Ok(board) = board() else { return };
    let mut entry = [0; ENTRY];
    if read(board, &mut entry, place).is_ok() && Post::parse(&entry).is_some_and(|post| post.key == key) {
        let _ = sys::pwrite(board, &[0; ENTRY], place);
    }
}

/// The post with this key among those of a bucket.
pub fn find(bucket: &[u8], key: u64) -> Option<Post> {
    bucket.chunks_exact(ENTRY).filter_map(Post::parse).find(|post| post.key == key)
}

/// Reads; what the file does not have reads as nothing posted.
fn read(board: i32, buffer: &mut [u8], at: u64) -> Result<(), Reason> {
    let got = sys::pread(board, buffer, at).map_err(|_| Reason::NoBoard)?;
    buffer[got..].fill(0);
    Ok(())
}

/// Whether there is a board. [`Reason::Busy`]: not yet, perhaps.
pub fn look_for_board() -> Result<(), Reason> {
    if BOARD.get().is_none() { board().map(drop) } else { Ok(()) }
}

fn board() -> Result<i32, Reason> {
    match BOARD.get() {
        Some(board) if intact(board) => return Ok(board),
        Some(lost) => BOARD.close_this(lost),
        None if UNUSABLE.load(Ordering::Relaxed) => return Err(Reason::NoBoard),
        None => {}
    }
    BOARD.get_or_make(open).map_err(|errno| {
        // Another user who is just making it has not let others in yet.
        if errno == Errno::EACCES && REFUSED.fetch_add(1, Ordering::Relaxed) < MOST_REFUSED {
            return Reason::Busy;
        }
        UNUSABLE.store(true, Ordering::Relaxed);
        Reason::NoBoard
    })
}

/// The board is to be opened anew; who calls closes the descriptor.
pub(crate) fn renounce() {
    BOARD.forget();
    UNUSABLE.store(false, Ordering::Relaxed);
    REFUSED.store(0, Ordering::Relaxed);
    NETNS.store(0, Ordering::Relaxed);
}

#[cold]
fn open() -> Result<i32, Errno> {
    if sys::file_size_limit() < FIRST + BUCKETS * (WAYS * ENTRY) as u64 {
        return Err(Errno::EFBIG);
    }
    let options = process::options();
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    if options.has_usual_board()
        && let Ok(fd) = sys::open(Options::HOST_BOARD, flags, 0)
    {
        return checked(fd);
    }
    let path = options.board.as_c_str();
    // Without O_CREAT first: Linux forbids O_CREAT on other people's files in sticky directories
    // (fs.protected_regular).
    let fd = match sys::open(path, flags, 0) {
        Err(Errno::ENOENT) => match sys::open(path, flags | libc::O_CREAT | libc::O_EXCL, 0o666) {
            Ok(fd) => {
                // All users of the host meet here; the entries are hints.
                let _ = sys::fchmod(fd, 0o666);
                return checked(fd);
            }
            Err(Errno::EEXIST) => sys::open(path, flags, 0)?,
            Err(errno) => return Err(errno),
        },
        other => other?,
    };
    checked(fd)
}

/// A board that has been opened; whoever finds it empty writes the header.
fn checked(fd: i32) -> Result<i32, Errno> {
    let mut header = [0; 8];
    let known = match sys::pread(fd, &mut header, 0) {
        Ok(0) => sys::pwrite(fd, &HEADER, 0).map(drop),
        Ok(8) if header == HEADER => Ok(()),
        _ => Err(Errno::EINVAL),
    };
    if known.is_err() {
        sys::close(fd);
    }
    known.map(|()| fd)
}

/// The network namespace: its inode, as two hosts' worth of the same addresses may meet on one
/// board.
fn netns() -> u64 {
    let known = NETNS.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut link = [0; 64];
    let len = sys::readlink(c"/proc/self/ns/net", &mut link).unwrap_or(0);
    let id = link[..len].iter().fold(1, |sum, &byte| mix(sum ^ u64::from(byte)));
    NETNS.store(id, Ordering::Relaxed);
    id
}

/// A mixing function (splitmix64's).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
