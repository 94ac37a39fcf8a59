//! Records: what ends of a connection between hosts tell each other by the companion, among the
//! bytes of tcp and kicks, since the link may be over and the companion is not. A record begins
//! with the link's mark, which both ends know and nothing else contains.
//!
//! * [`END`] stands where a writer goes from the ring to tcp, first of all that goes by tcp: "up to
//!   this position by the ring, from here on by tcp". On one host a word in memory says so; here
//!   that could come later than the bytes.
//! * [`STOP`] is what a reader sends when the link is over before it has seen an END: "of your ring
//!   I have what comes before this position, and read no more". Its writer sends END with that
//!   position, and the bytes from there on, by tcp: they lie in its shadow. It is a recall
//!   ([`crate::demote`]) that comes by another way. No writer waits for it: it may stand behind
//!   bytes for which there is no room, or not be sent, as its half of the connection is shut. A
//!   writer that has none sends END with the last position that the link told, and the reader takes
//!   out what it has had of the bytes behind it.
//!
//! Whoever finds an END has the bytes up to it: the peer had echoed all that was put before, or had
//! told that it has read so far. A STOP that it has just sent is void then, and it sends none any
//! more. A connection goes back to the kernel alone (state PLAIN) when no STOP can
//! come: the peer has told that it has found our END ([`note::END_HEARD`]), or has sent a STOP.

use fabric::sync::Ordering;
use fabric::sys::{self, Errno};
use fabric::{Local, Remote};
use stream::spin::{ticks, ticks_of};

use super::wire::{Wire, call};
use crate::conn::{Conn, Held, Rx, Tx, flag, path};
use crate::layout::{FD, KICKS, NOTES, RECALL_AT, SMALL_AT, TCP_AT, UNDER_WAY, W, note};
use crate::{epoll, signals};
use host::diag;

pub const END: u32 = 1;
pub const STOP: u32 = 2;
/// Bytes of a record.
pub(crate) const BYTES: usize = 48;
/// Of these, those that all records of a link have in common.
const START: usize = 20;
/// Not a byte of any text.
const FIRST: [u8; 4] = [0xf8, 0xff, 0xfe, 0xfd];
/// So long bytes are held that may be the beginning of a record: a segment that was lost has been
/// sent again by then.
const HOLD_NS: u64 = 250_000_000;
/// Who waits for bytes of which the last may be held waits for so long.
pub(crate) const HELD_NS: u64 = HOLD_NS + 50_000_000;
/// As long as all of [`FIRST`] stands there: tcp may have to send a segment again, more than once.
const LIKELY_NS: u64 = 10_000_000_000;
/// So far ahead of a read it is looked for records.
const AHEAD: usize = 4096;

/// What one says: which kind, up to where, how many kicks went before it, whatever was told of them
/// by the link, and how many bytes that were in the ring follow an END by tcp. If their writer is
/// killed before it has sent them, the end of the connection is none of the program's making.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    kind: u32,
    position: u64,
    kicks: u64,
    follow: u64,
}

fn record(mark: u128, Record { kind, position, kicks, follow }: Record) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..4].copy_from_slice(&FIRST);
    bytes[4..20].copy_from_slice(&mark.to_le_bytes());
    bytes[20..24].copy_from_slice(&kind.to_le_bytes());
    bytes[24..32].copy_from_slice(&position.to_le_bytes());
    bytes[32..40].copy_from_slice(&kicks.to_le_bytes());
    bytes[40..].copy_from_slice(&follow.to_le_bytes());
    bytes
}

/// The bytes that every record of a link begins with.
fn start(mark: u128) -> [u8; START] {
    let mut bytes = [0; START];
    bytes.copy_from_slice(&record(mark, Record { kind: 0, position: 0, kicks: 0, follow: 0 })[..START]);
    bytes
}

/// How many bytes may be read before a record begins, or may begin, and whether one is there whole
/// at once.
fn ahead(bytes: &[u8], mark: u128) -> (usize, Option<Record>) {
    let start = start(mark);
    for at in 0..bytes.len() {
        let rest = &bytes[at..];
        let len = rest.len().min(start.len());
        if rest[..len] == start[..len] {
            let whole = (at == 0).then(|| rest.first_chunk::<BYTES>()).flatten();
            let parsed = whole.map(|whole| {
                let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| whole[at + i]));
                Record { kind: word(20) as u32, position: word(24), kicks: word(32), follow: word(40) }
            });
            return (at, parsed);
        }
    }
    (bytes.len(), None)
}

