//! The options of this process: environment and configuration files, read without libc's or std's help.

use core::ffi::{CStr, c_char};
use fabric::sys;
use options::{Options, Problem};

const FILE_MAX: usize = 16 << 10;

/// Reads the options. `env` ends with null. Problems go to `problem`.
///
/// # Safety
/// `env` is an array of C strings that ends with null.
pub unsafe fn read(env: *const *const c_char, problem: &mut dyn FnMut(Problem)) -> Options {
    // SAFETY: the caller vouches for the array.
    let entries = || Entries(env);
    let files = options::config_files(entries());
    let mut memory = [core::ptr::null_mut::<u8>(); 2];
    let mut texts: [&[u8]; 2] = [b"", b""];
    for ((file, text), at) in files.iter().zip(&mut texts).zip(&mut memory) {
        if let Some(file) = file
            && let Ok(fd) = sys::open(file.as_c_str(), libc::O_RDONLY, 0)
        {
            if let Ok(mapped) = sys::mmap_private(FILE_MAX) {
                *at = mapped;
                // SAFETY: mapped with FILE_MAX bytes, ours until unmapped below.
                let buffer = unsafe { core::slice::from_raw_parts_mut(mapped, FILE_MAX) };
                let got = sys::read(fd, buffer).unwrap_or(0);
                *text = &buffer[..got];
            }
            sys::close(fd);
        }
    }
    let options = options::from_environ(entries(), &texts, problem);
    for at in memory {
        if !at.is_null() {
            sys::munmap(at, FILE_MAX);
        }
    }
    options
}

/// The strings of an environment.
struct Entries(*const *const c_char);

impl Iterator for Entries {
    type Item = &'static [u8];

    fn next(&mut self) -> Option<&'static [u8]> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the array ends with null, at which we stay.
        unsafe {
            let entry = *self.0;
            if entry.is_null() {
                return None;
            }
            self.0 = self.0.add(1);
            Some(CStr::from_ptr(entry).to_bytes())
        }
    }
}
