//! A segment in plain memory, for tests of code that works over any segment, and for Miri, which
//! knows no mappings.

use fabric::Mapped;
use fabric::sync::AtomicU64;

/// Zeroed memory of a given length.
pub struct Plain(*mut u64, usize);

// SAFETY: all access is by atomics, or to bytes that the code under test hands over; Miri checks
// just that.
unsafe impl Sync for Plain {}

impl Plain {
    pub fn new(len: usize) -> Plain {
        let words = vec![0u64; len.div_ceil(8)].into_boxed_slice();
        Plain(Box::into_raw(words).cast(), len)
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let words = std::ptr::slice_from_raw_parts_mut(self.0, self.1.div_ceil(8));
        // SAFETY: it was boxed in `new`.
        drop(unsafe { Box::from_raw(words) });
    }
}

impl Mapped for Plain {
    fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.1);
        // SAFETY: aligned and inside.
        unsafe { &*self.0.cast::<u8>().add(offset).cast::<AtomicU64>() }
    }
    unsafe fn copy_out(&self, offset: usize, to: *mut u8, len: usize) {
        assert!(offset + len <= self.1);
        // SAFETY: inside; the caller vouches for `to`.
        unsafe { self.0.cast::<u8>().add(offset).copy_to_nonoverlapping(to, len) };
    }
    unsafe fn copy_in(&self, offset: usize, from: *const u8, len: usize) {
        assert!(offset + len <= self.1);
        // SAFETY: inside; the caller vouches for `from`.
        unsafe { self.0.cast::<u8>().add(offset).copy_from_nonoverlapping(from, len) };
    }
}