/// What the companion has next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// So many bytes that are no record, or nothing that is known.
    Bytes(usize),
    /// A record, which has been taken out and done.
    Record,
    /// The beginning of one, most likely: its rest is on the way.
    Wait,
    /// Nothing. What comes from now on may be a record.
    Nothing,
}

/// Looks what the companion has next, behind kicks if they have been taken, and takes a record.
pub(super) fn hear(wire: &Wire, conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>) -> Next {
    let mut bytes = [0; AHEAD];
    let got = sys::recv_some(fd, &mut bytes, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    let got = match got {
        Ok(got) => got,
        Err(Errno::EAGAIN) => return Next::Nothing,
        Err(errno) => {
            rx.keep_error(errno);
            return Next::Bytes(usize::MAX);
        }
    };
    match ahead(&bytes[..got], wire.mark) {
        (0, Some(record)) => {
            let _undisturbed = signals::undisturbed();
            let _ = sys::recv_some(fd, &mut bytes[..BYTES], libc::MSG_DONTWAIT);
            rx.records += BYTES as u64;
            heard(wire, conn, fd, rx, record);
            Next::Record
        }
        (0, None) if got == 0 => Next::Bytes(usize::MAX),
        (0, None) => {
            let next = begun(fd, rx, &mut bytes[..got], wire.mark);
            without_again(conn, fd, rx, next)
        }
        (free, _) => without_again(conn, fd, rx, Next::Bytes(free)),
    }
}

/// Of bytes that are no record takes out those that come [`again`](Conn::again), as if they were
/// one.
fn without_again(conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, next: Next) -> Next {
    let again = conn.again.load(Ordering::Relaxed);
    let Next::Bytes(free) = next else { return next };
    if again == 0 || free == usize::MAX {
        return next;
    }
    let mut bytes = [0; AHEAD];
    let most = (free as u64).min(again).min(AHEAD as u64) as usize;
    let _undisturbed = signals::undisturbed();
    match sys::recv_some(fd, &mut bytes[..most], libc::MSG_DONTWAIT) {
        Ok(taken @ 1..) => {
            conn.again.store(again - taken as u64, Ordering::Relaxed);
            rx.records += taken as u64;
            Next::Record
        }
        // The end, which whoever reads next is told of.
        Ok(_) => Next::Bytes(usize::MAX),
        Err(errno) => {
            rx.keep_error(errno);
            Next::Bytes(usize::MAX)
        }
    }
}

/// What stands first is like the beginning of a record, and nothing follows it yet.
fn begun(fd: i32, rx: &mut Held<'_, Rx>, bytes: &mut [u8], mark: u128) -> Next {
    let likely = bytes.len() >= FIRST.len();
    let end = sys::ready_for(fd, libc::POLLRDHUP) & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR);
    let reset = end & libc::POLLERR != 0;
    if reset || end != 0 && likely {
        let all = sys::ioctl_int(fd, libc::FIONREAD).is_ok_and(|there| there as usize <= bytes.len());
        if all {
            // Its rest never comes: its writer was killed. Behind a reset nobody misses what was
            // none.
            rx.records += sys::recv_some(fd, bytes, libc::MSG_DONTWAIT).unwrap_or(0) as u64;
            return Next::Bytes(usize::MAX);
        }
    }
    // Of those that begin with a mark each is one, however long its rest takes.
    if bytes.len() >= START || is_held(fd, &mut rx.held, 0, likely) {
        sys::yield_now();
        return Next::Wait;
    }
    // The program's, and only like the beginning of one.
    Next::Bytes(1 + ahead(&bytes[1..], mark).0)
}

