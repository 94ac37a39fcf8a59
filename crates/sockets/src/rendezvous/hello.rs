//! The hand-shake that makes a link. **Nothing before proof**: who opens a link has asked the
//! kernel whose the other end of the connection is, and sends nothing to a rendezvous socket of
//! another user. Its HELLO names the connection, and who answers asks the kernel the same before it
//! takes a descriptor, maps a byte or says a word. Until then a stranger costs one descriptor, of
//! which there are [`STRANGERS`] at most.
//!
//! What comes after that is a peer with a connection of its own, and hostile all the same: a
//! descriptor that it sends is looked at before it is closed again (to close one of a file ends all
//! our locks on that file), bells are given to and taken from processes of our own user only
//! (whoever has a bell can silence it, or make it one that blocks), and a connection brings one
//! link.

use core::mem::replace;

use fabric::credentials::{self, User};

use fabric::Plain;
use fabric::bell::{self, Loud};
use fabric::shm::{Map, Unseen};
use fabric::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use stream::spin::{ticks, ticks_of};

use super::meeting;
use super::posted::{address, other_end, own_token, posted_conn};
use crate::board::Post;
use crate::conn::Conn;
use crate::descriptors::{self, Hidden, Kept};
use crate::folder::{self, Spot};
use crate::layout::{self, CALL_BELL, FIRST_BELLS, QUEUES};
use crate::link::passing::{self, is_shut_out};
use crate::link::{self, BY_BELL, Guard, LOUD, Link, slots, state};
use crate::peering::kind::{Peered, Peering};
use crate::peering::wire::Introduced;
use crate::reason::Reason;
use crate::{bells, epoll, peering, report};

/// What is passed in a hand-shake.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Hello {
    magic: u32,
    version: u32,
    /// Names the sender's rendezvous socket.
    token: u64,
    segment: u64,
    claim: Claim,
    /// How the sender's event queues are rung by datagrams; 0: not.
    loud: u64,
    word: u64,
    /// By which one that has proved its end by the connection is known ([`super::meeting`]).
    key: u64,
}

/// The connection by which the sender proves itself: where it is posted at the receiver, and the
/// cookies of the receiver's end and of its own.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Claim {
    index: u32,
    unused: u32,
    yours: u64,
    mine: u64,
}

// SAFETY: integers; those of 32 bits come in pairs.
unsafe impl Plain for Hello {}

const MAGIC: u32 = 0x5348_4c4b;

impl Hello {
    fn new(token: u64, claim: Claim, loud: Loud, key: u64) -> Hello {
        Hello {
            magic: MAGIC,
            version: layout::VERSION,
            token,
            segment: link::length() as u64,
            claim,
            loud: loud.name,
            word: loud.word,
            key,
        }
    }

    fn check(&self) -> Result<(), Reason> {
        let known = [layout::SEGMENT as u64, layout::SEGMENT_VIA as u64].contains(&self.segment);
        if self.magic != MAGIC || self.version != layout::VERSION || !known {
            return Err(Reason::OtherVersion);
        }
        Ok(())
    }
}

/// A process that has proved to have the other end of a connection of ours.
struct Proved {
    user: User,
    pid: u32,
    /// Names its rendezvous socket.
    token: u64,
    /// By what we prove ourselves to it.
    claim: Claim,
    /// Of one in another network namespace: the token of its sockets in the folder.
    folder: u64,
    peering: Peering,
}

impl Proved {
    /// A process of our own network namespace.
    fn named(user: User, pid: u32, token: u64, claim: Claim) -> Proved {
        Proved { user, pid, token, claim, folder: 0, peering: peering::SHOWN }
    }
}

/// Opens a link to the process that has posted the other end of a connection: proves that, sends
/// HELLO, does not wait.
pub fn open(conn: &'static Conn, other: &Post) -> Result<(), Reason> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let record = other_end(conn)?;
    let socket =
        descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)).map_err(|_| Reason::NoDescriptors)?;
    let socket = Hidden::new(socket);
    let (address, len) = address(other.token);
    sys::connect(socket.fd(), (&raw const address).cast(), len).map_err(|_| Reason::Unpaired)?;
    let (user, pid) = User::at(socket.fd()).ok_or(Reason::Unproved)?;
    if record.cookie != other.cookie || !credentials::is_of(record.uid, user) {
        return Err(Reason::Unproved);
    }
    let mine = conn.cookie.load(Ordering::Relaxed);
    let claim = Claim { index: other.index, unused: 0, yours: other.cookie, mine };
    start(socket, slots::EVEN, Proved::named(user, pid, other.token, claim)).map(drop)
}

