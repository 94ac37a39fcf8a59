//! A connection's end: everything Shunt knows of one kernel TCP socket. Conns lie in the process's
//! home, memory that forked children share and that no peer maps; all fields are atomic, or under
//! the lock of their direction. Their memory is never unmapped or given to anything else, so that a
//! call that races with close() may still lock and look.

use core::cell::UnsafeCell;
use fabric::shm::Map;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::{Local, Remote, sys};
use stream::sovia::Exchange;
use stream::spin::ticks;
use stream::transport::Ends;

use crate::layout;
use crate::path::reading;
use crate::peering::kind::{Peered, Peering};
use crate::peering::peer::Peer;
use crate::peering::wire::Other;
use host::addr::Addr;

mod counters;
mod direction;
mod in_kernel;
mod meeting;

pub use counters::Counters;
pub use direction::{Counts, Direction, Half, Held, Rx, Tx};
pub use in_kernel::{Entered, InKernel};
pub use meeting::Meeting;

/// Where a connection stands; a Conn's `state`.
pub mod state {
    /// Not in use.
    pub const FREE: u32 = 0;
    /// On tcp for good, calls go straight to the kernel.
    pub const PLAIN: u32 = 1;
    /// On tcp, not posted yet.
    pub const NEW: u32 = 2;
    /// On tcp, its end is on the board.
    pub const POSTED: u32 = 3;
    /// We have offered a slot and wait for the answer. Managed.
    pub const OFFERED: u32 = 4;
    /// Both ends have agreed. Managed.
    pub const PROMOTED: u32 = 5;
}

/// What a direction runs on; the `path` of a [`Direction`].
pub mod path {
    pub const TCP: u32 = 0;
    pub const SMALL: u32 = 1;
    pub const BIG: u32 = 2;
    /// Writer: recalled bytes still have to go by tcp before anything new.
    pub const RESEND: u32 = 3;
    /// Back on tcp, for good.
    pub const LAST: u32 = 4;

    /// Whether bytes go by a ring.
    #[inline(always)]
    pub const fn is_ring(path: u32) -> bool {
        matches!(path, SMALL | BIG)
    }
}

pub mod flag {
    /// O_NONBLOCK of the open file description.
    pub const NONBLOCK: u32 = 1;
    /// Descriptors in more than one process: wake by kicks only.
    pub const SHARED: u32 = 2;
    /// A reason for which it is on tcp has been counted.
    pub const COUNTED: u32 = 4;
    /// The program's TCP_NODELAY and TCP_CORK, kept for it while the companion has ours.
    pub const NODELAY: u32 = 8;
    pub const CORK: u32 = 16;
    /// We have shut our writing half.
    pub const SHUT_WR: u32 = 32;
    /// The kernel has told of the end of what the peer sends.
    pub const PEER_FIN: u32 = 64;
    /// Hang-up or error from the kernel.
    pub const PEER_HUP: u32 = 128;
    /// Opened by connect(): the kernel counts its SYN as an acknowledged byte.
    pub const CLIENT: u32 = 256;
    /// Never (again) to be promoted.
    pub const NEVER: u32 = 512;
    /// We have shut our reading half.
    pub const SHUT_RD: u32 = 1024;
    /// The peer broke the protocol.
    pub const BROKEN: u32 = 2048;
    /// A write found no room, and no event for room has been given since.
    pub const TX_FULL: u32 = 1 << 14;
    /// The reset of a killed peer has been told.
    pub const RESET_TOLD: u32 = 1 << 15;
    /// We have recalled what is unread in the ring, and do not read there.
    pub const RECALLED: u32 = 1 << 16;
    /// We had recalled what is unread in the ring, and read it there after all: up to TCP_AT,
    /// whatever has been written behind that.
    pub const REST: u32 = 1 << 24;
    /// Its reads have no time limit (SO_RCVTIMEO), or a long one.
    pub const UNLIMITED: u32 = 1 << 12;
    /// What was recalled comes by tcp, and some of it has not come yet.
    pub const UNSENT: u32 = 1 << 13;
    /// Taken out of an epoll set, in whose inner set it still is.
    pub const PARKED: u32 = 1 << 17;
    /// A kick may have been left in the companion for those that are asleep: the last one awake
    /// takes it.
    pub const LEFT: u32 = 1 << 18;
    /// The peer's program had set a small receive buffer when the peer made its offer.
    pub const PEER_SMALL_BUFFERS: u32 = 1 << 19;
    /// Its program goes through exec(), and the next image goes on with it: nobody else has it.
    pub const KEPT: u32 = 1 << 20;
    /// On tcp because of what our own program does.
    pub const OWN_WISH: u32 = 1 << 21;
    /// Between hosts: the link is over, and no ring is used any more.
    pub const CUT: u32 = 1 << 22;
    /// Between hosts: the peer has said how far it has read.
    pub const HEARD: u32 = 1 << 23;
    /// Between hosts: the STOP that has been heard is still in the companion, behind bytes that the
    /// program has not read.
    pub const STOP_AHEAD: u32 = 1 << 25;
    /// The program has been seen to wait for it ([`crate::seen`]); it has read from it.
    pub const SEEN: u32 = 1 << 26;
    pub const READ: u32 = 1 << 27;
    /// The peer can ring none of our bells: it kicks who sleeps in a single call.
    pub const NO_BELLS: u32 = 1 << 28;
    /// The next write on tcp comes late, once ([`crate::rendezvous::nap`]).
    pub const NAP: u32 = 1 << 29;
    /// Its tripwire is not armed any more, whoever sleeps.
    pub const DISARMED: u32 = 1 << 30;
    /// Goes back to tcp because memory gains nothing for now, and counts as new there
    /// ([`crate::gain`]).
    pub const FOR_NOW: u32 = 1 << 31;
}

