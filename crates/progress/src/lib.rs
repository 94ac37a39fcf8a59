//! The progress thread of a program under Shunt that has connections to other hosts. It makes links
//! (`ofi`) with the processes that this host's agent introduces, and carries out the work requests
//! that the program's threads put into outboxes (`sockets::peering::wire`), so that their bytes
//! reach the peers' memory. It is started when the first connection is posted whose other end may
//! be in the cluster. A program without such connections has no such thread, and never opens
//! libfabric.
//!
//! It is the only thread of the library. Two rules follow:
//!
//! * It waits for no lock that a thread of the program may hold, as that thread may be waiting for
//!   room in an outbox. (For one that is in the kernel's close() it waits, 20 ms at most.)
//! * Events of links are reported in the middle of other things. It notes them and handles them
//!   later, when it holds nothing (`work.rs`). The exceptions are requests that somebody waits for
//!   and that nothing can delay (`links.rs`).
//!
//! # Sockets between hosts
//!
//! They are the same connections on the same layout, in links with fewer slots (docs/cluster.md for
//! users). A connection is posted on the board and, if both addresses are in the option `cluster`,
//! with the agent; after the introduction it has `Conn::remote`. Hooks never call libfabric: they
//! put bytes into the shadow of the peer's segment (`Peer`) and, as work requests in order, into
//! the link's outbox ([`fabric::outbox`]). The progress thread, which is the port's thread, carries
//! them out; several of one stream that wait go together (`gather.rs`). Bytes that peers put land
//! in our segment by themselves. The consequences:
//!
//! * **Nothing that was put is known to have arrived** until the peer's progress thread has
//!   *echoed* (`Wire::settle`). Before anything goes by the companion that could be mistaken there
//!   (kicks, tcp behind a demotion, FIN), everything that was put before is settled.
//! * **Tripwires** are fired by the progress thread of the end that armed them, which rings its own
//!   bells; for a kick it asks the peer's. A reader that is alone sleeps by a bell.
//! * **Demotion** is announced in the companion itself by a *record*, END, as a word in memory
//!   could come after the bytes that it announces. Records begin with a mark that only the two ends
//!   know, so they are told from bytes and kicks wherever they stand.
//! * **The end of a link** is a recall by both ends at once. Each sends STOP (how far it has read)
//!   and END with the missing bytes, which lie in its shadow: those behind the peer's STOP if that
//!   has come, else all behind the place up to which the peer is known to have read, and the peer
//!   takes out what it has. Nobody waits for a STOP: it may stand behind bytes for which there is
//!   no room, or its end be shut for writing. The progress thread does it for an idle program.
//! * **A connection is left to the kernel alone** only when no record can come any more
//!   (`may_finish`). An end that sends END calls the peer's progress thread (HEAR), which peeks for
//!   it for a second and reports that it was found (END_HEARD), whatever the program does. Until
//!   then our polls of the companion are peeks, which the program must not notice (SO_PEEK_OFF is
//!   refused). A read goes on behind the 4 KB that were searched for records; a peek of the
//!   program's own (MSG_PEEK) cannot, so the search goes as far as it does.
//! * **Offers** are made by the end whose process has the smaller name, and taken back only by
//!   asking the peer to refuse. The end that has taken one uses the ring, and sends records, only
//!   when it knows that its answer was seen (`has_agreed`; TAKEN asks the peer's progress thread to
//!   look): a link may die with the answer, and the peer's end be none of Shunt's then. The end
//!   that has offered uses it when that has been echoed (`may_put`): if it is killed and the link
//!   died before, its peer takes the end for that of a connection that never moved.
//! * **fork()** takes connections back to tcp before it: libfabric and its thread are the parent's.
//!   A child of a process with a progress thread never has one.
//! * **Libraries that libfabric loads** shall not change the process. Threads of ours are known
//!   (`thread::is_ours`): handlers that libraries install from them are not installed, and
//!   descriptors that they make are hidden like our own (`makers.rs` of `preload`,
//!   `descriptors::for_library`). While one is made, or files of libraries are open, the program
//!   closes nothing (`descriptors::Opening`). What else changed while libfabric was opened is put
//!   back, and in children its destructors are taken out (`ofi::isolation`).
//! * **A process that ends** sends an END behind everything that it has put, notes `ENDING`, and
//!   asks nothing of its peers (`demote::begin_end`): their answers would lie unread in its socket,
//!   and the kernel would make a reset of that. Before, it takes back offers that are out
//!   (`rendezvous::end_remote`). Output of later steps, stdio's flush for example, goes by tcp.
//! * The progress thread is started when a connection has wanted one for 100 ms, never in a signal
//!   handler (starting a thread allocates). atexit() ends it, before libfabric's destructor.

