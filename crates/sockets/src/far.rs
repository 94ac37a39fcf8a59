//! Connections between hosts. Their link is one of `ofi`'s, made and served by one thread of this process, the *carrier* (the crate `carrier`), since libfabric's calls allocate
//! and lock, and a program may call us from a signal handler. What this side writes goes into the shadow of the peer's segment and, as errands in their order, into the
//! link's outbox ([`Wire`]); the carrier puts it into the peer's memory. What the peer puts is in our segment, where it is looked for as on one host.
//!
//! What differs from one host follows from this: nothing that was put is known to have come, until the peer has *echoed* ([`Wire::settle`]). So
//!
//! * before anything goes by the companion that the peer must not mistake (kicks, tcp behind a demotion, the end), what was put before has been echoed;
//! * tripwires are fired by the carrier of the end that armed them. It rings its own bells and sets its own hints; only for a kick it asks the peer's;
//! * an offer cannot be taken back, only be refused: whoever wants it back asks for that, and waits for the answer;
//! * fork() takes connections back to tcp before it: a child has no carrier.

use fabric::outbox::{Doorbell, Errand, Outbox};
use fabric::shm::Map;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, spin_hint};
use fabric::{Local, bell, hints, sys, trip};
use host::addr::Addr;
use options::LogLevel;
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, flag, path, state};
use crate::layout::{self, FIRED, TRIP};
use crate::link::{self, Link};
use crate::peer::Peer;
use crate::reason::Reason;
use crate::{demote, epoll, kicks, log, process, rendezvous, report, signals, table, thread};

pub(crate) mod records;

/// Connections that a link between hosts has room for: registered memory is pinned by most providers.
pub const SLOTS: usize = 32;
/// Bytes of a segment of such a link.
pub const SEGMENT: usize = layout::mapped(SLOTS);

/// What is to be done, in an [`Errand`] of a link.
pub mod what {
    /// These bytes of the shadow (offset, length) go to the peer.
    pub const BYTES: u64 = 1;
    /// This word (offset, value) does.
    pub const WORD: u64 = 2;
    /// These bits (offset, bits) are set there.
    pub const OR: u64 = 3;
    /// The tripwire there (offset, interest) is stimulated.
    pub const STIMULATE: u64 = 4;
    /// The peer's carrier is called (one of [`super::call`], value).
    pub const CALL: u64 = 5;
}

/// What carriers tell each other, after all that was put before is there.
pub mod call {
    /// Answer with [`ECHOED`] and this number.
    pub const ECHO: u64 = 1;
    /// All that was put before the [`ECHO`] of this number is there.
    pub const ECHOED: u64 = 2;
    /// The end on this slot sleeps where only a kick wakes it.
    pub const KICK: u64 = 3;
    /// It has been counted, and comes.
    pub const KICKED: u64 = 4;
    /// The end on this slot wants the other one to go on by tcp, perhaps with what is unread in its ring, and waits for that.
    pub const RECALL: u64 = 5;
    /// An END comes to the end on this slot by the companion.
    pub const HEAR: u64 = 6;
}

/// What is to be done that is not of one link.
pub mod desk {
    /// A connection (its index among the posted, its cookie) may have its other end on another host.
    pub const POST: u64 = 1;
    /// It is no longer to be introduced.
    pub const WITHDRAW: u64 = 2;
    /// Nobody uses the link with this number any more.
    pub const RELEASE: u64 = 3;
}

/// The way from the shadow to the peer. Lies in memory that forked children share; never unmapped.
#[repr(C)]
pub struct Wire {
    pub outbox: Outbox,
    /// Echoes asked for, and answered.
    asked: AtomicU64,
    answered: AtomicU64,
    /// The peer has not answered in time, and not since.
    silent: AtomicU32,
    /// Begins what carriers put among the bytes of tcp.
    pub(crate) mark: u128,
}

impl core::fmt::Debug for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(if self.is_over() { "Wire, over" } else { "Wire" })
    }
}

/// How long a peer may take for an echo before the link is given up.
const SETTLE_NS: u64 = 2_000_000_000;
/// Looks without letting others run.
const LOOKS: usize = 200;

