//! The meeting place: how the ends of a connection between two network namespaces of this host find
//! each other. Abstract sockets and sock_diag belong to one namespace, but a folder that both see
//! does not. Each process has a datagram socket there, named by its token, and writes *letters* to
//! those of others.
//!
//! 1. **Candidates.** An end that was accepted is posted on the board by the time stamp of its SYN,
//!    which NAT keeps ([`host::syn`]); the end that called connect() knows what its own carried,
//!    and looks there.
//! 2. **Proof.** It writes INVITE, the other answers ACCEPT, it writes START: both have committed
//!    to a seed, and have the other's salt ([`super::covert`]). Each cuts its writes, and shows its
//!    seed when it has cut enough (SHOW). An end that believes the other has it *introduced*.
//! 3. **Link.** The end that called connect() opens one to the other's listener in the folder,
//!    whose file SHOW has named, unless there is a link; from there all is as in one namespace, but
//!    that an offer is proved by the introduction.
//!
//! Nothing of a connection is in a letter, and whoever writes false ones keeps ends from being
//! promoted, at worst. Letters go to files, and commitments name these ([`crate::folder`]): to
//! stand between two others is of no use. A process is known among links by its name *and* the file
//! ([`covert::process`]).

use fabric::Plain;
use fabric::credentials::User;
use fabric::sync::{AtomicBool, Ordering};
use fabric::sys;
use host::addr::Addr;
use host::{diag, syn};
use options::LogLevel::Debug;
use stream::spin::{ticks, ticks_of};

use self::covert::Seed;
use self::proof::{
    ACCEPT, ASKED, INVITE, Letter, Locked, MAGIC, REFUSE, SHOW, START, Stage, TRIES, WAITS, begin, end,
    place_of, try_end,
};
use super::posted::{other_end, posted_conn, wait_no_longer};
use crate::board::{self, Post};
use crate::conn::{Conn, Meeting, flag, state};
use crate::descriptors::Hidden;
use crate::folder::{self, Spot};
use crate::link::{self, passing};
use crate::peering::wire::Introduced;
use crate::reason::Reason;
use crate::{log, peering, report};

mod covert;
mod proof;

/// The program reads the SYNs that the kernel keeps: they are not ours.
static PROGRAM_READS: AtomicBool = AtomicBool::new(false);

/// Before connect(): the time of its SYN is not before this.
pub fn connecting() -> Option<u32> {
    folder::is_open().then(syn::milliseconds)
}

/// After connect() has begun.
pub fn connected(conn: &Conn, before: u32) {
    let between = u64::from(before) << 32 | u64::from(syn::milliseconds());
    let _ = conn.meeting.connected.compare_exchange(0, between, Ordering::Relaxed, Ordering::Relaxed);
}

/// A socket is about to listen: the SYNs of what it accepts are kept, if somebody may want them.
pub fn listens(fd: i32) {
    if folder::is_open() {
        syn::save(fd);
    }
}

/// The program sets, or asks for, a socket option.
pub fn option_used(level: i32, option: i32) {
    if level == libc::IPPROTO_TCP && syn::is_save(option) {
        PROGRAM_READS.store(true, Ordering::Relaxed);
    }
}

/// The process ends.
pub fn leave() {
    folder::leave(folder::Leave::Closed);
}

/// In the child of fork(): sockets and proofs are its parent's.
pub(super) fn forked() {
    folder::forked();
    proof::forget(true);
}

/// Before fork(): a proof is one process's.
pub(super) fn before_fork(conn: &'static Conn) {
    end_beside_writes(conn);
}

/// Ends a proof, if there is one, when no other thread is in the middle of a cut write, unless that
/// takes long.
fn end_beside_writes(conn: &'static Conn) {
    if !(0..WAITS).any(|_| {
        try_end(conn) || {
            sys::yield_now();
            false
        }
    }) {
        end(conn);
    }
}

/// The sockets are to be made anew; who calls closes the descriptors.
pub(super) fn renounce() {
    folder::leave(folder::Leave::Open);
    proof::forget(false);
}

