//! Facts about a host that several crates need: the addresses of a connection's end ([`addr`]),
//! what the kernel knows of it ([`diag`]), the time stamp of its SYN ([`syn`]), and where Virtual
//! Interfaces wait for others ([`place`]).
//!
//! This code runs inside other people's programs: no allocation, no std input or output; system
//! calls by `fabric::sys`.

pub mod addr;
pub mod diag;
pub mod place;
pub mod syn;
