//! Posting: an end that is worth it goes on the board, with the name of our rendezvous socket, and is looked after until it has found the other.

use fabric::sync::Ordering;
use fabric::sys;
use options::Role;
use stream::spin::{ticks, ticks_of};

use super::agreement::{owned, pending, stop};
use super::pairing::{approach, serve, take};
use super::posted::{SERVE_NS, UNSEEN, listen, register, wait_longer, wait_no_longer};
use crate::board::{self, Post};
use crate::conn::{Conn, flag, state};
use crate::peering::desk;
use crate::reason::Reason;
use crate::socket::{SO_COOKIE, is_tcp, parse};
use crate::{interface, process, report, rings, rules};

/// Posts a connection in state NEW. Not `seen`: its program has not been seen to wait, and the post only tells the other end so.
pub(super) fn post(conn: &'static Conn, fd: i32, seen: bool) {
    if conn.has(flag::NEVER) {
        // Another process has taken it.
        conn.plain(state::NEW);
        return;
    }
    rings::look_for_rings();
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

/// Periodic look at a posted connection. True if the caller, should it be a write, is to be late ([`super::nap`]).
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
