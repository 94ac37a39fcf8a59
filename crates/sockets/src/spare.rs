//! Memory for the lists of a call that has many descriptors, kept for the next such call: mapping
//! and unmapping it each time would cost more than the call does.

use core::ptr::{self, NonNull};
use fabric::sync::{AtomicPtr, Ordering};
use fabric::sys;

/// So many lists are kept, for as many threads at once, and none that is longer.
const PLACES: usize = 4;
const LONGEST: usize = 64 << 10;

static SPARE: [AtomicPtr<Head>; PLACES] = [const { AtomicPtr::new(ptr::null_mut()) }; PLACES];

/// What a piece of memory begins with: its size with this. The lists have its alignment.
#[repr(C, align(16))]
struct Head {
    bytes: usize,
}

/// Memory that this call alone has. What is in it is what an earlier call has left there.
pub struct Spare(NonNull<Head>);

impl Spare {
    /// `None` if there is no memory.
    pub fn new(bytes: usize) -> Option<Spare> {
        let bytes = (bytes + size_of::<Head>()).next_multiple_of(4096);
        for place in &SPARE {
            if let Some(spare) = NonNull::new(place.swap(ptr::null_mut(), Ordering::Acquire)).map(Spare) {
                if spare.bytes() >= bytes {
                    return Some(spare);
                }
                spare.unmap();
                break;
            }
        }
        let head = NonNull::new(sys::mmap_private(bytes).ok()?.cast::<Head>())?;
        // SAFETY: just mapped, aligned to a page, and larger than a head.
        unsafe { head.write(Head { bytes }) };
        Some(Spare(head))
    }

    /// The memory, with as many bytes as were asked for at least, aligned to 16.
    pub fn memory(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping, which is larger than a head.
        unsafe { self.0.add(1) }.cast()
    }

    fn bytes(&self) -> usize {
        // SAFETY: written by `new`, and never changed; the mapping is ours.
        unsafe { self.0.as_ref() }.bytes
    }

    fn unmap(self) {
        let (head, bytes) = (self.0, self.bytes());
        core::mem::forget(self);
        sys::munmap(head.as_ptr().cast(), bytes);
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        let at = self.0.as_ptr();
        let free = |place: &AtomicPtr<Head>| {
            place.compare_exchange(ptr::null_mut(), at, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if self.bytes() > LONGEST || !SPARE.iter().any(free) {
            sys::munmap(at.cast(), self.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_and_grows() {
        let first = Spare::new(5000).unwrap();
        let at = first.memory();
        assert!(first.bytes() >= 5000 && at.cast::<Head>().is_aligned());
        // Another call's at the same time is another.
        let second = Spare::new(100).unwrap();
        assert_ne!(second.memory(), at);
        drop(first);
        let again = Spare::new(4000).unwrap();
        assert_eq!(again.memory(), at);
        drop(again);
        let long = Spare::new(LONGEST * 2).unwrap();
        // SAFETY: the last byte that was asked for is ours.
        unsafe { long.memory().add(LONGEST * 2 - 1).write(7) };
    }
}
