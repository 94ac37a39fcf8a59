//! `libshunt.so`: what the dynamic linker puts in front of libc. One hook per symbol, thin: it looks the descriptor up and calls
//! `sockets`, or libc's own function. One file per family of calls; `symbols.rs` lists them all.

#![allow(clippy::missing_safety_doc)] // Each hook has the contract of the libc function whose name it bears.

mod aio;
mod aliases;
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
mod lend;
mod liburing;
mod locking;
mod makers;
mod names;
mod next;
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
