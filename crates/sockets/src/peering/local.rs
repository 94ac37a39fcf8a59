//! A peer on this host: both map the same memory, in which everything is told.

use super::kind::{Facts, Peered};
use super::records::{Next, Run};
use crate::conn::{Conn, Held, Rx, Tx};
use crate::descriptors;

pub(super) const FACTS: Facts = Facts {
    shares_memory: true,
    reaches_process: true,
    shares_names: true,
    shows_end: true,
    kept_by_children: true,
    uses_records: false,
};

pub(super) fn is_whole(_: &impl Peered, socket: i32) -> bool {
    // For the peer, who sees the end of its socket, it is over.
    descriptors::intact(socket)
}

#[inline(always)]
pub(super) fn is_over(_: &Conn) -> bool {
    false
}

pub(super) fn end_link(_: &Conn) {}

pub(super) fn call_to_tcp(_: &Conn) {}

pub(super) fn offered(_: &Conn) {}

pub(super) fn taken(_: &Conn) {}

#[inline(always)]
pub(super) fn has_agreed(_: &Conn) -> bool {
    true
}

pub(super) fn promised(_: &Conn) {}

#[inline(always)]
pub(super) fn may_put(_: &Conn) -> bool {
    true
}

pub(super) fn is_silent(_: &Conn) -> bool {
    false
}

pub(super) fn fell_silent(_: &Conn) {}

pub(super) fn settle(_: &Conn) {}

pub(super) fn has_settled(_: &Conn, _: &mut u64) -> bool {
    true
}

pub(super) fn kicks_ahead(_: &Conn, _: i32, _: &mut Held<'_, Rx>, count: usize) -> usize {
    count
}

#[inline(always)]
pub(super) fn may_come(_: &Conn) -> bool {
    false
}

#[inline(always)]
pub(super) fn may_finish(_: &Conn) -> bool {
    true
}

#[inline(always)]
pub(super) fn end_due(_: &Conn) -> bool {
    false
}

pub(super) fn hear(_: &Conn, _: i32, _: &mut Held<'_, Rx>) -> Next {
    Next::Bytes(usize::MAX)
}

pub(super) fn further(_: &Conn, _: i32, _: &mut Held<'_, Rx>, free: usize, _: usize) -> usize {
    free
}

pub(super) fn run_at(_: &Conn, _: i32, _: usize) -> Run {
    Run::default()
}

pub(super) fn seek_stop(_: &Conn, _: i32) {}

#[inline(always)]
pub(super) fn send_records(_: &Conn, _: i32, _: &mut Held<'_, Tx>) -> bool {
    true
}

pub(super) fn died_untold(_: &Conn) -> Option<bool> {
    Some(false)
}

pub(super) fn closed_unread(_: &Conn) -> bool {
    false
}
