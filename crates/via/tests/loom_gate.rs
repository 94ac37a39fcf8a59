//! Models of the gate: a peer that writes into a buffer, and the owner that takes it back.
//! `crates/fabric/tests/loom_trip.rs` says how models are run.
#![cfg(loom)]

use fabric::model::{Flaw, Flawed, RACE, Segment, check, must_fail};
use fabric::{Local, Remote};
use loom::thread;
use via::gate;

const SHUT: usize = 0;
const BUSY: usize = 0;
const BUFFER: usize = 8;

#[test]
fn a_buffer_taken_back_is_not_written() {
    check(None, || scenario(|s| s.clone()));
}

#[test]
fn the_end_of_a_transfer_needs_release() {
    must_fail(Some(3), RACE, || scenario(|s| Flawed(s.clone(), Flaw::PutRelaxed)));
}

#[test]
fn the_end_of_a_transfer_needs_acquire() {
    must_fail(Some(3), RACE, || scenario(|s| Flawed(s.clone(), Flaw::ReadRelaxed)));
}

/// Two transfers at most, into a byte that the owner uses once it has it back.
fn scenario<S: Local + Remote + Send + 'static>(open: fn(&Segment) -> S) {
    // The owner's segment has the busy word and, here, the buffer; the writer's has the shut word.
    let owner = Segment::new(1, 1);
    let writer = Segment::new(1, 0);
    let (local, remote) = (open(&writer), open(&owner));
    let thread = thread::spawn(move || {
        for i in 0..2u8 {
            if !gate::enter(&local, SHUT, &remote, BUSY) {
                return;
            }
            // SAFETY: one byte.
            unsafe { remote.put(BUFFER, &i, 1) };
            gate::leave(&remote, BUSY);
        }
    });
    let (local, remote) = (open(&owner), open(&writer));
    gate::shut(&remote, SHUT);
    while gate::is_busy(&local, BUSY) {
        thread::yield_now();
    }
    let mut byte = 0;
    // SAFETY: one byte.
    unsafe { local.get(BUFFER, &mut byte, 1) };
    thread.join().unwrap();
}
