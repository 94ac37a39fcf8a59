//! Filter groups in virtual time: what a group of the same layout, on the same nodes, with the same policies and credits would do over a given
//! transport. It is for what the machine at hand cannot run: ten nodes, slow nodes, networks of 2003.
//!
//! It decides nothing itself: which copy gets a buffer, and when a producer must wait, is [`crate::flow::Flow`]'s answer here as in the runtime.
//! What is modelled is time:
//!
//! * a copy works on one buffer at a time, for a fixed time and a time for each byte ([`Cost`]), both times how slow its node is;
//! * it passes on a buffer of the same size on each stream that it writes, and takes no other buffer before it has got rid of these;
//! * buffers are stored and forwarded: nobody starts on a buffer that has not wholly arrived;
//! * a node has one interface, which sends and receives at once, and a message keeps it as its transport says ([`Profile`]). Copies on one node
//!   hand buffers over in no time;
//! * a copy acknowledges a buffer when it starts on it, and a producer that waits goes on as soon as it knows (where memory is shared the runtime
//!   wakes it only when a quarter of its credits is back, or nothing is left for the consumer);
//! * the end of a unit of work is told by each copy to each copy of the next filter, after all buffers. A copy is done with a unit when all have
//!   told it, and works on no later unit before;
//! * acknowledgements and ends take the time of an empty message, and no room on the interfaces: they are a few bytes that ride along with others;
//! * copies have a processor each: nothing else slows them down.
//!
//! All times are whole nanoseconds. What happens at the same time happens in the order in which it was decided, and nothing depends on hashes,
//! addresses or the clock: the same setup gives the same trace, always.
//!
//! Read in this order: `profile.rs` (transports), `setup.rs` and `outcome.rs` (what goes in and comes out), `engine.rs` (the events), `paper.rs` (the experiments).

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

/// The same, and tells of each step.
pub fn trace(setup: &Setup) -> (Outcome, Vec<Step>) {
    let mut steps = Vec::new();
    let outcome = engine::run(setup, &mut |step| steps.push(step));
    (outcome, steps)
}
