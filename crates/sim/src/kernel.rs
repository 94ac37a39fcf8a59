//! A model of the Linux kernel: sockets, readiness, memory and processes, in one thread and without
//! chance or time of its own. [`Kernel::call`] takes a system call as a thread makes it, and either
//! does it or says that the thread would sleep.
//!
//! Bottom up: [`user`], [`dice`] and [`arena`]; [`objects`], plain data; [`state`], what holds
//! them, and how sleepers and epoll sets hear of changes; then a file for each concern; [`calls`]
//! knows which call is whose. Nothing uses what is above it: a file description that is not used
//! any more, and what travels between sockets, is put into a queue, and [`calls`] looks after both.
//!
//! `tests/kernel.rs` holds it against the real kernel. Where Linux surprises, the model does what
//! Linux does.

mod arena;
mod calls;
mod descriptors;
mod dice;
mod epoll;
mod eventfd;
mod files;
mod futex;
mod memory;
mod netlink;
mod objects;
mod options;
mod poll;
mod process;
mod ready;
mod sockets;
mod state;
mod tcp;
mod unix;
mod user;

pub use state::{Fault, Kernel, Limits, Outcome, Pid, Tid};