/// Opens a link to a process that has proved by a connection that it has its other end
/// ([`super::meeting`]): knocks at its listener, by a HELLO without memory, which is not let in
/// there yet, and sends the other HELLO when it has answered.
pub(super) fn open_far(conn: &'static Conn, other: &Introduced) -> Result<(), Reason> {
    if is_shut_out(User::STRANGER) {
        return Err(Reason::Unproved);
    }
    let way = meeting::way_to_link(conn).ok_or(Reason::Linking)?;
    let mine = conn.cookie.load(Ordering::Relaxed);
    let claim = Claim { index: other.index, unused: 0, yours: other.cookie, mine };
    let Some(socket) = way.knocked else {
        let there = folder::reach(way.token, Spot::Links, |file| file == way.listener);
        let (socket, _) = there.ok_or(Reason::PeerGone)?;
        // Its memory comes with its answer.
        if !folder::let_descriptors_in(socket.fd()) {
            return Err(Reason::Unproved);
        }
        let own = folder::own(Spot::Letters, None).ok_or(Reason::NoListener)?.1.token;
        let hello = Hello::new(own, claim, NOT_LOUD, way.key);
        if sys::send_with_now(socket.fd(), hello.bytes(), &[]).is_err() {
            passing::close(socket, Some(User::STRANGER));
            return Err(Reason::PeerGone);
        }
        meeting::knocked(conn, socket);
        return Ok(());
    };
    if !sys::readable(socket.fd()) {
        meeting::knocked(conn, socket);
        return Ok(());
    }
    start(socket, slots::EVEN, Proved::stranger(other.token, way.token, claim))?;
    meeting::linked(conn);
    Ok(())
}

/// Of one that is not rung by datagrams.
const NOT_LOUD: Loud = Loud { name: 0, word: 0 };

impl Proved {
    fn stranger(token: u64, folder: u64, claim: Claim) -> Proved {
        Proved { user: User::STRANGER, pid: 0, token, folder, claim, peering: peering::INTRODUCED }
    }
}

/// One who has connected, and has not proved anything yet.
struct Stranger {
    socket: Kept,
    user: AtomicU32,
    /// Whether it has come by the folder.
    far: AtomicBool,
    /// When it came, in ticks.
    since: AtomicU64,
}

/// How many are let in at once, how many of these may be one user's, and how long each may take for
/// its HELLO. If others wait, a [`SOON_NS`].
const STRANGERS: usize = 8;
const OF_ONE_USER: usize = 4;
const HELLO_NS: u64 = 1_000_000_000;
const SOON_NS: u64 = 2_000_000;
/// Whoever connects sends HELLO at once: a moment later it is there. Waited for once in a call, if
/// nobody else is there.
const MOMENT_NS: u64 = 100_000;

static PENDING: [Stranger; STRANGERS] = [const {
    Stranger {
        socket: Kept::new(),
        user: AtomicU32::new(0),
        far: AtomicBool::new(false),
        since: AtomicU64::new(0),
    }
}; STRANGERS];

/// Lets those in who wait at our listener, or the one in the folder (`far`), and answers those who
/// have proved themselves. True if anybody was there. Under the lock on states.
pub fn answer(listener: i32, far: bool) -> bool {
    let (mut any, mut waited) = (hear_strangers(), false);
    for _ in 0..STRANGERS * 2 {
        let now = ticks();
        let lasted = |stranger: &Stranger| now.saturating_sub(stranger.since.load(Ordering::Relaxed));
        let free = PENDING.iter().find(|stranger| stranger.socket.get().is_none());
        let oldest = || PENDING.iter().max_by_key(|&stranger| lasted(stranger));
        let slow = |stranger: &&Stranger| lasted(stranger) > ticks_of(SOON_NS);
        let Some(place) = free.or_else(|| oldest().filter(slow)) else { break };
        let Ok(socket) = accept(listener) else { break };
        any = true;
        place.socket.close();
        let others = || PENDING.iter().filter(|stranger| stranger.socket.get().is_some());
        let of_user =
            |number| others().filter(|stranger| stranger.user.load(Ordering::Relaxed) == number).count();
        let user = if far { Some(User::STRANGER) } else { User::at(socket).map(|(user, _)| user) };
        match user {
            Some(user) if of_user(user.number()) < OF_ONE_USER => {
                let waits = !replace(&mut waited, true) && others().next().is_none();
                let fd = descriptors::hide(socket);
                place.user.store(user.number(), Ordering::Relaxed);
                place.far.store(far, Ordering::Relaxed);
                place.since.store(now, Ordering::Relaxed);
                place.socket.set(fd);
                if waits {
                    let mut poll = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
                    let _ = sys::ppoll(&mut poll, Some(MOMENT_NS));
                }
                hear_strangers();
            }
            _ => {
                report::count_reason(Reason::Unproved);
                sys::close(socket);
            }
        }
    }
    any
}

