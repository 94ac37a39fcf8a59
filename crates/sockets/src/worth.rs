//! After how many calls a connection is worth a move to memory. A move costs both ends about as
//! much as fifty round trips by tcp, so one that ends soon afterwards has lost by it, and one that
//! lives on loses nothing by having begun on tcp.
//!
//! Unless the option `promote-after` says it, it is learnt, for each *service*: the connections
//! that were accepted from one listener, or made to one address. Where those that have moved end
//! before it has paid, the next ones move later; where they live on, earlier. What is learnt stands
//! in the home that they lie in, which a server that forks for each of them shares with its
//! children.

use fabric::sync::{AtomicU32, AtomicU64, Ordering};
use host::diag;

use crate::conn::Conn;
use crate::home::SERVICES;
use crate::{home, process};

/// Socket calls at one end: at first; at least and at most.
const FIRST: u32 = 64;
const LEAST: u32 = 16;
const MOST: u32 = 1024;

/// So many round trips or waits of a connection in memory, or so many times 4 KB, pay for its move.
const PAYS: u64 = 48;

/// So many bytes by tcp are worth a move, however few the calls.
const BYTES: u64 = 256 << 10;

/// The place of the service that listens on a descriptor, or is at an address: the bytes of either.
pub fn service(name: &[u8]) -> u32 {
    let hash = name.iter().fold(0u32, |hash, &byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    hash.wrapping_mul(0x9e37_79b9) >> (u32::BITS - SERVICES.ilog2())
}

/// What is learnt of its service: the calls, 0 if nothing is.
fn learnt(conn: &Conn) -> Option<&'static AtomicU32> {
    Some(&home::header(conn)?.learnt[conn.service.load(Ordering::Relaxed) as usize % SERVICES])
}

/// After how many calls a connection may move: after far more each time it has gone back because
/// that gained nothing.
#[inline]
pub fn calls(conn: &Conn) -> u32 {
    let calls = process::options().promote_after.unwrap_or_else(|| calls_learnt(learnt(conn)));
    match conn.gone_back.load(Ordering::Relaxed) {
        0 => calls,
        times => calls.max(1).saturating_mul(LATER.saturating_pow(times)),
    }
}

/// So many times as many.
const LATER: u32 = 16;

fn calls_learnt(learnt: Option<&AtomicU32>) -> u32 {
    match learnt.map_or(0, |calls| calls.load(Ordering::Relaxed)) {
        0 => FIRST,
        calls => calls.clamp(LEAST, MOST),
    }
}

/// Whether a connection that has made fewer calls has carried much by them: asked at the fourth,
/// the eighth, the sixteenth, ...
pub fn carries_much(conn: &Conn, fd: i32, calls: u32) -> bool {
    calls >= 4
        && calls.is_power_of_two()
        && process::options().promote_after.is_none()
        && conn.gone_back.load(Ordering::Relaxed) == 0
        && diag::carried(fd).is_ok_and(|bytes| bytes >= BYTES)
}

/// A connection in memory ends: whether its move has paid.
pub fn ended(conn: &Conn) {
    if process::options().promote_after.is_some() {
        return;
    }
    let Some(learnt) = learnt(conn) else { return };
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &conn.counters;
    // A single call that sleeps counts and arms, a set only arms.
    let waits = count(&counters.sleeps).max(count(&conn.arms)) + count(&counters.spins_won);
    // Whose peer is quick finds its answers there, and has waited for none: each has a byte at
    // least.
    let (got, given) = (count(&counters.ring_in), count(&counters.ring_out));
    let answers = waits.max(count(&counters.writes).min(got));
    let bytes = got + given;
    learn(learnt, answers + bytes / 4096 >= PAYS);
}

/// A connection has gone back because memory gains nothing.
pub(crate) fn gained_nothing(conn: &Conn) {
    if let Some(learnt) = learnt(conn) {
        learn(learnt, false);
    }
}

fn learn(learnt: &AtomicU32, paid: bool) {
    let now = calls_learnt(Some(learnt));
    let next = if paid { now / 2 } else { now * 2 };
    learnt.store(next.clamp(LEAST, MOST), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_spread() {
        let mut places = [false; SERVICES];
        (0..100u32).for_each(|fd| places[service(&fd.to_ne_bytes()) as usize] = true);
        assert!(places.iter().filter(|&&used| used).count() > SERVICES / 2);
    }
}
