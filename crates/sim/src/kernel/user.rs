//! Memory of the programs. All of them live in this address space, so a pointer that they pass is
//! one here.

use syscalls::Errno;

/// Nothing of a program's lies below.
const LOWEST: usize = 4096;

fn check(at: usize, len: usize) -> Result<(), Errno> {
    let end = at.checked_add(len).ok_or(Errno::EFAULT)?;
    if len > 0 && (at < LOWEST || end > isize::MAX as usize) { Err(Errno::EFAULT) } else { Ok(()) }
}

/// A plain value at an address.
pub(super) fn get<T: Copy>(at: usize) -> Result<T, Errno> {
    check(at, size_of::<T>())?;
    // SAFETY: programs of the simulation pass pointers that the real call could read.
    Ok(unsafe { (at as *const T).read_unaligned() })
}

/// Stores a plain value.
pub(super) fn put<T: Copy>(at: usize, value: T) -> Result<(), Errno> {
    check(at, size_of::<T>())?;
    // SAFETY: programs of the simulation pass pointers that the real call could write.
    unsafe { (at as *mut T).write_unaligned(value) };
    Ok(())
}

/// As [`put`], where the program wants it: nothing is done for a null pointer.
pub(super) fn put_if<T: Copy>(at: usize, value: T) -> Result<(), Errno> {
    if at == 0 { Ok(()) } else { put(at, value) }
}

/// Bytes at an address.
pub(super) fn bytes(at: usize, len: usize) -> Result<Vec<u8>, Errno> {
    check(at, len)?;
    let mut copy = vec![0; len];
    // SAFETY: as in `get`; `copy` has room for so many.
    unsafe { core::ptr::copy_nonoverlapping(at as *const u8, copy.as_mut_ptr(), len) };
    Ok(copy)
}

/// Stores bytes.
pub(super) fn put_bytes(at: usize, bytes: &[u8]) -> Result<(), Errno> {
    check(at, bytes.len())?;
    // SAFETY: as in `put`.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    Ok(())
}

/// Copies within the address space.
pub(super) fn copy(from: usize, to: usize, len: usize) -> Result<(), Errno> {
    check(from, len)?;
    check(to, len)?;
    // SAFETY: as in `get` and `put`; they may overlap.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, len) };
    Ok(())
}

/// A string that ends with a zero.
pub(super) fn text(at: usize) -> Result<Vec<u8>, Errno> {
    check(at, 1)?;
    // SAFETY: programs pass strings that end, as the real call asks.
    let text = unsafe { core::ffi::CStr::from_ptr(at as *const core::ffi::c_char) };
    Ok(text.to_bytes().to_vec())
}

/// A list of places for bytes.
#[derive(Debug, Clone)]
pub(super) struct Places(Vec<(usize, usize)>);

impl Places {
    pub(super) fn one(at: usize, len: usize) -> Places {
        Places(vec![(at, len)])
    }

    /// Of `struct iovec`.
    pub(super) fn of(at: usize, count: usize) -> Result<Places, Errno> {
        if count > 1024 {
            return Err(Errno::EINVAL);
        }
        let each = (0..count).map(|index| get::<libc::iovec>(at + index * size_of::<libc::iovec>()));
        let places: Vec<_> = each.collect::<Result<_, _>>()?;
        if places.iter().any(|place| place.iov_len > isize::MAX as usize) {
            return Err(Errno::EINVAL);
        }
        Ok(Places(places.iter().map(|place| (place.iov_base as usize, place.iov_len)).collect()))
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|&(_, len)| len).sum()
    }

    pub(super) fn parts(&self) -> &[(usize, usize)] {
        &self.0
    }

    /// Their bytes behind the first `skip`, at most `most` of them.
    pub(super) fn gather(&self, mut skip: usize, mut most: usize) -> Result<Vec<u8>, Errno> {
        let mut all = Vec::new();
        for &(at, len) in &self.0 {
            let from = skip.min(len);
            skip -= from;
            let part = (len - from).min(most);
            if part > 0 {
                all.extend(bytes(at + from, part)?);
                most -= part;
            }
        }
        Ok(all)
    }

    /// Puts bytes there, behind the first `skip`; how many found room.
    pub(super) fn scatter(&self, mut skip: usize, mut from: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        for &(at, len) in &self.0 {
            let start = skip.min(len);
            skip -= start;
            let part = (len - start).min(from.len());
            put_bytes(at + start, &from[..part])?;
            from = &from[part..];
            done += part;
        }
        Ok(done)
    }
}
