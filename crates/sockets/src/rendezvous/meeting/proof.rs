//! Proofs that are under way, and what their ends tell each other.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use fabric::Plain;
use fabric::credentials::User;
use fabric::lock::Lock;
use fabric::sync::{AtomicU64, Ordering};
use fabric::sys;
use fabric::words::{Array, Zeroed};
use stream::spin::{ticks, ticks_of};

use super::super::posted::wait_no_longer;
use super::covert::{self, Commitment, Notes, Seed};
use crate::conn::{Conn, flag};
use crate::descriptors::{self, Kept};
use crate::folder::{self, Name, Spot};
use crate::link::passing;
use crate::peering;
use crate::thread::{self, Place};

/// What ends tell each other.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Letter {
    pub(super) magic: u32,
    pub(super) kind: u32,
    /// Who writes: its rendezvous socket, where its end is posted, and the end's cookie.
    pub(super) from: u64,
    pub(super) from_index: u32,
    /// To whom: where that end is posted, and its cookie.
    pub(super) index: u32,
    pub(super) from_cookie: u64,
    pub(super) cookie: u64,
    pub(super) words: [u64; 5],
}

// SAFETY: integers; those of 32 bits come in pairs.
unsafe impl Plain for Letter {}

pub(super) const MAGIC: u32 = 0x5348_4d31;

/// A commitment and, in answer to it, another one and the salt for it; the salt for that; a seed,
/// and the file of the listener for links; that a seed was not believed. From START on a letter has
/// a salt of the receiver's, which nobody else has been told.
pub(super) const INVITE: u32 = 1;
pub(super) const ACCEPT: u32 = 2;
pub(super) const START: u32 = 3;
pub(super) const SHOW: u32 = 4;
pub(super) const REFUSE: u32 = 5;

/// A proof that is under way.
pub(super) struct Proof {
    lock: Lock,
    /// Whose it is; 0: it is free.
    conn: AtomicU64,
    /// By which letters go to the other end's process.
    socket: Kept,
    /// By which a link to it is asked for.
    knock: Kept,
    inner: UnsafeCell<Inner>,
}

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// INVITE or ACCEPT has been written.
    Asked,
    /// Writes are cut.
    Cutting,
    /// Our seed has been shown.
    Shown,
    /// The other end is believed; it is to open a link, or we are.
    Believed,
}

pub(super) struct Inner {
    pub(super) stage: Stage,
    /// When it began, in ticks.
    pub(super) began: u64,
    /// Whether we have called connect().
    pub(super) client: bool,
    /// The other end: its name, where it is posted, and its cookie.
    pub(super) other: (Name, u32, u64),
    pub(super) seed: Seed,
    /// The salt of our coins, and the one that we have given for the other's.
    pub(super) salt: u64,
    pub(super) given: u64,
    pub(super) committed: Commitment,
    pub(super) shown: Option<Seed>,
    /// The file of the other's listener.
    pub(super) listener: u64,
    /// The letter that is to be written next; the other's socket may have no room for it.
    pub(super) owed: Option<u32>,
    /// So many writes of ours went as their coins fell.
    pub(super) cut: u32,
    /// And so many did not go in two although they were to.
    pub(super) missed: u32,
    pub(super) notes: Notes,
}

// SAFETY: `inner` is under `lock`, the rest is atomic.
unsafe impl Sync for Proof {}
// SAFETY: a zeroed one is free, and zeroes are a valid `Inner`, as is checked below.
unsafe impl Zeroed for Proof {}
const _: () = {
    // SAFETY: were zeroes no valid value of it, this would not compile.
    let zeroes: Inner = unsafe { core::mem::zeroed() };
    assert!(matches!(zeroes, Inner { shown: None, owed: None, .. }));
};

/// How many may be under way in a process, how long each may take, and how many a connection tries.
const MOST: usize = 64;
pub(super) const PATIENCE_NS: u64 = 10_000_000_000;
pub(super) const TRIES: u32 = 4;
/// How long one that has been asked waits before another may ask, and gives the first one up; how
/// many it lets ask.
const ANSWER_NS: u64 = 50_000_000;
const UNANSWERED_NS: u64 = 1_000_000_000;
pub(super) const ASKED: u32 = 16;

static PROOFS: Array<Proof, MOST> = Array::new();