/// How many bytes a look that `wants` so many may see before a record, of which `free` are known:
/// it takes nothing, so it cannot go on from where it was.
pub(super) fn further(
    wire: &Wire,
    conn: &Conn,
    fd: i32,
    rx: &mut Held<'_, Rx>,
    mut free: usize,
    wants: usize,
) -> usize {
    let mut bytes = [0; AHEAD];
    while free < wants {
        let got = peek_at(fd, free, &mut bytes);
        match ahead(&bytes[..got], wire.mark).0 {
            _ if got == 0 => break,
            0 if got >= START => break,
            // The last that came may be the beginning of one, and is held, as in `hear`.
            0 if is_held(fd, &mut rx.look_held, free as u64, got >= FIRST.len()) => {
                ask_again(conn);
                break;
            }
            0 => free += 1 + ahead(&bytes[1..got], wire.mark).0,
            bytes => free += bytes,
        }
    }
    free
}

/// Whether bytes that may be the beginning of a record, `ahead` of what is read next, are still
/// held, for longer if they are `likely` to be. In `held` is noted where in the stream they stand,
/// plus one, and since when they have been held: at that place they are the same bytes.
fn is_held(fd: i32, held: &mut (u64, u64), ahead: u64, likely: bool) -> bool {
    let Some(read) = read(fd) else { return false };
    let place = read + ahead + 1;
    if held.0 != place {
        *held = (place, ticks());
    }
    ticks().saturating_sub(held.1) < ticks_of(if likely { LIKELY_NS } else { HOLD_NS })
}

/// How many bytes of the companion have been read, records too.
fn read(fd: i32) -> Option<u64> {
    if let Ok(received) = diag::received(fd) {
        return Some(received.read);
    }
    // It has been reset: nothing more comes.
    let there = sys::ioctl_int(fd, libc::FIONREAD).ok()? as u64;
    Some(diag::come(fd, true).ok()?.wrapping_sub(there))
}

/// If it is no record, nothing follows, and no edge tells of what is there: sets ask again as long
/// as it is held.
pub(crate) fn ask_again(conn: &Conn) {
    if conn.epolls.load(Ordering::Acquire) != 0 {
        epoll::another_edge(conn);
    }
}

/// Looks at what comes `skip` bytes after the next one; how many there are, at most as many as
/// there is place for. It comes about 1 MB far.
fn peek_at(fd: i32, skip: usize, bytes: &mut [u8]) -> usize {
    let mut skipped = [0u8; 16 << 10];
    let part = |bytes: &mut [u8]| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let (mut parts, mut used, mut rest) = ([part(&mut []); 64], 0, skip);
    while rest > 0 && used < parts.len() - 1 {
        // All to the same place.
        let len = rest.min(skipped.len());
        parts[used] = part(&mut skipped[..len]);
        (used, rest) = (used + 1, rest - len);
    }
    if rest > 0 {
        return 0;
    }
    parts[used] = part(bytes);
    // SAFETY: all zeroes is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = (used + 1) as _;
    sys::recvmsg(fd, &mut message, libc::MSG_PEEK | libc::MSG_DONTWAIT).unwrap_or(0).saturating_sub(skip)
}

/// Records that cannot be taken yet, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// How many bytes they are.
    pub len: usize,
    /// Which position an END among them names.
    pub end: Option<u64>,
    /// Whether a STOP is among them.
    pub stop: bool,
}

/// Those that stand `skip` bytes after what is read next, behind bytes that the program has not
/// read, and kicks.
pub(super) fn run_at(wire: &Wire, _: &Conn, fd: i32, skip: usize) -> Run {
    let mut run = Run::default();
    let mut bytes = [0u8; BYTES];
    while run.len < MOST_IN_A_RUN && peek_at(fd, skip + run.len, &mut bytes) == BYTES {
        let (0, Some(Record { kind, position, .. })) = ahead(&bytes, wire.mark) else { break };
        run.len += BYTES;
        run.stop |= kind == STOP;
        if kind == END {
            run.end = Some(position);
        }
    }
    run
}

/// Each end sends one of each kind.
const MOST_IN_A_RUN: usize = 2 * BYTES;

