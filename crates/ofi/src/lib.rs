//! Remote memory between hosts: the fabric's second provider, over any network that libfabric drives (InfiniBand, RoCE, EFA, Slingshot, Omni-Path; TCP to test
//! with). libfabric is opened when it is first asked for; nothing needs it to be there.
//!
//! [`find`] lists the domains, a [`Port`] is one that was opened, a [`Link`] joins two processes: its own segment is a [`fabric::Local`], the peer's a
//! [`fabric::Remote`], so what is written against these runs over it. Read in this order: [`link`], [`port`], `nic`, `library`, `abi`.
#![deny(missing_docs)]

#[allow(missing_docs)]
mod abi;
mod error;
mod library;
pub mod link;
pub mod manners;
pub mod mutex;
mod nic;
pub mod port;
#[allow(missing_docs)]
#[doc(hidden)]
pub mod wire;

pub use error::{Error, Missing};
pub use library::Library;
pub use link::{Held, Link, Owner};
pub use nic::{Found, LAST as TEST_PROVIDER, WORDS, find};
pub use port::{Errands, Gate, Port};
