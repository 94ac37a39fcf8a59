//! Whether a connection in memory gains anything by it, measured while it lives, unless the option
//! `promote-after` is set.
//!
//! What may make memory slower than tcp is how its sleepers are woken. A message for which nobody
//! has to be woken costs a small part of one by tcp; one that wakes by the word or by a bell about
//! six tenths. But a kick is a message by tcp itself, and has to be looked at and taken out
//! besides. So where many messages take a kick (processes that share a connection, threads that
//! sleep on the same one), and carry little, the connection goes back for a *trial*. On tcp it
//! counts as new, and when it has made far more calls than a new one needs
//! ([`crate::worth::calls`]), its bytes a second there are held against those in memory. If tcp is
//! slower it moves at once, and stays as long as memory is faster than that. If not, it stays for
//! far more calls still before memory is tried once more: other things may have become of its
//! sleepers. After [`TRIALS`] of them it stays for good.

use fabric::sync::Ordering;
use host::diag;
use stream::spin::ticks;

use crate::conn::{Conn, Counts, path, state};
use crate::layout::KICKS;
use crate::reason::Reason;
use crate::{demote, peering, process, worth};

/// After so many kicks sent it is judged. The simulator's programs live shorter.
const WINDOW: u64 = if cfg!(sim) { 2 } else { 256 };

/// With so many bytes for each kick memory is better anyway.
const GAINS_BYTES: u64 = 4096;

/// So many times tcp is tried, each time longer than the one before.
const TRIALS: u32 = 3;

/// The peer has been woken. If that has been done by so many kicks since the last time, it is
/// looked at whether tcp is to be tried.
#[inline(always)]
pub(crate) fn judge(conn: &'static Conn, fd: i32) {
    if conn.counters.kicks.load(Ordering::Relaxed) != 0 {
        judge_kicked(conn, fd);
    }
}

#[cold]
fn judge_kicked(conn: &'static Conn, fd: i32) {
    // A guest has asked for memory, as has who sets the option.
    let asked_for = process::is_guest() || process::options().promote_after.is_some() && !cfg!(sim);
    if asked_for || conn.is_via() || !peering::facts(conn).shares_memory {
        return;
    }
    let Some(mut tx) = conn.lock_tx(fd) else { return };
    if !path::is_ring(conn.tx.path()) {
        return;
    }
    let last = tx.judged.map_or(0, |counts| counts.sent_kicks);
    if tx.judged.is_some() && tx.kicks_sent < last + WINDOW {
        return;
    }
    let now = counts(conn, tx.kicks_sent);
    let Some(before) = tx.judged.replace(now) else { return };
    drop(tx);
    if !is_doubtful(before, now) {
        return;
    }
    let bytes = now.bytes().saturating_sub(before.bytes());
    let in_memory = rate(bytes, before.ticks, now.ticks);
    let by_tcp = conn.trial.by_tcp.load(Ordering::Relaxed);
    if by_tcp != 0 && !is_for_tcp(by_tcp, in_memory) {
        return;
    }
    conn.trial.in_memory.store(in_memory, Ordering::Relaxed);
    if conn.gone_back.load(Ordering::Relaxed) < TRIALS {
        demote::for_now(conn, fd, Reason::NoGain);
    } else {
        demote::now(conn, fd, Reason::NoGain);
    }
}

fn counts(conn: &Conn, sent_kicks: u64) -> Counts {
    let counters = &conn.counters;
    Counts {
        ticks: ticks(),
        sent_kicks,
        got_kicks: conn.word(KICKS),
        writes: counters.writes.load(Ordering::Relaxed),
        bytes_out: counters.ring_out.load(Ordering::Relaxed),
        bytes_in: counters.ring_in.load(Ordering::Relaxed),
    }
}