impl Wire {
    /// A new one.
    fn make(mark: u128) -> Option<&'static Wire> {
        let at = sys::mmap_common(size_of::<Wire>()).ok()?.cast::<Wire>();
        // SAFETY: as below; nobody else has it.
        unsafe { (*at).mark = mark };
        // SAFETY: zeroed memory of this size, aligned to a page, which stays mapped; zeroes are a valid wire.
        Some(unsafe { &*at })
    }

    fn post(&self, what: u64, at: u64, value: u64) {
        self.outbox.post(Errand { what, at, value }, wait_for_room);
        ring();
    }

    pub fn bytes(&self, offset: usize, len: usize) {
        if len > 0 {
            self.post(what::BYTES, offset as u64, len as u64);
        }
    }

    pub fn word(&self, offset: usize, value: u64) {
        self.post(what::WORD, offset as u64, value);
    }

    pub fn or(&self, offset: usize, bits: u64) {
        self.post(what::OR, offset as u64, bits);
    }

    pub fn stimulate(&self, offset: usize, interest: u64) {
        self.post(what::STIMULATE, offset as u64, interest);
    }

    /// Calls the peer's carrier.
    pub fn call(&self, what: u64, value: u64) {
        self.post(what::CALL, what, value);
    }

    /// Asks for an echo; its number.
    pub fn ask(&self) -> u64 {
        let number = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.call(call::ECHO, number);
        number
    }

    /// Whether it has come.
    pub fn has_echoed(&self, number: u64) -> bool {
        self.answered.load(Ordering::Acquire) >= number
    }

    /// It has.
    pub fn echoed(&self, number: u64) {
        // Rule F2: not one that was not asked for.
        if number <= self.asked.load(Ordering::Acquire) {
            self.answered.fetch_max(number, Ordering::AcqRel);
            self.silent.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until all that was put is there; false if the link is over. Not for the carrier, which has to bring it there.
    pub fn settle(&self) -> bool {
        let (number, start) = (self.ask(), sys::now());
        let mut looks = 0;
        while !self.has_echoed(number) {
            if self.is_over() {
                return false;
            }
            looks += 1;
            if looks < LOOKS {
                spin_hint();
                continue;
            }
            if sys::now() - start > SETTLE_NS {
                self.fell_silent();
                self.end();
                return false;
            }
            sys::yield_now();
        }
        true
    }

    /// As [`Wire::settle`]; the carrier, which cannot wait, asks once, notes for what in `echo`, and comes back.
    pub fn has_settled(&self, echo: &mut u64) -> bool {
        if !is_carrier() {
            return self.settle();
        }
        if *echo == 0 {
            *echo = self.ask();
        }
        let settled = !self.is_over() && self.has_echoed(*echo);
        if settled {
            *echo = 0;
        }
        settled
    }

    /// The peer has not answered in time: nobody waits for it in vain again, where that may be left out.
    pub(crate) fn fell_silent(&self) {
        self.silent.store(1, Ordering::Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed) != 0
    }

    /// The link is over: nothing that is put comes any more.
    pub fn end(&self) {
        self.outbox.close();
        ring();
    }

    #[inline]
    pub fn is_over(&self) -> bool {
        self.outbox.is_closed()
    }
}

/// Whoever posts where there is no room waits for the carrier, which itself makes room.
fn wait_for_room() {
    if is_carrier() {
        let work = WORK.load(Ordering::Acquire);
        if work != 0 {
            // SAFETY: only `serve` stores here.
            unsafe { core::mem::transmute::<usize, fn()>(work)() };
        }
    } else {
        sys::yield_now();
    }
}

static DOORBELL: Doorbell = Doorbell::new();
/// The carrier's bell, +1.
static BELL: AtomicI32 = AtomicI32::new(0);
/// The carrier's thread, 0 if there is none.
static CARRIER: AtomicU32 = AtomicU32::new(0);
/// How a carrier is started and ended, how it does what waits in the outboxes, and what is done in children.
static START: AtomicUsize = AtomicUsize::new(0);
static STOP: AtomicUsize = AtomicUsize::new(0);
static WORK: AtomicUsize = AtomicUsize::new(0);
static IN_CHILD: AtomicUsize = AtomicUsize::new(0);
/// What is to be done that is not of one link.
static DESK: AtomicUsize = AtomicUsize::new(0);
/// Whether a carrier has been asked for.
static WANTED: AtomicU32 = AtomicU32::new(0);
const NOT_YET: u32 = 0;
const ASKED: u32 = 1;
const STARTED: u32 = 2;
/// A child of a process that has one: what libfabric has locked meanwhile stays so.
const NEVER: u32 = 3;

/// Whether this host belongs to a cluster.
pub fn is_asked_for() -> bool {
    !process::options().cluster.is_empty()
}

/// There can be carriers in this process, started by `start` when one is wanted, and ended by `stop`; `forked` is called in children.
pub fn offer_carrier(start: fn(), stop: fn(), forked: fn()) {
    IN_CHILD.store(forked as usize, Ordering::Release);
    STOP.store(stop as usize, Ordering::Release);
    START.store(start as usize, Ordering::Release);
}

/// Ends the carrier, for good: nothing goes between hosts any more.
pub fn stop() {
    if WANTED.swap(NEVER, Ordering::AcqRel) == STARTED {
        let stop = STOP.load(Ordering::Acquire);
        // SAFETY: only `offer_carrier` stores here, and there is a carrier.
        unsafe { core::mem::transmute::<usize, fn()>(stop)() };
    }
}

/// The carrier is this thread: `bell` wakes it, `work` does what waits in the links' outboxes.
pub fn serve(bell: i32, work: fn()) {
    BELL.store(bell + 1, Ordering::Release);
    WORK.store(work as usize, Ordering::Release);
    CARRIER.store(thread::tid(), Ordering::Release);
}

/// It serves no more: what is put comes no more.
pub fn serve_no_more() {
    BELL.store(0, Ordering::Release);
    for link in link::all().map(link::link) {
        if let Some(wire) = link.wire() {
            wire.outbox.close();
        }
    }
    CARRIER.store(0, Ordering::Release);
}

/// Whether this thread is the carrier, whose own connections are none of ours.
#[inline]
pub fn is_carrier() -> bool {
    let carrier = CARRIER.load(Ordering::Relaxed);
    carrier != 0 && carrier == thread::tid()
}

/// Before the carrier sleeps; then it looks once more.
pub fn arm() {
    DOORBELL.arm();
}

/// It is awake.
pub fn disarm() {
    DOORBELL.disarm();
}

fn ring() {
    // A child does not know whether its parent's carrier sleeps.
    if CARRIER.load(Ordering::Relaxed) == 0 || DOORBELL.must_ring() {
        let bell = BELL.load(Ordering::Acquire);
        if bell > 0 {
            bell::ring(bell - 1);
        }
    }
}

fn desk() -> Option<&'static Outbox> {
    let at = DESK.load(Ordering::Acquire);
    // SAFETY: only `begin` stores here, an outbox that stays mapped.
    (at != 0).then(|| unsafe { &*(at as *const Outbox) })
}

