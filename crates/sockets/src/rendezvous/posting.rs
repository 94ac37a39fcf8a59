//! Posting: an end that is worth it goes on the board, with the name of our rendezvous socket, and is looked after until it has found the other.

use super::*;

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

/// Takes the connection's post down.
pub(super) fn unpost(conn: &'static Conn) {
    refuse_pending(conn);
    let place = conn.posted_at.swap(0, Ordering::AcqRel);
    if place != 0 {
        let (own, peer) = conn.addresses();
        board::remove(place - 1, board::key(own, peer));
    }
    let index = conn.posted_index.swap(0, Ordering::AcqRel);
    if index != 0 {
        desk::withdraw(conn, index as u32 - 1);
    }
    if index != 0
        && let Some(cell) = posted(index as usize - 1)
    {
        let _ =
            cell.compare_exchange(core::ptr::from_ref(conn) as u64, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}

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

/// Posts a connection in state NEW. Not `seen`: its program has not been seen to wait, and the post only tells the other end so.
pub(super) fn post(conn: &'static Conn, fd: i32, seen: bool) {
    if conn.has(flag::NEVER) {
        // Another process has taken it.
        conn.plain(state::NEW);
        return;
    }
    process::look_for_rings();
    let barred = process::barred();
    if barred != 0 {
        conn.set(flag::NEVER);
        conn.reason.store(barred, Ordering::Relaxed);
        report::add(report::at::REASONS + barred as usize, 1);
        conn.plain(state::NEW);
        return;
    }
    let done = try_post(conn, fd, seen);
    match done {
        Ok(()) => {}
        Err(Reason::Busy) => conn.ops.store(0, Ordering::Relaxed),
        Err(reason) => stop(conn, reason),
    }
}

fn try_post(conn: &'static Conn, fd: i32, seen: bool) -> Result<(), Reason> {
    if conn.has(flag::SHARED) && !owned(conn) {
        return Err(Reason::Shared);
    }
    if conn.has(flag::SHUT_WR | flag::SHUT_RD) {
        return Err(Reason::Half);
    }
    if fd <= libc::STDERR_FILENO {
        // perror(), abort() and others in libc write past us.
        return Err(Reason::Stdio);
    }
    if !conn.has(flag::CLIENT) && !is_tcp(fd) {
        return Err(Reason::NotTcp);
    }
    // Those that are set later `setsockopt` sees.
    if interface::options::keep_on_tcp(fd) {
        return Err(Reason::Option);
    }
    let own = parse(&sys::getsockname(fd).map_err(|_| Reason::NotTcp)?).ok_or(Reason::NotTcp)?;
    let peer = match sys::getpeername(fd) {
        Ok(address) => parse(&address).ok_or(Reason::NotTcp)?,
        // Not connected yet, or no longer.
        Err(_) => return Err(Reason::Busy),
    };
    let role = if conn.has(flag::CLIENT) { Role::Client } else { Role::Server };
    if rules::keep_on_tcp(role, own, peer) {
        return Err(Reason::Rule);
    }
    let cookie: u64 = sys::getsockopt(fd, libc::SOL_SOCKET, SO_COOKIE).map_err(|_| Reason::NotTcp)?;
    if !seen {
        conn.set_addresses(own, peer);
        let (place, _) =
            board::post(&Post::new(board::key(own, peer), UNSEEN, cookie, 0), board::key(peer, own))?;
        conn.posted_at.store(place + 1, Ordering::Release);
        return Ok(());
    }
    let token = listen()?;
    // One poster at a time: the others find the state changed.
    if conn.state.compare_exchange(state::NEW, state::POSTED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Ok(());
    }
    conn.due.store(u64::MAX, Ordering::Relaxed);
    conn.set_addresses(own, peer);
    conn.cookie.store(cookie, Ordering::Relaxed);
    conn.set_reason(Reason::Unpaired);
    let index = register(conn).ok_or(Reason::TableFull)?;
    let post = Post::new(board::key(own, peer), token, cookie, index);
    let (place, other) = board::post(&post, board::key(peer, own))?;
    conn.posted_at.store(place + 1, Ordering::Release);
    conn.pause.store(ticks_of(SERVE_NS), Ordering::Relaxed);
    if let Some(other) = other {
        approach(conn, &other, false);
    } else if desk::may_be(own, peer) {
        conn.far.be_posted();
        desk::post(conn, index);
    }
    let pause = if conn.has(flag::NAP) { 0 } else { conn.pause.load(Ordering::Relaxed) };
    conn.due.store(ticks() + pause, Ordering::Release);
    Ok(())
}

/// Periodic look at a posted connection. True if the caller, should it be a write, is to be late ([`nap`]).
pub(super) fn check(conn: &'static Conn) -> bool {
    let again = conn.has(flag::NAP);
    conn.clear(flag::NAP);
    conn.due.store(u64::MAX, Ordering::Relaxed);
    let put_off = conn.put_off.load(Ordering::Relaxed);
    if serve() {
        wait_no_longer(conn);
    }
    if conn.state() == state::POSTED {
        let index = (conn.pending.load(Ordering::Acquire) >> 32) as u32;
        if let Some((link, slot)) = pending(conn) {
            take(conn, index, slot);
            link.live.fetch_sub(1, Ordering::AcqRel);
        } else {
            let (own, peer) = conn.addresses();
            match board::look(board::key(own, peer), board::key(peer, own)) {
                Ok(Some(other)) => approach(conn, &other, false),
                Ok(None) if conn.far.token.load(Ordering::Acquire) != 0 => {
                    approach(conn, &far_post(conn), true)
                }
                Ok(None) => wait_longer(conn, Reason::Unpaired),
                Err(reason) => {
                    stop(conn, reason);
                    return false;
                }
            }
        }
    }
    let nap = conn.has(flag::NAP);
    if again {
        conn.clear(flag::NAP);
    }
    // Put off because of what waits unread: a server is called for that, and answers next. A write that is to be late may be next, too. Else
    // after a while.
    let next = conn.put_off.load(Ordering::Relaxed) != put_off || nap && !again;
    let pause = if next { 0 } else { conn.pause.load(Ordering::Relaxed) };
    conn.due.store(ticks() + pause, Ordering::Release);
    nap
}

/// Its other end, as the agents have told of it.
fn far_post(conn: &Conn) -> Post {
    let far = &conn.far;
    Post::new(
        0,
        far.token.load(Ordering::Acquire),
        far.cookie.load(Ordering::Relaxed),
        far.index.load(Ordering::Relaxed),
    )
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
fn listen() -> Result<u64, Reason> {
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

fn parse(address: &libc::sockaddr_storage) -> Option<Addr> {
    match i32::from(address.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which is smaller.
            let v4 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in>() };
            let mut ip = [0; 16];
            ip[10..12].fill(0xff);
            ip[12..].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
            Some(Addr { ip, port: u16::from_be(v4.sin_port) })
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which is smaller.
            let v6 = unsafe { &*core::ptr::from_ref(address).cast::<libc::sockaddr_in6>() };
            Some(Addr { ip: v6.sin6_addr.s6_addr, port: u16::from_be(v6.sin6_port) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_for_an_end_that_never_comes_get_rare() {
        let conn = crate::home::take().unwrap();
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
