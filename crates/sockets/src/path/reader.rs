//! The reading direction and where it changes its path, as the writer has announced it. Under its
//! lock.

use fabric::Local;
use fabric::sys::{self, Errno};
use stream::transport::Reader;

use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::kicks::{self, By};
use crate::layout::{self, BIG_AT, RECALL_AT, SMALL_AT, TCP_AT, W, note};
use crate::outcome::Attempt;
use crate::path::closing::Gone;
use crate::path::reading::{self, Boundary, Open, Recalled, Resent, Turn};
use crate::path::recall::Reads;
use crate::{epoll, low_water, peering};
use host::diag;

/// Once the writer has announced the ring: how many bytes of tcp come before it.
pub(crate) fn learn_boundary(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Result<(), Errno> {
    if rx.tcp_left.is_some() {
        return Ok(());
    }
    match reading::boundary(conn.word(SMALL_AT), rx.tcp_read) {
        Boundary::Unknown => {}
        Boundary::Left(left) => {
            rx.tcp_left = Some(left);
            low_water::adjust(conn, fd, rx);
        }
        Boundary::Broken => {
            conn.break_off(fd);
            return Err(Errno::ECONNRESET);
        }
    }
    Ok(())
}

/// Where the path turns, if that is here.
#[inline(always)]
pub(crate) fn turn(conn: &Conn, rx: &Rx) -> Turn {
    let position = rx.ring.position();
    match conn.rx.path() {
        path::TCP => reading::turn_of_tcp(rx.tcp_left),
        path::SMALL => reading::turn(position, conn.word(BIG_AT), conn.word(TCP_AT)),
        path::BIG => reading::turn(position, 0, conn.word(TCP_AT)),
        _ => Turn::Nowhere,
    }
}

/// We have asked the writer to send by tcp what we have not read. `None`: look again.
#[cold]
pub(crate) fn recalled(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Option<Attempt> {
    match reading::recalled(rx.ring.position(), conn.word(TCP_AT)) {
        Recalled::Open => {
            // Whoever recalled may have died before it told.
            tell_recall(conn, rx);
            // One that has told that it closed says nothing any more, though its FIN may be under
            // way.
            let closed = peering::facts(conn).shares_memory && conn.notes() & note::CLOSED != 0;
            let ended = closed || kicks::poll(conn, fd, rx, By::Call) == kicks::Polled::End;
            // Between hosts by an END that was found just now, too.
            let told = conn.word(TCP_AT) != 0;
            match reading::open(told, ended, conn.word(W) != rx.ring.position()) {
                Open::LookAgain => None,
                Open::ReadRing => {
                    conn.clear(flag::RECALLED);
                    None
                }
                Open::End => Some(Attempt::Kernel),
                Open::Wait => Some(Attempt::WouldBlock),
            }
        }
        Recalled::ByTcp => end_of_ring(conn, fd, rx),
        Recalled::Void => {
            conn.clear(flag::RECALLED);
            None
        }
    }
}

/// The writer has left the ring for tcp. Kicks that it sent before lie ahead of its bytes.
#[cold]
fn end_of_ring(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Option<Attempt> {
    // Asked before: what the end of the connection brought with it is drained, not left for a byte
    // of data.
    let ended = conn.has(flag::PEER_FIN | flag::PEER_HUP);
    if ended {
        kicks::drain(conn, fd, rx, u64::MAX, By::Call);
    } else if !kicks::take(conn, fd, rx, u64::MAX, By::Call) {
        return Some(Attempt::WouldBlock);
    }
    if !reading::goes_by_tcp(kicks::counted(conn, rx), rx.kicks_drained, ended) {
        // Still on their way.
        return Some(match kicks::poll(conn, fd, rx, By::Call) {
            kicks::Polled::Nothing => Attempt::WouldBlock,
            _ => Attempt::Kernel,
        });
    }
    go_by_tcp(conn, fd, rx);
    if conn.has(flag::REST) {
        epoll::drop_stand_ins(conn);
    }
    low_water::adjust(conn, fd, rx);
    None
}

/// The ring is left, and tcp read from here on. What was recalled may still be with its writer.
pub(crate) fn go_by_tcp(conn: &Conn, fd: i32, rx: &Rx) {
    if resent(conn, fd, rx, false) != Resent::All {
        conn.set(flag::UNSENT);
    }
    conn.rx.set_path(path::LAST);
}

/// How far it has come; `ended` as for [`reading::resent`].
fn resent(conn: &Conn, fd: i32, rx: &Rx, ended: bool) -> Resent {
    let (position, written) = (rx.ring.position(), conn.word(W));
    let come =
        if written == position { Some(0) } else { come_by_tcp(fd, before_last(conn, rx), rx.error != 0) };
    come.map_or(Resent::All, |come| reading::resent(position, come, written, ended))
}

/// How many bytes of tcp come before what it brings behind the ring, from the connection's
/// beginning on: those before the ring, kicks, and between hosts records.
pub(crate) fn before_last(conn: &Conn, rx: &Rx) -> u64 {
    conn.word(SMALL_AT).wrapping_sub(1).wrapping_add(rx.kicks_drained + rx.records)
}

/// How many have come behind the first `before`, read or not. `reset` as for [`diag::come`].
pub(crate) fn come_by_tcp(fd: i32, before: u64, reset: bool) -> Option<u64> {
    let come = diag::come(fd, reset).ok()?.wrapping_sub(before) as i64;
    Some(come.max(0) as u64)
}

/// Looks how far it has come that was recalled, by tcp. True if its writer is dead, and the rest is
/// in the ring, which is the path again.
#[cold]
pub(crate) fn look_for_unsent(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> bool {
    // Asked before: what the end brought with it has come.
    let ended = kicks::ended(conn, fd);
    let all_read = sys::ioctl_int(fd, libc::FIONREAD) == Ok(0);
    match resent(conn, fd, rx, ended && all_read) {
        Resent::Some => return false,
        Resent::All => {}
        Resent::NoMore(from) => {
            keep(conn);
            let (mut ring, mut path) = (rx.ring, path::SMALL);
            walk(conn, &mut ring, &mut path, |ring, ready| ready.min((from - ring.position()) as usize));
            rx.ring = ring;
            conn.rx.set_path(path);
        }
    }
    conn.clear(flag::UNSENT);
    conn.rx.path() != path::LAST
}

/// What was recalled, and no more than that, is read in the ring after all. Where that ends, as the
/// writer is told that puts more.
pub(crate) fn keep(conn: &Conn) -> u64 {
    let end = conn.word(W).wrapping_add(1);
    // As the writer will say, when it comes. Before that it is what bounds our reading.
    conn.mine().set_word(conn.at(TCP_AT), end);
    conn.set(flag::REST);
    conn.clear(flag::RECALLED);
    end
}

/// Goes through what is unread in the rings, from `ring`, on its path, on. `give` is told how many
/// bytes are next, says how many of them it takes, and ends it by taking none.
pub(crate) fn walk(
    conn: &Conn,
    ring: &mut Reader,
    path: &mut u32,
    mut give: impl FnMut(&Reader, usize) -> usize,
) {
    loop {
        let ready = ring.ready(&conn.ends(), 1, || conn.until(*path)).unwrap_or(0);
        if ready == 0 && *path == path::SMALL && conn.word(BIG_AT) == ring.position() + 1 {
            ring.move_to(conn.big_ring(), layout::BIG);
            *path = path::BIG;
            continue;
        }
        match if ready == 0 { 0 } else { give(ring, ready) } {
            0 => return,
            taken => ring.skip(taken),
        }
    }
}

/// The path that is read, for those who decide by it.
pub(crate) fn reads(conn: &Conn) -> Reads {
    match conn.rx.path() {
        path::TCP => Reads::Tcp,
        path::SMALL | path::BIG => Reads::Ring,
        _ => Reads::Last,
    }
}

/// As [`died_unread`], of a connection that goes back to tcp just now, or whose end may be another.
pub(crate) fn unread_at_death(conn: &Conn) -> Option<bool> {
    let told = conn.notes() & (note::CLOSED | note::SHUT_WR) != 0;
    let tx = conn.tx.try_lock()?;
    (!told && tx.ring.position() != 0).then(|| tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0))
}

/// At the end of the connection, if the peer was killed (it told nothing) while we wrote to the
/// ring: whether it left bytes of ours unread. As with tcp, a reset is told once.
pub(crate) fn died_unread(conn: &Conn) -> Option<bool> {
    if conn.state() != state::PROMOTED {
        return None;
    }
    let tx = conn.tx.try_lock()?;
    let on_ring = path::is_ring(conn.tx.path());
    let seen = Gone {
        // Between hosts a STOP says that it goes on by tcp, also if notes were lost with the link,
        // and an END that it has seen the link end.
        told: conn.notes() & (note::CLOSED | note::SHUT_WR) != 0
            || conn.has(flag::HEARD)
            || peering::is_over(conn) && conn.word(TCP_AT) != 0,
        on_ring,
        resent: conn.word(layout::RESENT_TO) == tx.ring.position() + 1,
        unread: on_ring && tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0),
        reset_told: conn.has(flag::RESET_TOLD),
    };
    let reset = seen.reset();
    if reset == Some(true) {
        conn.set(flag::RESET_TOLD);
    }
    reset
}

/// Carries out announced changes of the reading path whose place has been reached, without reading.
pub(crate) fn progress(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) {
    loop {
        let before = conn.rx.path();
        match before {
            path::TCP if !conn.is_managed_now() || learn_boundary(conn, fd, rx).is_err() => {}
            path::SMALL | path::BIG
                if peering::end_due(conn)
                    && (conn.is_recalled_at(rx.ring.position()) || conn.word(W) == rx.ring.position()) =>
            {
                kicks::poll(conn, fd, rx, By::Call);
                if conn.word(TCP_AT) != 0 {
                    continue;
                }
            }
            path::LAST if conn.has(flag::UNSENT) => drop(look_for_unsent(conn, fd, rx)),
            path::SMALL | path::BIG if conn.is_recalled_at(rx.ring.position()) => {
                if conn.word(TCP_AT) != 0 {
                    recalled(conn, fd, rx);
                }
            }
            _ => {
                let turn = turn(conn, rx);
                take_turn(conn, fd, rx, turn);
            }
        }
        if conn.rx.path() == before {
            return;
        }
    }
}

/// Goes another way from here on, if it turns. `None`: what comes next is there to be looked at.
pub(crate) fn take_turn(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>, turn: Turn) -> Option<Attempt> {
    match turn {
        Turn::Nowhere => {}
        Turn::ToRing => conn.rx.set_path(path::SMALL),
        Turn::ToBig => {
            rx.ring.move_to(conn.big_ring(), layout::BIG);
            conn.rx.set_path(path::BIG);
        }
        Turn::ToTcp => return end_of_ring(conn, fd, rx),
    }
    None
}

/// Tells the peer that nothing more is read from the ring.
pub(crate) fn tell_recall(conn: &Conn, rx: &Rx) {
    conn.put(RECALL_AT, rx.ring.position());
    let again = if conn.has(flag::KEPT) { note::AGAIN } else { 0 };
    conn.tell(note::DEMOTE | note::RECALL | again);
}
