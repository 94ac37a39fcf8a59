//! getsockname() and getpeername(). The kernel answers, but for the ports of a connection that goes
//! on by a relay with others ([`sockets::names`]). The next image, and children that are started,
//! learn of those by a variable, [`NAME`], which is taken out before the program can see it.

use core::ffi::{CStr, c_char, c_int};
use core::fmt::{self, Write};
use libc::{sockaddr, socklen_t};
use sockets::names::{self, Ports};

use crate::next::hooks;

/// "SHUNT_NAMES=COOKIE:OWN:PEER ...", in decimal.
pub const NAME: &[u8] = b"SHUNT_NAMES=";
/// The longest text of one of them.
const EACH: usize = 34;

/// How much room the variable needs; 0: there is none.
pub fn room() -> usize {
    match names::all().count() {
        0 => 0,
        count => NAME.len() + count * EACH + 1,
    }
}

/// Writes it.
pub fn write(to: &mut [u8]) {
    let mut text = Text { to, len: 0 };
    let _ = text.put(NAME);
    for (cookie, ports) in names::all() {
        let _ = write!(text, "{cookie}:{}:{} ", ports.own, ports.peer);
    }
    // Its last byte; room() counts it.
    text.to[text.len] = 0;
}

struct Text<'a> {
    to: &'a mut [u8],
    len: usize,
}

impl Text<'_> {
    fn put(&mut self, bytes: &[u8]) -> fmt::Result {
        let end = self.len + bytes.len();
        if end >= self.to.len() {
            return Err(fmt::Error);
        }
        self.to[self.len..end].copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }
}

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes())
    }
}

/// Notes what the image before this one, or our parent, has left in the variable. It comes from
/// outside; the worst that it can say is which ports a socket of this program's has, to this
/// program alone.
pub fn learn(variable: &CStr) {
    let text = variable.to_bytes().strip_prefix(NAME).unwrap_or_default();
    for word in text.split(|&byte| byte == b' ') {
        let Ok(word) = core::str::from_utf8(word) else { return };
        let mut parts = word.split(':');
        if let (Some(Ok(cookie)), Some(Ok(own)), Some(Ok(peer)), None) = (
            parts.next().map(str::parse),
            parts.next().map(str::parse),
            parts.next().map(str::parse),
            parts.next(),
        ) {
            names::note(cookie, Ports { own, peer });
        }
    }
}

/// Puts a port where the kernel has put another, as far as the program has said that there is room.
///
/// # Safety
/// The kernel has just filled `address` for a buffer of `room` bytes.
unsafe fn put_port(address: *mut sockaddr, room: usize, port: u16) {
    const AT: usize = 2; // of both families
    // SAFETY: the caller vouches for it.
    unsafe {
        if room >= AT + 2 && [libc::AF_INET, libc::AF_INET6].contains(&i32::from((*address).sa_family)) {
            address.cast::<u8>().add(AT).cast::<u16>().write_unaligned(port.to_be());
        }
    }
}

unsafe fn named(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    port: impl Fn(Ports) -> u16,
    next: impl Fn() -> c_int,
) -> c_int {
    let Some(ports) = names::of(fd) else { return next() };
    // SAFETY: what the kernel cannot read it does not succeed with; then nothing is looked at.
    unsafe {
        let room = if sockets::faults::low(len) { 0 } else { *len as usize };
        let result = next();
        if result == 0 {
            put_port(address, room, port(ports));
        }
        result
    }
}

hooks! {
    fn getsockname(next; fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        named(fd, address, len, |ports| ports.own, || next(fd, address, len))
    }
    fn getpeername(next; fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        named(fd, address, len, |ports| ports.peer, || next(fd, address, len))
    }
}

/// Takes the variable out of the environment of a program that begins.
///
/// # Safety
/// As [`crate::kept::take`].
pub unsafe fn take(env: *const *const c_char) {
    // SAFETY: the caller vouches for it.
    if let Some(variable) = unsafe { crate::kept::take_out(env, NAME) } {
        learn(variable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_learnt() {
        learn(c"SHUNT_NAMES=77:80:40000 x:1:2 78:1 79:99999:1 18446744073709551615:65535:65535 ");
        assert_eq!(names::all().count(), 2);
        let mut text = vec![0xff; room()];
        write(&mut text);
        let text = CStr::from_bytes_until_nul(&text).unwrap();
        assert_eq!(text, c"SHUNT_NAMES=77:80:40000 18446744073709551615:65535:65535 ");
    }
}
