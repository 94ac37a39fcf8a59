//! Who somebody is: the one place where users are compared (`scripts/check-habits.sh` checks that).
//! The kernel names users by numbers, and three of them lie:
//!
//! * Each user that a user namespace does not map is shown as the *overflow uid* (65534), by
//!   SO_PEERCRED and sock_diag alike. So two strangers look the same.
//! * Root of a user namespace is 0, as the machine's root is.
//! * A process may have several users at once.
//!
//! So a number becomes a [`User`] only if it can mean one user alone. The overflow uid is nobody.
//! In a user namespace that does not map all users to themselves, only one's own user is known.
//! Root is a user as any other: nobody is exempt from proof.

use crate::atomic::{AtomicU64, Ordering};
use crate::sys;

/// A user that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User(u32);

/// The user namespace of this process, as far as it matters here.
#[derive(Debug, Clone, Copy)]
struct Space {
    /// The user that stands for all that are not mapped.
    overflow: u32,
    /// Whether all users are mapped, each to itself.
    identity: bool,
}

/// The overflow uid and one, once this process was found in a namespace that maps all users to
/// themselves, as most are: that takes two files to read, and a map is written once.
static EVERYBODY: AtomicU64 = AtomicU64::new(0);

/// The process is in another user namespace.
///
/// If it gets there unseen (by a system call of its own), what is kept is out of date, and does no
/// harm: in any namespace a number stands for one user alone, but for the overflow uid, which is
/// nobody.
pub fn forget() {
    EVERYBODY.store(0, Ordering::Relaxed);
}

/// The overflow uid, unless the machine's settings say otherwise.
const OVERFLOW: u32 = 65534;
const NO_USER: u32 = u32::MAX;

impl Space {
    fn now() -> Space {
        let everybody = EVERYBODY.load(Ordering::Relaxed);
        if everybody != 0 {
            return Space { overflow: (everybody - 1) as u32, identity: true };
        }
        let mut text = [0; 128];
        let overflow = read(c"/proc/sys/kernel/overflowuid", &mut text).and_then(number).unwrap_or(OVERFLOW);
        let identity = read(c"/proc/self/uid_map", &mut text).is_some_and(maps_all);
        if identity {
            EVERYBODY.store(u64::from(overflow) + 1, Ordering::Relaxed);
        }
        Space { overflow, identity }
    }

    fn user(self, uid: u32, own: impl FnOnce() -> u32) -> Option<User> {
        let nobody = [NO_USER, User::STRANGER.0, self.overflow].contains(&uid);
        let known = !nobody && (self.identity || uid == own());
        known.then_some(User(uid))
    }
}

impl User {
    /// A process in a namespace that says nothing of its users: it is known by the connections of
    /// which it has proved to have the other end, and by nothing else. No number means it.
    pub const STRANGER: User = User(NO_USER - 1);

    /// The user with this number, if that means one user alone.
    pub fn of(uid: u32) -> Option<User> {
        Space::now().user(uid, sys::geteuid)
    }

    /// The user of this process. `None` if it has several at once (as setuid programs have), or one
    /// that is not known.
    pub fn own() -> Option<User> {
        let [real, effective, saved] = sys::getresuid();
        (real == effective && saved == effective).then(|| User::of(effective)).flatten()
    }

    /// The user and the process at the other end of a UNIX socket. If that end listens, they are
    /// those of the time when it began to listen.
    pub fn at(socket: i32) -> Option<(User, u32)> {
        let peer: libc::ucred = sys::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
        Some((User::of(peer.uid)?, peer.pid as u32))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }

    /// Whether it is the machine's root. In a user namespace in which other users are not known,
    /// this is also true of one's own user if it is the namespace's root.
    pub fn is_root(self) -> bool {
        self.0 == 0
    }
}

/// Whether the number in a kernel's record (of a socket, say) means this user.
pub fn is_of(uid: u32, user: User) -> bool {
    User::of(uid) == Some(user)
}

/// Whether the process at the other end of a UNIX socket belongs to our own user or to the
/// machine's root. Such a process may tell us things about ourselves, as an agent of that user
/// does.
pub fn is_kin(socket: i32) -> bool {
    let own = User::own();
    User::at(socket).is_some_and(|(peer, _)| Some(peer) == own || peer.is_root())
}

/// Whether this process may act for the user with that number: its own, or any if it is root.
pub fn acts_for(uid: u32) -> bool {
    let own = User::own();
    own.is_some_and(|own| own.is_root()) || own.is_some() && User::of(uid) == own
}

/// The content of a file, up to its first 128 bytes; a longer one counts as unreadable.
fn read<'a>(path: &core::ffi::CStr, text: &'a mut [u8; 128]) -> Option<&'a [u8]> {
    let fd = sys::open(path, libc::O_RDONLY, 0).ok()?;
    let got = sys::read(fd, text);
    sys::close(fd);
    got.ok().filter(|&len| len > 0 && len < text.len()).map(|len| &text[..len])
}

fn number(text: &[u8]) -> Option<u32> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Whether a uid_map has one line, which maps all users, each to itself. The kernel accepts such a
/// line only if all user namespaces around this one do the same.
fn maps_all(text: &[u8]) -> bool {
    let mut numbers =
        text.split(|&byte| byte == b' ' || byte == b'\n').filter(|word| !word.is_empty()).map(number);
    numbers.next() == Some(Some(0))
        && numbers.next() == Some(Some(0))
        && numbers.next() == Some(Some(u32::MAX))
        && numbers.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_all_users_is_told_from_others() {
        assert!(maps_all(b"         0          0 4294967295\n"));
        assert!(!maps_all(b"         0          0      65536\n"));
        assert!(!maps_all(b"         0       1000          1\n"));
        assert!(!maps_all(b"         0          0 4294967295\n  1 2 3\n"));
        assert!(!maps_all(b"      1000       1000          1\n"));
        assert!(!maps_all(b""));
    }

    #[test]
    fn who_is_not_mapped_is_nobody() {
        let all = Space { overflow: 65534, identity: true };
        assert_eq!(all.user(0, || 1000), Some(User(0)));
        assert_eq!(all.user(33, || 1000), Some(User(33)));
        assert_eq!(all.user(65534, || 1000), None);
        assert_eq!(all.user(65534, || 65534), None, "nor is one's own user, if it is that");
        assert_eq!(all.user(u32::MAX, || 1000), None);
        let inside = Space { overflow: 99, identity: false };
        assert_eq!(inside.user(1000, || 1000), Some(User(1000)));
        assert_eq!(inside.user(0, || 1000), None);
        assert_eq!(inside.user(33, || 0), None);
        assert_eq!(inside.user(99, || 99), None);
    }

    #[test]
    fn both_ends_of_a_pair_are_this_user() {
        use std::os::fd::AsRawFd as _;
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = User::own();
        assert_eq!(User::at(one.as_raw_fd()).map(|(user, _)| user), own);
        assert_eq!(is_kin(one.as_raw_fd()), own.is_some());
    }
}
