//! DataCutter's filter streams ("Impact of High Performance Sockets on Data Intensive Applications", section 4): programs made of
//! *filters* that exchange *buffers* over *streams*, one *unit of work* after another.
//!
//! Read in this order: [`layout`] (what connects to what, and what runs where), [`flow`] (credits and policies), [`sim`] (the same in
//! virtual time).
#![warn(missing_docs)]

pub mod flow;
pub mod layout;
pub mod sim;
