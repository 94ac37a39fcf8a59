//! Random numbers that nobody can guess.

use super::files::{close, open, read};

/// A random number. None where the kernel gives none.
pub fn try_random() -> Option<u64> {
    let mut bytes = [0; 8];
    let got = match call!(getrandom, bytes.as_mut_ptr(), bytes.len(), 0) {
        Ok(got) => got,
        Err(_) => {
            let fd = open(c"/dev/urandom", libc::O_RDONLY, 0).ok()?;
            let got = read(fd, &mut bytes);
            close(fd);
            got.ok()?
        }
    };
    (got == bytes.len()).then_some(u64::from_ne_bytes(bytes))
}

/// The same, where nothing can go on without one: a secret must not be replaced by a number that
/// can be guessed.
pub fn random() -> u64 {
    try_random().expect("the kernel gives random bytes, by getrandom() or /dev/urandom")
}
