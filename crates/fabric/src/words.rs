//! Arrays that are mapped when they are first needed, as most processes need few of them; and the
//! bits of words.

use core::marker::PhantomData;

use crate::sync::{AtomicU64, Ordering};
use crate::sys::{self, Errno};

/// A type of which zeroed memory is a valid value, that threads may share.
///
/// # Safety
/// It is so.
pub unsafe trait Zeroed: Sync + 'static {}

// SAFETY: any bytes are one.
unsafe impl Zeroed for AtomicU64 {}

/// An array of `LEN` zeroed values, mapped when it is first needed, and never unmapped.
#[derive(Debug)]
pub struct Array<T, const LEN: usize>(AtomicU64, PhantomData<fn() -> T>);

impl<T: Zeroed, const LEN: usize> Array<T, LEN> {
    /// One that is not mapped yet.
    #[allow(clippy::new_without_default)] // for statics
    pub const fn new() -> Self {
        Array(AtomicU64::new(0), PhantomData)
    }

    /// All of it, or nothing.
    #[inline(always)]
    pub fn get(&self) -> &'static [T] {
        let at = self.0.load(Ordering::Acquire) as *const T;
        if at.is_null() {
            return &[];
        }
        // SAFETY: a mapping of so many values, which is never unmapped.
        unsafe { core::slice::from_raw_parts(at, LEN) }
    }

    /// Maps it, if it is not yet.
    pub fn make(&self) -> Result<(), Errno> {
        if self.0.load(Ordering::Acquire) == 0 {
            let at = sys::mmap_private(LEN * size_of::<T>())?;
            if self.0.compare_exchange(0, at as u64, Ordering::AcqRel, Ordering::Acquire).is_err() {
                sys::munmap(at, LEN * size_of::<T>());
            }
        }
        Ok(())
    }
}

impl<const LEN: usize> Array<AtomicU64, LEN> {
    /// All of them are zero again.
    pub fn clear(&self) {
        let at = self.0.load(Ordering::Acquire) as *mut u8;
        if !at.is_null() {
            sys::madvise(at, LEN * 8, libc::MADV_DONTNEED);
        }
    }
}

/// The places of the bits that are set.
pub fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then_some(word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}
