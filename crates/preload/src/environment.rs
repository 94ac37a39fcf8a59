//! The environment that the next image, or a child, gets: our library and options in it where the
//! program has dropped them, but not where that would be seen. Nothing is put into an environment
//! that the program has made empty, and nothing is left of a library that is not there for who
//! starts next (after chroot()): the dynamic linker would complain about it on the program's
//! output.

use core::ffi::{CStr, c_char};
use fabric::sys;
use sockets::process;
use sockets::reason::Reason;
use sockets::report;

use crate::{inherited, kept, names};

pub type Strings = *const *const c_char;

const NAME: &[u8] = b"LD_PRELOAD=";

/// Whether a program that is started with `env` runs under us.
///
/// # Safety
/// `env` is null or an array of C strings that ends with null.
pub unsafe fn accelerates(env: Strings) -> bool {
    // Not a system call more where a filter may hold.
    if !process::active() || !inherited::library_is_there() {
        return false;
    }
    // SAFETY: the caller vouches for the array.
    process::options().empty_env || unsafe { !is_empty(env) }
}

/// # Safety
/// As above.
unsafe fn is_empty(env: Strings) -> bool {
    // SAFETY: the caller vouches for it.
    env.is_null() || unsafe { (*env).is_null() }
}

/// Takes our library out of the program's own environment if it is not there for its children: for
/// those that libc starts by itself, with that one.
///
/// # Safety
/// `env` is null or an array of C strings that ends with null, which nobody else uses meanwhile.
pub unsafe fn forget_lost_library(env: *mut *const c_char) {
    let preload = inherited::preload_entry();
    if process::ended() || env.is_null() || preload.is_empty() || inherited::library_is_there() {
        return;
    }
    // SAFETY: the caller vouches for the array. What is written is shorter than what was there.
    unsafe {
        let mut place = env;
        while !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            let Some(value) = entry.strip_prefix(NAME).filter(|value| has(value, library())) else {
                place = place.add(1);
                continue;
            };
            if without(value).next().is_none() {
                let mut next = place;
                while !(*next).is_null() {
                    *next = *next.add(1);
                    next = next.add(1);
                }
                continue;
            }
            let text = (*place).cast_mut().cast::<u8>();
            let len = write_without(text.add(NAME.len()), value);
            *text.add(NAME.len() + len) = 0;
            place = place.add(1);
        }
    }
}

/// The path under which our library was preloaded.
fn library() -> &'static [u8] {
    &inherited::preload_entry()[NAME.len()..]
}

/// Whether it is one of the variables by which an image of ours tells the next one what it must
/// know.
fn is_for_us(entry: &[u8]) -> bool {
    entry.starts_with(kept::NAME) || entry.starts_with(names::NAME)
}

fn items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b':' || byte == b' ').filter(|item| !item.is_empty())
}

fn has(value: &[u8], library: &[u8]) -> bool {
    items(value).any(|item| item == library)
}

/// The libraries that LD_PRELOAD names, but ours.
fn without(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    items(value).filter(|item| *item != library())
}

/// Writes them to `to`, and says how many bytes they are.
///
/// # Safety
/// `to` has room for as many bytes as `value` has; it may be where that lies.
unsafe fn write_without(to: *mut u8, value: &[u8]) -> usize {
    let mut len = 0;
    for item in without(value) {
        // SAFETY: all items with one byte between them are no longer than the value, and each is
        // written no later than where it lies.
        unsafe {
            if len > 0 {
                *to.add(len) = b':';
                len += 1;
            }
            core::ptr::copy(item.as_ptr(), to.add(len), item.len());
        }
        len += item.len();
    }
    len
}

/// The environment for the next image, while it is needed.
pub struct Environment {
    pub strings: Strings,
    /// What holds the strings, if they are not the program's.
    mapped: (*mut u8, usize),
}

