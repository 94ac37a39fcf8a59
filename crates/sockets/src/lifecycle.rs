//! The beginning of a connection: a socket that the program has connected or accepted is followed
//! from then on.

use core::mem::transmute;

use fabric::sync::{AtomicUsize, Ordering};
use fabric::sys;

use crate::conn::{flag, state};
use crate::peering::wire;
use crate::reason::Reason;
use crate::rendezvous::steady;
use crate::socket::is_tcp;
use crate::table::{self, Entry};
use crate::{close, home, process, report};

/// What is to be done when there is a first connection; 0 if nothing is, or if it has been done.
static AT_FIRST: AtomicUsize = AtomicUsize::new(0);

/// Has something done when there is a first connection.
pub fn at_first(act: fn()) {
    AT_FIRST.store(act as usize, Ordering::Release);
}

/// With the lock of [`steady`], so that other threads wait until it is done, and no child of fork()
/// has half of it.
#[cold]
fn first() {
    let act = AT_FIRST.swap(0, Ordering::AcqRel);
    if act != 0 {
        // SAFETY: only `at_first` stores here, a function of this type.
        unsafe { transmute::<usize, fn()>(act)() };
    }
}

/// Begins to follow a connection that the program has just made (`client`) or accepted. `family`:
/// of the peer's address, if it is known; what need not be asked for makes short connections
/// cheaper. `service`: which one it is of ([`crate::worth::service`]).
pub fn track(fd: i32, client: bool, family: Option<i32>, service: u32) {
    if !process::active() || wire::is_progress_thread() {
        return;
    }
    let family = family.or_else(|| sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok());
    // What accept() gives is nearly always TCP, and asked about before it is posted; connect() is
    // much used for datagrams.
    if !matches!(family, Some(libc::AF_INET | libc::AF_INET6)) || client && !is_tcp(fd) {
        return;
    }
    let _steady = steady();
    let Some(conn) = home::take(close::abandon) else {
        report::count_reason(Reason::TableFull);
        return;
    };
    conn.reset();
    conn.refs.store(1, Ordering::Relaxed);
    conn.fd.store(fd as u32, Ordering::Relaxed);
    conn.pid.store(process::pid(), Ordering::Relaxed);
    conn.flags.store(if client { flag::CLIENT } else { 0 }, Ordering::Relaxed);
    conn.service.store(service, Ordering::Relaxed);
    conn.set_reason(Reason::Young);
    conn.state.store(state::NEW, Ordering::Release);
    report::add(report::at::TRACKED, 1);
    if AT_FIRST.load(Ordering::Relaxed) != 0 {
        first();
    }
    match table::swap(fd, Entry::Conn(conn)) {
        Some(Entry::None) => {}
        // A descriptor that was closed behind our back (by a call that we do not see) and given out
        // again.
        Some(Entry::Conn(old)) => crate::close::abandon(old),
        Some(_) => {}
        None => {
            report::count_reason(Reason::TableFull);
            home::give(conn);
        }
    }
}

/// Begins to follow a socket that gets a second number, or becomes a member of an epoll set, before
/// it is connected: by connect() only one number would be known, and no set.
pub fn track_unconnected(fd: i32) {
    let fresh = process::active()
        && is_tcp(fd)
        && matches!(sys::getpeername(fd), Err(sys::Errno::ENOTCONN))
        && sys::getsockopt::<i32>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(0);
    if fresh {
        track(fd, true, None, 0);
    }
}
