//! The options of this process: environment and configuration files, read without libc's or std's
//! help.

use core::ffi::{CStr, c_char};
use options::{Options, Problem};

use crate::content::Content;

const FILE_MAX: usize = 16 << 10;

/// Reads the options, which have their defaults. `env` ends with null. Problems go to `problem`.
///
/// # Safety
/// `env` is an array of C strings that ends with null.
pub unsafe fn read(options: &mut Options, env: *const *const c_char, problem: &mut dyn FnMut(Problem)) {
    // SAFETY: the caller vouches for the array.
    let entries = || unsafe { Entries::new(env) };
    let files = options::config_files(entries());
    let contents = files.map(|file| file.and_then(|file| Content::read(file.as_c_str(), FILE_MAX).ok()));
    let texts = contents.each_ref().map(|content| content.as_ref().map_or(&[][..], Content::bytes));
    options::change(options, entries(), &texts, problem);
}

/// The strings of an environment.
pub struct Entries(*const *const c_char);

impl Entries {
    /// # Safety
    /// `env` is null or an array of C strings that ends with null, all of which outlive what is
    /// read here.
    pub unsafe fn new(env: *const *const c_char) -> Entries {
        Entries(env)
    }
}

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