/// A connection has been posted: its other end may be in another network namespace.
pub(super) fn post(conn: &'static Conn, fd: i32, from: Addr, to: Addr) {
    // The fuzzer's connections are.
    let apart = !from.is_loopback() && !to.is_loopback() || cfg!(fuzzing);
    let Some((_, own)) = folder::own(Spot::Letters, None).filter(|_| apart) else { return };
    let meeting = &conn.meeting;
    if meeting.stamp.load(Ordering::Relaxed) == 0 {
        // Where our kernel shows both ends, nothing else is to prove them. (The fuzzer's it shows.)
        if !cfg!(fuzzing) && other_end(conn).is_ok() {
            return;
        }
        let client = conn.has(flag::CLIENT);
        let told = match client {
            true => syn::offset(fd),
            false if PROGRAM_READS.load(Ordering::Relaxed) => None,
            false => syn::of_accepted(fd),
        };
        let Some(stamp) = told else { return };
        meeting.stamp.store(Meeting::TOLD | u64::from(stamp), Ordering::Relaxed);
    }
    if !conn.has(flag::CLIENT) {
        let cookie = conn.cookie.load(Ordering::Relaxed);
        for (key, posted_at) in keys(conn).into_iter().zip(&meeting.posted_at) {
            if let Ok(place) = board::post_by(&Post::new(key, own.token, cookie, place_of(conn))) {
                posted_at.store(place + 1, Ordering::Relaxed);
            }
        }
    }
}

/// It is not to be found any more, or has been.
pub(super) fn unpost(conn: &'static Conn) {
    let meeting = &conn.meeting;
    for (at, posted_at) in meeting.posted_at.iter().enumerate() {
        if let Some(place) = posted_at.swap(0, Ordering::AcqRel).checked_sub(1) {
            board::remove(place, keys(conn)[at]);
        }
    }
    // What follows may be a write that goes past us.
    end_beside_writes(conn);
    // Another post has another place, by which the other end does not know it.
    if peering::introduced(conn).is_some_and(|other| other.by_proof) {
        conn.remote.forget();
    }
}

/// By what an end that was accepted is posted. NAT leaves the client its port where it can.
fn keys(conn: &Conn) -> [u64; 2] {
    let stamp = conn.meeting.stamp.load(Ordering::Relaxed) as u32;
    let (_, peer) = conn.addresses();
    [peer.port, 0].map(|port| board::key_of_stamp(stamp, port))
}

/// Looks for the other end of a posted connection, or after its proof. Under the lock on states.
pub(super) fn check(conn: &'static Conn) {
    let meeting = &conn.meeting;
    if meeting.proof.load(Ordering::Relaxed) != 0 {
        let lost = !proof::has(conn) && !conn.has(flag::SHARED);
        if lost || Locked::of(conn).is_some_and(|proof| proof.is_over()) {
            if try_end(conn) {
                log::connection(Debug, conn, "its proof has come to nothing");
                report::count_reason(Reason::Unproved);
            }
        } else {
            wait_no_longer(conn);
        }
        return;
    }
    let stamp = meeting.stamp.load(Ordering::Relaxed);
    if stamp == 0
        || !conn.has(flag::CLIENT)
        || conn.has(flag::SHARED)
        || passing::is_shut_out(User::STRANGER)
        || meeting.tries.load(Ordering::Relaxed) >= TRIES
        || meeting.looks.load(Ordering::Relaxed) >= MOST_LOOKS
    {
        return;
    }
    let seldom = conn.pause.load(Ordering::Relaxed) > ticks_of(SELDOM_NS);
    meeting.looks.fetch_add(u32::from(seldom), Ordering::Relaxed);
    let connected = meeting.connected.load(Ordering::Relaxed);
    let (from, to) = ((connected >> 32) as u32, connected as u32);
    if connected == 0 || to.wrapping_sub(from) > MOST_MS {
        return;
    }
    // Clocks that a namespace has shifted may step a moment earlier or later.
    let (mut count, mut found) = (0, [None; TRIES as usize]);
    let Some((_, own)) = folder::own(Spot::Letters, None) else { return };
    let (from_here, _) = conn.addresses();
    for port in [from_here.port, 0] {
        for ms in 0..=to.wrapping_sub(from).min(AT_ONCE_MS) + 2 {
            let stamp = (stamp as u32).wrapping_add(from).wrapping_sub(1).wrapping_add(ms);
            let _ = board::look_by(board::key_of_stamp(stamp, port), |post| {
                let known = |other: &Post| (other.token, other.index) == (post.token, post.index);
                if count < found.len() && post.token != own.token && !found.iter().flatten().any(known) {
                    found[count] = Some(*post);
                    count += 1;
                }
            });
        }
    }
    // One after the other, and again: a proof may fail because of how a program happened to read.
    // Who cannot be reached has gone, or never was.
    let tries = meeting.tries.load(Ordering::Relaxed) as usize;
    let mut next = (0..count).filter_map(|at| found[(tries + at) % count]);
    if next.any(|post| invite(conn, &post)) {
        meeting.tries.fetch_add(1, Ordering::Relaxed);
    }
}