/// What memory and tcp are compared by.
#[derive(Debug, Default)]
pub struct Trial {
    /// Bytes in 2^20 ticks in memory, before the trial; 0: they have been compared.
    pub in_memory: AtomicU64,
    /// The same by tcp; 0: it has not been tried.
    pub by_tcp: AtomicU64,
    /// What the companion had carried when the trial began.
    pub carried: AtomicU64,
}

/// Value of `managed` while it is being changed.
const CHANGING: u32 = 2;

/// One end of a connection.
#[repr(C, align(64))]
pub struct Conn {
    pub state: AtomicU32,
    pub flags: AtomicU32,
    /// Whether calls are ours: non-blocking, under locks. Set before a slot is offered or accepted.
    pub managed: AtomicU32,
    /// Threads in a call that the kernel does by itself, polls included; in the upper half, which
    /// connection this is: such a call goes on when the number is closed.
    pub users: AtomicU64,
    /// When housekeeping is due, in ticks: what a call on a connection that is on tcp needs lies in
    /// one line.
    pub due: AtomicU64,
    /// Calls so far, until it is posted.
    pub ops: AtomicU32,
    /// Descriptors that refer to it, in all processes that share it.
    pub refs: AtomicU32,
    pub reason: AtomicU32,
    /// Threads that sleep on it (in poll, recv, send); of these, those that nothing but a kick may
    /// wake.
    pub waiters: AtomicU32,
    pub sleepers: AtomicU32,
    /// How often it has been put on a slot: one that was about to sleep meanwhile may have armed
    /// the tripwire of the slot before.
    pub settled: AtomicU32,
    /// Epoll sets that it is in, and the event queue of the only one + 1.
    pub epolls: AtomicU32,
    pub queue: AtomicU32,
    /// How often our tripwire was armed, less what was taken back: so often the peer has fired it,
    /// or it is armed now.
    pub arms: AtomicU64,
    /// The thread that arms it as a one-shot member, and the set's descriptor (upper and lower
    /// half).
    pub arming: AtomicU64,
    /// Of which service it is ([`crate::worth`]).
    pub service: AtomicU32,
    /// How often it has gone back for a trial of tcp, and what is measured for that
    /// ([`crate::gain`]).
    pub gone_back: AtomicU32,
    /// How often its promotion was put off (see [`crate::epoll::untimely`]).
    pub put_off: AtomicU32,
    /// So many reads more that are not asked whether they wait ([`crate::seen`]).
    pub unasked: AtomicU32,
    /// A descriptor, for `shunt stat` and housekeeping.
    pub fd: AtomicU32,
    /// Process that made it.
    pub pid: AtomicU32,
    pub next_free: AtomicU32,
    /// After how long housekeeping is due again, in ticks.
    pub pause: AtomicU64,
    pub cookie: AtomicU64,
    /// Offer of the peer that we could not take yet: slot + 1 | link << 32, and its cookie.
    pub pending: AtomicU64,
    pub pending_cookie: AtomicU64,
    /// Where on the board it is posted: byte offset + 1; and its index among the posted + 1.
    pub posted_at: AtomicU64,
    pub posted_index: AtomicU64,
    /// And when it was: [`crate::board::Post::time`].
    pub posted_time: AtomicU32,
    pub link: AtomicU32,
    pub slot: AtomicU32,
    /// The process that has the other end, or had when it came into memory.
    pub peer_pid: AtomicU32,
    /// Readers that were asleep when its last number was closed, and go on with it: the last of
    /// them ends it. One more while these are being counted.
    pub orphans: AtomicU32,
    /// Which threads the sleepers are and since when, as far as there is room
    /// ([`crate::wake::sleepers::Waiter`]).
    pub asleep: [AtomicU64; 4],
    addresses: UnsafeCell<(Addr, Addr)>,
    maps: UnsafeCell<(Map, Peer)>,
    /// Its other end, if that is on another host.
    pub remote: Other,
    pub meeting: Meeting,
    pub counters: Counters,
    /// How its bytes go by Virtual Interfaces, until it grows: [`stream::sovia::Manner::word`]. 0:
    /// by rings.
    pub manner: AtomicU32,
    /// The program's SO_RCVLOWAT, while the kernel has another ([`crate::low_water`]).
    pub low_water: AtomicU32,
    /// Between hosts, of the end that has offered: the echo by which it is known that the peer
    /// knows of the agreement ([`crate::peering::promised`]).
    pub agreement: AtomicU64,
    /// What has been recalled of the ring that is read is what lies behind this position, plus one.
    /// 0: all that is unread.
    pub recalled_from: AtomicU64,
    /// Between hosts: how many bytes the companion will have brought, records too, when all that
    /// was in the peer's ring and comes by tcp has come. 0: no more of that is to come.
    pub follow: AtomicU64,
    /// So many of those are still to come, first of all, that have come in the ring: they are taken
    /// out. Written under the lock of [`Conn::rx`].
    pub again: AtomicU64,
    /// Between hosts: whether records are due that have not been sent ([`Tx::stop_due`],
    /// [`Tx::end_due`]), for who has not the lock. Set with both locks held.
    pub records_due: AtomicU32,
    pub trial: Trial,
    pub exchange: Exchange,
    pub rx: Direction<Rx>,
    pub tx: Direction<Tx>,
}

