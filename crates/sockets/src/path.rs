//! The path of each direction of a connection, and how it changes.

pub(crate) mod reader;
pub(crate) mod recall;
pub(crate) mod recovery;
pub(crate) mod room;
mod rules;
pub(crate) mod steps;
pub(crate) mod writer;
