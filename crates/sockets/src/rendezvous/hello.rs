//! The hand-shake that makes a link. **Nothing before proof**: who opens a link has asked the kernel whose the other end of the connection is, and
//! sends nothing to a rendezvous socket of another user. Its HELLO names the connection, and who answers asks the kernel the same before it
//! takes a descriptor, maps a byte or says a word. Until then a stranger costs one descriptor, of which there are [`STRANGERS`] at most.
//!
//! What comes after that is a peer with a connection of its own, and hostile all the same: a descriptor that it sends is looked at before it is
//! closed again (to close one of a file ends all our locks on that file), bells are given to and taken from processes of our own user
//! only (whoever has a bell can silence it, or make it one that blocks), and a connection brings one link.

use fabric::credentials::{self, User};

use fabric::bell::{self, Loud};
use fabric::shm::Map;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::sys::{self, Errno};
use stream::spin::{ticks, ticks_of};

use super::posted::{address, posted_conn};
use crate::board::Post;
use crate::conn::Conn;
use crate::layout::{self, BELLS};
use crate::link::{self, BY_BELL, Guard, LOUD, Link, state};
use crate::peering::peer::Peer;
use crate::reason::Reason;
use crate::{bells, descriptors, epoll, report};
use host::diag;

/// What is passed in a hand-shake.
#[repr(C)]
#[derive(Clone, Copy)]
struct Hello {
    magic: u32,
    version: u32,
    /// Names the sender's rendezvous socket.
    token: u64,
    segment: u64,
    /// The connection by which the sender proves itself: where it is posted at the receiver, and the cookies of the receiver's end and of its own.
    index: u32,
    unused: u32,
    yours: u64,
    mine: u64,
    /// How the sender's event queues are rung by datagrams; 0: not.
    loud: u64,
    word: u64,
}

const MAGIC: u32 = 0x5348_4c4b;

impl Hello {
    fn new(token: u64, (index, yours, mine): (u32, u64, u64), loud: Option<Loud>) -> Hello {
        let segment = link::length() as u64;
        let (loud, word) = loud.map_or((0, 0), |loud| (loud.name, loud.word));
        Hello {
            magic: MAGIC,
            version: layout::VERSION,
            token,
            segment,
            index,
            unused: 0,
            yours,
            mine,
            loud,
            word,
        }
    }

    fn none() -> Hello {
        Hello { magic: 0, ..Hello::new(0, (0, 0, 0), None) }
    }

    fn check(&self) -> Result<(), Reason> {
        let known = [layout::SEGMENT as u64, layout::SEGMENT_VIA as u64].contains(&self.segment);
        if self.magic != MAGIC || self.version != layout::VERSION || !known {
            return Err(Reason::OtherVersion);
        }
        Ok(())
    }
}

/// Opens a link to the process that has posted the other end of a connection: proves that, sends HELLO, does not wait.
pub fn open(conn: &'static Conn, other: &Post, own_token: u64) -> Result<u32, Reason> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let (own, peer) = conn.addresses();
    let record = descriptors::made(|| diag::lookup(peer, own)).map_err(|_| Reason::Unproved)?;
    let socket =
        descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)).map_err(|_| Reason::NoDescriptors)?;
    let socket = descriptors::hide(socket);
    let (address, len) = address(other.token);
    let asked = match sys::connect(socket, (&raw const address).cast(), len) {
        Ok(()) => match User::at(socket) {
            Some((user, pid)) if record.cookie == other.cookie && credentials::is_of(record.uid, user) => {
                let own_cookie = conn.cookie.load(Ordering::Relaxed);
                start(other.token, socket, 0, (user, pid), own_token, (other.index, other.cookie, own_cookie))
            }
            _ => Err(Reason::Unproved),
        },
        Err(_) => Err(Reason::Unpaired),
    };
    asked.inspect_err(|_| descriptors::unhide(socket))
}

/// One who has connected, and has not proved anything yet.
struct Stranger {
    /// +1; 0 where there is none.
    socket: AtomicI32,
    user: AtomicU32,
    /// When it came, in ticks.
    since: AtomicU64,
}