mod gather;
mod links;
mod outboxes;
mod work;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use fabric::sys;
use ofi::mutex::lock;
use ofi::world::{Builder, JoinHandle};
use ofi::{Library, Port, isolation};
use sockets::peering::desk;
use sockets::peering::progress;
use sockets::{descriptors, log, thread};

use crate::links::Admission;
use crate::work::Progress;

/// Lets `sockets` start a progress thread when it needs one. To be called before the program runs,
/// and has threads.
pub fn offer() {
    if desk::is_asked_for() {
        descriptors::count_closing();
        isolation::ask_not_to_patch();
        desk::offer_progress_thread(start, stop, isolation::forked);
    }
}

/// The thread that opens the port; it returns the port.
static OPENING: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
static PORT: Mutex<Option<Port>> = Mutex::new(None);
/// The process that has the port: children of fork() have a copy, and no thread.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Starts it: called by any thread of the program, without locks. A new thread does what takes
/// long.
fn start() {
    OWNER.store(sys::getpid(), Ordering::Release);
    // Exit handlers run before the libraries' destructors, and libfabric's would remove what the
    // threads still use.
    // SAFETY: a function of this signature, in a library that is never unloaded.
    if cfg!(not(sim)) && unsafe { libc::atexit(at_exit) } != 0 {
        return none("atexit() fails");
    }
    // Signals are for the program's own threads.
    let blocked = sys::block_signals(u64::MAX);
    let started = Builder::new().name("shunt-progress".into()).spawn(|| {
        progress::note("opens libfabric");
        // The unwinder, for a panic: the program may take another root later.
        // SAFETY: a library that is made to be loaded by anybody.
        unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
        // The panic hook has logged a panic.
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
    if cfg!(sim) {
        return open_port();
    }
    let _opening = descriptors::Opening::begin();
    let before = isolation::Before::now();
    thread::be_ours(true);
    // Opened before any other use of libfabric.
    let found = Library::get().map_err(|error| error.to_string());
    before.keep_destructors();
    let done = found.and_then(|_| open_port());
    before.keep_destructors();
    thread::be_ours(false);
    before.restore();
    done
}

fn open_port() -> Result<(), String> {
    // To the log: the program's standard error is its own.
    std::panic::set_hook(Box::new(|panic| {
        log::note(options::LogLevel::Warn, format_args!("please report this: {panic}"));
    }));
    let provider = progress::provider();
    let at = desk::first_address().map(address).ok_or("it is over already")?;
    let found = ofi::find(provider, Some(at)).map_err(|error| error.to_string())?;
    let found = found
        .iter()
        .find(|found| provider.is_some() || found.provider != ofi::TEST_PROVIDER)
        .ok_or_else(|| format!("libfabric finds no network for {at}"))?;
    let admission = Admission::new();
    let port = Port::open_with(found, admission.gate(), |port| {
        Progress::new(port, admission.clone(), &found.provider)
    })
    .map_err(|error| error.to_string())?;
    *lock(&PORT) = Some(port);
    Ok(())
}

/// Called when the process ends: by libc, or by the simulator.
pub extern "C" fn at_exit() {
    stop();
}

/// Ends the thread, when all that was put has been delivered.
fn stop() {
    if OWNER.load(Ordering::Acquire) != sys::getpid() {
        return;
    }
    let opening = lock(&OPENING).take();
    if let Some(opening) = opening {
        let _ = opening.join();
    }
    progress::leave();
    // Descriptors that libfabric closes are its own.
    thread::be_ours(true);
    let port = lock(&PORT).take();
    drop(port);
    thread::be_ours(false);
    progress::serve_no_more();
}

/// An address in the standard library's form.
fn address(ip: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(ip);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}
