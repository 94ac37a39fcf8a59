//! The library's messages: one line each, written at once and in one piece, to where `SHUNT_LOG` says, which is nowhere unless it is
//! set. They are rare (the beginnings and ends of what happens to a connection), so a file or socket is opened for each: nothing is
//! held in the program's table of descriptors, and a log that was moved away is made anew.

use core::fmt::{self, Write};
use core::net::Ipv6Addr;

use fabric::sync::{AtomicU32, Ordering};
use fabric::sys;
use options::{LogLevel, LogTarget, Options};

use crate::conn::{Conn, flag};
use crate::reason::Reason;
use crate::{descriptors, process, report};
use host::addr::Addr;

/// Messages below this are written: the level plus one, 0 for none.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Begins, with the program's options.
pub fn start(options: &Options) {
    let wanted = if options.log == LogTarget::None { 0 } else { options.log_level as u32 + 1 };
    WANTED.store(wanted, Ordering::Relaxed);
}

/// Something happened to a connection.
#[inline(always)]
pub fn connection(level: LogLevel, conn: &Conn, what: &str) {
    if wanted(level) {
        write(level, format_args!("{}: {what}", Name(conn)));
    }
}

/// A connection is on tcp, or stays there.
#[inline(always)]
pub fn on_tcp(conn: &Conn, reason: Reason) {
    let level = level_of(reason);
    if wanted(level) {
        write(level, format_args!("{}: on tcp: {}", Name(conn), reason.text()));
    }
}

/// Something that is not of one connection.
pub fn note(level: LogLevel, what: impl fmt::Display) {
    if wanted(level) {
        write(level, format_args!("{what}"));
    }
}

impl Conn {
    pub fn set_reason(&self, reason: Reason) {
        let was = self.reason.swap(reason as u32, Ordering::Relaxed);
        if reason != Reason::None && was != reason as u32 {
            connection(LogLevel::Debug, self, reason.text());
        }
    }

    /// The peer broke the protocol: its connection, and only its, is at an end.
    #[cold]
    pub fn break_off(&self, fd: i32) {
        self.set(flag::BROKEN | flag::NEVER);
        self.set_reason(Reason::Broken);
        report::count_reason(Reason::Broken);
        on_tcp(self, Reason::Broken);
        let _ = sys::shutdown(fd, libc::SHUT_RDWR);
    }
}

#[inline(always)]
fn wanted(level: LogLevel) -> bool {
    (level as u32) < WANTED.load(Ordering::Relaxed)
}

/// How grave a reason is: a warning is what an administrator can mend.
fn level_of(reason: Reason) -> LogLevel {
    match reason {
        Reason::Broken => LogLevel::Error,
        Reason::NoBoard
        | Reason::NoListener
        | Reason::NoMemory
        | Reason::NoDescriptors
        | Reason::OtherVersion
        | Reason::Counting
        | Reason::TableFull
        | Reason::LinkLimit
        | Reason::IoUring => LogLevel::Warn,
        _ => LogLevel::Info,
    }
}

/// How a connection is called: its descriptor, and its addresses once they are known.
struct Name<'a>(&'a Conn);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fd {}", self.0.descriptor())?;
        // They are set with the cookie, when the connection is posted.
        if self.0.cookie.load(Ordering::Acquire) != 0 {
            let (own, peer) = self.0.addresses();
            write!(f, ", {} to {}", Place(own), Place(peer))?;
        }
        Ok(())
    }
}

struct Place(Addr);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = Ipv6Addr::from(self.0.ip);
        match ip.to_ipv4_mapped() {
            Some(ip) => write!(f, "{ip}:{}", self.0.port),
            None => write!(f, "[{ip}]:{}", self.0.port),
        }
    }
}

/// A line that is being made; what does not fit is cut off.
struct Line {
    bytes: [u8; 400],
    len: usize,
}

impl Line {
    fn finished(&mut self) -> &[u8] {
        self.len = self.len.min(self.bytes.len() - 1);
        self.bytes[self.len] = b'\n';
        &self.bytes[..=self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

#[cold]
fn write(level: LogLevel, what: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 400], len: 0 };
    let target = process::options().log;
    if target == LogTarget::Syslog {
        let severity = [3, 4, 6, 7][level as usize];
        // Facility user, RFC 3164.
        let _ = write!(line, "<{}>", 8 + severity);
    }
    let _ = write!(line, "shunt[{}]: {what}", process::pid());
    match target {
        LogTarget::None => {}
        LogTarget::Stderr => drop(sys::write(libc::STDERR_FILENO, line.finished())),
        LogTarget::File(path) => {
            // Not by a link, which others may have put there.
            let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW;
            let flags = flags | libc::O_NOCTTY | libc::O_NONBLOCK;
            if let Ok(fd) = descriptors::made(|| sys::open(path.as_c_str(), flags, 0o644)) {
                let _ = sys::write(fd, line.finished());
                sys::close(fd);
            }
        }
        LogTarget::Syslog => {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            if let Ok(fd) = descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)) {
                let (address, len) = dev_log();
                if sys::connect(fd, (&raw const address).cast(), len).is_ok() {
                    let text = line.finished();
                    let _ = sys::send(fd, text.as_ptr(), text.len() - 1, libc::MSG_NOSIGNAL);
                }
                sys::close(fd);
            }
        }
    }
}

fn dev_log() -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, &byte) in address.sun_path.iter_mut().zip(b"/dev/log") {
        *place = byte as _;
    }
    (address, size_of::<libc::sockaddr_un>() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_and_ends() {
        let mut line = Line { bytes: [0; 400], len: 0 };
        for _ in 0..100 {
            let _ = line.write_str("0123456789");
        }
        assert_eq!((line.finished().len(), line.finished().last()), (400, Some(&b'\n')));
    }

    #[test]
    fn addresses_are_written_as_people_do() {
        let v4 = Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1], port: 80 };
        let v6 = Addr { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], port: 80 };
        assert_eq!(format!("{} {}", Place(v4), Place(v6)), "127.0.0.1:80 [::1]:80");
    }
}