fn accept(listener: i32) -> Result<i32, Errno> {
    let accept = || sys::accept(listener, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    match accept() {
        // The kernel says so whether or not somebody waits.
        Err(Errno::EMFILE) if sys::readable(listener) => descriptors::made(accept),
        result => result,
    }
}

/// In the child of fork(): those that have not proved themselves yet are its parent's.
pub(crate) fn send_all_away() {
    PENDING.iter().for_each(|stranger| stranger.socket.close());
}

/// Hears those who have come and have said something, and sends those away who have not in time.
fn hear_strangers() -> bool {
    let mut any = false;
    for stranger in &PENDING {
        let Some(socket) = stranger.socket.get() else { continue };
        match prove(socket, stranger.far.load(Ordering::Relaxed)) {
            Err(Reason::Linking) if ticks() - stranger.since.load(Ordering::Relaxed) < ticks_of(HELLO_NS) => {
            }
            Err(reason) => {
                report::count_reason(reason);
                stranger.socket.close();
            }
            Ok(proved) => {
                any = true;
                stranger.socket.forget();
                if let Err(reason) = welcome(Hidden::of(socket), proved) {
                    report::count_reason(reason);
                }
            }
        }
    }
    any
}

/// Looks at what a stranger has said, without taking it: descriptors that come with it stay where
/// they are. `Err(Linking)`: nothing yet.
fn prove(socket: i32, far: bool) -> Result<Proved, Reason> {
    if !descriptors::intact(socket) {
        return Err(Reason::PeerGone);
    }
    let mut hello = Hello::default();
    match sys::recv_some(socket, hello.bytes_mut(), libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(0) => return Err(Reason::PeerGone),
        Ok(got) if got == size_of::<Hello>() => hello.check()?,
        Ok(_) => return Err(Reason::OtherVersion),
        Err(Errno::EAGAIN | Errno::EINTR) => return Err(Reason::Linking),
        Err(_) => return Err(Reason::PeerGone),
    }
    let Claim { index, yours, mine, .. } = hello.claim;
    // One that has brought a link, and has not used it, brings no other.
    let unused = |link: &Link| {
        link.proof.load(Ordering::Relaxed) == yours
            && !link.is_used()
            && matches!(link.state(), state::ASKED | state::READY)
            && link.ours.load(Ordering::Relaxed) == slots::ODD
            && !link.is_dead()
    };
    if far {
        let conn = posted_conn(index, yours).ok_or(Reason::Unpaired)?;
        let token = meeting::opens_link(conn, mine, hello.token, hello.key).ok_or(Reason::Unproved)?;
        if is_shut_out(User::STRANGER) {
            return Err(Reason::Unproved);
        }
        meeting::linked(conn);
        if link::each().any(unused) {
            return Err(Reason::LinkLimit);
        }
        let claim = Claim { index: 0, unused: 0, yours: mine, mine: yours };
        return Ok(Proved::stranger(token, hello.token, claim));
    }
    let (user, pid) = User::at(socket).ok_or(Reason::Unproved)?;
    let record = other_end(posted_conn(index, yours).ok_or(Reason::Unpaired)?)?;
    if record.cookie != mine || !credentials::is_of(record.uid, user) || is_shut_out(user) {
        return Err(Reason::Unproved);
    }
    if link::each().any(unused) {
        return Err(Reason::LinkLimit);
    }
    let claim = Claim { index: 0, unused: 0, yours: mine, mine: yours };
    Ok(Proved::named(user, pid, hello.token, claim))
}

/// Answers a HELLO that has been proved.
fn welcome(socket: Hidden, proved: Proved) -> Result<(), Reason> {
    let user = proved.user;
    if user == User::STRANGER {
        // It has knocked: takes that out, and lets its memory in, which comes as an answer to ours.
        let mut hello = Hello::default();
        let _ = sys::recv_some(socket.fd(), hello.bytes_mut(), libc::MSG_DONTWAIT);
        if !folder::let_descriptors_in(socket.fd()) {
            return Err(Reason::Unproved);
        }
        return start(socket, slots::ODD, proved).map(drop);
    }
    let arrived = receive(socket.fd(), user)?;
    let speaker = speaker_for(&arrived.hello, user)?;
    enter(start(socket, slots::ODD, proved)?, arrived, speaker);
    Ok(())
}

/// Looks whether the answer to our HELLO has come.
pub fn progress(link: &Link) -> Result<bool, Reason> {
    let Some(_guard) = Guard::take() else { return Ok(false) };
    if link.state() != state::ASKED {
        return Ok(link.state() == state::READY);
    }
    let arrived = match (link.socket.get(), link.peer_user()) {
        // To that user we have sent HELLO because it has been proved.
        (Some(socket), Some(user)) if descriptors::intact(socket) && !is_shut_out(user) => {
            let arrived = receive(socket, user);
            if user == User::STRANGER && arrived.as_ref().err() != Some(&Reason::Linking) {
                // That was all that it has to pass.
                folder::keep_descriptors_out(socket);
            }
            arrived.and_then(|arrived| {
                let speaker = speaker_for(&arrived.hello, user)?;
                Ok((arrived, speaker))
            })
        }
        _ => Err(Reason::Unpaired),
    };
    match arrived {
        Ok((arrived, speaker)) => {
            enter(link, arrived, speaker);
            Ok(true)
        }
        Err(Reason::Linking) => Ok(false),
        Err(reason) => {
            link::fail(link, reason);
            Err(reason)
        }
    }
}

/// What a peer of another user is rung with, if it is rung by datagrams: without that its event
/// queues could not be woken.
fn speaker_for(hello: &Hello, user: User) -> Result<Option<Hidden>, Reason> {
    // The name by which bells are rung is one of its own network namespace.
    if hello.loud == 0 || user == User::STRANGER || User::own() == Some(user) {
        return Ok(None);
    }
    descriptors::made(Loud::speaker)
        .map(|speaker| Some(Hidden::new(speaker)))
        .map_err(|_| Reason::NoDescriptors)
}

/// The link is ready, by what has come.
fn enter(link: &Link, arrived: Arrived, speaker: Option<Hidden>) {
    if let Some(speaker) = speaker {
        link.loud[0].store(arrived.hello.loud, Ordering::Relaxed);
        link.loud[1].store(arrived.hello.word, Ordering::Relaxed);
        link.speaker.set(speaker.keep());
    } else {
        // Where its bells are is told ([`passing`]).
        link.loud[1].store(arrived.hello.word, Ordering::Relaxed);
    }
    link::ready(link, link.peering().of_memory(arrived.theirs.keep()), arrived.bells);
}

/// How many links another user may have with this process.
const LINKS_OF_OTHERS: usize = 256;

/// Enters a link into the registry with our segment made and sent.
fn start(socket: Hidden, ours: u64, proved: Proved) -> Result<&'static Link, Reason> {
    let user = proved.user;
    let link = try_start(socket.fd(), ours, proved);
    match link {
        // It is the link's.
        Ok(_) => drop(socket.keep()),
        Err(_) => passing::close(socket, Some(user)),
    }
    link
}

