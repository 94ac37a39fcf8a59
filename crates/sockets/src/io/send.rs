//! The direction that is written, and where it changes its path.

use super::*;

/// Between two looks at the kernel for the connection's life, in ns.
const LOOK_TX_NS: u64 = 10_000_000;

/// Sends `iov`, as sendmsg() with `flags` does.
pub fn send(conn: &'static Conn, fd: i32, iov: &[libc::iovec], flags: i32) -> Way {
    if flags & libc::MSG_OOB != 0 && conn.state() != state::PLAIN {
        // Before anything is offered, too: the kernel counts the urgent byte, a reader does not.
        demote::now(conn, fd, Reason::Urgent);
    }
    if !conn.is_managed() {
        rendezvous::tick(conn, fd);
        if !conn.is_managed() {
            return Way::Kernel;
        }
    }
    if faults::suspect(iov)
        && let Some(way) = faults::send(conn, fd, iov, flags)
    {
        return way;
    }
    let want = total(iov);
    let mut done = 0;
    loop {
        if conn.state() == state::OFFERED {
            rendezvous::serve_offered();
            rendezvous::answered(conn);
        }
        let Some(mut tx) = conn.lock_tx() else { return Way::Done(Err(Errno::EINTR)) };
        let tried = give(conn, fd, &mut tx, iov, done, flags);
        // To release the lock is the fence between what was published and whether anybody waits for it, or recalls it.
        drop(tx);
        if matches!(tried, Tried::Bytes(_)) && on_ring(conn.tx.path()) {
            if conn.theirs().armed(conn.at(TRIP), trip::RX) {
                kicks::fire(conn, fd, trip::RX);
            }
            if conn.notes() & note::RECALL != 0 {
                demote::attend(conn, fd);
            }
        }
        let or_done = |result| Way::Done(if done > 0 { Ok(done) } else { result });
        match tried {
            Tried::Bytes(count) => {
                done += count;
                if done >= want {
                    return Way::Done(Ok(done));
                }
            }
            Tried::End => return Way::Done(Ok(done)),
            Tried::Error(errno) => return or_done(Err(errno)),
            Tried::Kernel if done == 0 => return Way::Kernel,
            // The rest by the kernel, which blocks or not as it should, unless calls have become ours again.
            Tried::Kernel if conn.enter_kernel() => {
                let rest = kernel_send(fd, iov, done, usize::MAX, flags);
                conn.leave_kernel();
                return Way::Done(Ok(done + rest.unwrap_or(0)));
            }
            Tried::Kernel => {
                conn.is_managed();
            }
            Tried::Not if flags & libc::MSG_DONTWAIT != 0 || conn.has(flag::NONBLOCK) => {
                epoll::want_room(conn);
                return or_done(Err(Errno::EAGAIN));
            }
            Tried::Not => {
                if let Err(errno) = wait::writable(conn, fd) {
                    return or_done(Err(errno));
                }
            }
        }
    }
}

/// One attempt to write, under the lock.
fn give(
    conn: &'static Conn,
    fd: i32,
    tx: &mut Held<'_, Tx>,
    iov: &[libc::iovec],
    skip: usize,
    flags: i32,
) -> Tried {
    let want = total(iov) - skip;
    loop {
        match conn.tx.path() {
            path::TCP => {
                if !conn.is_managed_now() {
                    return Tried::Kernel;
                }
                if want > 0 && switch(conn, fd) {
                    continue;
                }
                return to_kernel(fd, iov, skip, flags);
            }
            path::SMALL | path::BIG => {
                if conn.has(flag::SHUT_WR | flag::BROKEN) {
                    return to_kernel(fd, iov, skip, flags);
                }
                if attend(conn, fd, tx) {
                    continue;
                }
                if want == 0 {
                    return Tried::Bytes(0);
                }
                let mine = conn.mine();
                let Ok(mut room) = tx.ring.room(&mine, conn.at(R), want) else {
                    conn.break_off(fd);
                    return Tried::Error(Errno::ECONNRESET);
                };
                if room < want
                    && conn.tx.path() == path::SMALL
                    && wants_more(tx, want, room)
                    && !narrow::both(conn, fd)
                {
                    grow(conn, tx);
                    room = layout::BIG;
                }
                if room == 0 {
                    return Tried::Not;
                }
                let count = room.min(want);
                copy_in(conn, tx, iov, skip, count);
                return Tried::Bytes(count);
            }
            path::RESEND => {
                if !demote::resend(conn, fd, tx) {
                    return Tried::Not;
                }
            }
            _ => {
                if !kicks::pay(fd, tx) {
                    return Tried::Not;
                }
                if demote::finish(conn) {
                    return Tried::Kernel;
                }
                return to_kernel(fd, iov, skip, flags);
            }
        }
    }
}