/// How many are let in at once, how many of these may be one user's, and how long each may take for its HELLO. If others wait, a [`SOON_NS`].
const STRANGERS: usize = 8;
const OF_ONE_USER: usize = 4;
const HELLO_NS: u64 = 1_000_000_000;
const SOON_NS: u64 = 2_000_000;
/// Whoever connects sends HELLO at once: a moment later it is there. Only waited for if nobody else is.
const MOMENT_NS: u64 = 100_000;

static AT_THE_DOOR: [Stranger; STRANGERS] =
    [const { Stranger { socket: AtomicI32::new(0), user: AtomicU32::new(0), since: AtomicU64::new(0) } };
        STRANGERS];

/// Lets those in who wait at our listener, and answers those who have proved themselves. True if anybody was there. Under the lock on states.
pub fn answer(accept: impl Fn() -> Option<i32>, own_token: u64) -> bool {
    let mut any = hear_strangers(own_token);
    for _ in 0..STRANGERS * 2 {
        let now = ticks();
        let lasted = |stranger: &Stranger| now.saturating_sub(stranger.since.load(Ordering::Relaxed));
        let free = AT_THE_DOOR.iter().find(|stranger| stranger.socket.load(Ordering::Relaxed) == 0);
        let place = match free {
            Some(place) => place,
            None => match AT_THE_DOOR.iter().max_by_key(|&stranger| lasted(stranger)) {
                Some(oldest) if lasted(oldest) > ticks_of(SOON_NS) => oldest,
                _ => break,
            },
        };
        let Some(socket) = accept() else { break };
        any = true;
        send_away(place);
        let of_user = |number| {
            let there = AT_THE_DOOR.iter().filter(|stranger| stranger.socket.load(Ordering::Relaxed) != 0);
            there.filter(|stranger| stranger.user.load(Ordering::Relaxed) == number).count()
        };
        match User::at(socket) {
            Some((user, _)) if of_user(user.number()) < OF_ONE_USER => {
                let alone = AT_THE_DOOR.iter().all(|stranger| stranger.socket.load(Ordering::Relaxed) == 0);
                place.user.store(user.number(), Ordering::Relaxed);
                place.since.store(now, Ordering::Relaxed);
                place.socket.store(descriptors::hide(socket) + 1, Ordering::Relaxed);
                if alone {
                    let mut poll = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
                    poll[0].fd = place.socket.load(Ordering::Relaxed) - 1;
                    let _ = sys::ppoll(&mut poll, Some(MOMENT_NS));
                }
                hear_strangers(own_token);
            }
            _ => {
                report::count_reason(Reason::Unproved);
                sys::close(socket);
            }
        }
    }
    any
}

/// In the child of fork(): those at the door are its parent's.
pub(crate) fn send_all_away() {
    AT_THE_DOOR.iter().for_each(send_away);
}

fn send_away(stranger: &Stranger) {
    let socket = stranger.socket.swap(0, Ordering::Relaxed);
    if socket != 0 {
        descriptors::unhide(socket - 1);
    }
}

/// Hears those at the door who have said something, and sends those away who have not in time.
fn hear_strangers(own_token: u64) -> bool {
    let mut any = false;
    for stranger in &AT_THE_DOOR {
        let socket = stranger.socket.load(Ordering::Relaxed) - 1;
        if socket < 0 {
            continue;
        }
        match prove(socket) {
            Err(Reason::Linking) if ticks() - stranger.since.load(Ordering::Relaxed) < ticks_of(HELLO_NS) => {
            }
            Err(reason) => {
                report::count_reason(reason);
                send_away(stranger);
            }
            Ok(proof) => {
                any = true;
                stranger.socket.store(0, Ordering::Relaxed);
                if let Err(reason) = welcome(socket, proof, own_token) {
                    report::count_reason(reason);
                    descriptors::unhide(socket);
                }
            }
        }
    }
    any
}

/// Who has proved to be at the other end of a connection of ours, with what it said.
struct Proof {
    user: User,
    pid: u32,
    hello: Hello,
}

