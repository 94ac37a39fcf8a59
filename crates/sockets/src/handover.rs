//! A connection is handed over to who knows nothing of rings: what is unread there is recalled, to
//! go by tcp, or sent in the writer's stead, or kept.
//!
//! Known limit: a writer that is killed after it has agreed to send and before its companion had
//! room for all of it, where that cannot be made (`small_buffers`), leaves a stream that ends
//! early, without an error. Only who has been handed the connection by another process, or through
//! exec(), meets that: who keeps it reads the rest in the ring (`reader::look_for_unsent`).

use fabric::Local;
use fabric::sync::Ordering;
use fabric::sys::{self};

use crate::conn::{Conn, Held, Rx, flag, path, state};
use crate::demote::{ask_progress_thread, finish, flush, leave};
use crate::kicks::{self, By};
use crate::layout::{self, SMALL_AT, TCP_AT, W, note};
use crate::path::claim;
use crate::path::reader::{self};
use crate::path::recall::{Next, PEER_NS, Reads, Recall};
use crate::peering;
use crate::reason::Reason;
use crate::small_buffers::Recalled;
use crate::socket::SO_COOKIE;
use crate::table::{self, Entry};
use crate::wake::arm;
use crate::{descriptors, link, process, report, signals};

/// What has become of a connection that was handed over, or rather of what was unread.
pub(crate) enum Handed {
    /// The connection itself carries all of it.
    Whole,
    /// It stays here, or is its writer's.
    Left,
    /// Its writer sends it no more: the locked direction, and whether the peer has ended.
    Unsendable(Held<'static, Rx>, bool),
}

/// Takes the connection back so that a process that knows nothing of rings can go on with it:
/// unread bytes of the ring are recalled, to be sent again by tcp, and kicks are taken out of the
/// companion. Waits for the peer, but not for ever: if it is in no call of ours, we send the bytes
/// in its stead where the kernel lets us ([`send_for_peer`]). What can go by tcp no more, as the
/// peer has shut its half or gone another way before, is the caller's, if `may_stay` says no, or
/// stays here.
pub(crate) fn hand_over_with(
    conn: &'static Conn,
    fd: i32,
    reason: Reason,
    may_stay: impl Fn() -> bool,
) -> Handed {
    let handed = give_up_ring(conn, fd, reason, may_stay);
    if matches!(handed, Handed::Unsendable(..)) {
        return handed;
    }
    // Between hosts the peer must first know of it.
    flush(conn, fd);
    if matches!(handed, Handed::Whole) {
        await_recalled(conn, fd);
        await_finish(conn, fd);
    }
    handed
}

/// As [`crate::relay::hand_over`], of a connection that this process goes on with: what can go by
/// tcp no more stays in the ring, and is ours.
pub fn go_back(conn: &'static Conn, fd: i32, reason: Reason) -> bool {
    matches!(hand_over_with(conn, fd, reason, || true), Handed::Whole)
}

/// Waits, not for long, until what has been recalled has come by tcp, at least so much as always
/// finds room there: it was readable before, so it is to be readable now. A peer that sends it may
/// have lost its processor between saying so and doing it.
fn await_recalled(conn: &'static Conn, fd: i32) {
    let (unread, before) = {
        let Some(rx) = conn.lock_rx(fd) else { return };
        // Only who has a slot has a ring: of an offer that was taken back the link may be gone.
        if !conn.slot_taken() || conn.rx.path() != path::LAST {
            return;
        }
        (conn.word(W).wrapping_sub(rx.ring.position()), reader::before_last(conn, &rx))
    };
    if unread == 0 || unread > layout::UNDER_WAY as u64 {
        return;
    }
    let has_come =
        || reader::come_by_tcp(fd, before, false).is_some_and(|come| come >= unread.min(ALWAYS_ROOM));
    let start = sys::now();
    while !has_come() {
        if sys::now() - start > FINISH_NS || kicks::ended(conn, fd) {
            break;
        }
        let _ = sys::ppoll(&mut [], Some(POLL_NS));
    }
    if conn.has(flag::UNSENT)
        && conn.lock_rx(fd).is_some_and(|mut rx| !reader::look_for_unsent(conn, fd, &mut rx))
    {
        finish(conn);
    }
}

/// Between hosts: waits, not for long, until the peer has found our END, so that no record comes
/// any more and the connection is the kernel's alone.
fn await_finish(conn: &'static Conn, fd: i32) {
    if !peering::facts(conn).uses_records {
        return;
    }
    let start = sys::now();
    while conn.state() == state::PROMOTED && !finish(conn) {
        let ended = kicks::ended(conn, fd);
        {
            let Some(mut rx) = conn.lock_rx(fd) else { return };
            kicks::hear_all(conn, fd, &mut rx);
            reader::progress(conn, fd, &mut rx);
        }
        let given_up = peering::is_silent(conn) && conn.again.load(Ordering::Relaxed) == 0;
        if given_up || ended || sys::now() - start > FINISH_NS {
            return;
        }
        let _ = sys::ppoll(&mut [], Some(POLL_NS));
    }
}

fn give_up_ring(conn: &'static Conn, fd: i32, reason: Reason, may_stay: impl Fn() -> bool) -> Handed {
    leave(conn, fd, reason, true);
    if conn.state() != state::PROMOTED {
        return Handed::Whole;
    }
    ask_progress_thread(conn, fd);
    let start = sys::now();
    let (mut tried, mut ready) = (false, false);
    loop {
        let Some(mut rx) = conn.lock_rx(fd) else { return Handed::Left };
        kicks::poll_for_records(conn, fd, &mut rx);
        reader::progress(conn, fd, &mut rx);
        // Asked before: what the end brought with it is there.
        let ended = kicks::ended(conn, fd) || conn.notes() & note::CLOSED != 0;
        if conn.has(flag::RECALLED) {
            // Again: another thread may have been allowed to arm before.
            arm::disarm_for_all(conn);
        }
        let quiet = arm::quiet(conn);
        let look = |rx: &Rx, waited| Recall {
            reads: reader::reads(conn),
            records: peering::facts(conn).uses_records,
            waited,
            quiet,
            ended,
            recalled: conn.has(flag::RECALLED),
            announced: conn.word(SMALL_AT) != 0,
            written: conn.word(W),
            read: rx.ring.position(),
            kicks: kicks::counted(conn, rx),
            kicks_taken: rx.kicks_drained,
            by_tcp: conn.word(TCP_AT).checked_sub(1),
            claimed: conn.mine().word(conn.at(layout::CLAIM)) & claim::BY_WRITER != 0,
            tried,
        };
        let seen = look(&rx, sys::now() - start);
        let mut next = seen.free().unwrap_or_else(|| {
            if seen.reads == Reads::Ring && (seen.waited > PEER_NS || ended) {
                kicks::drain(conn, fd, &mut rx, u64::MAX, By::Call);
            } else if seen.reads == Reads::Ring {
                kicks::take(conn, fd, &mut rx, u64::MAX, By::Call);
            }
            look(&rx, seen.waited).next()
        });
        if next == Next::SendForPeer {
            if seen.reads == Reads::Ring && send_for_peer(conn, &rx) {
                next = Next::ByTcp;
            } else if may_stay() && keep_rest(conn) {
                return Handed::Left;
            }
            tried = true;
        }
        match next {
            Next::ByTcp | Next::Free { .. } => {
                if next != (Next::Free { last: false }) {
                    reader::go_by_tcp(conn, fd, &rx);
                }
                drop(rx);
                finish(conn);
                return Handed::Whole;
            }
            Next::BreakOff => {
                conn.break_off(fd);
                return Handed::Left;
            }
            // They stand before what is sent, and nobody behind us would take them out.
            Next::Unsendable if seen.waited < FINISH_NS && conn.again.load(Ordering::Relaxed) != 0 => {}
            Next::Unsendable if !may_stay() => return Handed::Unsendable(rx, ended),
            Next::Unsendable => {
                report::count_reason(Reason::PeerGone);
                return Handed::Left;
            }
            Next::SendForPeer | Next::Wait => {}
        }
        drop(rx);
        kicks::await_more(fd, &mut ready, 500_000);
    }
}

/// How long it may take until the peer has said that it has found our END, and bytes that come
/// again have been taken out; and how often it is looked.
const FINISH_NS: u64 = peering::HELD_NS;

const POLL_NS: u64 = 100_000;

/// So many bytes the kernel takes of a peer, whatever its buffers are.
pub(crate) const ALWAYS_ROOM: u64 = 2048;

/// Claims what has been recalled, to send it in the writer's stead or to keep it; false if the
/// writer sends it. Between hosts nobody does in the other's stead.
pub(crate) fn claims(conn: &Conn) -> bool {
    let word = conn.mine().word(conn.at(layout::CLAIM));
    let ours = claim::of_reader(word, conn.word(TCP_AT).checked_sub(1));
    peering::facts(conn).shares_memory
        && ours.is_some_and(|ours| conn.mine().replace_word(conn.at(layout::CLAIM), word, ours).is_ok())
}

/// Sends the bytes that we have recalled by tcp ourselves, on a copy of the peer's own descriptor,
/// which is proved by its cookie. No kick may be on the way. False if the kernel does not let us,
/// or the peer has begun; what does not fit now the peer sends later.
fn send_for_peer(conn: &'static Conn, rx: &Held<'_, Rx>) -> bool {
    if !peering::facts(conn).reaches_process {
        return false;
    }
    let hint = conn.word(layout::FD);
    let pid = link::link(conn.link.load(Ordering::Relaxed)).peer_pid.load(Ordering::Relaxed);
    let Some(theirs) = hint.checked_sub(1).and_then(|fd| i32::try_from(fd).ok()) else { return false };
    let Ok(socket) = sys::descriptor_of(pid, theirs) else { return false };
    let socket = descriptors::hide(socket);
    let cookie = sys::getsockopt::<u64>(socket, libc::SOL_SOCKET, SO_COOKIE);
    let proved = cookie == Ok(conn.pending_cookie.load(Ordering::Relaxed));
    let claimed = proved && claims(conn);
    if claimed {
        let _undisturbed = signals::undisturbed();
        let (mut ring, mut path) = (rx.ring, conn.rx.path());
        let mut bytes = [0u8; 4096];
        let mut recalled = Recalled::new(socket, conn.word(W).wrapping_sub(ring.position()));
        reader::walk(conn, &mut ring, &mut path, |ring, ready| {
            let len = ready.min(bytes.len());
            // SAFETY: `ready` vouched for so many bytes of the ring; the target has room for them.
            unsafe { ring.peek(&conn.ends(), 0, bytes.as_mut_ptr(), len) };
            recalled.send(&bytes[..len]).unwrap_or(0)
        });
        conn.put(layout::RESENT_TO, ring.position() + 1);
    }
    descriptors::unhide(socket);
    claimed
}

/// Takes a recall back whose writer does not come, and for which we cannot send: we read what there
/// is in the ring ourselves. The writer is told that we have sent it by tcp, so that it sends what
/// it has put, or puts, behind that. False if it has begun to send. Under the lock, when no kick is
/// on the way.
fn keep_rest(conn: &Conn) -> bool {
    let claimed = claims(conn);
    if claimed {
        conn.put(layout::RESENT_TO, reader::keep(conn));
    }
    claimed
}

/// Whether another process has the connection, too.
pub fn shared(conn: &'static Conn) -> bool {
    let mut ours = 0;
    each_number(conn, |_| ours += 1);
    process::borrowed() || conn.refs.load(Ordering::Acquire) > ours
}

/// The numbers of this process that stand for the connection.
pub(crate) fn each_number(conn: &'static Conn, mut each: impl FnMut(i32)) {
    let borrowed = process::borrowed();
    for number in 0..table::top() {
        let known = matches!(table::entry(number), Entry::Conn(same) if core::ptr::eq(same, conn));
        if if borrowed { is_socket_of(number, conn) } else { known } {
            each(number);
        }
    }
}

/// Whether a number stands for the connection's socket: for a child of vfork(), which has numbers
/// of its own but not its own table.
pub fn is_socket_of(number: i32, conn: &Conn) -> bool {
    sys::getsockopt(number, libc::SOL_SOCKET, SO_COOKIE) == Ok(conn.cookie.load(Ordering::Relaxed))
}
