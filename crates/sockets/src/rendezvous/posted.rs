//! The posted connections of this process, its rendezvous socket, and how soon each is looked after
//! again.

use fabric::credentials::User;
use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use fabric::sys;
use fabric::words::Array;
use host::diag::{self, Record};
use stream::spin::{ticks, ticks_of};

use crate::conn::{Conn, state};
use crate::descriptors::{self, Kept};
use crate::reason::Reason;

/// The longest pause of a connection between two looks, in ns.
const PAUSE_MAX_NS: u64 = 50_000_000;

/// The longest pause of one whose other end is nowhere on the board, or there but its program has
/// not been seen to wait: most likely that stays so. Each look holds its caller up for a few us (in
/// the second case a write for [`super::nap`]'s 50), which can cost a stream on tcp far more: a
/// reader that is late once may stay awake, and in its writer's way, for 4 ms.
const UNPAIRED_MAX_NS: u64 = 1_000_000_000;

/// Connections posted by this process, by the index that the board and offers name.
static POSTED: Array<AtomicU64, POSTS> = Array::new();
const POSTS: usize = 1 << 16;
static NEXT: AtomicU32 = AtomicU32::new(0);

pub(super) static LISTENER: Kept = Kept::new();

pub(super) static TOKEN: AtomicU64 = AtomicU64::new(0);

/// The user whom our rendezvous socket was made by.
static LISTENS_AS: AtomicU32 = AtomicU32::new(0);

/// In the place of a token: that end cannot be linked to yet, since its program has not been seen
/// to wait.
pub(super) const UNSEEN: u64 = 0;

/// The address of the rendezvous socket named by `token`.
pub fn address(token: u64) -> (libc::sockaddr_un, u32) {
    sys::numbered_address(token, b"")
}

/// The posted connection with this index, if its cookie is this one.
pub fn posted_conn(index: u32, cookie: u64) -> Option<&'static Conn> {
    posted(index).filter(|conn| conn.cookie.load(Ordering::Relaxed) == cookie)
}

/// The kernel's record of the other end of a connection.
pub(super) fn other_end(conn: &Conn) -> Result<Record, Reason> {
    let (own, peer) = conn.addresses();
    descriptors::made(|| diag::lookup(peer, own)).map_err(|_| Reason::Unproved)
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
        // Each look is a write that is late, by which the other program may be seen to wait:
        // several soon.
        Reason::PeerUnseen => (2, UNPAIRED_MAX_NS),
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
    conn.looked_after_at(ticks() + pause);
}

/// Our rendezvous socket, made when first needed; its token. Under the lock on states.
pub(super) fn listen() -> Result<u64, Reason> {
    let user = User::own().ok_or(Reason::Nobody)?.number();
    // Whoever connects is told as whom it was made.
    if let Some(known) = LISTENER.get()
        && !(descriptors::intact(known) && LISTENS_AS.load(Ordering::Relaxed) == user)
    {
        TOKEN.store(0, Ordering::Release);
        LISTENER.close();
    }
    let token = TOKEN.load(Ordering::Acquire);
    if token != 0 {
        return Ok(token);
    }
    let token = sys::try_random().ok_or(Reason::NoListener)? | 1;
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket =
        descriptors::made(|| sys::socket(libc::AF_UNIX, kind, 0)).map_err(|_| Reason::NoDescriptors)?;
    let (name, len) = address(token);
    if sys::bind(socket, (&raw const name).cast(), len).and_then(|()| sys::listen(socket, 512)).is_err() {
        sys::close(socket);
        return Err(Reason::NoListener);
    }
    LISTENER.set(descriptors::hide(socket));
    LISTENS_AS.store(user, Ordering::Relaxed);
    TOKEN.store(token, Ordering::Release);
    Ok(token)
}

pub(super) fn register(conn: &'static Conn) -> Option<u32> {
    POSTED.make().ok()?;
    for _ in 0..POSTS {
        let index = NEXT.fetch_add(1, Ordering::Relaxed) % POSTS as u32;
        if change(index, 0, core::ptr::from_ref(conn) as u64) {
            conn.posted_index.store(u64::from(index) + 1, Ordering::Release);
            return Some(index);
        }
    }
    None
}

pub(super) fn unregister(conn: &'static Conn, index: u32) {
    change(index, core::ptr::from_ref(conn) as u64, 0);
}

fn change(index: u32, from: u64, to: u64) -> bool {
    POSTED
        .get()
        .get(index as usize)
        .is_some_and(|place| place.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// The connection that was posted with this index.
pub(super) fn posted(index: u32) -> Option<&'static Conn> {
    let conn = POSTED.get().get(index as usize)?.load(Ordering::Acquire) as *const Conn;
    // SAFETY: only `register` stores there, from a &'static Conn.
    unsafe { conn.as_ref() }
}

/// None is posted any more.
pub(super) fn forget_posted() {
    POSTED.clear();
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
        for (reason, most) in [(Reason::Unpaired, 8), (Reason::PeerUnseen, 13)] {
            wait_no_longer(conn);
            let (mut looks, mut time) = (0, 0);
            while time < second {
                time += pause(reason);
                looks += 1;
            }
            assert!(looks <= most, "{looks} in the first second");
            assert_eq!(pause(reason), second);
        }
        assert!(
            pause(Reason::Refused) <= ticks_of(PAUSE_MAX_NS),
            "the other end is there: it is not far any more"
        );
        wait_no_longer(conn);
        assert_eq!(conn.pause.load(Ordering::Relaxed), ticks_of(SERVE_NS));
    }
}
