//! The outboxes of the links that stand: what the program's threads have put there is brought to the peers, from the port's thread, also in the middle of other things.

use std::ptr;
use std::sync::{Arc, Mutex};

use fabric::Remote as _;
use fabric::outbox::Errand;
use ofi::Link;
use ofi::mutex::lock;
use sockets::peering::wire::{self, Wire, what};

use crate::gather::Gathered;

/// Errands of one link that are done before another's turn.
const TURN: usize = 256;

/// Those whose outboxes are emptied.
static WIRES: Mutex<Vec<(Arc<Link>, &'static Wire)>> = Mutex::new(Vec::new());

/// From now on what is put for this link is brought.
pub fn add(link: &Arc<Link>, wire: &'static Wire) {
    lock(&WIRES).push((Arc::clone(link), wire));
}

/// No more.
pub fn remove(link: &Arc<Link>) {
    lock(&WIRES).retain(|(other, _)| !Arc::ptr_eq(other, link));
}

/// Brings what waits in the outboxes to the peers; how much that was.
pub fn empty() -> usize {
    let wires = lock(&WIRES).clone();
    wires.iter().map(|(link, wire)| empty_one(link, wire)).sum()
}

/// Those that the carrier waits for at this moment, to send: one inside of the other.
static WAITING: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The carrier waits to send by a link whose peer takes nothing: serves the others, whose peers and programs have no part in that.
pub fn serve_others(waiting: &Link) {
    if !wire::is_carrier() {
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
    // Errands that are there together go together.
    let _held = link.hold();
    let (mut did, mut gathered) = (0, Gathered::default());
    while did < TURN
        && let Some(errand) = wire.outbox.take()
    {
        did += 1;
        if let Some(errand) = gathered.next(errand, link) {
            alone(link, errand);
        }
    }
    gathered.go(link);
    did
}

/// An errand that nothing is gathered with.
fn alone(link: &Link, Errand { what, at, value }: Errand) {
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