/// The next thing to do that is not of one link.
pub fn next() -> Option<Errand> {
    desk()?.take()
}

/// Whether the other end of a connection may be on another host that counts as this cluster's.
pub fn may_be(own: Addr, peer: Addr) -> bool {
    START.load(Ordering::Relaxed) != 0
        && WANTED.load(Ordering::Relaxed) != NEVER
        && crate::rules::in_cluster(own)
        && crate::rules::in_cluster(peer)
        && sys::address_space_limit() == u64::MAX
}

/// A connection has been posted that may be one between hosts.
pub(crate) fn post(conn: &Conn, index: u32) {
    if DESK.load(Ordering::Acquire) == 0 {
        let Ok(at) = sys::mmap_common(size_of::<Outbox>()) else { return };
        if DESK.compare_exchange(0, at as usize, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at, size_of::<Outbox>());
        }
    }
    let (own, _) = conn.addresses();
    if first_address().is_none() {
        let half = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| own.ip[at + i]));
        FIRST[0].store(half(0), Ordering::Release);
        FIRST[1].store(half(8), Ordering::Release);
    }
    if WANTED.compare_exchange(NOT_YET, ASKED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        ASKED_AT.store(ticks(), Ordering::Release);
    }
    tell_desk(desk::POST, index, conn.cookie.load(Ordering::Relaxed));
}

