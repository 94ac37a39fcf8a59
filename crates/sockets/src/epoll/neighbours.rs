//! Who waits on the processor that a set's thread runs on: a server that spins there takes it from
//! its own clients. Members' peers tell where they wait, as we tell them.

use fabric::sync::Ordering;
use fabric::sys;
use stream::spin::{NO_CPU, cpu, ticks, ticks_of};

use super::edges::numbers;
use super::set::{Guard, MOVED, Set};
use crate::conn::{Conn, path};
use crate::wake::arm;

/// So many calls are answered without a sleep before others are let run.
const UNSLEPT_MOST: u32 = 3;
/// How often it is looked whether peers wait on our processor, at how many descriptors, and for how
/// long that holds.
const NEIGHBOURS_NS: u64 = 1_000_000;
const NEIGHBOURS: i32 = 64;
const NEIGHBOUR_NS: u64 = 20_000_000;
/// So many calls go by what the first of them found to be their processor: to ask waits for all
/// that goes before.
const CALLS_ALIKE: u64 = 16;

impl Set {
    /// A set whose members are always ready never sleeps: peers that wait for the processor, not
    /// for us, get it now and then.
    #[inline]
    pub(super) fn give_way(&self) {
        // The only peer is one that we wait for.
        if self.moved.load(Ordering::Relaxed) <= 1 {
            return;
        }
        // A count that is lost now and then to another thread does no harm.
        let unslept = self.unslept.load(Ordering::Relaxed);
        self.unslept.store(unslept + 1, Ordering::Relaxed);
        if unslept >= UNSLEPT_MOST {
            self.unslept.store(0, Ordering::Relaxed);
            let has = self.lock().is_some_and(|mut guard| guard.has_neighbour(cpu(), ticks()));
            if has {
                sys::yield_now();
            }
        }
    }

    /// The processor that a call runs on, plus one; 0 if nobody is to be told.
    #[inline(always)]
    pub(super) fn here(&self, call: u64) -> u64 {
        if call == 0 || self.moved.load(Ordering::Relaxed) <= 1 {
            return 0;
        }
        let known = self.here.load(Ordering::Relaxed);
        if known != 0 && !call.is_multiple_of(CALLS_ALIKE) {
            return known;
        }
        let here = cpu() + 1;
        self.here.store(here, Ordering::Relaxed);
        here
    }

    /// Where peers wait: on this very processor, if one of them does, or the only one.
    pub(super) fn peer_cpu(&self) -> u64 {
        let Some(mut guard) = self.lock() else { return NO_CPU };
        if self.moved.load(Ordering::Relaxed) == 1 {
            return guard.sole().map_or(NO_CPU, arm::meet);
        }
        let here = cpu();
        if guard.has_neighbour(here, ticks()) { here } else { NO_CPU }
    }
}

impl Guard<'_> {
    /// A member is told of: its peer, which is going to wait for an answer, learns on which
    /// processor that is (plus one), where it need not spin.
    pub(super) fn note_told(&mut self, fd: i32, conn: &Conn, here: u64) {
        if core::mem::replace(&mut self.member(fd).cpu, here) != here {
            arm::tell_cpu(conn, here);
        }
    }

    /// Whether a peer waits on this processor, as far as is known.
    fn has_neighbour(&mut self, here: u64, now: u64) -> bool {
        let mut known = self.state().neighbours;
        if now >= known.due {
            known.due = now + ticks_of(NEIGHBOURS_NS);
            let top = numbers().end;
            for _ in 0..top.min(NEIGHBOURS) {
                let fd = if known.next < top { known.next } else { 0 };
                let member = *self.member(fd);
                let conn = member.conn.filter(|conn| member.flags & MOVED != 0 && conn.is_managed());
                if conn.is_some_and(|conn| arm::peer_cpu(conn) == here) {
                    // The next look begins with it.
                    (known.until, known.next) = (now + ticks_of(NEIGHBOUR_NS), fd);
                    break;
                }
                known.next = fd + 1;
            }
            self.state().neighbours = known;
        }
        now < known.until
    }

    /// A promoted member, when there is one on the list's memory: for guessing where its peer runs.
    fn sole(&mut self) -> Option<&'static Conn> {
        numbers()
            .map(|fd| *self.member(fd))
            .find(|member| member.flags & MOVED != 0)
            .and_then(|member| member.conn)
            .filter(|conn| conn.tx.path() != path::LAST)
    }
}