impl Peered for Conn {
    /// That of the link whose slot it has, or had last.
    #[inline(always)]
    fn peering(&self) -> Peering {
        self.theirs().peering()
    }
}

// SAFETY: fields are atomic, or under a lock, or (addresses, maps) written before the state that
// makes others read them.
unsafe impl Sync for Conn {}

impl Conn {
    /// As new, for another connection.
    pub fn reset(&self) {
        let turn = (self.users.load(Ordering::Relaxed) >> 32) as u32;
        self.users.store(u64::from(turn.wrapping_add(1)) << 32, Ordering::Relaxed);
        zero!(self: flags reason ops service managed waiters epolls queue gone_back put_off records_due unasked sleepers orphans manner low_water);
        zero!(self: pending pending_cookie posted_at posted_index cookie arming arms due agreement recalled_from follow again);
        self.asleep.iter().for_each(|place| place.store(0, Ordering::Relaxed));
        self.slot.store(layout::SLOTS as u32, Ordering::Relaxed);
        self.counters.reset();
        self.remote.reset();
        self.meeting.reset();
        self.trial.by_tcp.store(0, Ordering::Relaxed);
        self.rx.set_path(path::TCP);
        self.tx.set_path(path::TCP);
    }

    /// (own, peer's) address.
    pub fn addresses(&self) -> (Addr, Addr) {
        // SAFETY: written once, before the Conn is published in the descriptor table.
        unsafe { *self.addresses.get() }
    }

    /// Sets the addresses; before the Conn is in the table, or when it is first posted, by the one
    /// that posts it.
    pub fn set_addresses(&self, own: Addr, peer: Addr) {
        // SAFETY: see above: nobody reads them before.
        unsafe { *self.addresses.get() = (own, peer) }
    }

    /// Our segment of the link.
    #[inline(always)]
    pub fn mine(&self) -> Map {
        // SAFETY: written before `managed` or PROMOTED is set, with release; readers saw those.
        unsafe { (*self.maps.get()).0 }
    }