/// Looks at what a stranger has said, without taking it: descriptors that come with it stay where they are. `Err(Linking)`: nothing yet.
fn prove(socket: i32) -> Result<Proof, Reason> {
    if !descriptors::intact(socket) {
        return Err(Reason::PeerGone);
    }
    let mut hello = Hello::none();
    let len = size_of::<Hello>();
    match sys::recv(socket, (&raw mut hello).cast(), len, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(0) => return Err(Reason::PeerGone),
        Ok(got) if got == len => hello.check()?,
        Ok(_) => return Err(Reason::OtherVersion),
        Err(Errno::EAGAIN | Errno::EINTR) => return Err(Reason::Linking),
        Err(_) => return Err(Reason::PeerGone),
    }
    let (user, pid) = User::at(socket).ok_or(Reason::Unproved)?;
    let conn = posted_conn(hello.index, hello.yours).ok_or(Reason::Unpaired)?;
    let (own, peer) = conn.addresses();
    let record = descriptors::made(|| diag::lookup(peer, own)).map_err(|_| Reason::Unproved)?;
    if record.cookie != hello.mine || !credentials::is_of(record.uid, user) || is_shut_out(user) {
        return Err(Reason::Unproved);
    }
    // One that has brought a link, and has not used it, brings no other.
    let unused = |link: &Link| {
        link.proof.load(Ordering::Relaxed) == hello.yours
            && link.live.load(Ordering::Acquire) == 0
            && link.state.load(Ordering::Acquire) == state::READY
            && link.parity.load(Ordering::Relaxed) == 1
            && !link.is_dead()
    };
    if link::all().map(link::link).any(unused) {
        return Err(Reason::LinkLimit);
    }
    Ok(Proof { user, pid, hello })
}

/// Answers a HELLO that has been proved.
fn welcome(socket: i32, proof: Proof, own_token: u64) -> Result<u32, Reason> {
    let (_, fds) = receive(socket, proof.user)?;
    let Proof { user, pid, hello } = proof;
    let done = open_segment(fds[0], hello.segment as usize).and_then(|theirs| {
        let proof = (0, hello.mine, hello.yours);
        let started = speaker_for(&hello, user).and_then(|speaker| {
            start(hello.token, socket, 1, (user, pid), own_token, proof)
                .inspect_err(|_| speaker.into_iter().for_each(descriptors::unhide))
                .inspect(|&index| speak(index, &hello, speaker))
        });
        match started {
            Ok(index) => {
                link::ready(index, Peer::near(theirs), &fds);
                Ok(index)
            }
            Err(reason) => {
                // SAFETY: nobody else has seen the mapping.
                unsafe { theirs.unmap() };
                Err(reason)
            }
        }
    });
    done_with(&fds, done.is_ok());
    done
}

/// Looks whether the answer to our HELLO has come.
pub fn progress(index: u32) -> Result<bool, Reason> {
    let link = link::link(index);
    let Some(_guard) = Guard::take() else { return Ok(false) };
    if link.state.load(Ordering::Acquire) != state::ASKED {
        return Ok(link.state.load(Ordering::Acquire) == state::READY);
    }
    let socket = link.socket.load(Ordering::Relaxed);
    let received = match User::of(link.peer_uid.load(Ordering::Relaxed)) {
        // To that user we have sent HELLO because it has been proved.
        Some(user) if descriptors::intact(socket) && !is_shut_out(user) => {
            receive(socket, user).map(|(hello, fds)| (hello, fds, user))
        }
        _ => Err(Reason::Unpaired),
    };
    let (hello, fds, user) = match received {
        Ok(got) => got,
        Err(Reason::Linking) => return Ok(false),
        Err(reason) => {
            link::fail(index, reason);
            return Err(reason);
        }
    };
    let opened = hello.check().and_then(|()| {
        let theirs = open_segment(fds[0], hello.segment as usize)?;
        match speaker_for(&hello, user) {
            Ok(speaker) => {
                speak(index, &hello, speaker);
                Ok(theirs)
            }
            Err(reason) => {
                // SAFETY: nobody else has seen the mapping.
                unsafe { theirs.unmap() };
                Err(reason)
            }
        }
    });
    done_with(&fds, opened.is_ok());
    match opened {
        Ok(theirs) => {
            link::ready(index, Peer::near(theirs), &fds);
            Ok(true)
        }
        Err(reason) => {
            link::fail(index, reason);
            Err(reason)
        }
    }
}

/// What a peer of another user is rung with, if it is rung by datagrams: without that its event queues could not be woken.
fn speaker_for(hello: &Hello, user: User) -> Result<Option<i32>, Reason> {
    if hello.loud == 0 || User::own() == Some(user) {
        return Ok(None);
    }
    descriptors::made(Loud::speaker)
        .map(|speaker| Some(descriptors::hide(speaker)))
        .map_err(|_| Reason::NoDescriptors)
}

