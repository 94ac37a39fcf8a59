//! The two directions of a connection, each under its lock.

use core::cell::UnsafeCell;
use fabric::lock::Lock;
use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::Errno;
use stream::spin::Learned;
use stream::transport::{Reader, Writer};

use crate::thread::{self, Place};

/// The reading direction, under its lock.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Rx {
    /// Bytes that the program has read on tcp before the ring.
    pub tcp_read: u64,
    /// Bytes still to be taken from tcp before the ring, once announced.
    pub tcp_left: Option<u64>,
    /// Kicks taken out of the companion.
    pub kicks_drained: u64,
    /// How many kicks there are, as a record said, plus one: words of a link that is over may come
    /// later than that.
    pub kicks_said: u64,
    /// Bytes of records taken out of the companion.
    pub records: u64,
    /// Since when there has always been a kick in it, left for those that are asleep, in ticks; 0:
    /// there is none.
    pub left: u64,
    /// When the kernel was last asked about the connection's life, in ticks.
    pub looked: u64,
    /// An error that the kernel told while we waited: for the next call.
    pub error: i32,
    pub learned: Learned,
    /// Small reads in a row, without a write of ours between them; and what we had written.
    pub streak: u32,
    pub answered: u64,
    /// What is being done, for whoever has the lock next if it is not ended
    /// ([`crate::path::recovery`]).
    pub step: u32,
    /// Between hosts: bytes that may be the beginning of a record are held: their place in what the
    /// kernel received, plus one, and since when, in ticks.
    pub held: (u64, u64),
    /// The same for those that a look would see beyond others, which it leaves.
    pub look_held: (u64, u64),
    /// If another process has taken the other end from its owner ([`crate::taken`]): where tcp
    /// begins, plus one, and how many kicks come before.
    pub taken: (u64, u64),
    /// Last: what is needed for each call lies before it, or at its beginning.
    pub ring: Reader,
}

impl Rx {
    /// The kernel tells an error once: it is kept for the next call of the program.
    pub(crate) fn keep_error(&mut self, errno: Errno) {
        if errno != Errno::EAGAIN && errno != Errno::EINTR {
            self.error = errno.into_raw();
        }
    }

    /// That error, for the one call that tells it.
    pub(crate) fn take_error(&mut self) -> Option<Errno> {
        let kept = core::mem::take(&mut self.error);
        (kept != 0).then(|| Errno::new(kept))
    }
}

/// What a connection has carried in memory, and how many kicks that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// When they were taken.
    pub ticks: u64,
    pub sent_kicks: u64,
    pub got_kicks: u64,
    pub writes: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
}

impl Counts {
    /// In both directions.
    pub fn bytes(&self) -> u64 {
        self.bytes_out + self.bytes_in
    }
}

/// The writing direction, under its lock.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Tx {
    pub kicks_sent: u64,
    /// How often we have fired the peer's tripwire.
    pub fires: u64,
    /// Of these, not sent yet.
    pub debt: u64,
    /// If the last message was told of by a hint: where the queue's hints are in the peer's
    /// segment.
    pub hinted: usize,
    /// How often the ring was full.
    pub full: u32,
    /// Over Virtual Interfaces: since when the window has been full while the peer read nothing, in
    /// ticks, and how far it had read, +1.
    pub stuck_since: u64,
    pub stuck_at: u64,
    /// When the kernel was last asked about the connection's life, in ticks, and what we had read
    /// by then.
    pub looked: u64,
    pub heard: u64,
    pub learned: Learned,
    /// Position of the first recalled byte still to be sent by tcp.
    pub resend: u64,
    /// Which big ring of the link it has, plus one; and the position at which that begins, if it
    /// does.
    pub big: u64,
    pub big_from: u64,
    /// The position at the last look whether it is idle; and the one, + 1, at which its ring was
    /// given back ([`crate::idle`]).
    pub looked_at: u64,
    pub given: u64,
    /// Where the counts stood when it was last judged whether memory gains anything.
    pub judged: Option<Counts>,
    /// What is being done, for whoever has the lock next if it is not ended
    /// ([`crate::path::recovery`]).
    pub step: u32,
    /// The word that announces where tcp begins.
    pub tcp_at: u64,
    /// What was armed when it was fired, and how often that had been done with this time.
    pub fired: u64,
    pub fires_with: u64,
    /// Bytes that had gone by tcp when the ring began, +1.
    pub tcp_written: u64,
    /// Bytes that had gone by tcp when the first recalled one was to be sent, +1, and its position.
    pub sent_from: u64,
    pub resend_from: u64,
    /// Between hosts: records that are to be sent ([`crate::peering::records`]), a position + 1
    /// each; which one is being sent, and how many of its bytes have been; and whether the peer has
    /// been told where the ring ends.
    pub stop_due: u64,
    pub end_due: u64,
    pub record_kind: u32,
    pub record_sent: u32,
    pub end_told: bool,
    /// An echo that our progress thread has asked for and waits for, which cannot wait in a call;
    /// 0: none.
    pub echo: u64,
    /// Last, as in [`Rx`].
    pub ring: Writer,
}

/// One direction: its lock, its path, and what the lock protects.
#[repr(C, align(64))]
pub struct Direction<T> {
    pub lock: Lock,
    pub path: AtomicU32,
    inner: UnsafeCell<T>,
}

/// What is in a direction.
pub trait Half {
    const PLACE: Place;
}

impl Half for Rx {
    const PLACE: Place = Place::Rx;
}

impl Half for Tx {
    const PLACE: Place = Place::Tx;
}

impl<T: Half> Direction<T> {
    /// Takes the lock; `None` if this thread already holds it (a signal handler interrupted it).
    #[inline(always)]
    pub fn lock(&self) -> Option<Held<'_, T>> {
        if thread::lock(&self.lock, T::PLACE) { Some(Held { direction: self }) } else { None }
    }

    /// Takes the lock if nobody has it.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        // Not one that is made and thrown away: to drop it would unlock.
        if thread::try_lock(&self.lock, T::PLACE) { Some(Held { direction: self }) } else { None }
    }

    /// As [`Direction::try_lock`], of a connection that is another process's, and mapped here for a
    /// moment only.
    pub(crate) fn try_lock_mapped(&self) -> Option<Held<'_, T>> {
        if self.lock.try_lock(thread::tid()) { Some(Held { direction: self }) } else { None }
    }

    /// The thread that has the lock, or 0.
    pub(crate) fn holder(&self) -> u32 {
        self.lock.owner()
    }

    #[inline(always)]
    pub fn path(&self) -> u32 {
        self.path.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub fn set_path(&self, path: u32) {
        self.path.store(path, Ordering::Release);
    }
}

/// A locked direction.
pub struct Held<'a, T> {
    direction: &'a Direction<T>,
}

impl<T> core::ops::Deref for Held<'_, T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held, so this thread alone accesses the contents.
        unsafe { &*self.direction.inner.get() }
    }
}

impl<T> core::ops::DerefMut for Held<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.direction.inner.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.direction.lock.unlock();
    }
}
