//! The reading direction and where it changes its path, as the writer has announced it. Under its lock.

use fabric::sys::Errno;

use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::kicks::{self, By};
use crate::layout::{self, BIG_AT, KICKS, RECALL_AT, SMALL_AT, TCP_AT, W, note};
use crate::outcome::Tried;
use crate::peering::records;
use crate::{epoll, low_water};

/// Once the writer has announced the ring: how many bytes of tcp come before it.
pub(crate) fn learn_boundary(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Result<(), Errno> {
    if rx.tcp_left.is_some() {
        return Ok(());
    }
    let announced = conn.word(SMALL_AT);
    if announced != 0 {
        match (announced - 1).checked_sub(rx.tcp_read) {
            Some(left) => rx.tcp_left = Some(left),
            None => {
                conn.break_off(fd);
                return Err(Errno::ECONNRESET);
            }
        }
    }
    Ok(())
}

/// We have asked the writer to send by tcp what we have not read. `None`: look again.
pub(crate) fn recalled(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Option<Tried> {
    match conn.word(TCP_AT) {
        0 => {
            // Whoever recalled may have died before it told.
            tell_recall(conn, rx);
            match kicks::look(conn, fd, rx, By::Call) {
                // It has told in the meantime, or between hosts by an END that was found just now.
                _ if conn.word(TCP_AT) != 0 => None,
                kicks::Look::End if conn.word(W) != rx.ring.position() => {
                    // Nothing comes from it any more: what it left in the ring is ours to read.
                    conn.clear(flag::RECALLED);
                    None
                }
                kicks::Look::End => Some(Tried::Kernel),
                _ => Some(Tried::Not),
            }
        }
        at if at == rx.ring.position() + 1 => end_of_ring(conn, fd, rx),
        _ => {
            // It had left the ring by itself before it saw the recall, which is void: the rest of the ring is ours to read.
            conn.clear(flag::RECALLED);
            None
        }
    }
}

/// The writer has left the ring for tcp. Kicks that it sent before lie ahead of its bytes.
pub(crate) fn end_of_ring(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Option<Tried> {
    // Asked before: what the end of the connection brought with it is drained, not left for a byte of data.
    let ended = conn.has(flag::PEER_FIN | flag::PEER_HUP);
    if ended {
        kicks::drain(conn, fd, rx, u64::MAX, By::Call);
    } else if !kicks::take(conn, fd, rx, u64::MAX, By::Call) {
        return Some(Tried::Not);
    }
    if conn.word(KICKS) != rx.kicks_drained && !ended {
        // Still on their way.
        return Some(match kicks::look(conn, fd, rx, By::Call) {
            kicks::Look::Nothing => Tried::Not,
            _ => Tried::Kernel,
        });
    }
    conn.rx.set_path(path::LAST);
    if conn.has(flag::REST) {
        epoll::drop_stand_ins(conn);
        low_water::adjust(conn, fd, rx);
    }
    None
}

/// As [`died_unread`], of a connection that goes back to tcp just now.
pub(crate) fn unread_at_death(conn: &Conn) -> Option<bool> {
    let told = conn.notes() & (note::CLOSED | note::SHUT_WR) != 0;
    let tx = conn.tx.try_lock()?;
    (!told && tx.ring.position() != 0).then(|| tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0))
}

/// At the end of the connection, if the peer was killed (it told nothing) while we wrote to the ring: whether it left bytes of ours
/// unread. As with tcp, a reset is told once.
pub(crate) fn died_unread(conn: &Conn) -> Option<bool> {
    if conn.state() != state::PROMOTED || conn.notes() & (note::CLOSED | note::SHUT_WR) != 0 {
        return None;
    }
    let tx = conn.tx.try_lock()?;
    if !matches!(conn.tx.path(), path::SMALL | path::BIG) {
        return None;
    }
    if conn.word(layout::RESENT_TO) == tx.ring.position() + 1 {
        // It has recalled what was unread, and sent it by tcp in our stead: the kernel knows.
        return None;
    }
    let unread = tx.ring.unread(&conn.ends()).is_ok_and(|unread| unread > 0) && !conn.has(flag::RESET_TOLD);
    if unread {
        conn.set(flag::RESET_TOLD);
    }
    Some(unread)
}

/// Carries out announced changes of the reading path whose place has been reached, without reading.
pub(crate) fn progress(conn: &'static Conn, fd: i32, rx: &mut Held<'_, Rx>) {
    loop {
        let before = conn.rx.path();
        match before {
            path::TCP
                if conn.is_managed_now()
                    && learn_boundary(conn, fd, rx).is_ok()
                    && rx.tcp_left == Some(0) =>
            {
                conn.rx.set_path(path::SMALL);
            }
            path::SMALL | path::BIG
                if records::end_due(conn)
                    && (conn.has(flag::RECALLED) || conn.word(W) == rx.ring.position()) =>
            {
                kicks::look(conn, fd, rx, By::Call);
                if conn.word(TCP_AT) != 0 {
                    continue;
                }
            }
            path::SMALL | path::BIG if conn.has(flag::RECALLED) && conn.word(TCP_AT) == 0 => {}
            path::SMALL | path::BIG if conn.has(flag::RECALLED) => {
                recalled(conn, fd, rx);
            }
            path::SMALL | path::BIG => {
                let position = rx.ring.position();
                if before == path::SMALL && conn.word(BIG_AT) == position + 1 {
                    move_to_big(conn, rx);
                } else if conn.word(TCP_AT) == position + 1 {
                    end_of_ring(conn, fd, rx);
                }
            }
            _ => {}
        }
        if conn.rx.path() == before {
            return;
        }
    }
}

pub(crate) fn move_to_big(conn: &Conn, rx: &mut Held<'_, Rx>) {
    rx.ring.move_to(conn.big_ring(), layout::BIG);
    conn.set(flag::GREW);
    conn.rx.set_path(path::BIG);
}

/// Tells the peer that nothing more is read from the ring.
pub(crate) fn tell_recall(conn: &Conn, rx: &Rx) {
    conn.put(RECALL_AT, rx.ring.position());
    let again = if conn.has(flag::KEPT) { note::AGAIN } else { 0 };
    conn.tell(note::DEMOTE | note::RECALL | again);
}