impl Environment {
    /// As `env`, with our library and options in it where the program has dropped them, and with
    /// the variable that says which connections are `kept`.
    ///
    /// # Safety
    /// `env` is null or an array of C strings that ends with null.
    pub unsafe fn new(env: Strings, kept: Option<*const c_char>) -> Environment {
        let as_it_is = Environment { strings: env, mapped: (core::ptr::null_mut(), 0) };
        let preload = inherited::preload_entry();
        if process::ended() || env.is_null() || preload.is_empty() {
            return as_it_is;
        }
        if !inherited::library_is_there() {
            // SAFETY: the caller vouches for the array.
            return unsafe { Environment::without_us(env) };
        }
        if !process::active() {
            return as_it_is;
        }
        // SAFETY: as above.
        if unsafe { is_empty(env) } && !process::options().empty_env {
            report::count_reason(Reason::EmptyEnvironment);
            return as_it_is;
        }
        let mut count = 0;
        let (mut place, mut old, mut ours, mut stale) = (None, &[][..], false, false);
        // SAFETY: the caller vouches for the array; the new one has room for all of it.
        unsafe {
            while !(*env.add(count)).is_null() {
                let entry = CStr::from_ptr(*env.add(count)).to_bytes();
                if let Some(value) = entry.strip_prefix(NAME) {
                    (place, old) = (Some(count), value);
                    ours |= has(value, library());
                }
                stale |= is_for_us(entry);
                count += 1;
            }
            let named = names::room();
            if ours && kept.is_none() && named == 0 && !stale {
                return as_it_is;
            }
            let most = count + inherited::option_entries().count() + 4;
            let text = preload.len() + old.len() + 2;
            let bytes = most * 8 + text + named;
            let Ok(at) = sys::mmap_private(bytes) else { return as_it_is };
            let array = at.cast::<*const c_char>();
            let mut end = 0;
            let mut add = |entry| {
                *array.add(end) = entry;
                end += 1;
            };
            for index in (0..count).filter(|&index| ours || place != Some(index)) {
                let entry = *env.add(index);
                if !is_for_us(CStr::from_ptr(entry).to_bytes()) {
                    add(entry);
                }
            }
            if !ours {
                let text = at.add(most * 8);
                core::ptr::copy_nonoverlapping(preload.as_ptr(), text, preload.len());
                if !old.is_empty() {
                    *text.add(preload.len()) = b':';
                    core::ptr::copy_nonoverlapping(old.as_ptr(), text.add(preload.len() + 1), old.len());
                }
                add(text.cast());
                for option in inherited::option_entries() {
                    let name =
                        option.to_bytes().split_inclusive(|&byte| byte == b'=').next().unwrap_or_default();
                    let is_set = |index| CStr::from_ptr(*env.add(index)).to_bytes().starts_with(name);
                    if !(0..count).any(is_set) {
                        add(option.as_ptr());
                    }
                }
            }
            if let Some(kept) = kept {
                add(kept);
            }
            if named > 0 {
                let place = at.add(most * 8 + text);
                names::write(core::slice::from_raw_parts_mut(place, named));
                add(place.cast());
            }
            Environment { strings: array, mapped: (at, bytes) }
        }
    }

    /// As `env`, but for our library.
    ///
    /// # Safety
    /// As above.
    unsafe fn without_us(env: Strings) -> Environment {
        let as_it_is = Environment { strings: env, mapped: (core::ptr::null_mut(), 0) };
        let (mut count, mut text) = (0, 0);
        // SAFETY: the caller vouches for the array; the new one has room for all of it, and for
        // each text that is written anew.
        unsafe {
            let entry = |index: usize| CStr::from_ptr(*env.add(index)).to_bytes();
            let ours = |index| entry(index).strip_prefix(NAME).filter(|value| has(value, library()));
            while !(*env.add(count)).is_null() {
                text += ours(count).map_or(0, |value| NAME.len() + value.len() + 1);
                count += 1;
            }
            if text == 0 {
                return as_it_is;
            }
            report::count_reason(Reason::LibraryLost);
            let bytes = (count + 1) * 8 + text;
            let Ok(at) = sys::mmap_private(bytes) else { return as_it_is };
            let array = at.cast::<*const c_char>();
            let (mut end, mut free) = (0, at.add((count + 1) * 8));
            for index in 0..count {
                let Some(value) = ours(index) else {
                    *array.add(end) = *env.add(index);
                    end += 1;
                    continue;
                };
                let len = write_without(free.add(NAME.len()), value);
                if len > 0 {
                    core::ptr::copy_nonoverlapping(NAME.as_ptr(), free, NAME.len());
                    *array.add(end) = free.cast();
                    end += 1;
                    free = free.add(NAME.len() + len + 1);
                }
            }
            Environment { strings: array, mapped: (at, bytes) }
        }
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        if self.mapped.1 != 0 {
            sys::munmap(self.mapped.0, self.mapped.1);
        }
    }
}