/// What follows from that the other end was proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proved {
    /// There is a link, or one may come.
    Stands,
    /// It does not know us yet.
    Waits,
    /// Nothing any more.
    Over,
}

pub(super) fn proved(conn: &Conn, other: &Introduced) -> Proved {
    let over = match Locked::wait(conn) {
        Some(proof) if proof.is_over() => true,
        Some(proof) if proof.stage != Stage::Believed => return Proved::Waits,
        Some(_) => false,
        None => link::find(other.token).is_none(),
    };
    if over { Proved::Over } else { Proved::Stands }
}

/// An offer to the other end was refused. It may not believe us, or not be there any more, though
/// we believe it: what was proved is of no use then, and another proof may be.
pub(super) fn refused(conn: &'static Conn) {
    if peering::introduced(conn).is_some_and(|other| other.by_proof)
        && conn.meeting.refused.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS
    {
        forget(conn);
    }
}

/// One may be for another reason, or be made before the other end has heard of our proof.
const REFUSALS: u32 = 2;

/// That the other end was proved counts no more.
pub(super) fn forget(conn: &'static Conn) {
    conn.remote.forget();
    try_end(conn);
}

/// A connect() that took longer waited for something else than a host that is this one; and its SYN
/// was sent so soon.
const MOST_MS: u32 = 50;
const AT_ONCE_MS: u32 = 4;

/// So often a connection looks for its other end, when it does so about once a second.
const MOST_LOOKS: u32 = 60;
const SELDOM_NS: u64 = 100_000_000;

/// Whether a proof has begun.
fn invite(conn: &'static Conn, post: &Post) -> bool {
    let Some(mut proof) = begin(conn, post.token, (post.index, post.cookie)) else { return false };
    proof.owed = Some(INVITE);
    proof.pay(conn);
    log::connection(Debug, conn, "asks another process for a proof");
    true
}

/// Reads the letters that have come. True if there were any for connections of ours. Under the lock
/// on states.
pub(super) fn serve() -> bool {
    let Some((socket, _)) = folder::known(Spot::Letters) else { return false };
    let mut any = false;
    for _ in 0..MOST_LETTERS {
        let mut letter = Letter::default();
        let look = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        let Ok(len) = sys::recv_some(socket, letter.bytes_mut(), look) else { break };
        if len == size_of::<Letter>()
            && letter.magic == MAGIC
            && let Some(conn) = posted_conn(letter.index, letter.cookie)
        {
            any = true;
            hear(conn, &letter);
        }
    }
    any
}

const MOST_LETTERS: usize = 16;