/// It is not to be introduced any more.
pub(crate) fn withdraw(conn: &Conn, index: u32) {
    if desk().is_some() && conn.far.is_posted() {
        tell_desk(desk::WITHDRAW, index, conn.cookie.load(Ordering::Relaxed));
    }
}

fn tell_desk(what: u64, index: u32, cookie: u64) {
    // Without a carrier nobody makes room: then it is not known, and stays on tcp.
    if let Some(desk) = desk()
        && desk.has_room()
    {
        desk.post(Errand { what, at: index.into(), value: cookie }, wait_for_room);
        ring();
    }
}

/// Nobody uses a link any more, the carrier's with this number.
pub(crate) fn release(number: u64) {
    if let Some(desk) = desk() {
        desk.post(Errand { what: desk::RELEASE, at: number, value: 0 }, wait_for_room);
        ring();
    }
}

/// When a carrier was asked for, in ticks, and for how long a connection must have wanted it: to open libfabric takes longer than many a program.
static ASKED_AT: AtomicU64 = AtomicU64::new(0);
const WANTED_NS: u64 = 100_000_000;

/// Starts the carrier if one has been asked for some time ago: under no lock. To start a thread allocates, which a signal handler must not that has interrupted it.
pub(crate) fn start_if_wanted() {
    if WANTED.load(Ordering::Relaxed) != ASKED
        || ticks().wrapping_sub(ASKED_AT.load(Ordering::Acquire)) < ticks_of(WANTED_NS)
        || process::borrowed()
        || signals::may_be_in_handler()
    {
        return;
    }
    if WANTED.compare_exchange(ASKED, STARTED, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        let start = START.load(Ordering::Acquire);
        // SAFETY: only `offer_carrier` stores here, and `may_be` has seen that it has.
        unsafe { core::mem::transmute::<usize, fn()>(start)() };
    }
}

/// Before fork(): what goes between hosts goes back to tcp.
pub fn before_fork() {
    if WANTED.load(Ordering::Acquire) != STARTED || process::is_guest() {
        return;
    }
    for_each_promoted(|conn, fd| {
        demote::hand_over(conn, fd, Reason::Forked, false);
    });
}

/// In its child.
pub fn forked() {
    if WANTED.load(Ordering::Acquire) == STARTED {
        // What there is still to bring to a peer, the parent's carrier brings.
        WANTED.store(NEVER, Ordering::Release);
        let forked = IN_CHILD.load(Ordering::Acquire);
        // SAFETY: only `offer_carrier` stores here, and there was a carrier.
        unsafe { core::mem::transmute::<usize, fn()>(forked)() };
    } else {
        WANTED.store(NOT_YET, Ordering::Release);
        BELL.store(0, Ordering::Release);
    }
    CARRIER.store(0, Ordering::Release);
    DESK.store(0, Ordering::Release);
}

/// The process ends: waits until all that it has put is there. What is still to be written, by what else runs at its end, goes by tcp.
pub fn leave() {
    if CARRIER.load(Ordering::Acquire) == 0 || process::borrowed() {
        return;
    }
    rendezvous::end_far();
    for_each_promoted(demote::begin_end);
    for link in link::all().map(link::link) {
        if let Some(wire) = link.wire()
            && link.live.load(Ordering::Acquire) != 0
            && !wire.is_over()
        {
            wire.settle();
        }
    }
    for_each_promoted(|conn, fd| {
        if let Some(mut tx) = conn.tx.try_lock()
            && conn.tx.path() == path::RESEND
        {
            demote::resend(conn, fd, &mut tx);
        }
    });
}