fn try_start(socket: i32, ours: u64, proved: Proved) -> Result<&'static Link, Reason> {
    let Proved { user, pid, token, claim, folder, peering } = proved;
    let (kin, far) = (User::own() == Some(user), user == User::STRANGER);
    let of_user = |link: &Link| {
        matches!(link.state(), state::ASKED | state::READY)
            && link.peer_uid.load(Ordering::Relaxed) == user.number()
    };
    if !kin && link::each().filter(|&link| of_user(link)).count() >= LINKS_OF_OTHERS {
        return Err(Reason::LinkLimit);
    }
    let (mine, memfd) = descriptors::made(|| Map::create_part(c"shunt:link", link::length(), link::room()?))
        .map_err(|errno| match errno {
            Errno::EMFILE | Errno::ENFILE => Reason::NoDescriptors,
            _ => Reason::NoMemory,
        })?;
    let mine = Unseen::new(mine);
    let loud = match (kin, far) {
        (true, _) => None,
        (_, true) => bells::far_word().map(|word| Loud { name: 0, word }),
        (_, false) => bells::loud(),
    };
    let own = match far {
        true => folder::own(Spot::Letters, None).ok_or(Reason::NoListener)?.1.token,
        false => own_token(),
    };
    if loud.is_some() {
        epoll::hear_others();
    }
    let queues = epoll::sets_in_use().clamp(1, QUEUES);
    let sent = send(
        socket,
        &Hello::new(own, claim, loud.unwrap_or(NOT_LOUD), 0),
        memfd,
        if kin { queues } else { 0 },
    );
    sys::close(memfd);
    let rings = if sent? { BY_BELL } else { loud.map_or(0, |_| LOUD) };
    let _guard = Guard::take().ok_or(Reason::Busy)?;
    let link = link::add(token, ours, (user.number(), pid), *mine.map())?;
    mine.keep();
    link.peering.store(peering.word(), Ordering::Release);
    link.folder.store(folder, Ordering::Relaxed);
    link.socket.set(socket);
    link.rings.store(rings, Ordering::Relaxed);
    let given = if rings == BY_BELL { ((1 << queues) - 1) | (1 << CALL_BELL) } else { 0 };
    link.given.store(given, Ordering::Relaxed);
    link.proof.store(claim.mine, Ordering::Relaxed);
    Ok(link)
}