    /// The peer's segment of the link.
    #[inline(always)]
    pub fn theirs(&self) -> Peer {
        // SAFETY: as above.
        unsafe { (*self.maps.get()).1 }
    }

    pub fn set_maps(&self, mine: Map, theirs: Peer) {
        // SAFETY: called before the connection is managed, by the thread that has the lock on
        // states.
        unsafe { *self.maps.get() = (mine, theirs) }
    }

    /// Its slot on its link.
    #[inline(always)]
    pub fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed) as usize
    }

    /// Offset of a word of our slot's header, in both segments.
    #[inline(always)]
    pub fn at(&self, word: usize) -> usize {
        layout::slot(self.slot()) + word
    }

    /// A word that the peer put.
    #[inline(always)]
    pub fn word(&self, word: usize) -> u64 {
        self.mine().word(self.at(word))
    }

    /// Puts a word of the peer's header.
    #[inline(always)]
    pub fn put(&self, word: usize, value: u64) {
        self.theirs().put_word(self.at(word), value);
    }

    #[inline(always)]
    pub fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    pub fn set(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::AcqRel);
    }

    pub fn clear(&self, flag: u32) {
        self.flags.fetch_and(!flag, Ordering::AcqRel);
    }

    /// Sets flags, or clears them.
    pub fn mark(&self, flag: u32, is: bool) {
        if is { self.set(flag) } else { self.clear(flag) }
    }

    #[inline(always)]
    pub fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    /// Whether calls on it are ours. Not under the lock of a direction: [`Conn::is_managed_now`].
    #[inline(always)]
    pub fn is_managed(&self) -> bool {
        match self.managed.load(Ordering::Acquire) {
            0 => false,
            1 => true,
            _ => self.settled(),
        }
    }

    /// As [`Conn::is_managed`], under the lock of a direction: not yet, while it is being changed.
    /// Whoever changes it needs that lock, so it must not be waited for.
    #[inline(always)]
    pub fn is_managed_now(&self) -> bool {
        self.managed.load(Ordering::Acquire) == 1
    }

    /// Whether it is on tcp, but perhaps not for long.
    pub fn may_be_promoted(&self) -> bool {
        matches!(self.state(), state::NEW | state::POSTED)
    }

    /// Whether we write by tcp again, for good, or are about to.
    pub fn is_demoted(&self) -> bool {
        matches!(self.tx.path(), path::RESEND | path::LAST) || self.has(flag::CUT)
    }

    /// Whether a call has nothing to do but to call the kernel: the connection is on tcp and no
    /// housekeeping is due.
    #[inline(always)]
    pub fn rests(&self) -> bool {
        self.managed.load(Ordering::Acquire) == 0 && ticks() < self.due.load(Ordering::Relaxed)
    }

    /// When housekeeping is due next. As long as a proof is under way no call [`Conn::rests`].
    pub(crate) fn looked_after_at(&self, time: u64) {
        let proves = self.meeting.proof.load(Ordering::Relaxed) != 0;
        let due = if proves { &self.meeting.due } else { &self.due };
        due.store(time, Ordering::Release);
    }

    /// Goes on to another state, unless another thread was first.
    pub fn step(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// On tcp for good, if it is in state `from`: there is no more housekeeping.
    pub fn plain(&self, from: u32) -> bool {
        let plain = self.step(from, state::PLAIN);
        if plain {
            self.due.store(u64::MAX, Ordering::Relaxed);
        }
        plain
    }

    /// As [`Conn::plain`], if it has not been offered to its peer.
    pub fn plain_if_not_offered(&self) {
        self.plain(state::NEW);
        self.plain(state::POSTED);
    }

    /// Waits for the thread that is changing it.
    #[cold]
    fn settled(&self) -> bool {
        loop {
            match self.managed.load(Ordering::Acquire) {
                CHANGING => sys::yield_now(),
                managed => return managed != 0,
            }
        }
    }

    /// Whether this one is it.
    #[inline(always)]
    pub fn is(&self, other: Option<&Conn>) -> bool {
        other.is_some_and(|other| core::ptr::eq(other, self))
    }

    /// A descriptor of it in this process, or in the one that it came from by fork().
    pub fn descriptor(&self) -> i32 {
        self.fd.load(Ordering::Relaxed) as i32
    }

    /// Tells the peer something; bits are only ever added, under the tx lock or at the end.
    pub fn tell(&self, bits: u64) {
        self.theirs().or_word(self.at(layout::NOTES), bits);
    }

    /// Whether it began by Virtual Interfaces.
    #[inline(always)]
    pub fn is_via(&self) -> bool {
        self.manner.load(Ordering::Relaxed) != 0
    }

    /// Where the big ring is that its peer writes, once it has announced it.
    pub fn big_ring(&self) -> usize {
        layout::big(self.word(layout::BIG_RING))
    }

    /// The position at which a ring that we read ends, `u64::MAX` if it goes on.
    #[inline(always)]
    pub(crate) fn until(&self, ring: u32) -> u64 {
        let big_at = if ring == path::SMALL { self.word(layout::BIG_AT) } else { 0 };
        let tcp_at = if self.has(flag::REST | flag::RECALLED) { self.bound() } else { 0 };
        reading::until(big_at, tcp_at)
    }

    /// Where the reader is not to go further, plus one, for the sake of tcp; 0: nowhere.
    #[cold]
    fn bound(&self) -> u64 {
        match self.word(layout::TCP_AT) {
            0 if self.has(flag::RECALLED) => self.recalled_from.load(Ordering::Relaxed),
            at => at,
        }
    }

    /// Whether what comes at this position of the ring that is read has been recalled.
    #[inline(always)]
    pub(crate) fn is_recalled_at(&self, position: u64) -> bool {
        self.has(flag::RECALLED) && position + 1 >= self.recalled_from.load(Ordering::Relaxed)
    }

    /// What its streams need.
    #[inline(always)]
    pub fn ends(&self) -> Ends<'_, Peer> {
        let (front, back) = (self.at(layout::W), self.at(layout::R));
        Ends { mine: Peer::near(self.mine()), theirs: self.theirs(), exchange: &self.exchange, front, back }
    }

    /// What the peer has told.
    #[inline(always)]
    pub fn notes(&self) -> u64 {
        self.word(layout::NOTES)
    }

    /// Begins to make calls on the connection ours; false if one is in the kernel right now. Calls
    /// that come meanwhile wait for [`Conn::managed_is`], which must follow at once.
    pub fn manage(&self) -> bool {
        if self.managed.compare_exchange(0, CHANGING, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            return false;
        }
        fabric::sync::fence(Ordering::SeqCst);
        if self.users.load(Ordering::SeqCst) as u32 != 0 {
            self.managed.store(0, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Whose calls on the connection are.
    pub fn managed_is(&self, ours: bool) {
        self.managed.store(u32::from(ours), Ordering::SeqCst);
    }

    /// The program's TCP_NODELAY and TCP_CORK are kept for it while calls are ours: kicks must not
    /// wait for acknowledgements, so the companion gets TCP_NODELAY. After [`Conn::manage`], before
    /// [`Conn::managed_is`].
    pub fn keep_options(&self, fd: i32) {
        for (option, kept, ours) in [(libc::TCP_NODELAY, flag::NODELAY, 1), (libc::TCP_CORK, flag::CORK, 0)] {
            let set = sys::getsockopt::<i32>(fd, libc::IPPROTO_TCP, option).unwrap_or(0);
            self.mark(kept, set != 0);
            if set != ours {
                let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, option, ours);
            }
        }
    }

    /// Makes calls the kernel's again, with the options that the program has set meanwhile.
    pub fn unmanage(&self) {
        self.give_options_back(self.descriptor());
        self.managed_is(false);
    }

    /// What [`Conn::keep_options`] has kept.
    pub(crate) fn give_options_back(&self, fd: i32) {
        let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(self.has(flag::NODELAY)));
        if self.has(flag::CORK) {
            let _ = sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1i32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_a_link_that_another_process_has_is_not_ours() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        conn.slot.store(1, Ordering::Relaxed);
        conn.link.store(0, Ordering::Relaxed);
        assert!(!conn.slot_taken());
    }

    #[test]
    fn who_does_not_get_a_lock_leaves_it_to_its_holder() {
        let conn = crate::home::take(|_| ()).unwrap();
        conn.reset();
        let held = conn.rx.lock();
        let owner = conn.rx.lock.owner();
        assert!(held.is_some() && owner != 0);
        assert!(conn.rx.try_lock().is_none() && conn.rx.lock().is_none());
        assert_eq!(conn.rx.lock.owner(), owner);
    }
}
