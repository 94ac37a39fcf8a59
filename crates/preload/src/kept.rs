//! The connections that a program keeps over exec(). They go back to tcp for it; the next image, if
//! it has our library, follows them again, so that they can be in memory once more. It learns of
//! them by a variable in its environment, [`NAME`], which it takes out before the program can see
//! it.
//!
//! Only such as nobody else can have: if another process wrote to one by tcp, what it sends would
//! stand among what is in memory. So the variable names the process, and the program: what a
//! program without our library passes on to its children, or to the next image, counts for neither.

use core::ffi::{CStr, c_char, c_int};
use core::fmt::{self, Write};
use fabric::sync::Ordering;
use fabric::sys;
use sockets::conn::{Conn, flag};
use sockets::table::{self, Entry};
use sockets::{faults, lifecycle, process};

/// "SHUNT_KEPT=PID FD:ROLE:COOKIE ... /PROGRAM": numbers are decimal, the role is c or s, or C or S
/// if an epoll set has it.
pub const NAME: &[u8] = b"SHUNT_KEPT=";
/// More than so many stay on tcp: one variable may have 128 KB.
const MOST: usize = 1024;
/// The longest text of one of them, of the rest, and of a file's name.
const EACH: usize = 36;
const REST: usize = 64;
const FILE: usize = 256;

/// The variable, being made.
pub struct Kept {
    /// Its text, of which `len` bytes are there, and as many as `room` may be.
    at: *mut u8,
    len: usize,
    room: usize,
    mapped: usize,
    count: usize,
}

/// One of those that a variable names.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    fd: c_int,
    client: bool,
    in_set: bool,
}

impl Kept {
    /// None, for those who may not keep any.
    pub const NONE: Kept = Kept { at: core::ptr::null_mut(), len: 0, room: 0, mapped: 0, count: 0 };

