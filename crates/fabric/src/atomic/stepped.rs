//! Atomics of a simulated process (`--cfg sim`): each operation is a step, before which others may
//! get their turn.

#![allow(missing_docs)]

use crate::sim::step;
use core::sync::atomic as core_atomic;
use core_atomic::Ordering;

macro_rules! common {
    ($name:ident, $type:ty) => {
        #[doc = "As core's."]
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(core_atomic::$name);

        impl $name {
            pub const fn new(value: $type) -> Self {
                Self(core_atomic::$name::new(value))
            }
            pub const fn as_ptr(&self) -> *mut $type {
                self.0.as_ptr()
            }
            pub fn get_mut(&mut self) -> &mut $type {
                self.0.get_mut()
            }
            pub fn into_inner(self) -> $type {
                self.0.into_inner()
            }
            /// # Safety
            /// As core's.
            pub const unsafe fn from_ptr<'a>(at: *mut $type) -> &'a Self {
                // SAFETY: the caller vouches for it; the layout is the same.
                unsafe { &*at.cast::<Self>() }
            }
            #[inline(always)]
            pub fn load(&self, order: Ordering) -> $type {
                step();
                self.0.load(order)
            }
            #[inline(always)]
            pub fn store(&self, value: $type, order: Ordering) {
                step();
                self.0.store(value, order)
            }
            #[inline(always)]
            pub fn swap(&self, value: $type, order: Ordering) -> $type {
                step();
                self.0.swap(value, order)
            }
            #[inline(always)]
            pub fn compare_exchange(
                &self,
                old: $type,
                new: $type,
                won: Ordering,
                lost: Ordering,
            ) -> Result<$type, $type> {
                step();
                self.0.compare_exchange(old, new, won, lost)
            }
            #[inline(always)]
            pub fn compare_exchange_weak(
                &self,
                old: $type,
                new: $type,
                won: Ordering,
                lost: Ordering,
            ) -> Result<$type, $type> {
                self.compare_exchange(old, new, won, lost)
            }
            #[inline(always)]
            pub fn fetch_update(
                &self,
                won: Ordering,
                lost: Ordering,
                change: impl FnMut($type) -> Option<$type>,
            ) -> Result<$type, $type> {
                step();
                self.0.fetch_update(won, lost, change)
            }
        }
    };
}
macro_rules! bits {
    ($name:ident, $type:ty) => {
        impl $name {
            #[inline(always)]
            pub fn fetch_or(&self, value: $type, order: Ordering) -> $type {
                step();
                self.0.fetch_or(value, order)
            }
            #[inline(always)]
            pub fn fetch_and(&self, value: $type, order: Ordering) -> $type {
                step();
                self.0.fetch_and(value, order)
            }
            #[inline(always)]
            pub fn fetch_xor(&self, value: $type, order: Ordering) -> $type {
                step();
                self.0.fetch_xor(value, order)
            }
        }
    };
}
macro_rules! numbers {
    ($($name:ident $type:ty;)*) => {$(
        common!($name, $type);
        bits!($name, $type);
        impl $name {
            #[inline(always)]
            pub fn fetch_add(&self, value: $type, order: Ordering) -> $type { step(); self.0.fetch_add(value, order) }
            #[inline(always)]
            pub fn fetch_sub(&self, value: $type, order: Ordering) -> $type { step(); self.0.fetch_sub(value, order) }
            #[inline(always)]
            pub fn fetch_max(&self, value: $type, order: Ordering) -> $type { step(); self.0.fetch_max(value, order) }
            #[inline(always)]
            pub fn fetch_min(&self, value: $type, order: Ordering) -> $type { step(); self.0.fetch_min(value, order) }
        }
    )*};
}
numbers! { AtomicU8 u8; AtomicI32 i32; AtomicU32 u32; AtomicU64 u64; AtomicUsize usize; }
common!(AtomicBool, bool);
bits!(AtomicBool, bool);

/// As core's.
#[repr(transparent)]
#[derive(Debug)]
pub struct AtomicPtr<T>(core_atomic::AtomicPtr<T>);

impl<T> AtomicPtr<T> {
    pub const fn new(at: *mut T) -> Self {
        Self(core_atomic::AtomicPtr::new(at))
    }
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> *mut T {
        step();
        self.0.load(order)
    }
    #[inline(always)]
    pub fn store(&self, at: *mut T, order: Ordering) {
        step();
        self.0.store(at, order)
    }
    #[inline(always)]
    pub fn swap(&self, at: *mut T, order: Ordering) -> *mut T {
        step();
        self.0.swap(at, order)
    }
    #[inline(always)]
    pub fn compare_exchange(
        &self,
        old: *mut T,
        new: *mut T,
        won: Ordering,
        lost: Ordering,
    ) -> Result<*mut T, *mut T> {
        step();
        self.0.compare_exchange(old, new, won, lost)
    }
}
