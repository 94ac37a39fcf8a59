//! The deciders of the library, compiled from its own source, but that one rule can be switched
//! off.

#![allow(dead_code)] // Each model uses a part.

#[path = "../../../sockets/src/path/claim.rs"]
pub mod claim;
#[path = "../../../sockets/src/path/closing.rs"]
pub mod closing;
#[path = "../../../sockets/src/path/offer.rs"]
pub mod offer;
#[path = "../../../sockets/src/path/reading.rs"]
pub mod reading;
#[path = "../../../sockets/src/path/recall.rs"]
pub mod recall;
#[path = "../../../sockets/src/path/rule.rs"]
mod rule;
#[path = "../../../sockets/src/path/unfinished.rs"]
pub mod unfinished;
#[path = "../../../sockets/src/path/writing.rs"]
pub mod writing;

pub mod rules {
    use std::cell::Cell;

    pub use super::rule::{ALL, Rule};

    thread_local! {
        static OFF: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// For what this thread decides next: checkers have threads of their own.
    pub fn switch_off(rule: Option<Rule>) {
        OFF.set(rule);
    }

    pub fn off(rule: Rule) -> bool {
        OFF.get() == Some(rule)
    }
}
