//! Waking threads that wait for a queue, when this process itself has completed something in it.

use crate::cq::members::Bound;
use crate::handlers;
use crate::queue::{ReceiveQueue, SendQueue};
use crate::segment::{Segment, at, wake};
use crate::vi::places::Queue;

/// This process itself has completed something in the send queue.
#[inline(always)]
pub(super) fn send_done_now(queue: &mut Queue<SendQueue>) {
    let Some(list) = &queue.list else { return };
    if let Some(bound) = &queue.bound
        && !list.finished.watched
    {
        hint_own(bound);
    }
    if let Some(segment) = &queue.segment
        && segment.is_armed(at::COOKIE_TRIP, wake::SLEEPERS | wake::AGENT)
    {
        fire_own(segment, at::COOKIE_TRIP);
    }
}

/// Wakes threads here that wait for something that this process has done itself.
#[cold]
fn fire_own(segment: &Segment, trip: usize) {
    if segment.fire(trip) & wake::AGENT != 0 {
        handlers::poll_later();
    }
}

/// As [`send_done_now`], for the receive queue.
pub(super) fn receive_done_now(queue: &mut Queue<ReceiveQueue>) {
    let Some(list) = &queue.list else { return };
    if let Some(bound) = &queue.bound
        && !list.finished.watched
    {
        hint_own(bound);
    }
    if let Some(segment) = &queue.segment {
        fire_own(segment, at::TRIP);
    }
}

fn hint_own(bound: &Bound) {
    if bound.hint() {
        handlers::poll_later();
    }
}
