//! Remote memory between hosts: the fabric's second provider, over any network that libfabric
//! drives (InfiniBand, RoCE, EFA, Slingshot, Omni-Path; TCP to test with). libfabric is opened at
//! run time, when it is first needed; everything works without it, but this.
//!
//! [`find`] lists the domains. A [`Port`] is an open domain, with a thread that serves it. A
//! [`Link`] joins two processes: its own segment is a [`fabric::Local`], the peer's a
//! [`fabric::Remote`], so code that is written against these runs over it. This crate is ordinary
//! Rust.
//!
//! With some providers the target must poll for data to arrive (tcp is one, whatever it claims). So
//! a thread that waits calls [`Link::help`], and [`Link::leave`] when it goes to sleep; at other
//! times the port's thread does it.
//!
//! Nothing is registered while a program runs: bytes are copied into the shadow ([`link`]), which
//! is registered once. A cache of registrations would avoid that copy, but unread bytes must still
//! be there when a link dies, while the program may use its buffer again when send() returns; and a
//! cache would have to watch the program's munmap(). The price is a sixth of a sender's time with
//! long writes (bench/runs/2026-11-26-ofi).
//!
//! Read in this order: [`link`], [`port`], `nic`, `library`, `abi`.
#![deny(missing_docs)]

#[allow(missing_docs)]
mod abi;
mod error;
pub mod isolation;
mod library;
pub mod link;
pub mod mutex;
mod nic;
pub mod port;
mod server;
#[allow(missing_docs)]
#[doc(hidden)]
pub mod wire;
#[allow(missing_docs)]
#[doc(hidden)]
pub mod world;

pub use error::{Error, Missing};
pub use library::Library;
pub use link::{Held, Link, Owner};
pub use nic::{Found, LAST as TEST_PROVIDER, WORDS, find};
pub use port::{Gate, Port, PortWork};
