//! Programs that bound what is under way: with tcp, SO_SNDBUF of the writer and SO_RCVBUF of the
//! reader say together how many bytes it may be ahead (socket(7)). Who has set both to little wants
//! to be stopped early, so there the ring does not grow.
//!
//! What is recalled from a ring has been written already, so it goes out whatever they say
//! ([`Recalled`]).

use fabric::sys::Errno;
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

/// Sends by tcp what a ring has had. The writer's program believes that it is under way, and may
/// make no call on the connection for long; who reads may wait for it in the kernel, which knows
/// nothing of the ring. So where there is no room for all of it, room is made.
pub(crate) struct Recalled {
    fd: i32,
    left: u64,
    room: Option<Room>,
}

impl Recalled {
    /// `left`: how many bytes those are.
    pub(crate) fn new(fd: i32, left: u64) -> Recalled {
        Recalled { fd, left, room: None }
    }

    /// Sends what there is room for.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut sent = self.send_now(bytes);
        if sent == Err(Errno::EAGAIN) && self.room.is_none() {
            self.room = Room::make(self.fd, self.left);
            if self.room.is_some() {
                sent = self.send_now(bytes);
            }
        }
        self.left = self.left.saturating_sub(sent.unwrap_or(0) as u64);
        sent
    }

    fn send_now(&self, bytes: &[u8]) -> Result<usize, Errno> {
        sys::send(self.fd, bytes.as_ptr(), bytes.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }
}

/// A larger SO_SNDBUF. What the program sees of it is as it was when this is dropped.
struct Room {
    fd: i32,
    before: i32,
    locks: Option<i32>,
}

impl Room {
    /// For `more` bytes. `None`: it cannot be made in a way that can be taken back.
    #[cold]
    fn make(fd: i32, more: u64) -> Option<Room> {
        let get = |option| sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, option);
        let room = Room { fd, before: get(libc::SO_SNDBUF).ok()? / 2, locks: get(SO_BUF_LOCK).ok() };
        if room.before > MAY_BE_SET {
            return None;
        }
        let wanted = room.before.saturating_add(i32::try_from(more).unwrap_or(i32::MAX));
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, wanted).ok()?;
        Some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = sys::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, self.before);
        if let Some(locks) = self.locks {
            let _ = sys::setsockopt(self.fd, libc::SOL_SOCKET, SO_BUF_LOCK, locks);
        }
    }
}

/// So much everybody may set (net.core.wmem_max as Linux has it); what the kernel has chosen itself
/// may be more, and could not be set again.
const MAY_BE_SET: i32 = 212_992;

const SO_BUF_LOCK: i32 = 72;
const SNDBUF_LOCK: i32 = 1;
const RCVBUF_LOCK: i32 = 2;