impl Proof {
    /// That of a connection.
    fn of(conn: &Conn) -> Option<&'static Proof> {
        let at = conn.meeting.proof.load(Ordering::Acquire).checked_sub(1)?;
        let proof = PROOFS.get().get(at as usize)?;
        (proof.conn.load(Ordering::Acquire) == core::ptr::from_ref(conn) as u64).then_some(proof)
    }

    /// Frees it if its connection has gone on without (a child of fork() may have ended the proof),
    /// or makes no calls that would find that it is over.
    fn free_if_left(&'static self, at: usize) {
        // SAFETY: only `begin` stores here, from a &'static Conn.
        let Some(conn) = (unsafe { (self.conn.load(Ordering::Acquire) as *const Conn).as_ref() }) else {
            return;
        };
        let left = conn.meeting.proof.load(Ordering::Acquire) != at as u32 + 1;
        // Not beside a write of two segments.
        let tx = conn.tx.try_lock();
        if tx.is_some()
            && let Some(proof) = self.lock_for(conn)
            && (left || proof.is_over())
        {
            proof.free(conn);
        }
    }

    /// Locks it, if nobody has it and it is still this connection's.
    fn lock_for(&'static self, conn: &Conn) -> Option<Locked> {
        if !thread::try_lock(&self.lock, Place::Proof) {
            return None;
        }
        let locked = Locked(self);
        (self.conn.load(Ordering::Acquire) == core::ptr::from_ref(conn) as u64).then_some(locked)
    }
}

/// A proof's inside, locked.
pub(super) struct Locked(&'static Proof);

impl Deref for Locked {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        // SAFETY: the lock is held.
        unsafe { &*self.0.inner.get() }
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}

impl Locked {
    /// The connection's proof, if there is one and nobody has it.
    pub(super) fn of(conn: &Conn) -> Option<Locked> {
        Proof::of(conn)?.lock_for(conn)
    }

    /// As [`Locked::of`], but waits a while for who has it: not for ever, as a signal handler that
    /// waits for us may have interrupted it.
    pub(super) fn wait(conn: &Conn) -> Option<Locked> {
        let proof = Proof::of(conn)?;
        for _ in 0..WAITS {
            if let Some(locked) = proof.lock_for(conn) {
                return Some(locked);
            }
            sys::yield_now();
        }
        None
    }

    /// It is over: its place is free.
    fn free(self, conn: &Conn) {
        let at = conn.meeting.proof.load(Ordering::Acquire) as usize;
        if PROOFS.get().get(at.wrapping_sub(1)).is_some_and(|proof| core::ptr::eq(proof, self.0)) {
            conn.meeting.proof.store(0, Ordering::Release);
        }
        self.0.socket.close();
        close_knock(&self.0.knock);
        self.0.conn.store(0, Ordering::Release);
    }

    pub(super) fn knock(&self) -> &'static Kept {
        &self.0.knock
    }

    /// Whether its writes are cut, or are about to be.
    pub(super) fn cuts(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Cutting)
    }

    /// Whether it has lasted too long.
    pub(super) fn is_over(&self) -> bool {
        let patience = if self.stage == Stage::Asked { UNANSWERED_NS } else { PATIENCE_NS };
        ticks().saturating_sub(self.began) > ticks_of(patience)
    }

    /// Whether another end may ask instead.
    pub(super) fn may_give_way(&self) -> bool {
        self.stage == Stage::Asked && ticks().saturating_sub(self.began) > ticks_of(ANSWER_NS)
    }

    /// Writes the letter that is owed, if the other's socket has room.
    pub(super) fn pay(&mut self, conn: &Conn) {
        let (Some(kind), Some((_, own))) = (self.owed, folder::own(Spot::Letters, None)) else { return };
        let [a, b, c, d] = covert::commitment(self.seed, own, self.other.0);
        let words = match kind {
            INVITE => [a, b, c, d, 0],
            ACCEPT => [a, b, c, d, self.given],
            START => [self.salt, 0, 0, 0, self.given],
            SHOW => {
                let Some((_, links)) = folder::own(Spot::Links, None) else { return };
                [self.seed.0[0], self.seed.0[1], self.salt, links.file, 0]
            }
            _ => [0, 0, self.salt, 0, 0],
        };
        let letter = self.letter(conn, own, kind, words);
        let socket = self.0.socket.get().filter(|&socket| descriptors::intact(socket));
        let Some(socket) = socket else { return };
        if sys::send_with_now(socket, letter.bytes(), &[]).is_err() {
            return;
        }
        self.owed = None;
        match kind {
            START => self.stage = Stage::Cutting,
            SHOW => {
                let believed = peering::introduced(conn).is_some_and(|other| other.by_proof);
                self.stage = if believed { Stage::Believed } else { Stage::Shown };
            }
            _ => {}
        }
    }

    fn letter(&self, conn: &Conn, own: Name, kind: u32, words: [u64; 5]) -> Letter {
        let (_, index, cookie) = self.other;
        Letter {
            magic: MAGIC,
            kind,
            from: own.token,
            from_index: place_of(conn),
            index,
            from_cookie: conn.cookie.load(Ordering::Relaxed),
            cookie,
            words,
        }
    }

    /// The key of a link, once both seeds are known.
    pub(super) fn key(&self) -> Option<u64> {
        let theirs = self.shown?;
        Some(if self.client { covert::key(self.seed, theirs) } else { covert::key(theirs, self.seed) })
    }
}

