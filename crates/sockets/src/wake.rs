//! Sleeping and waking: tripwires, sleepers, and how a peer is woken.

pub(crate) mod arm;
pub(crate) mod fire;
pub(crate) mod sleepers;
