//! `libshunt.so`: what the dynamic linker puts in front of libc. One hook per symbol, thin: it
//! looks the descriptor up and calls `sockets`, or libc's own function. One file per family of
//! calls; `symbols.rs` lists them all.
//!
//! # Past the hooks
//!
//! libc calls itself without its symbols, and some libraries call the kernel without libc:
//!
//! * stdio: our functions stand in libc's tables for streams (`stdio.rs`), or in musl's streams
//!   (`musl.rs`). libc writes to descriptors 0 to 2 by itself, so these stay on tcp.
//! * `_Fork()` and clone() run no pthread_atfork handlers, and have hooks (`forks.rs`).
//! * A library that is loaded with RTLD_DEEPBIND is noticed before it can do anything, and its
//!   tables are bound to us; connections that there are go back to tcp (`deep.rs`).
//! * A ring of io_uring (`uring.rs`) is noticed before it can do anything, and the process goes
//!   back to tcp with all connections. A ring that a static copy of liburing made is noticed when
//!   the first connection is posted.
//! * A ring of the shared liburing with known options only (no SQPOLL) is followed (`liburing.rs`):
//!   submissions lie in it when liburing's functions are called, and as long as they are reads and
//!   writes of files, connections stay in memory.
//! * One kind of ring is refused (EPERM) instead: one that an event loop makes by syscall() right
//!   behind an epoll set, with 256 entries and no option, to batch epoll_ctl(). Such loops do
//!   without.
//! * io_submit() (linux-aio) takes the connections that it names back to tcp (`aio.rs`).
//! * pidfd_getfd() by another process takes a connection out of Shunt's hands
//!   (`sockets/src/taken.rs`).
//!
//! Tables in `sockets/src/interface` say what each socket option, ioctl, MSG_ flag and system call
//! does to a connection: it is followed, passed to the companion, or moves the connection back to
//! tcp. Hooks ask these tables; what is in none of them means tcp. The table of options also says
//! which values the kernel is asked for when an end is posted, since they may have been set before
//! the connection was made, or on its listener. Tests compare the tables with the machine's
//! headers, and `docs/interface.md` with the tables.
//!
//! # As a guest
//!
//! The crate `native` loads the library by dlopen() for its own sockets. The library notices that
//! the program's calls do not reach it (its symbols are not among those that the program itself
//! sees), and is a *guest* (`process::is_guest`). The differences:
//!
//! * stdio's tables, the environment, exec and rings of io_uring do not concern it: no other code
//!   has its connections.
//! * A child of fork() has none of its parent's connections, in the library (`sockets/src/fork.rs`)
//!   or by descriptor (`native/src/open.rs`). So a fork changes nothing in the parent, and the peer
//!   sees the end when the parent closes.
//! * The library does not see signal handlers being installed, so a call that is interrupted always
//!   says so.
//! * Nothing keeps the program from closing the library's own descriptors. Before one is written
//!   to, read from, passed on or closed, it is compared with what it was (`descriptors::intact`).
//!   And a socket that gets the number of a connection which was closed unseen is new
//!   (`shunt_is_new`).
//! * The library's own functions that hooks call are bound when it is linked
//!   (-Bsymbolic-functions): names are looked up in libc first.
//!
//! A process has one library: the part of it that comes second uses the one that is there, and a
//! file of another version is recognised before it is loaded.

#![allow(clippy::missing_safety_doc)] // Each hook has the contract of the libc function whose name it bears.

mod aio;
mod aliases;
mod binding;
mod content;
mod deep;
mod end;
mod environment;
mod exec;
mod fds;
mod files;
mod forks;
#[cfg(target_arch = "x86_64")]
mod inherited;
mod jumps;
mod kept;
mod liburing;
mod loaded;
mod locking;
mod makers;
mod musl;
mod names;
mod next;
mod older;
mod options_of;
mod passed;
mod rights;
mod rules_of;
mod sandbox;
mod signals;
mod start;
mod stdio;
mod syscall;
mod transfer;
mod uring;
mod variadic;
mod waits;
mod zerocopy;

/// The version, for `shunt doctor`.
#[used]
#[unsafe(no_mangle)]
pub static SHUNT_VERSION: [u8; concat!(env!("CARGO_PKG_VERSION"), "\0").len()] = version();

const fn version() -> [u8; concat!(env!("CARGO_PKG_VERSION"), "\0").len()] {
    let text = concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes();
    let mut bytes = [0; concat!(env!("CARGO_PKG_VERSION"), "\0").len()];
    let mut at = 0;
    while at < text.len() {
        bytes[at] = text[at];
        at += 1;
    }
    bytes
}