    /// With room for all connections.
    pub fn new() -> Kept {
        let mut count = 0;
        table::for_each(|fd, entry| {
            if fd > libc::STDERR_FILENO && matches!(entry, Entry::Conn(_)) {
                count += 1;
            }
        });
        let room = count.min(MOST) * EACH + REST + FILE;
        if count == 0 || process::borrowed() {
            return Kept::NONE;
        }
        let Ok(at) = sys::mmap_private(room) else { return Kept::NONE };
        let mut kept = Kept { at, len: 0, room: room - FILE, mapped: room, count: 0 };
        // SAFETY: the name is shorter than REST.
        unsafe { core::ptr::copy_nonoverlapping(NAME.as_ptr(), at, NAME.len()) };
        kept.len = NAME.len();
        let _ = write!(kept, "{}", process::pid());
        kept
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Hands a connection over that stays open, by `hand_over`; notes it if the next image can have
    /// it for itself.
    pub fn hand_over(&mut self, conn: &'static Conn, fd: c_int, hand_over: impl FnOnce() -> bool) {
        // A set that the next image has, and does not know, would never tell of one that is in
        // memory.
        let in_set = conn.epolls.load(Ordering::Acquire) != 0;
        let alone = self.room != 0
            && self.count < MOST
            && fd > libc::STDERR_FILENO
            && !conn.has(flag::NEVER)
            && conn.refs.load(Ordering::Acquire) == 1
            && (!in_set || sets_close());
        if alone {
            conn.set(flag::KEPT);
        }
        if hand_over()
            && alone
            && let Ok(cookie) = sys::getsockopt::<u64>(fd, libc::SOL_SOCKET, sockets::socket::SO_COOKIE)
        {
            let role = match (conn.has(flag::CLIENT), in_set) {
                (true, false) => 'c',
                (false, false) => 's',
                (true, true) => 'C',
                (false, true) => 'S',
            };
            self.count += usize::from(write!(self, " {fd}:{role}:{cookie}").is_ok());
        }
    }

    /// The variable, for the program in `file` (or, if that has no name, of descriptor `fd`);
    /// `None` if nothing is kept.
    ///
    /// # Safety
    /// `file` is null or a C string, as far as the kernel will not refuse it.
    pub unsafe fn variable(&mut self, file: *const c_char, fd: c_int) -> Option<*const c_char> {
        if self.count == 0 {
            return None;
        }
        self.room += FILE - 1;
        let mut name: &[u8] = b"";
        if !faults::low(file) {
            // SAFETY: the caller vouches for it.
            name = base_name(unsafe { CStr::from_ptr(file) }.to_bytes());
        }
        let written = if name.is_empty() {
            write!(self, " /{fd}")
        } else {
            self.write_str(" /").and_then(|()| self.put(name))
        };
        // What follows is zero: the mapping has room for one byte more.
        written.is_ok().then_some(self.at.cast_const().cast())
    }

    /// exec() has failed: what was kept is followed again, but for what a set of the kernel's has
    /// by now.
    pub fn stay(&self) {
        if self.count == 0 {
            return;
        }
        // SAFETY: so many bytes are there, and nobody writes them any more.
        let text = unsafe { core::slice::from_raw_parts(self.at, self.len) };
        let name = text.iter().position(|&byte| byte == b'/').map_or(&[][..], |slash| &text[slash + 1..]);
        for kept in connections(text, process::pid(), name) {
            if !kept.in_set && matches!(table::entry(kept.fd), Entry::None) {
                lifecycle::track(kept.fd, kept.client, None, 0);
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> fmt::Result {
        if self.len + bytes.len() > self.room {
            return Err(fmt::Error);
        }
        // SAFETY: there is room for them, which was just asked.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.add(self.len), bytes.len()) };
        self.len += bytes.len();
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.at.is_null() {
            sys::munmap(self.at, self.mapped);
        }
    }
}

impl Write for Kept {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes())
    }
}

/// Whether all epoll sets of the program are closed by exec().
fn sets_close() -> bool {
    let mut all = true;
    table::for_each(|fd, entry| {
        if matches!(entry, Entry::Set(_)) {
            all &= sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
        }
    });
    all
}

fn base_name(file: &[u8]) -> &[u8] {
    file.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

/// Takes the variable out of the environment of a program that begins; what it says, for
/// [`follow`].
///
/// # Safety
/// `env` is null or an array of C strings that ends with null, and that nobody reads meanwhile.
pub unsafe fn take(env: *const *const c_char) -> Option<&'static CStr> {
    // SAFETY: the caller vouches for it.
    unsafe { take_out(env, NAME) }
}

/// Likewise for another variable.
///
/// # Safety
/// As above.
pub unsafe fn take_out(env: *const *const c_char, name: &[u8]) -> Option<&'static CStr> {
    let mut found = None;
    let mut from = env.cast_mut();
    let mut to = from;
    // SAFETY: the caller vouches for the array, which only gets shorter.
    unsafe {
        while !from.is_null() && !(*from).is_null() {
            let entry = CStr::from_ptr(*from);
            if entry.to_bytes().starts_with(name) {
                found = Some(entry);
            } else {
                if to != from {
                    *to = *from;
                }
                to = to.add(1);
            }
            from = from.add(1);
        }
        if to != from {
            *to = core::ptr::null();
        }
    }
    found
}

/// Follows the connections that the image before this one has left to it. `program`: as exec() was
/// told ([`libc::AT_EXECFN`]).
pub fn follow(variable: &[u8], program: &[u8]) {
    for kept in connections(variable, process::pid(), program) {
        lifecycle::track(kept.fd, kept.client, None, 0);
    }
}

/// Which connections a variable names, if it is for this program, and if they are still what they
/// were. It comes from outside: nothing in it is believed.
fn connections(variable: &[u8], pid: u32, program: &[u8]) -> impl Iterator<Item = Named> {
    let text = variable.strip_prefix(NAME).unwrap_or_default();
    let slash = text.iter().position(|&byte| byte == b'/').unwrap_or(0);
    let (list, name) = text.split_at(slash);
    let mut words = list.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let ours =
        words.next().and_then(number) == Some(u64::from(pid)) && name.get(1..) == Some(base_name(program));
    words.filter(move |_| ours).take(MOST).filter_map(|word| {
        let mut parts = word.split(|&byte| byte == b':');
        let fd = c_int::try_from(parts.next().and_then(number)?).ok()?;
        let (client, in_set) = match parts.next()? {
            b"c" => (true, false),
            b"s" => (false, false),
            b"C" => (true, true),
            b"S" => (false, true),
            _ => return None,
        };
        let cookie = parts.next().and_then(number)?;
        let same = sys::getsockopt(fd, libc::SOL_SOCKET, sockets::socket::SO_COOKIE) == Ok(cookie);
        (same && fd > libc::STDERR_FILENO && parts.next().is_none()).then_some(Named { fd, client, in_set })
    })
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_variable_counts_for_one_program_and_what_it_was_made_of() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let fd = socket.as_raw_fd();
        let cookie: u64 = sys::getsockopt(fd, libc::SOL_SOCKET, sockets::socket::SO_COOKIE).unwrap();
        let read = |text: &str, program: &str| {
            connections(text.as_bytes(), 77, program.as_bytes())
                .map(|kept| (kept.fd, kept.client))
                .collect::<Vec<_>>()
        };
        let good = format!("SHUNT_KEPT=77 {fd}:c:{cookie} 3:s:1 /cat");
        assert_eq!(read(&good, "/bin/cat"), [(fd, true)], "3 is not a socket, or another one");
        assert_eq!(read(&good, "cat"), [(fd, true)]);
        assert_eq!(read(&good, "/bin/tac"), []);
        assert_eq!(read(&good.replace("77", "78"), "cat"), []);
        for broken in [
            "SHUNT_KEPT=",
            "SHUNT_KEPT=/cat",
            "SHUNT_KEPT=77",
            "SHUNT_KEPT=77 /cat",
            &format!("SHUNT_KEPT=77 {fd}:c:{} /cat", cookie + 1),
            &format!("SHUNT_KEPT=77 {fd}:x:{cookie} /cat"),
            &format!("SHUNT_KEPT=77 {fd}:c /cat"),
            &format!("SHUNT_KEPT=77 {fd}:c:{cookie}:1 /cat"),
            &format!("SHUNT_KEPT=77 -1:c:{cookie} /cat"),
            &format!("SHUNT_KEPT=77 99999999999:c:{cookie} /cat"),
            &format!("{fd}:c:{cookie} /cat"),
        ] {
            assert_eq!(read(broken, "cat"), [], "{broken}");
        }
    }

    #[test]
    fn it_is_taken_out_of_the_environment() {
        let mut env = [c"A=1".as_ptr(), c"SHUNT_KEPT=1 /x".as_ptr(), c"B=2".as_ptr(), core::ptr::null()];
        // SAFETY: the array ends with null.
        let found = unsafe { take(env.as_mut_ptr()) };
        assert_eq!(found, Some(c"SHUNT_KEPT=1 /x"));
        let left = env.iter().take_while(|at| !at.is_null()).map(|&at| {
            // SAFETY: all of them are C strings.
            unsafe { CStr::from_ptr(at) }
        });
        assert!(left.eq([c"A=1", c"B=2"]));
    }
}