fn hear(conn: &'static Conn, letter: &Letter) {
    let [a, b, c, d, salt] = letter.words;
    let is_from = |proof: &Locked| {
        proof.other.0.token == letter.from
            && (proof.other.1, proof.other.2) == (letter.from_index, letter.from_cookie)
    };
    match letter.kind {
        INVITE if may_be_asked(conn) => {
            let under_way = conn.meeting.proof.load(Ordering::Relaxed) != 0;
            if under_way {
                let gives_way = Locked::wait(conn).is_some_and(|proof| proof.may_give_way());
                if !gives_way || !try_end(conn) {
                    return;
                }
            }
            // The other end has given that proof up.
            conn.remote.forget();
            conn.meeting.tries.fetch_add(1, Ordering::Relaxed);
            let other = (letter.from_index, letter.from_cookie);
            let Some(mut proof) = begin(conn, letter.from, other) else { return };
            proof.committed = [a, b, c, d];
            proof.owed = Some(ACCEPT);
            proof.pay(conn);
            log::connection(Debug, conn, "is asked for a proof");
        }
        ACCEPT => {
            let Some(mut proof) = Locked::wait(conn).filter(is_from) else { return };
            if proof.stage == Stage::Asked && proof.client {
                proof.committed = [a, b, c, d];
                proof.salt = salt;
                proof.owed = Some(START);
                proof.pay(conn);
                log::connection(Debug, conn, "begins its proof");
            }
        }
        START => {
            let Some(mut proof) = Locked::wait(conn).filter(is_from) else { return };
            if proof.stage == Stage::Asked && !proof.client && a == proof.given {
                proof.salt = salt;
                proof.stage = Stage::Cutting;
            }
        }
        SHOW => {
            let Some(mut proof) = Locked::wait(conn).filter(is_from) else { return };
            if proof.stage != Stage::Asked && proof.shown.is_none() && c == proof.given {
                (proof.shown, proof.listener) = (Some(Seed([a, b])), d);
                judge(conn, proof);
            }
        }
        REFUSE => {
            let refused = Locked::wait(conn).filter(is_from).is_some_and(|proof| c == proof.given);
            if refused {
                forget(conn);
            }
        }
        _ => {}
    }
}

/// Whether an end that was accepted lets another one begin a proof.
fn may_be_asked(conn: &Conn) -> bool {
    !conn.has(flag::CLIENT | flag::NEVER | flag::SHARED)
        && !passing::is_shut_out(User::STRANGER)
        && conn.state() == state::POSTED
        && conn.meeting.stamp.load(Ordering::Relaxed) != 0
        && conn.meeting.tries.load(Ordering::Relaxed) < ASKED
        && (peering::introduced(conn).is_none()
            || !proof::has(conn) && conn.pending.load(Ordering::Relaxed) == 0)
}

/// The other end's seed is known: whether it is the other end.
fn judge(conn: &'static Conn, mut proof: Locked) {
    let own = folder::own(Spot::Letters, None);
    let (Some((_, own)), Some(seed)) = (own, proof.shown) else { return };
    let (name, index, cookie) = proof.other;
    let proved =
        covert::commitment(seed, name, own) == proof.committed && proof.notes.agree(seed, proof.given);
    log::connection(Debug, conn, if proved { "is proved" } else { "is not proved" });
    if !proved {
        proof.owed = Some(REFUSE);
        proof.pay(conn);
        drop(proof);
        try_end(conn);
        return report::count_reason(Reason::Unproved);
    }
    conn.meeting.refused.store(0, Ordering::Relaxed);
    conn.remote.introduce(Introduced { token: covert::process(name), cookie, index, by_proof: true });
    proof.began = ticks();
    if proof.stage == Stage::Shown {
        proof.stage = Stage::Believed;
    }
}

/// A call on a connection whose proof is under way: notes what has come, and shows our seed if that
/// is due.
#[cold]
pub(super) fn note(conn: &'static Conn, fd: i32) {
    let Some(mut proof) = Locked::of(conn) else { return };
    if let Ok(carried) = diag::segments(fd) {
        proof.notes.come(carried.come, carried.come_in);
    }
    if proof.stage == Stage::Cutting && proof.cut >= covert::WINDOW {
        proof.owed = Some(SHOW);
    }
    proof.pay(conn);
}

/// Whether a write of a connection with a proof is to be cut ([`cut`]). One that goes past that is
/// noted.
#[cold]
pub fn cuts(conn: &'static Conn) -> bool {
    let Some(mut proof) = Locked::of(conn) else { return true };
    if !proof.cuts() {
        proof.notes.went(None);
    }
    proof.cuts()
}

/// A write whose segments are to be counted.
pub struct Cut {
    conn: &'static Conn,
    fd: i32,
    len: usize,
    /// Whether its first byte goes by itself.
    pub in_two: bool,
    before: diag::Carried,
}

/// So many writes may not go in two although they were to.
const MOST_MISSED: u32 = 8;

