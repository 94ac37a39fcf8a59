//! Filter groups in virtual time: the behaviour of a group of the same layout, on the same nodes,
//! with the same policies and credits, over a given transport. It is for groups that the machine at
//! hand cannot run: ten nodes, slow nodes, networks of 2003.
//!
//! It decides nothing itself: [`crate::flow::Flow`] chooses the copy for a buffer, and makes a
//! producer wait, here as in the runtime. This models time:
//!
//! * a copy works on one buffer at a time, for a fixed time and a time for each byte ([`Cost`]),
//!   both times how slow its node is;
//! * it passes on a buffer of the same size on each stream that it writes, and takes no other
//!   buffer before it has got rid of these;
//! * buffers are stored and forwarded: no copy starts on a buffer before all of it has arrived;
//! * a node has one interface, which sends and receives at once, and a message keeps it as its
//!   transport says ([`Profile`]). Copies on one node hand buffers over in no time;
//! * a copy acknowledges a buffer when it starts on it, and a producer that waits goes on as soon
//!   as it knows (where memory is shared the runtime wakes it only when a quarter of its credits is
//!   back, or nothing is left for the consumer);
//! * the end of a unit of work is told by each copy to each copy of the next filter, after all
//!   buffers. A copy is done with a unit when all have told it, and works on no later unit before;
//! * acknowledgements and ends take the time of an empty message, and no room on the interfaces:
//!   they are a few bytes that ride along with others;
//! * copies have a processor each: nothing else slows them down.
//!
//! All times are whole nanoseconds. Events of the same time happen in the order in which they were
//! decided, and nothing depends on hashes, addresses or the clock: the same setup gives the same
//! trace, always.
//!
//! Read in this order: `profile.rs` (transports), `setup.rs` and `outcome.rs` (input and output),
//! `engine.rs` (the events), `paper.rs` (the experiments).

mod engine;
mod outcome;
pub mod paper;
mod profile;
mod setup;

pub use outcome::{CopyTimes, Outcome, Step, UnitTimes, What};
pub use profile::{Point, Profile};
pub use setup::{Cost, Pace, Setup, Unit};

/// Runs it to the end.
pub fn run(setup: &Setup) -> Outcome {
    engine::run(setup, &mut |_| ())
}

/// The same, with a list of all steps.
pub fn trace(setup: &Setup) -> (Outcome, Vec<Step>) {
    let mut steps = Vec::new();
    let outcome = engine::run(setup, &mut |step| steps.push(step));
    (outcome, steps)
}
