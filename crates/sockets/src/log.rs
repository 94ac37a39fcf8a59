//! The library's messages: one line each, written at once and in one piece, to where `SHUNT_LOG`
//! says, which is nowhere unless it is set. They are rare (the beginnings and ends of what happens
//! to a connection), so a file or socket is opened for each: nothing is held in the program's table
//! of descriptors, and a log that was moved away is made anew.

use core::fmt::{self, Write};

use fabric::sync::{AtomicU32, Ordering};
use fabric::sys::{self, Errno};
use fabric::text::Text;
use options::{LogLevel, LogTarget, Options};

use crate::conn::{Conn, flag};
use crate::reason::Reason;
use crate::{descriptors, process, report};

/// Messages below this are written: the level plus one, 0 for none.
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Begins, with the program's options.
pub fn start(options: &Options) {
    if options.log != LogTarget::None {
        WANTED.store(options.log_level as u32 + 1, Ordering::Relaxed);
    }
}

/// Something happened to a connection.
#[inline(always)]
pub fn connection(level: LogLevel, conn: &Conn, what: &str) {
    if wanted(level) {
        write(level, format_args!("{}: {what}", Name(conn)));
    }
}

/// Something that is not of one connection.
pub fn note(level: LogLevel, what: impl fmt::Display) {
    if wanted(level) {
        write(level, format_args!("{what}"));
    }
}

impl Conn {
    /// Why it is on tcp.
    pub fn set_reason(&self, reason: Reason) {
        let was = self.reason.swap(reason as u32, Ordering::Relaxed);
        if reason != Reason::None && was != reason as u32 {
            connection(LogLevel::Debug, self, reason.text());
        }
    }

    /// Whether it is on tcp because of that.
    pub(crate) fn is_because(&self, reason: Reason) -> bool {
        self.reason.load(Ordering::Relaxed) == reason as u32
    }

    /// Why it is on tcp, also for the counts.
    pub(crate) fn count_reason(&self, reason: Reason) {
        self.set_reason(reason);
        self.set(flag::COUNTED);
        report::count_reason(reason);
    }

    /// Adds to the sums what it has moved since it was last added.
    pub fn count_moved(&self) {
        let counts = &self.counters;
        for (moved, told, at) in [
            (&counts.ring_out, &counts.told_out, report::at::RING_OUT),
            (&counts.ring_in, &counts.told_in, report::at::RING_IN),
        ] {
            let now = moved.load(Ordering::Relaxed);
            let more = now.saturating_sub(told.fetch_max(now, Ordering::Relaxed));
            if more != 0 {
                report::add(at, more);
            }
        }
    }

    /// It ends. One that was on tcp all the time, and still had a chance to move, counts for what
    /// it waited for.
    pub fn count_last_reason(&self) {
        let reason = Reason::of(self.reason.load(Ordering::Relaxed));
        if !self.has(flag::COUNTED)
            && let Some(reason) = reason
        {
            self.count_reason(reason);
        }
    }

    /// Why it is on tcp, also for the counts and the log.
    pub(crate) fn goes_by_tcp(&self, reason: Reason) {
        self.count_reason(reason);
        let level = level_of(reason);
        if wanted(level) {
            write(level, format_args!("{}: on tcp: {}", Name(self), reason.text()));
        }
    }

    /// Why it has gone back to tcp.
    pub(crate) fn went_back(&self, reason: Reason) {
        report::add(report::at::DEMOTED, 1);
        self.goes_by_tcp(reason);
    }

    /// The peer broke the protocol: its connection, and only its, is at an end.
    #[cold]
    pub fn break_off(&self, fd: i32) {
        self.set(flag::BROKEN | flag::NEVER);
        self.goes_by_tcp(Reason::Broken);
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
            write!(f, ", {own} to {peer}")?;
        }
        Ok(())
    }
}

#[cold]
fn write(level: LogLevel, what: fmt::Arguments<'_>) {
    let mut line = Text::<400>::new();
    let target = process::options().log;
    if target == LogTarget::Syslog {
        let severity = [3, 4, 6, 7][level as usize];
        // Facility user, RFC 3164.
        let _ = write!(line, "<{}>", 8 + severity);
    }
    let _ = write!(line, "shunt[{}]: {what}", process::pid());
    match target {
        LogTarget::None => {}
        LogTarget::Stderr => drop(sys::write(libc::STDERR_FILENO, line.line())),
        LogTarget::File(path) => {
            // Not by a link, which others may have put there.
            let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW;
            let flags = flags | libc::O_NOCTTY | libc::O_NONBLOCK;
            by(
                || sys::open(path.as_c_str(), flags, 0o644),
                |fd| {
                    let _ = sys::write(fd, line.line());
                },
            );
        }
        LogTarget::Syslog => {
            let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            by(
                || sys::socket(libc::AF_UNIX, kind, 0),
                |fd| {
                    let (address, len) = sys::unix_address(*b"/dev/log");
                    if sys::connect(fd, (&raw const address).cast(), len).is_ok() {
                        let text = line.bytes();
                        let _ = sys::send(fd, text.as_ptr(), text.len(), libc::MSG_NOSIGNAL);
                    }
                },
            );
        }
    }
}

fn by(make: impl Fn() -> Result<i32, Errno>, write: impl FnOnce(i32)) {
    if let Ok(fd) = descriptors::made(make) {
        write(fd);
        sys::close(fd);
    }
}
