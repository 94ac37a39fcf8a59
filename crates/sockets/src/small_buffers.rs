//! Programs that bound what is under way: with tcp, SO_SNDBUF of the writer and SO_RCVBUF of the
//! reader say together how many bytes it may be ahead (socket(7)). Who has set both to little wants
//! to be stopped early, so there the ring does not grow.

use fabric::{Local, sys};

use crate::conn::{Conn, flag, state};
use crate::layout::{self, ACCEPTED, SMALL_BUFFERS_SET, STATE, note};

/// Two of these hold less than the big ring.
const LITTLE: i32 = layout::BIG as i32 / 2;

/// Whether the program has set a small receive buffer.
pub fn reader(conn: &Conn) -> bool {
    little(conn.descriptor(), RCVBUF_LOCK, libc::SO_RCVBUF)
}

/// Whether the programs of both ends have set small buffers for what we write.
pub(crate) fn both(conn: &Conn, fd: i32) -> bool {
    (conn.has(flag::PEER_SMALL_BUFFERS) || conn.notes() & note::SMALL_BUFFERS != 0)
        && little(fd, SNDBUF_LOCK, libc::SO_SNDBUF)
}

/// The program has set SO_RCVBUF.
pub fn receive_buffer_set(conn: &'static Conn, fd: i32) {
    // Under the lock no other thread gives the slot up.
    if conn.is_managed()
        && reader(conn)
        && let Some(_rx) = conn.lock_rx(fd)
    {
        match conn.state() {
            state::OFFERED => offered(conn),
            // The second: another thread is taking an offer, and may have asked [`reader`] before.
            state::PROMOTED | state::POSTED => conn.tell(note::SMALL_BUFFERS),
            _ => {}
        }
    }
}

/// Nobody may call on the connection for long after this, to whom it could be told later: the peer
/// finds it where it accepts.
fn offered(conn: &Conn) {
    let mut answer = conn.word(STATE);
    // A peer answers once; one that does not keep to that must not keep us here (rule F2).
    for _ in 0..8 {
        match conn.mine().replace_word(conn.at(STATE), answer, answer | SMALL_BUFFERS_SET) {
            Ok(()) if answer & ACCEPTED != 0 => return conn.tell(note::SMALL_BUFFERS),
            Ok(()) => return,
            Err(now) => answer = now,
        }
    }
}

/// The kernel tells twice what was set, and since Linux 5.14 whether it was.
fn little(fd: i32, lock: i32, option: i32) -> bool {
    let get = |option| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, option);
    get(SO_BUF_LOCK).is_ok_and(|locks| locks & lock != 0) && get(option).is_ok_and(|size| size / 2 < LITTLE)
}

const SO_BUF_LOCK: i32 = 72;
const SNDBUF_LOCK: i32 = 1;
const RCVBUF_LOCK: i32 = 2;