/// Whether a quarter of the messages between two counts, in both directions together, have taken a
/// kick, and they have carried little.
fn is_doubtful(before: Counts, now: Counts) -> bool {
    let since = |of: fn(&Counts) -> u64| of(&now).saturating_sub(of(&before));
    // The peer says how many it has sent.
    let kicks = since(|counts| counts.sent_kicks).saturating_add(since(|counts| counts.got_kicks));
    let (writes, bytes_in) = (since(|counts| counts.writes), since(|counts| counts.bytes_in));
    // The peer's messages are not counted here: as many as ours, if it has sent any.
    let messages = writes + writes.min(bytes_in);
    kicks.saturating_mul(4) > messages && since(Counts::bytes) < kicks.saturating_mul(GAINS_BYTES)
}

/// Bytes in 2^20 ticks.
fn rate(bytes: u64, from: u64, to: u64) -> u64 {
    (u128::from(bytes) << 20).checked_div(to.saturating_sub(from).into()).unwrap_or(0) as u64
}

/// A trial on tcp begins.
pub(crate) fn trial_begins(conn: &Conn, fd: i32) {
    conn.trial.carried.store(diag::carried(fd).unwrap_or(0), Ordering::Relaxed);
}

/// A trial on tcp that began at `from` ends: whether the connection is to move. It is measured
/// once, however long the move takes then.
pub(crate) fn trial_ends(conn: &Conn, fd: i32, from: u64) -> bool {
    let trial = &conn.trial;
    let before = trial.carried.swap(MEASURED, Ordering::Relaxed);
    if before == MEASURED {
        return true;
    }
    let carried = diag::carried(fd).unwrap_or(0).saturating_sub(before);
    let by_tcp = rate(carried, from, ticks());
    trial.by_tcp.store(by_tcp.max(1), Ordering::Relaxed);
    let in_memory = trial.in_memory.swap(0, Ordering::Relaxed);
    if in_memory == 0 || !is_for_tcp(by_tcp, in_memory) {
        return true;
    }
    worth::gained_nothing(conn);
    conn.ops.store(0, Ordering::Relaxed);
    if conn.gone_back.fetch_add(1, Ordering::Relaxed) >= TRIALS {
        conn.plain(state::NEW);
    }
    false
}

/// Instead of what the companion had carried.
const MEASURED: u64 = u64::MAX;

/// A little slower is as fast: what takes kicks has its costs at others, too.
fn is_for_tcp(by_tcp: u64, in_memory: u64) -> bool {
    by_tcp >= in_memory - in_memory / 20
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After 100 kicks sent.
    fn doubtful(got_kicks: u64, writes: u64, bytes_out: u64, bytes_in: u64) -> bool {
        let before =
            Counts { ticks: 0, sent_kicks: 7, got_kicks: 5, writes: 11, bytes_out: 64, bytes_in: 32 };
        let now = Counts {
            ticks: 1000,
            sent_kicks: before.sent_kicks + 100,
            got_kicks: before.got_kicks + got_kicks,
            writes: before.writes + writes,
            bytes_out: before.bytes_out + bytes_out,
            bytes_in: before.bytes_in + bytes_in,
        };
        is_doubtful(before, now)
    }

    #[test]
    fn it_is_doubtful_whether_memory_gains_where_many_small_messages_take_a_kick() {
        assert!(doubtful(100, 100, 6400, 6400), "all, both ways");
        assert!(doubtful(0, 100, 6400, 0), "all, one way");
        assert!(doubtful(100, 200, 12800, 12800), "every second");
        assert!(!doubtful(100, 400, 25600, 25600), "every fourth");
        assert!(!doubtful(100, 100, 1 << 20, 6400), "large ones");
        assert!(!doubtful(0, 100_000, 6_400_000, 0), "hardly any");
        assert!(doubtful(u64::MAX - 5, 100, 0, 0), "whatever a peer says");
    }

    #[test]
    fn a_trial_is_for_tcp_if_that_is_as_fast() {
        let second = 3_000_000_000;
        let rate = |bytes| rate(bytes, 5, 5 + second);
        assert!(is_for_tcp(rate(100_000), rate(100_000)) && is_for_tcp(rate(97_000), rate(100_000)));
        assert!(!is_for_tcp(rate(90_000), rate(100_000)));
        assert_eq!(super::rate(1, 7, 7), 0, "in no time");
    }
}
