//! The two faces of a segment: [`Local`], memory of our own that a peer writes into, and
//! [`Remote`], a peer's segment that we write into. Offsets are in bytes from the start of the
//! segment; words are 8-byte aligned.
//!
//! Memory that both ends map needs only [`Mapped`]: the orderings of both faces are decided here,
//! once. So the loom models check the orderings that [`crate::shm`] runs with.
//!
//! Rule F2: everything that is read through [`Local`] came from a peer that may be hostile. Callers
//! read a word once and check its range before they use it.

use crate::sync::{AtomicU64, Ordering, fence, perturb};

/// Memory that this process exports.
pub trait Local {
    /// Reads a word that the peer puts. Acquire: what the peer put before it is visible afterwards.
    fn word(&self, offset: usize) -> u64;
    /// Writes a word of the own segment (to initialise it, or a tripwire's).
    fn set_word(&self, offset: usize, value: u64);
    /// Exchanges a word of the own segment (disarming a tripwire, taking hints).
    fn swap_word(&self, offset: usize, value: u64) -> u64;
    /// Replaces a word if it holds `old`. Returns the value that it holds otherwise.
    fn replace_word(&self, offset: usize, old: u64, new: u64) -> Result<(), u64>;
    /// Announces that the line at `offset` will soon be read, so that it can be fetched meanwhile.
    fn foresee(&self, _offset: usize) {}
    /// Copies bytes out of the segment.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes. The source range is checked by the provider.
    unsafe fn get(&self, offset: usize, to: *mut u8, len: usize);
}

/// A peer's segment, opened. All puts of one link become visible in the order made (rule F1).
pub trait Remote {
    /// Copies bytes into the peer's segment now (programmed I/O).
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads. The target range is checked by the provider.
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize);
    /// Announces that the line at `offset`, whose bytes nobody needs any more, will soon be
    /// written. Only where the segment is near, as a cache line is; elsewhere it does nothing.
    fn claim(&self, _offset: usize) {}
    /// Announces that words of the line at `offset` will soon be put, so that the line can be
    /// fetched meanwhile. Only where it is near; elsewhere it does nothing.
    fn expect(&self, _offset: usize) {}
    /// Puts one word, after everything put before it (release).
    fn put_word(&self, offset: usize, value: u64);
    /// As [`Remote::put_word`], for a word that nobody waits for. Where words are messages it may
    /// go together with the next put, so that it costs no message of its own.
    #[inline(always)]
    fn put_word_soon(&self, offset: usize, value: u64) {
        self.put_word(offset, value);
    }
    /// Stimulates the tripwire at `offset`: if it is armed for any of `interest`, disarms it and
    /// returns what it held. Contains a full fence between the put of data and the check of the
    /// tripwire. Without it wake-ups would be lost.
    fn stimulate(&self, offset: usize, interest: u64) -> u64;
    /// Whether the tripwire at `offset` is armed for any of `interest`; leaves it armed. This has
    /// no fence. The caller must have had one since it put its data; releasing a
    /// [`crate::lock::Lock`] is one.
    fn armed(&self, offset: usize, interest: u64) -> bool;
    /// Sets bits of a word in the peer's segment (hints). Returns the word's value from before.
    fn or_word(&self, offset: usize, bits: u64) -> u64;
}

/// Memory that both ends map, so that one view of it is a [`Local`] and a [`Remote`] at once.
pub trait Mapped {
    /// The word at `offset`. Panics if it is not aligned or not inside.
    fn atomic(&self, offset: usize) -> &AtomicU64;
    /// Copies bytes out; panics if the source is not inside.
    ///
    /// # Safety
    /// `to` must be valid for `len` bytes of writes.
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize);
    /// Copies bytes in; panics if the target is not inside.
    ///
    /// # Safety
    /// `from` must be valid for `len` bytes of reads.
    unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize);
}

impl<M: Mapped> Local for M {
    #[inline(always)]
    fn word(&self, offset: usize) -> u64 {
        self.atomic(offset).load(Ordering::Acquire)
    }
    #[inline(always)]
    fn set_word(&self, offset: usize, value: u64) {
        perturb();
        self.atomic(offset).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn swap_word(&self, offset: usize, value: u64) -> u64 {
        perturb();
        self.atomic(offset).swap(value, Ordering::AcqRel)
    }
    #[inline(always)]
    fn replace_word(&self, offset: usize, old: u64, new: u64) -> Result<(), u64> {
        perturb();
        let word = self.atomic(offset);
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).map(drop)
    }
    #[inline(always)]
    fn foresee(&self, offset: usize) {
        fetch(self.atomic(offset & !7), false);
    }
    #[inline(always)]
    unsafe fn get(&self, offset: usize, to: *mut u8, len: usize) {
        // SAFETY: the caller vouches for `to`.
        unsafe { self.copy_out(offset, to, len) };
    }
}

impl<M: Mapped> Remote for M {
    #[inline(always)]
    unsafe fn put(&self, offset: usize, from: *const u8, len: usize) {
        // SAFETY: the caller vouches for `from`.
        unsafe { self.copy_in(offset, from, len) };
    }
    #[inline(always)]
    fn claim(&self, offset: usize) {
        // A store and not a prefetch: some processors treat a prefetch for writing as one for
        // reading.
        // SAFETY: the source is one byte.
        unsafe { self.copy_in(offset, &0, 1) };
    }
    #[inline(always)]
    fn expect(&self, offset: usize) {
        fetch(self.atomic(offset), true);
    }
    #[inline(always)]
    fn put_word(&self, offset: usize, value: u64) {
        perturb();
        self.atomic(offset).store(value, Ordering::Release);
    }
    #[inline(always)]
    fn stimulate(&self, offset: usize, interest: u64) -> u64 {
        perturb();
        fire(self.atomic(offset), interest)
    }
    #[inline(always)]
    fn armed(&self, offset: usize, interest: u64) -> bool {
        self.atomic(offset).load(Ordering::Relaxed) & interest != 0
    }
    #[inline(always)]
    fn or_word(&self, offset: usize, bits: u64) -> u64 {
        perturb();
        self.atomic(offset).fetch_or(bits, Ordering::AcqRel)
    }
}

/// The effect of a stimulus on a tripwire ([`crate::trip`]) in memory that both ends map; see
/// [`Remote::stimulate`].
#[inline(always)]
fn fire(word: &AtomicU64, interest: u64) -> u64 {
    fence(Ordering::SeqCst);
    if word.load(Ordering::Relaxed) & interest == 0 {
        return 0;
    }
    word.swap(0, Ordering::AcqRel)
}

/// Begins to fetch the line of `word`, to be written if `own`.
#[inline(always)]
fn fetch(word: &AtomicU64, own: bool) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        let at = core::ptr::from_ref(word);
        if own {
            // SAFETY: a prefetch changes nothing, wherever it points; processors without this one
            // do nothing.
            unsafe { core::arch::asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags)) };
        } else {
            // SAFETY: as above.
            unsafe { core::arch::asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags)) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = (word, own);
}
