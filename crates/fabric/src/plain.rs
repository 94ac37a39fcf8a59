//! Structs that go from process to process as their bytes.

/// A struct of integers.
///
/// # Safety
/// It is `repr(C)`, of integers alone, with no gaps between them: any bytes are a valid one.
pub unsafe trait Plain: Copy + Default {
    /// Its bytes.
    fn bytes(&self) -> &[u8] {
        // SAFETY: there are no gaps, so all of its bytes have values.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }

    /// Its bytes, to be written.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any bytes are a valid one.
        unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(self).cast(), size_of::<Self>()) }
    }

    /// The one that has these bytes; `None` if they are too few.
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut plain = Self::default();
        plain.bytes_mut().copy_from_slice(bytes.get(..size_of::<Self>())?);
        Some(plain)
    }
}