fn speak(index: u32, hello: &Hello, speaker: Option<i32>) {
    let Some(speaker) = speaker else { return };
    let link = link::link(index);
    link.loud[0].store(hello.loud, Ordering::Relaxed);
    link.loud[1].store(hello.word, Ordering::Relaxed);
    link.speaker.store(speaker as u32 + 1, Ordering::Release);
}

/// Closes the memfd, and the bells as well if there is no link to keep them.
fn done_with(fds: &[i32; 1 + BELLS], kept: bool) {
    if fds[0] >= 0 {
        sys::close(fds[0]);
    }
    for &fd in fds[1..].iter().filter(|&&fd| fd >= 0 && !kept) {
        descriptors::unhide(fd);
    }
}

fn open_segment(fd: i32, length: usize) -> Result<Map, Reason> {
    link::room().and_then(|room| Map::open_part(fd, length, room.min(length))).map_err(|_| Reason::NoMemory)
}

/// How many links another user may have with this process.
const LINKS_OF_OTHERS: usize = 256;

/// Enters a link into the registry with our segment made and sent.
fn start(
    token: u64,
    socket: i32,
    parity: u32,
    (user, pid): (User, u32),
    own_token: u64,
    proof: (u32, u64, u64),
) -> Result<u32, Reason> {
    let kin = User::own() == Some(user);
    let of_user = |link: &Link| {
        matches!(link.state.load(Ordering::Acquire), state::ASKED | state::READY)
            && link.peer_uid.load(Ordering::Relaxed) == user.number()
    };
    if !kin && link::all().map(link::link).filter(|&link| of_user(link)).count() >= LINKS_OF_OTHERS {
        return Err(Reason::LinkLimit);
    }
    let (mine, memfd) = descriptors::made(|| Map::create_part(c"shunt:link", link::length(), link::room()?))
        .map_err(|errno| match errno {
            Errno::EMFILE | Errno::ENFILE => Reason::NoDescriptors,
            _ => Reason::NoMemory,
        })?;
    let loud = if kin { None } else { bells::loud() };
    if loud.is_some() {
        epoll::hear_others();
    }
    let queues = epoll::sets_in_use().clamp(1, layout::QUEUES);
    let sent = send(socket, &Hello::new(own_token, proof, loud), memfd, if kin { queues } else { 0 });
    sys::close(memfd);
    let added = sent.and_then(|rings| {
        let _guard = Guard::take().ok_or(Reason::Busy)?;
        let index = link::add(token, socket, parity, (user.number(), pid), mine)?;
        let link = link::link(index);
        let rings = if rings { BY_BELL } else { loud.map_or(0, |_| LOUD) };
        link.rings.store(rings, Ordering::Relaxed);
        link.heard.store(if rings == LOUD { layout::QUEUES } else { queues } as u32, Ordering::Relaxed);
        link.proof.store(proof.2, Ordering::Relaxed);
        Ok(index)
    });
    if added.is_err() {
        // SAFETY: nobody else has seen the mapping.
        unsafe { mine.unmap() };
    }
    added
}

const CONTROL: usize = 64;

#[repr(align(8))]
struct Control([u8; CONTROL]);

/// Sends HELLO with our segment and, to a process of our user, our bells: the one of single calls and those of `queues` event queues, as many as there
/// are sets (each is a descriptor, here and there); whether these.
fn send(socket: i32, hello: &Hello, memfd: i32, queues: usize) -> Result<bool, Reason> {
    let mut fds = [memfd; 1 + BELLS];
    let mut count = 1;
    let rings = queues > 0 && bells::has_bells();
    if rings {
        for (index, place) in core::iter::once(layout::CALL_BELL).chain(0..queues).zip(&mut fds[1..]) {
            *place = bells::bell_fd(index).ok_or(Reason::NoDescriptors)?;
        }
        count += 1 + queues;
    }
    let mut iov =
        libc::iovec { iov_base: core::ptr::from_ref(hello).cast_mut().cast(), iov_len: size_of::<Hello>() };
    let mut control = Control([0; CONTROL]);
    let len = 16 + count * 4;
    control.0[0..8].copy_from_slice(&len.to_ne_bytes());
    control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    for (index, fd) in fds[..count].iter().enumerate() {
        control.0[16 + index * 4..][..4].copy_from_slice(&fd.to_ne_bytes());
    }
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = len.next_multiple_of(8);
    sys::sendmsg(socket, &message, libc::MSG_NOSIGNAL).map(|_| rings).map_err(|_| Reason::Unpaired)
}

