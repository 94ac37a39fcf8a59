//! The carrier: a thread of a program under Shunt that has connections to other hosts. It makes links (`ofi`) with the processes there that this host's agent introduces, and
//! brings what the program's threads put into their outboxes (`sockets::peering::wire`) to the peers' memory. It is started when the first connection is posted whose other end may be
//! in the cluster; a program that has none has no such thread, and never opens libfabric.
//!
//! It is the only thread of the library. What it may do follows from that: it waits for no lock that a thread of the program may hold, as that thread may be waiting for
//! room in an outbox; and what links tell it (their owners are called in the middle of other things) it notes, and does when it has nothing in hand ([`work`]), but for what somebody waits for
//! and nothing can hold up ([`links`]).

mod gather;
mod links;
mod outboxes;
mod work;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{Builder, JoinHandle};

use fabric::sys;
use ofi::mutex::lock;
use ofi::{Library, Port, manners};
use sockets::peering::desk;
use sockets::peering::remote;
use sockets::{log, thread};

use crate::links::Gatekeeper;
use crate::work::Carrier;

/// Lets `sockets` start a carrier when it wants one. Before the program runs, and has threads.
pub fn offer() {
    if desk::is_asked_for() {
        manners::ask_for_them();
        desk::offer_carrier(start, stop, manners::forked);
    }
}

/// The thread that opens the port, and the port.
static OPENING: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static PORT: Mutex<Option<Port>> = Mutex::new(None);
/// The process that has it: children of fork() have a copy, and no thread.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Starts it: from any thread of the program, under no lock. What takes long is done by a thread.
fn start() {
    OWNER.store(sys::getpid(), Ordering::Release);
    // Called before the libraries' destructors, libfabric's among them, which would take it from under the threads.
    // SAFETY: a function of this signature, in a library that is never unloaded.
    if unsafe { libc::atexit(at_exit) } != 0 {
        return none("atexit() fails");
    }
    // Signals are for the program's own threads.
    let blocked = sys::block_signals(u64::MAX);
    let started = Builder::new().name("shunt-carrier".into()).spawn(|| {
        remote::note("opens libfabric");
        // A panic has been noted.
        let done = std::panic::catch_unwind(open).unwrap_or_else(|_| Err("see above".into()));
        if let Err(why) = done {
            none(why);
        }
    });
    sys::block_signals(blocked);
    match started {
        Ok(thread) => *lock(&OPENING) = Some(thread),
        Err(error) => none(error),
    }
}

fn none(why: impl std::fmt::Display) {
    desk::unavailable();
    log::note(options::LogLevel::Warn, format_args!("no connections between hosts: {why}"));
}

fn open() -> Result<(), String> {
    let before = manners::Before::now();
    thread::be_ours(true);
    // Opened before anything else is done with it.
    let found = Library::get().map_err(|error| error.to_string());
    before.keep_destructors();
    let done = found.and_then(|_| open_port());
    before.keep_destructors();
    thread::be_ours(false);
    before.restore();
    done
}

fn open_port() -> Result<(), String> {
    // To the log, as the program's standard error is its own.
    std::panic::set_hook(Box::new(|panic| {
        log::note(options::LogLevel::Warn, format_args!("please report this: {panic}"));
    }));
    let provider = remote::provider();
    let at = desk::first_address().map(address).ok_or("it is over already")?;
    let found = ofi::find(provider, Some(at)).map_err(|error| error.to_string())?;
    let found = found
        .iter()
        .find(|found| provider.is_some() || found.provider != ofi::TEST_PROVIDER)
        .ok_or_else(|| format!("libfabric finds no network for {at}"))?;
    let gate = Gatekeeper::new();
    let port = Port::open_with(found, gate.gate(), |port| Carrier::new(port, gate.clone(), &found.provider))
        .map_err(|error| error.to_string())?;
    *lock(&PORT) = Some(port);
    Ok(())
}

/// The process ends.
extern "C" fn at_exit() {
    stop();
}

/// Ends the thread, after what has been put is there.
fn stop() {
    if OWNER.load(Ordering::Acquire) != sys::getpid() {
        return;
    }
    let opening = lock(&OPENING).take();
    if let Some(opening) = opening {
        let _ = opening.join();
    }
    remote::leave();
    // What libfabric closes is its own.
    thread::be_ours(true);
    let port = lock(&PORT).take();
    drop(port);
    thread::be_ours(false);
    remote::serve_no_more();
}

/// As the standard library has it.
fn address(ip: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(ip);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}
