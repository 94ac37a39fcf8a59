//! What a host's kernel knows of TCP connections: the addresses of an end ([`addr`]), whose it is and how many bytes went by it ([`diag`]).
//!
//! This code runs inside other people's programs: no allocation, no std input or output; system calls by `fabric::sys`.

pub mod addr;
pub mod diag;