/// Sends HELLO with our segment and, to a process of our user, our bells: the first of single calls
/// and those of `queues` event queues, as many as there are sets (each is a descriptor, here and
/// there); whether these.
fn send(socket: i32, hello: &Hello, memfd: i32, queues: usize) -> Result<bool, Reason> {
    let mut fds = [memfd; 1 + FIRST_BELLS];
    let mut count = 1;
    let rings = queues > 0 && bells::has_bells();
    if rings {
        for (index, place) in core::iter::once(CALL_BELL).chain(0..queues).zip(&mut fds[1..]) {
            *place = bells::bell_fd(index).ok_or(Reason::NoDescriptors)?;
        }
        count += 1 + queues;
    }
    sys::send_with_now(socket, hello.bytes(), &fds[..count]).map(|_| rings).map_err(|_| Reason::Unpaired)
}

/// A HELLO that has come, with the segment and the bells that came with it: of single calls
/// first.
struct Arrived {
    hello: Hello,
    theirs: Unseen,
    bells: [Option<Hidden>; FIRST_BELLS],
}

/// Receives HELLO with its descriptors: the memfd, then, of a process of our user, bells.
/// `Err(Linking)`: not there yet.
fn receive(socket: i32, user: User) -> Result<Arrived, Reason> {
    let mut hello = Hello::default();
    let most = if User::own() == Some(user) { 1 + FIRST_BELLS } else { 1 };
    let is_right = |place, fd| if place == 0 { Map::is_segment(fd) } else { bell::is_bell(fd) };
    let passed = passing::receive::<{ 1 + FIRST_BELLS }>(socket, user, hello.bytes_mut(), most, is_right)?;
    let [memfd, bells @ ..] = passed.fds;
    match (passed.len, memfd) {
        (0, _) => Err(Reason::PeerGone),
        _ if passed.cut => Err(Reason::NoDescriptors),
        // Who misses a bell could not wake the peer's epoll sets: one alone is none of theirs.
        (len, Some(memfd)) if len == size_of::<Hello>() && bells.iter().flatten().count() != 1 => {
            hello.check()?;
            let length = hello.segment as usize;
            let map = link::room().and_then(|room| Map::open_part(memfd.fd(), length, room.min(length)));
            Ok(Arrived { hello, theirs: map.map(Unseen::new).map_err(|_| Reason::NoMemory)?, bells })
        }
        _ => Err(Reason::OtherVersion),
    }
}
