//! The ports of connections that go on by a [`crate::relay`] where no network of its own could be
//! made: the kernel has others for them, and getsockname() and getpeername() are to tell what they
//! always told. Known by the socket's cookie, so that all its numbers are meant, in this process,
//! in children and after exec(), and no other socket.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys;

use crate::socket::SO_COOKIE;

/// The ports that a connection has for its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    pub own: u16,
    pub peer: u16,
}

struct Entry {
    cookie: AtomicU64,
    ports: AtomicU32,
}

/// The last ones that were made. Hardly any program has more than one.
const MOST: usize = 32;
static ENTRIES: [Entry; MOST] =
    [const { Entry { cookie: AtomicU64::new(0), ports: AtomicU32::new(0) } }; MOST];
/// How many have ever been noted.
static NOTED: AtomicU32 = AtomicU32::new(0);

/// Notes those of the socket with this cookie.
pub fn note(cookie: u64, ports: Ports) {
    let at = NOTED.load(Ordering::Relaxed) as usize % MOST;
    let entry = &ENTRIES[at];
    // Not found while its ports are another's.
    entry.cookie.store(0, Ordering::Release);
    entry.ports.store(u32::from(ports.own) << 16 | u32::from(ports.peer), Ordering::Release);
    entry.cookie.store(cookie, Ordering::Release);
    NOTED.fetch_add(1, Ordering::Release);
}

/// Those of `fd`, if the kernel has others.
#[inline]
pub fn of(fd: i32) -> Option<Ports> {
    if NOTED.load(Ordering::Acquire) == 0 {
        return None;
    }
    let cookie: u64 = sys::getsockopt(fd, libc::SOL_SOCKET, SO_COOKIE).ok()?;
    all().find(|&(known, _)| known == cookie).map(|(_, ports)| ports)
}

/// All that are noted, with their cookies.
pub fn all() -> impl Iterator<Item = (u64, Ports)> {
    let noted = ENTRIES.iter().take(NOTED.load(Ordering::Acquire) as usize);
    noted.map(|entry| {
        let (cookie, ports) = (entry.cookie.load(Ordering::Acquire), entry.ports.load(Ordering::Acquire));
        (cookie, Ports { own: (ports >> 16) as u16, peer: ports as u16 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_socket_that_was_noted_has_other_ports() {
        let sockets = [(); 2].map(|()| sys::socket(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap());
        let ports = Ports { own: 80, peer: 40000 };
        assert_eq!(of(sockets[0]), None);
        let cookie = sys::getsockopt(sockets[0], libc::SOL_SOCKET, SO_COOKIE).unwrap();
        note(cookie, ports);
        assert_eq!((of(sockets[0]), of(sockets[1])), (Some(ports), None));
        for other in 1..=MOST as u64 {
            note(u64::MAX - other, ports);
        }
        assert_eq!((of(sockets[0]), all().count()), (None, MOST), "the oldest goes");
        sockets.into_iter().for_each(sys::close);
    }
}