fn to_kernel(fd: i32, iov: &[libc::iovec], skip: usize, flags: i32) -> Tried {
    match kernel_send(fd, iov, skip, usize::MAX, flags | libc::MSG_DONTWAIT) {
        Ok(count) => Tried::Bytes(count),
        Err(Errno::EAGAIN) => Tried::Not,
        Err(errno) => Tried::Error(errno),
    }
}

/// Changes the writing direction over from tcp to the ring, if both ends have agreed.
pub(crate) fn switch(conn: &Conn, fd: i32) -> bool {
    // The peer may be in the ring, and have to be woken, before we have taken note of its answer.
    let agreed = match conn.state() {
        state::PROMOTED => true,
        state::OFFERED => conn.word(layout::STATE) & layout::ACCEPTED != 0,
        _ => false,
    };
    if !agreed || conn.has(flag::NEVER | flag::DEMOTING | flag::SHUT_WR) {
        return false;
    }
    match diag::written(fd, conn.has(flag::CLIENT)) {
        Ok(written) => {
            conn.put(SMALL_AT, written + 1);
            conn.tx.set_path(path::SMALL);
            true
        }
        Err(_) => {
            conn.set(flag::NEVER);
            conn.set_reason(Reason::Counting);
            report::count_reason(Reason::Counting);
            log::on_tcp(conn, Reason::Counting);
            false
        }
    }
}

fn wants_more(tx: &mut Held<'_, Tx>, want: usize, room: usize) -> bool {
    if !process::options().grow {
        return false;
    }
    if room == 0 {
        tx.full += 1;
    }
    want > layout::SMALL / 2 || tx.full > 4
}

/// Moves to the big ring from here on.
fn grow(conn: &Conn, tx: &mut Held<'_, Tx>) {
    conn.put(BIG_AT, tx.ring.position() + 1);
    tx.big_from = tx.ring.position();
    tx.ring.move_to(big_ring(conn), layout::BIG);
    conn.tx.set_path(path::BIG);
}

fn copy_in(conn: &Conn, tx: &mut Held<'_, Tx>, iov: &[libc::iovec], skip: usize, count: usize) {
    let (theirs, front) = (conn.theirs(), conn.at(W));
    let mut unpublished = 0;
    pieces(iov, skip, count, |from, len| {
        let mut at = 0;
        while at < len {
            let piece = (len - at).min(PIECE - unpublished);
            // SAFETY: the program vouches for its buffers (what `faults` does not catch ends it); `room` vouched for count bytes of ring.
            unsafe { tx.ring.put(&theirs, from.add(at), piece) };
            at += piece;
            unpublished += piece;
            if unpublished == PIECE {
                tx.ring.publish(&theirs, front);
                unpublished = 0;
            }
        }
    });
    if unpublished > 0 {
        tx.ring.publish(&theirs, front);
    }
    tx.ring.claim(&theirs, count);
    conn.counters.ring_out.store(tx.ring.position(), Ordering::Relaxed);
}

/// What the peer has told that a writer must act on; true if the path has changed.
#[inline(always)]
pub(crate) fn attend(conn: &'static Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    let notes = conn.notes();
    let now = ticks();
    if notes & (note::CLOSED | note::DEMOTE | note::RECALL) == 0 {
        // An epoll set that has the connection is told by the kernel.
        if now.wrapping_sub(tx.looked) < ticks_of(LOOK_TX_NS) || conn.queue.load(Ordering::Relaxed) != 0 {
            return false;
        }
        tx.looked = now;
        // Who answers, lives.
        let heard = conn.counters.ring_in.load(Ordering::Relaxed);
        if core::mem::replace(&mut tx.heard, heard) != heard {
            return false;
        }
        // A peer that was killed has told nothing: its end of the companion is closed, yet it did not say that it shut it.
        let mut poll = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let told = if sys::ppoll(&mut poll, Some(0)).unwrap_or(0) > 0 { poll[0].revents } else { 0 };
        let gone = told & (libc::POLLHUP | libc::POLLERR) != 0
            || told & libc::POLLRDHUP != 0 && conn.notes() & note::SHUT_WR == 0;
        if !gone {
            return false;
        }
    }
    demote::asked(conn, fd, tx);
    true
}