/// How a write of `len` bytes is to go, if a proof is under way that wants to know; as long as it
/// does, all writes of the connection come here. Under the lock of the direction.
#[cold]
pub fn cut(conn: &'static Conn, fd: i32, len: usize) -> Option<Cut> {
    let mut proof = Locked::of(conn)?;
    proof.notes.went(None);
    let enough = proof.cut >= covert::WINDOW;
    if proof.stage != Stage::Cutting || enough || !covert::SHORT.contains(&len) {
        return None;
    }
    // While something is unacknowledged another thread may sleep in the kernel, and write between
    // the two; what is corked goes when the program says so.
    let corked = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK) != Ok(0);
    if corked || sys::ioctl_int(fd, libc::TIOCOUTQ) != Ok(0) {
        return None;
    }
    let before = diag::segments(fd).ok()?;
    let (seed, salt) = (proof.seed, proof.salt);
    let in_two = proof.notes.toss(seed, salt, before.sent)?;
    Some(Cut { conn, fd, len, in_two, before })
}

impl Cut {
    /// It has been sent.
    pub fn done(self) {
        let Ok(after) = diag::segments(self.fd) else { return };
        let went = after.sent == self.before.sent.wrapping_add(self.len as u64)
            && after.sent_in.wrapping_sub(self.before.sent_in) == 1 + u32::from(self.in_two);
        let Some(mut proof) = Locked::of(self.conn) else { return };
        if went {
            proof.notes.went(Some(self.in_two));
            proof.cut += 1;
        } else if self.in_two {
            // If only those were missing, it would be known how the others went.
            proof.missed += 1;
            if proof.missed > MOST_MISSED {
                drop(proof);
                give_up(self.conn);
            }
        }
    }
}

/// What opens a link to the process that has proved to have the other end.
pub(super) struct Way {
    /// The token of its sockets, and the file of its listener.
    pub token: u64,
    pub listener: u64,
    /// The key that it knows us by.
    pub key: u64,
    /// The socket by which we have knocked there already, taken out of the proof.
    pub knocked: Option<Hidden>,
}

pub(super) fn way_to_link(conn: &'static Conn) -> Option<Way> {
    let proof = Locked::wait(conn).filter(|proof| proof.stage == Stage::Believed && proof.client)?;
    let knocked = proof.knock().take();
    Some(Way { token: proof.other.0.token, listener: proof.listener, key: proof.key()?, knocked })
}

/// We have knocked there by this socket.
pub(super) fn knocked(conn: &'static Conn, socket: Hidden) {
    match Locked::wait(conn) {
        Some(proof) => {
            proof::close_knock(proof.knock());
            proof.knock().set(socket.keep());
        }
        None => passing::close(socket, Some(User::STRANGER)),
    }
}

/// Whether a link is opened by the process that has proved to have the other end, whose token of
/// sockets this is: what stands for it among links.
pub(super) fn opens_link(conn: &'static Conn, cookie: u64, token: u64, key: u64) -> Option<u64> {
    let other = peering::introduced(conn).filter(|other| other.by_proof && other.cookie == cookie)?;
    let proof = Locked::wait(conn)?;
    let name = proof.other.0;
    let same = name.token == token && covert::process(name) == other.token && proof.key() == Some(key);
    same.then_some(other.token)
}

/// No proof is wanted any more: the connection is about to be written to past [`cut`].
#[cold]
pub fn give_up(conn: &'static Conn) {
    // Not beside a write of two segments, but by it.
    let _tx = conn.tx.lock();
    conn.meeting.tries.store(u32::MAX / 2, Ordering::Relaxed);
    end(conn);
}

/// Does what a cut write must not meet: it sets options for a moment.
pub fn undisturbed<R>(conn: &'static Conn, act: impl FnOnce() -> R) -> R {
    let proves = conn.meeting.proof.load(Ordering::Relaxed) != 0;
    let _tx = if proves { conn.tx.lock() } else { None };
    act()
}

/// The proof has been of use if there is a link already.
pub(super) fn linked_if_there(conn: &'static Conn, other: &Introduced) {
    let ready = |link: &link::Link| link.state() == link::state::READY;
    if conn.meeting.proof.load(Ordering::Relaxed) != 0
        && link::find(other.token).is_some_and(ready)
        && Locked::of(conn).is_some_and(|proof| proof.stage == Stage::Believed)
    {
        try_end(conn);
    }
}

/// There is a link to that process.
pub(super) fn linked(conn: &'static Conn) {
    try_end(conn);
}