/// All connections of this process that go between hosts.
fn for_each_promoted(what: impl Fn(&'static Conn, i32)) {
    table::for_each(|fd, entry| {
        if let table::Entry::Conn(conn) = entry
            && conn.is_far()
            && conn.state() == state::PROMOTED
        {
            what(conn, fd);
        }
    });
}

/// Where the other end of a posted connection is, as the agents have said.
#[derive(Debug, Default)]
pub struct Other {
    /// Names its process; 0: not known.
    pub token: AtomicU64,
    pub cookie: AtomicU64,
    pub index: AtomicU32,
    posted: AtomicU32,
}

impl Other {
    pub(crate) fn reset(&self) {
        self.token.store(0, Ordering::Relaxed);
        self.posted.store(0, Ordering::Relaxed);
    }

    pub(crate) fn is_posted(&self) -> bool {
        self.posted.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn be_posted(&self) {
        self.posted.store(1, Ordering::Relaxed);
    }
}

/// The connection that was posted with this index and cookie, and its addresses (own, peer's).
pub fn posted(index: u32, cookie: u64) -> Option<(Addr, Addr)> {
    Some(rendezvous::posted_conn(index, cookie)?.addresses())
}

/// An agent has said where the other end of a posted connection is.
pub fn introduced(index: u32, cookie: u64, token: u64, peer_index: u32, peer_cookie: u64) {
    let Some(conn) = rendezvous::posted_conn(index, cookie) else { return };
    conn.far.cookie.store(peer_cookie, Ordering::Relaxed);
    conn.far.index.store(peer_index, Ordering::Relaxed);
    conn.far.token.store(token, Ordering::Release);
    rendezvous::hurry(conn);
}

/// This process's name for carriers.
pub fn token() -> u64 {
    rendezvous::own_token()
}

/// A link with a process (its name, its user) stands, by our segment and the shadow of its, the carrier's with this number: connections may go by it. `mark`: what both
/// ends know and nobody else. Its number for [`fired`] and others.
pub fn linked(
    (token, uid): (u64, u32),
    (mine, shadow): (Map, Map),
    opened: bool,
    number: u64,
    mark: u128,
) -> Option<(u32, &'static Wire)> {
    let wire = Wire::make(mark)?;
    let index = link::add_far(token, uid, mine, Peer::far(shadow, wire), opened, number).ok()?;
    Some((index, wire))
}

/// Whether a link had no free slot when last asked.
pub fn is_full(index: u32) -> bool {
    link::link(index).is_full()
}

/// Whether something waits at the desk.
pub fn has_errands() -> bool {
    desk().is_some_and(|desk| !desk.is_empty())
}

/// There is no carrier, and will be none.
pub fn unavailable() {
    WANTED.store(NEVER, Ordering::Release);
}

/// A line for the log.
pub fn note(what: impl core::fmt::Display) {
    log::note(LogLevel::Info, what);
}

/// The provider that is to be used; `None`: the best.
pub fn provider() -> Option<&'static str> {
    process::options().fabric.provider()
}

/// An address of ours that the cluster reaches: that of the first connection that may go there.
pub fn first_address() -> Option<[u8; 16]> {
    let ip = [FIRST[0].load(Ordering::Acquire), FIRST[1].load(Ordering::Acquire)];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&ip[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&ip[1].to_ne_bytes());
    (ip != [0, 0]).then_some(bytes)
}

static FIRST: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// An agent does not introduce a connection that was posted: why not, in its words.
pub fn refused(index: u32, cookie: u64, why: &str) {
    if let Some(conn) = rendezvous::posted_conn(index, cookie) {
        conn.set_reason(Reason::NotIntroduced);
        report::count_reason(Reason::NotIntroduced);
        log::connection(LogLevel::Info, conn, why);
    }
}

/// A link is over: what goes by it goes back to tcp.
pub fn over(index: u32) {
    if let Some(wire) = link::link(index).wire() {
        wire.end();
    }
}

/// As far as nobody else does it: takes the connections of a link that is over back to tcp. False if some are left.
pub fn cut(index: u32) -> bool {
    let link = link::link(index);
    let mut all = true;
    for (slot, conn) in (0..SLOTS).filter_map(|slot| Some((slot, link.conn(slot)?))) {
        if conn.state() != state::PROMOTED || conn.notes() & layout::note::CLOSED != 0 {
            continue;
        }
        if conn.has(flag::CUT) {
            all &= attend(index, slot as u64) == Attended::Done;
            continue;
        }
        all = false;
        if let Some(mut tx) = conn.tx.try_lock()
            && let Some(rx) = conn.rx.try_lock()
        {
            drop(rx);
            if is_on(conn, index, slot) {
                records::cut(conn, conn.descriptor(), &mut tx);
            }
        }
    }
    all
}

/// How far the carrier has come with what a peer wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attended {
    /// All of it is on its way by tcp, or nobody is there.
    Done,
    /// Again later.
    Later,
}

