//! The outboxes of established links. The port's thread takes the work requests that the program's
//! threads have put there and carries them out, also in the middle of other things.

use std::ptr;
use std::sync::{Arc, Mutex};

use fabric::Remote as _;
use fabric::outbox::WorkRequest;
use ofi::Link;
use ofi::mutex::lock;
use sockets::peering::wire::{self, Wire, what};

use crate::gather::Gathered;

/// Work requests of one link that are carried out before the next link's turn.
const TURN: usize = 256;

/// The links whose outboxes are emptied.
static WIRES: Mutex<Vec<(Arc<Link>, &'static Wire)>> = Mutex::new(Vec::new());

/// From now on the work requests of this link are carried out.
pub fn add(link: &Arc<Link>, wire: &'static Wire) {
    lock(&WIRES).push((Arc::clone(link), wire));
}

/// From now on they are not.
pub fn remove(link: &Arc<Link>) {
    lock(&WIRES).retain(|(other, _)| !Arc::ptr_eq(other, link));
}

/// Carries out the work requests that wait in the outboxes; returns how many.
pub fn empty() -> usize {
    let wires = lock(&WIRES).clone();
    wires.iter().map(|(link, wire)| empty_one(link, wire)).sum()
}

/// The links by which the progress thread waits to send at this moment, one wait inside of the
/// other.
static WAITING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// Called while the progress thread waits to send by a link whose peer takes nothing: serves the
/// other links meanwhile.
pub fn serve_others(waiting: &Link) {
    if !wire::is_progress_thread() {
        return;
    }
    lock(&WAITING).push(ptr::from_ref(waiting).addr());
    let wires = lock(&WIRES).clone();
    for (link, wire) in wires {
        if !lock(&WAITING).contains(&Arc::as_ptr(&link).addr()) {
            link.progress();
            empty_one(&link, wire);
        }
    }
    lock(&WAITING).pop();
}

fn empty_one(link: &Link, wire: &Wire) -> usize {
    // Work requests that are there together are sent together.
    let _held = link.hold();
    let (mut did, mut gathered) = (0, Gathered::default());
    while did < TURN
        && let Some(request) = wire.outbox.take()
    {
        did += 1;
        if let Some(request) = gathered.next(request, link) {
            alone(link, request);
        }
    }
    gathered.go(link);
    did
}

/// Carries out a work request that nothing is joined with.
fn alone(link: &Link, WorkRequest { what, at, value }: WorkRequest) {
    match what {
        what::WORD => link.put_word(at as usize, value),
        what::OR => {
            link.or_word(at as usize, value);
        }
        what::STIMULATE => {
            link.stimulate(at as usize, value);
        }
        what::CALL => link.call(at, value),
        _ => {}
    }
}
