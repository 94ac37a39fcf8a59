//! The posted connections of this process, its rendezvous socket, and how soon each is looked after again.

use fabric::credentials::User;
use fabric::sync::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use fabric::sys;
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, state};
use crate::descriptors;
use crate::reason::Reason;

/// The longest pause of a connection between two looks, in ns.
const PAUSE_MAX_NS: u64 = 50_000_000;

/// The longest pause of one whose other end is nowhere on the board: most likely it never will be. Each look holds its caller up for
/// a few us, which can cost a stream on tcp far more: a reader that is late once may stay awake, and in its writer's way, for 4 ms.
const UNPAIRED_MAX_NS: u64 = 1_000_000_000;

/// Connections posted by this process, by the index that the board and offers name.
pub(super) const POSTED: usize = 1 << 16;

pub(super) static POSTED_AT: AtomicU64 = AtomicU64::new(0);

static POSTED_NEXT: AtomicU64 = AtomicU64::new(0);

pub(super) static LISTENER: AtomicI32 = AtomicI32::new(0);

pub(super) static TOKEN: AtomicU64 = AtomicU64::new(0);

/// The user whom our rendezvous socket was made by.
static LISTENS_AS: AtomicU32 = AtomicU32::new(0);

/// In the place of a token: that end cannot be linked to yet, since its program has not been seen to wait.
pub(super) const UNSEEN: u64 = 0;

/// The address of the rendezvous socket named by `token`: in the abstract namespace, it goes when its process goes.
pub fn address(token: u64) -> (libc::sockaddr_un, u32) {
    // SAFETY: all zeroes is a valid sockaddr_un.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (place, &byte) in address.sun_path[1..].iter_mut().zip(b"shunt/") {
        *place = byte as _;
    }
    for digit in 0..16 {
        address.sun_path[7 + digit] = b"0123456789abcdef"[(token >> (60 - 4 * digit)) as usize & 15] as _;
    }
    (address, 2 + 7 + 16)
}

/// The posted connection with this index, if its cookie is this one.
pub fn posted_conn(index: u32, cookie: u64) -> Option<&'static Conn> {
    let conn = posted(index as usize)?.load(Ordering::Acquire);
    if conn == 0 {
        return None;
    }
    // SAFETY: only `register` stores there, from a &'static Conn.
    let conn = unsafe { &*(conn as *const Conn) };
    (conn.cookie.load(Ordering::Relaxed) == cookie).then_some(conn)
}

/// The next look at a posted connection is to be soon.
pub fn hurry(conn: &'static Conn) {
    if conn.state() == state::POSTED {
        wait_no_longer(conn);
    }
}

/// This process's name among those that make links; 0 if nothing has been posted.
pub fn own_token() -> u64 {
    TOKEN.load(Ordering::Acquire)
}

pub(super) fn wait_longer(conn: &'static Conn, reason: Reason) {
    conn.set_reason(reason);
    let (times, most) = match reason {
        Reason::Unpaired => (4, UNPAIRED_MAX_NS),
        _ => (2, PAUSE_MAX_NS),
    };
    let pause = conn.pause.load(Ordering::Relaxed) * times;
    pause_for(conn, pause.clamp(ticks_of(SERVE_NS), ticks_of(most)));
}

/// The peer is there: from now on the next step is not far.
pub(super) fn wait_no_longer(conn: &'static Conn) {
    pause_for(conn, ticks_of(SERVE_NS));
}

fn pause_for(conn: &'static Conn, pause: u64) {
    conn.pause.store(pause, Ordering::Relaxed);
    conn.due.store(ticks() + pause, Ordering::Release);
}

/// Our rendezvous socket, made when first needed; its token.
pub(super) fn listen() -> Result<u64, Reason> {
    let user = User::own().ok_or(Reason::Nobody)?.number();
    let known = LISTENER.load(Ordering::Acquire);
    let intact = known > 0 && descriptors::intact(known - 1);
    // Whoever connects is told as whom it was made.
    if intact && LISTENS_AS.load(Ordering::Relaxed) == user {
        return Ok(TOKEN.load(Ordering::Acquire));
    }
    if known > 0 {
        // Under the lock on states, as all who post: nobody else makes another one.
        TOKEN.store(0, Ordering::Release);
        LISTENER.store(0, Ordering::Release);
        if intact {
            descriptors::unhide(known - 1);
        } else {
            descriptors::lost(known - 1);
        }
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket =
        descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)).map_err(|_| Reason::NoDescriptors)?;
    let Some(token) = sys::try_random().map(|token| token | 1) else {
        sys::close(socket);
        return Err(Reason::NoListener);
    };
    let (name, len) = address(token);
    if sys::bind(socket, (&raw const name).cast(), len).and_then(|()| sys::listen(socket, 512)).is_err() {
        sys::close(socket);
        return Err(Reason::NoListener);
    }
    let socket = descriptors::hide(socket);
    LISTENS_AS.store(user, Ordering::Relaxed);
    // Two threads may get here at once: the token is the winner's.
    match LISTENER.compare_exchange(0, socket + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => TOKEN.store(token, Ordering::Release),
        Err(_) => descriptors::unhide(socket),
    }
    match TOKEN.load(Ordering::Acquire) {
        0 => Err(Reason::Busy),
        token => Ok(token),
    }
}

pub(super) fn register(conn: &'static Conn) -> Option<u32> {
    if POSTED_AT.load(Ordering::Acquire) == 0 {
        let at = sys::mmap_private(POSTED * 8).ok()? as u64;
        if POSTED_AT.compare_exchange(0, at, Ordering::AcqRel, Ordering::Acquire).is_err() {
            sys::munmap(at as *mut u8, POSTED * 8);
        }
    }
    for _ in 0..POSTED {
        let index = POSTED_NEXT.fetch_add(1, Ordering::Relaxed) as usize % POSTED;
        let at = core::ptr::from_ref(conn) as u64;
        if posted(index)?.compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            conn.posted_index.store(index as u64 + 1, Ordering::Release);
            return Some(index as u32);
        }
    }
    None
}

pub(super) fn posted(index: usize) -> Option<&'static AtomicU64> {
    let at = POSTED_AT.load(Ordering::Acquire);
    // SAFETY: the array has POSTED words and is never unmapped.
    (at != 0 && index < POSTED).then(|| unsafe { &*(at as *const AtomicU64).add(index) })
}

/// Between two looks for links and offers, in ns.
pub(super) const SERVE_NS: u64 = 200_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_an_end_that_never_comes_get_rare() {
        let conn = crate::home::take(|_| ()).unwrap();
        let pause = |reason| {
            wait_longer(conn, reason);
            conn.pause.load(Ordering::Relaxed)
        };
        conn.pause.store(ticks_of(SERVE_NS), Ordering::Relaxed);
        let second = ticks_of(1_000_000_000);
        let (mut looks, mut time) = (0, 0);
        while time < second {
            time += pause(Reason::Unpaired);
            looks += 1;
        }
        assert!(looks <= 8, "{looks} in the first second");
        assert_eq!(pause(Reason::Unpaired), second);
        assert!(
            pause(Reason::Refused) <= ticks_of(PAUSE_MAX_NS),
            "the other end is there: it is not far any more"
        );
        wait_no_longer(conn);
        assert_eq!(conn.pause.load(Ordering::Relaxed), ticks_of(SERVE_NS));
    }
}