/// Receives HELLO and its descriptors: the memfd, then, of a process of our user, bells, that of single calls first; -1 where there is none. `Err(Linking)`:
/// not there yet.
fn receive(socket: i32, user: User) -> Result<(Hello, [i32; 1 + BELLS]), Reason> {
    let mut hello = Hello::none();
    let mut iov = libc::iovec { iov_base: (&raw mut hello).cast(), iov_len: size_of::<Hello>() };
    let mut control = Control([0; CONTROL]);
    let most = if User::own() == Some(user) { 1 + BELLS } else { 1 };
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // What finds no room here is not given a number.
    message.msg_controllen = 16 + most * 4;
    if !sys::readable(socket) {
        return Err(Reason::Linking);
    }
    // A descriptor that finds no number is lost: there must be room for them from the start.
    let raised = descriptors::Raised::new();
    let got = match sys::recvmsg(socket, &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) {
        Ok(got) => got,
        Err(Errno::EAGAIN | Errno::EINTR) => return Err(Reason::Linking),
        Err(_) => return Err(Reason::PeerGone),
    };
    let mut fds = [-1; 1 + BELLS];
    let len = usize::from_ne_bytes(core::array::from_fn(|i| control.0[i])).min(message.msg_controllen);
    if len >= 16 {
        for (place, bytes) in fds.iter_mut().zip(control.0[16..len.min(CONTROL)].chunks_exact(4)) {
            *place = i32::from_ne_bytes(core::array::from_fn(|i| bytes[i]));
        }
    }
    let foreign = |(index, &fd): (usize, &i32)| {
        fd >= 0 && !if index == 0 { Map::is_segment(fd) } else { bell::is_bell(fd) }
    };
    if fds.iter().enumerate().any(foreign) {
        drop(raised);
        // The fuzzer sends its own again and again, and counts descriptors after each input.
        if !cfg!(fuzzing) {
            shut_out(user);
        }
        for (index, fd) in fds.into_iter().enumerate().filter(|&(_, fd)| fd >= 0) {
            if foreign((index, &fd)) && !cfg!(fuzzing) {
                // It may be of a file on which the program has locks, which would end if we closed it. It stays, and is the last one from there.
                descriptors::hide_unclosed(fd);
            } else {
                sys::close(fd);
            }
        }
        return Err(Reason::Broken);
    }
    for fd in fds[1..].iter_mut().filter(|fd| **fd >= 0) {
        *fd = descriptors::hide(*fd);
    }
    drop(raised);
    // Who misses a bell could not wake the peer's epoll sets: one alone is none of theirs.
    let bells = fds[1..].iter().filter(|&&fd| fd >= 0).count();
    let cut = message.msg_flags & libc::MSG_CTRUNC != 0;
    if got != size_of::<Hello>() || fds[0] < 0 || bells == 1 || cut {
        done_with(&fds, false);
        return Err(match got {
            0 => Reason::PeerGone,
            _ if cut => Reason::NoDescriptors,
            _ => Reason::OtherVersion,
        });
    }
    Ok((hello, fds))
}

/// Users, +1, that have sent a descriptor of something else than memory and bells: from them none is taken any more. With no place left, from nobody.
static SHUT_OUT: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

fn shut_out(user: User) {
    let mark = user.number().wrapping_add(1);
    let _ = SHUT_OUT.iter().any(|place| {
        let found = place.compare_exchange(0, mark, Ordering::AcqRel, Ordering::Acquire);
        found.is_ok() || found == Err(mark)
    });
}

fn is_shut_out(user: User) -> bool {
    let mark = user.number().wrapping_add(1);
    SHUT_OUT.iter().any(|place| place.load(Ordering::Acquire) == mark)
        || SHUT_OUT.iter().all(|place| place.load(Ordering::Acquire) != 0)
}