fn heard(wire: &Wire, conn: &Conn, fd: i32, rx: &mut Held<'_, Rx>, record: Record) {
    let Record { kind, position, kicks, follow } = record;
    let mine = conn.mine();
    mine.set_word(conn.at(KICKS), kicks);
    rx.kicks_said = kicks.wrapping_add(1);
    agreed(conn);
    match kind {
        END if conn.word(TCP_AT) == 0 => {
            // More than lies in the rings cannot come again. What a peer says that does not keep to
            // that is found to be wrong where it is used.
            let again = come(conn, rx).saturating_sub(position).min(follow);
            let again = if again > UNDER_WAY as u64 { 0 } else { again };
            conn.again.store(again, Ordering::Relaxed);
            let tcp_at = position.wrapping_add(again).wrapping_add(1);
            if follow != 0 && conn.rx.path() != path::LAST {
                // As if it had been recalled: no more of the ring is read, whatever comes.
                conn.recalled_from.store(tcp_at, Ordering::Relaxed);
                conn.set(flag::RECALLED);
            }
            if follow != 0 {
                conn.follow.store(follow_until(fd, follow), Ordering::Relaxed);
            }
            // As if the writer had put it. What it says is checked where it is used.
            mine.set_word(conn.at(TCP_AT), tcp_at);
            // At once, whatever is unread in the ring: a peer that does not know it has to look for
            // a STOP before each read.
            conn.theirs().or_word(conn.at(NOTES), note::END_HEARD);
            if conn.rx.path() == path::TCP && conn.word(SMALL_AT) == 0 {
                // The announcement of the ring has been lost; nothing of it was read.
                rx.tcp_left = None;
                conn.rx.set_path(path::LAST);
            }
        }
        STOP => {
            conn.clear(flag::STOP_AHEAD);
            if conn.follow.load(Ordering::Relaxed) != 0 {
                // It stands between them and their END.
                conn.follow.fetch_add(BYTES as u64, Ordering::Relaxed);
            }
            stopped(wire, conn, position);
        }
        _ => {}
    }
}

/// Up to where the ring is read where it is: what has come may have been told to be readable.
fn come(conn: &Conn, rx: &Rx) -> u64 {
    let come = match conn.rx.path() {
        path::LAST => 0,
        _ if conn.has(flag::RECALLED) => conn.recalled_from.load(Ordering::Relaxed).saturating_sub(1),
        _ => conn.word(W),
    };
    come.max(rx.ring.position())
}

/// Up to which byte of the companion those come that `follow` the END just taken.
fn follow_until(fd: i32, follow: u64) -> u64 {
    read(fd).map_or(0, |read| read.saturating_add(follow))
}

/// Whether bytes that were in the ring are still to come by tcp.
pub(crate) fn follow(conn: &Conn, fd: i32) -> bool {
    let until = conn.follow.load(Ordering::Relaxed);
    // Asked anew whoever reads them, and in whatever way.
    let to_come = until != 0 && diag::come(fd, true).is_ok_and(|come| come < until);
    if until != 0 && !to_come {
        conn.follow.store(0, Ordering::Relaxed);
    }
    to_come
}

/// Whoever sends a record knows that both have agreed, whatever was lost with the link.
fn agreed(conn: &Conn) {
    if conn.word(FD) == 0 {
        conn.mine().set_word(conn.at(FD), 1);
    }
}

fn stopped(wire: &Wire, conn: &Conn, position: u64) {
    let mine = conn.mine();
    agreed(conn);
    mine.set_word(conn.at(RECALL_AT), position);
    mine.or_word(conn.at(NOTES), note::DEMOTE | note::RECALL);
    conn.set(flag::HEARD);
    // Also if this end has not noticed yet. Its own STOP goes before the bytes that the peer asks
    // for, behind which nobody might look for it.
    wire.end();
}

/// The link is over, and the peer's STOP has not been found: looks for it behind bytes that the
/// program has not read, since it says that the peer knows of the agreement, and is no byte of the
/// program's.
pub(super) fn seek_stop(wire: &Wire, conn: &Conn, fd: i32) {
    if !conn.has(flag::CUT) && conn.word(FD) != 0 || conn.has(flag::HEARD) {
        return;
    }
    look_for_stop(wire, conn, fd);
}