/// The peer wants this end to go on by tcp, perhaps with what is in the ring, and the program may be in no call of ours: does it.
pub fn attend(index: u32, slot: u64) -> Attended {
    let Some((slot, conn)) = on_slot(index, slot) else { return Attended::Done };
    let Some(mut tx) = conn.tx.try_lock() else { return Attended::Later };
    if !is_on(conn, index, slot) || conn.state() != state::PROMOTED {
        return Attended::Done;
    }
    let fd = conn.descriptor();
    if conn.has(flag::CUT)
        && !conn.has(flag::HEARD)
        && let Some(mut rx) = conn.rx.try_lock()
    {
        // The peer's STOP.
        if matches!(conn.rx.path(), path::SMALL | path::BIG) {
            kicks::look(conn, fd, &mut rx, kicks::By::Call);
        }
        records::seek_stop(conn, fd);
    }
    let wanted = conn.notes() & (layout::note::RECALL | layout::note::DEMOTE) != 0;
    match conn.tx.path() {
        path::TCP if wanted => drop(crate::io::switch(conn, fd, &mut tx)),
        path::SMALL | path::BIG if wanted => demote::asked(conn, fd, &mut tx),
        path::RESEND => drop(demote::resend(conn, fd, &mut tx)),
        _ => {}
    }
    if conn.tx.path() != path::LAST {
        return Attended::Later;
    }
    // Its END, so that it knows soon that nothing more than bytes comes.
    if let Some(mut rx) = conn.rx.try_lock()
        && matches!(conn.rx.path(), path::SMALL | path::BIG)
    {
        kicks::look(conn, fd, &mut rx, kicks::By::Call);
        crate::io::progress(conn, fd, &mut rx);
    }
    Attended::Done
}

/// The peer's END is on its way by the companion, and the program may be in no call of ours that looks for it: looks, so that the peer is told soon that it has been found.
pub fn hear(index: u32, slot: u64) -> Attended {
    let Some((slot, conn)) = on_slot(index, slot) else { return Attended::Done };
    let Some(mut rx) = conn.rx.try_lock() else { return Attended::Later };
    if !is_on(conn, index, slot) || conn.state() != state::PROMOTED || conn.word(layout::TCP_AT) != 0 {
        return Attended::Done;
    }
    let fd = conn.descriptor();
    crate::io::progress(conn, fd, &mut rx);
    if matches!(conn.rx.path(), path::SMALL | path::BIG) {
        kicks::look(conn, fd, &mut rx, kicks::By::Call);
    } else {
        records::hear(conn, fd, &mut rx);
    }
    if conn.word(layout::TCP_AT) == 0 {
        return Attended::Later;
    }
    crate::io::progress(conn, fd, &mut rx);
    drop(rx);
    // Whoever the kernel has told of it would have found it.
    if conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
    Attended::Done
}

/// The connection on a slot that a peer has named.
fn on_slot(index: u32, slot: u64) -> Option<(usize, &'static Conn)> {
    let slot = usize::try_from(slot).ok()?;
    Some((slot, link::link(index).conn(slot)?))
}

/// Whether a connection has this slot.
fn is_on(conn: &Conn, index: u32, slot: usize) -> bool {
    conn.link.load(Ordering::Relaxed) == index && conn.slot.load(Ordering::Relaxed) as usize == slot
}

/// Frees links that are over and that nobody uses.
pub fn sweep() {
    link::sweep();
}

