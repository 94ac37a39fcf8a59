//! The path of each direction of a connection, and how it changes.
//!
//! **Switching.** A direction changes its path when its writer next writes. The writer announces
//! "the first N bytes went by tcp". N comes from the kernel's own count (TCP_INFO, [`host::diag`]),
//! not from ours. The reader counts from the offer on, beginning with the kernel's count: later
//! that may or may not have a FIN in it, and nothing says which. It takes bytes from the kernel
//! until it has N, then from the ring.
//!
//! Each kind of change (small ring, big ring, tcp for good) has a word of its own in the reader's
//! slot header, and happens at most once. So an announcement is never overwritten and needs no
//! acknowledgement. Demoting is the same announcement the other way.
//!
//! **Decisions** are in files that make no system call and see no memory that others write. They
//! are given what is seen and say what is to be done; the shell beside them looks, under locks, and
//! carries it out. The model compiles these files (`crates/model/tests/machine/library.rs`),
//! switches each rule of `rule.rs` off in turn, and has to fail; in the simulator the host switches
//! it off.
//!
//! | file | decides | shell |
//! |---|---|---|
//! | `offer` | an offer is taken, taken back, or stands | `rendezvous/agreement`, `writer` |
//! | `writing` | what is due, how a ring is left, what is sent again | `demote`, `writer` |
//! | `reading` | where the path turns, which bytes are kicks | `reader`, `io/recv`, `wait` |
//! | `claim` | who sends recalled bytes | `demote`, `handover`, `relay`, `peering/cut` |
//! | `recall` | what a reader does that hands its ring over | `handover` |
//! | `unfinished` | what is done for a lock's holder that died | `recovery` |
//! | `closing` | what close() makes of unread bytes, what goes before a FIN | `close`, `reader` |

pub(crate) mod claim;
pub(crate) mod closing;
pub(crate) mod offer;
pub(crate) mod reader;
pub(crate) mod reading;
pub(crate) mod recall;
pub(crate) mod recovery;
pub(crate) mod room;
mod rule;
mod rules;
pub(crate) mod steps;
pub(crate) mod unfinished;
pub(crate) mod writer;
pub(crate) mod writing;
