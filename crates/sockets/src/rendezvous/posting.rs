//! Posting: an end that is worth it goes on the board, with the name of our rendezvous socket, and
//! is looked after until it has found the other.

use fabric::sync::Ordering;
use fabric::sys;
use host::addr::Addr;
use options::Role;
use stream::spin::{ticks, ticks_of};

use super::agreement::{owned, stop, take_pending};
use super::meeting::{self, Proved};
use super::pairing::{Found, approach, serve, take};
use super::posted::{SERVE_NS, UNSEEN, listen, register, wait_longer, wait_no_longer};
use crate::board::{self, Post};
use crate::conn::{Conn, flag, state};
use crate::peering::wire::Introduced;
use crate::peering::{self, desk};
use crate::reason::Reason;
use crate::socket::{SO_COOKIE, is_tcp};
use crate::{interface, process, rings, rules};

/// Posts a connection in state NEW. Not `seen`: its program has not been seen to wait, and the post
/// only tells the other end so.
pub(super) fn post(conn: &'static Conn, fd: i32, seen: bool) {
    if conn.has(flag::NEVER) {
        // Another process has taken it.
        conn.plain(state::NEW);
        return;
    }
    rings::look_for_rings();
    let done = process::barred().map_or_else(|| try_post(conn, fd, seen), Err);
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
    let own = Addr::of(&sys::getsockname(fd).map_err(|_| Reason::NotTcp)?).ok_or(Reason::NotTcp)?;
    // Else it is not connected yet, or no longer.
    let peer = Addr::of(&sys::getpeername(fd).map_err(|_| Reason::Busy)?).ok_or(Reason::NotTcp)?;
    let role = if conn.has(flag::CLIENT) { Role::Client } else { Role::Server };
    if rules::keep_on_tcp(role, own, peer) {
        return Err(Reason::Rule);
    }
    let cookie: u64 = sys::getsockopt(fd, libc::SOL_SOCKET, SO_COOKIE).map_err(|_| Reason::NotTcp)?;
    conn.set_addresses(own, peer);
    board::look_for_board()?;
    let (token, index) = if seen {
        let token = listen()?;
        // One poster at a time: the others find the state changed.
        if !conn.step(state::NEW, state::POSTED) {
            return Ok(());
        }
        conn.due.store(u64::MAX, Ordering::Relaxed);
        conn.cookie.store(cookie, Ordering::Relaxed);
        conn.set_reason(Reason::Unpaired);
        (token, register(conn).ok_or(Reason::TableFull)?)
    } else {
        (UNSEEN, 0)
    };
    let post = Post::new(board::key(own, peer), token, cookie, index);
    let (place, other) = board::post(&post, board::key(peer, own))?;
    conn.posted_time.store(post.time, Ordering::Relaxed);
    conn.posted_at.store(place + 1, Ordering::Release);
    if !seen {
        return Ok(());
    }
    conn.pause.store(ticks_of(SERVE_NS), Ordering::Relaxed);
    if let Some(other) = other {
        approach(conn, &other, Found::OnBoard);
    } else if desk::may_be(own, peer) {
        desk::post(conn, index);
    } else {
        meeting::post(conn, fd, own, peer);
    }
    let pause = if conn.has(flag::NAP) { 0 } else { conn.pause.load(Ordering::Relaxed) };
    conn.due.store(ticks() + pause, Ordering::Release);
    Ok(())
}

/// As if it had been found on the board.
fn post_of(other: &Introduced) -> Post {
    Post::new(0, other.token, other.cookie, other.index)
}

/// Periodic look at a posted connection. True if the caller, should it be a write, is to be late
/// ([`super::nap`]).
pub(super) fn check(conn: &'static Conn) -> bool {
    let again = conn.has(flag::NAP);
    conn.clear(flag::NAP);
    conn.looked_after_at(u64::MAX);
    let put_off = conn.put_off.load(Ordering::Relaxed);
    if serve() {
        wait_no_longer(conn);
    }
    if conn.state() == state::POSTED && !take_pending(conn, |link, slot| take(conn, link, slot)) {
        let (own, peer) = conn.addresses();
        match board::look(board::key(own, peer), board::key(peer, own)) {
            Ok(Some(other)) => approach(conn, &other, Found::OnBoard),
            Ok(None) => match peering::introduced(conn) {
                Some(other) if other.by_proof => match meeting::proved(conn, &other) {
                    Proved::Over => {
                        meeting::forget(conn);
                        wait_longer(conn, Reason::Unpaired);
                    }
                    Proved::Waits => wait_no_longer(conn),
                    Proved::Stands => {
                        meeting::linked_if_there(conn, &other);
                        approach(conn, &post_of(&other), Found::ByProof);
                    }
                },
                Some(other) => approach(conn, &post_of(&other), Found::ByAgents),
                None => {
                    wait_longer(conn, Reason::Unpaired);
                    meeting::check(conn);
                }
            },
            Err(reason) => {
                stop(conn, reason);
                return false;
            }
        }
    }
    let nap = conn.has(flag::NAP);
    if again {
        conn.clear(flag::NAP);
    }
    // Put off because of what waits unread: a server is called for that, and answers next. A write
    // that is to be late may be next, too. Else after a while.
    let next = conn.put_off.load(Ordering::Relaxed) != put_off || nap && !again;
    let pause = if next { 0 } else { conn.pause.load(Ordering::Relaxed) };
    if conn.state() != state::PLAIN {
        conn.looked_after_at(ticks() + pause);
    }
    nap
}