/// Looks for a STOP in all that has come.
fn look_for_stop(wire: &Wire, conn: &Conn, fd: i32) {
    let (mut bytes, mut at) = ([0; AHEAD], 0);
    loop {
        let got = peek_at(fd, at, &mut bytes);
        if got < BYTES {
            return;
        }
        match ahead(&bytes[..got], wire.mark) {
            (0, Some(Record { kind: STOP, position, .. })) => {
                // Before it counts as heard: as long as it stands there, the connection is not the
                // kernel's.
                conn.set(flag::STOP_AHEAD);
                return stopped(wire, conn, position);
            }
            (0, _) => at += BYTES,
            (free, _) => at += free,
        }
    }
}

/// Sends the records that are due; false if the companion takes no more now.
pub(super) fn send(wire: &Wire, conn: &Conn, fd: i32, tx: &mut Held<'_, Tx>) -> bool {
    loop {
        let (kind, due) = match (tx.record_kind, tx.stop_due, tx.end_due) {
            (STOP, stop, _) => (STOP, stop),
            (END, _, end) => (END, end),
            (_, stop, _) if stop != 0 => (STOP, stop),
            (_, _, end) if end != 0 => (END, end),
            _ => {
                if conn.records_due.load(Ordering::Relaxed) != 0 {
                    conn.records_due.store(0, Ordering::Release);
                }
                return true;
            }
        };
        tx.record_kind = kind;
        let kicks = tx.kicks_sent - tx.debt;
        // Asked for by the peer, or it has been known where tcp begins: no more is put.
        let follow = if tx.end_told { tx.ring.position().saturating_sub(tx.resend) } else { 0 };
        let bytes = record(wire.mark, Record { kind, position: due.wrapping_sub(1), kicks, follow });
        let _undisturbed = signals::undisturbed();
        let rest = &bytes[(tx.record_sent as usize).min(BYTES)..];
        match sys::send(fd, rest.as_ptr(), rest.len(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(sent) => tx.record_sent += sent as u32,
            Err(Errno::EAGAIN | Errno::EINTR) => return false,
            // The connection is at an end.
            Err(_) => tx.record_sent = BYTES as u32,
        }
        if (tx.record_sent as usize) < BYTES {
            continue;
        }
        (tx.record_kind, tx.record_sent) = (0, 0);
        // The kernel counts them among what went by tcp.
        let counts: &mut Tx = tx;
        for count in [&mut counts.sent_from, &mut counts.tcp_written] {
            if *count != 0 {
                *count += BYTES as u64;
            }
        }
        if kind == STOP {
            tx.stop_due = 0;
        } else {
            tx.end_due = 0;
            wire.call(call::HEAR, conn.slot.load(Ordering::Relaxed).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    const MARK: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;

    #[test]
    fn a_record_is_found_among_bytes() {
        let said = Record { kind: STOP, position: 77, kicks: 3, follow: 5 };
        let whole = record(MARK, said);
        assert_eq!(ahead(&whole, MARK), (0, Some(said)));
        let mut bytes = b"before".to_vec();
        bytes.extend(whole);
        assert_eq!(ahead(&bytes, MARK), (6, None), "what is before it can be read");
        assert_eq!(ahead(&whole[..BYTES - 1], MARK), (0, None), "its last byte is on the way");
        assert_eq!(ahead(&bytes[..7], MARK), (6, None), "it may be one");
        assert_eq!(ahead(&whole, MARK + 1), (BYTES, None), "another link's");
        assert_eq!(ahead(&[0; 64], MARK), (64, None), "kicks");
        assert_eq!(ahead(&[], MARK), (0, None));
    }

    #[test]
    fn a_byte_that_was_held_says_nothing_of_the_next() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut reader = listener.accept().unwrap().0;
        let fd = reader.as_raw_fd();
        let mut held = (0, 0);
        for _ in 0..2 {
            writer.write_all(&FIRST[..1]).unwrap();
            assert_eq!(reader.peek(&mut [0]).unwrap(), 1);
            assert!(is_held(fd, &mut held, 0, false), "its rest may be on the way");
            held.1 = 1;
            assert!(!is_held(fd, &mut held, 0, false), "it has been for long enough");
            reader.read_exact(&mut [0]).unwrap();
        }
    }
}