/// The outbox of a link.
pub fn wire(index: u32) -> Option<&'static Wire> {
    link::link(index).wire()
}

/// Answers offers that have come, if nobody else is at it. For the carrier, which waits for no lock.
pub fn answer_offers(index: u32) -> bool {
    link::link(index).has_message() && rendezvous::try_serve()
}

/// A tripwire of ours at `offset` has been fired; `held`: how its owner wants to be woken. The slot for which the peer must be asked for a kick, if that is how.
pub fn fired(index: u32, offset: usize, held: u64) -> Option<u64> {
    let link = link::link(index);
    let mine = link.mine();
    if mine.len() == 0 {
        return None;
    }
    if (layout::HINTS..layout::SLOT).contains(&offset) {
        ring_own(held);
        return None;
    }
    let slot = offset.checked_sub(layout::SLOT + TRIP)? / layout::SLOT_BYTES;
    if slot >= SLOTS || offset != layout::slot(slot) + TRIP {
        return None;
    }
    wake(link, &mine, slot, held)
}

/// Wakes an end of ours as it was armed.
fn wake(link: &Link, mine: &Map, slot: usize, held: u64) -> Option<u64> {
    match held & trip::MODE {
        trip::QUEUE => {
            let base = layout::HINTS + usize::from(trip::id(held)) % layout::QUEUES * hints::BYTES;
            mine.set_word(layout::slot(slot) + layout::HINTED, ticks());
            let sleeps = hints::set(mine, base, slot);
            if sleeps != 0 {
                ring_own(sleeps);
            }
            carried_out(mine, slot);
            None
        }
        trip::BELL => {
            ring_own(held);
            carried_out(mine, slot);
            None
        }
        _ => link.conn(slot).is_some().then_some(slot as u64),
    }
}

/// Rings a bell of this process.
fn ring_own(held: u64) {
    if let Some(bell) = process::bell_fd(trip::id(held).into()) {
        bell::ring(bell);
    }
}

/// What was armed has been woken: counted where, on one host, the peer does.
fn carried_out(mine: &Map, slot: usize) {
    let at = layout::slot(slot) + FIRED;
    mine.set_word(at, mine.word(at) + 1);
}

/// The peer's carrier has counted the kick that was asked for.
pub fn kicked(index: u32, slot: u64) {
    if let Ok(slot) = usize::try_from(slot)
        && slot < SLOTS
    {
        carried_out(&link::link(index).mine(), slot);
    }
}

/// What became of a kick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kick {
    /// It has been counted, and is sent when the peer knows ([`pay`]).
    Counted,
    /// Somebody has the connection just now: again later.
    Later,
    /// There is nobody to be kicked.
    Nobody,
}

/// The peer asks for a kick on a slot.
pub fn kick(index: u32, slot: u64) -> Kick {
    with_conn(index, slot, |conn, tx| {
        if conn.tx.path() == path::TCP {
            crate::io::switch(conn, conn.descriptor(), tx);
        }
        if !matches!(conn.tx.path(), path::SMALL | path::BIG) {
            return Kick::Nobody;
        }
        kicks::count(conn, tx);
        Kick::Counted
    })
}

/// Sends kicks that were counted, of which the peer knows by now.
pub fn pay(index: u32, slot: u64) -> Kick {
    with_conn(index, slot, |conn, tx| {
        kicks::send_owed(conn.descriptor(), tx);
        Kick::Counted
    })
}

fn with_conn(index: u32, slot: u64, act: impl FnOnce(&'static Conn, &mut crate::conn::Tx) -> Kick) -> Kick {
    let Some(conn) = usize::try_from(slot).ok().and_then(|slot| link::link(index).conn(slot)) else {
        return Kick::Nobody;
    };
    let Some(mut tx) = conn.tx.try_lock() else { return Kick::Later };
    if conn.link.load(Ordering::Relaxed) != index
        || conn.slot.load(Ordering::Relaxed) as u64 != slot
        || !matches!(conn.state(), state::OFFERED | state::PROMOTED)
    {
        return Kick::Nobody;
    }
    act(conn, &mut tx)
}