/// Who is knocked at may have passed something.
pub(super) fn close_knock(knock: &Kept) {
    if let Some(socket) = knock.take() {
        passing::close(socket, Some(User::STRANGER));
    }
}

/// Whether the connection has one.
pub(super) fn has(conn: &Conn) -> bool {
    Proof::of(conn).is_some()
}

/// Where a connection is among the posted.
pub(super) fn place_of(conn: &Conn) -> u32 {
    (conn.posted_index.load(Ordering::Relaxed) as u32).wrapping_sub(1)
}

/// A free place for a proof of this connection with the process named by `token`.
pub(super) fn begin(conn: &'static Conn, token: u64, other: (u32, u64)) -> Option<Locked> {
    let (_, own) = folder::own(Spot::Letters, None)?;
    let (socket, file) = folder::reach(token, Spot::Letters, |_| token != own.token)?;
    let name = Name { token, file };
    PROOFS.make().ok()?;
    let ptr = core::ptr::from_ref(conn) as u64;
    let take =
        |proof: &&Proof| proof.conn.compare_exchange(0, ptr, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let proofs = PROOFS.get();
    proofs.iter().enumerate().for_each(|(at, proof)| proof.free_if_left(at));
    let proof = proofs.iter().find(take)?;
    let mut random = [0; 3];
    for word in &mut random {
        *word = sys::try_random().unwrap_or(0);
    }
    if random.contains(&0) || !thread::try_lock(&proof.lock, Place::Proof) {
        proof.conn.store(0, Ordering::Release);
        return None;
    }
    let mut locked = Locked(proof);
    // In place: it is large, and the stack may be a handler's.
    let inner = &mut *locked;
    (inner.stage, inner.began, inner.client) = (Stage::Asked, ticks(), conn.has(flag::CLIENT));
    (inner.other, inner.seed) = ((name, other.0, other.1), Seed([random[0], random[1]]));
    (inner.salt, inner.given, inner.committed) = (0, random[2], Commitment::default());
    (inner.shown, inner.listener, inner.owed) = (None, 0, None);
    (inner.cut, inner.missed) = (0, 0);
    inner.notes.begin();
    proof.socket.set(socket.keep());
    let at = proofs.iter().position(|other| core::ptr::eq(other, proof)).unwrap_or(0);
    conn.meeting.proof.store(at as u32 + 1, Ordering::Release);
    wait_no_longer(conn);
    conn.due.store(0, Ordering::Release);
    Some(locked)
}

/// No proof of it is under way any more, of a connection that is written to by nobody, or by who
/// calls.
pub(super) fn end(conn: &Conn) {
    match Locked::wait(conn) {
        Some(proof) => proof.free(conn),
        // Who has it finds that, or the next one that needs a place.
        None => conn.meeting.proof.store(0, Ordering::Release),
    }
}

/// The same of any connection: not beside a write of two segments. False if it is to be tried
/// again.
pub(super) fn try_end(conn: &Conn) -> bool {
    if conn.meeting.proof.load(Ordering::Acquire) == 0 {
        return true;
    }
    let tx = conn.tx.try_lock();
    let ends = tx.is_some() || conn.tx.holder() == thread::tid();
    if ends {
        end(conn);
    }
    ends
}

/// So often a lock is tried for.
pub(super) const WAITS: usize = 1000;

/// All of them. `close`: their sockets, in the child of fork().
pub(super) fn forget(close: bool) {
    for proof in PROOFS.get() {
        if close {
            proof.socket.close();
            proof.knock.close();
        }
        proof.socket.forget();
        proof.knock.forget();
        proof.lock.reset();
        proof.conn.store(0, Ordering::Relaxed);
    }
}
