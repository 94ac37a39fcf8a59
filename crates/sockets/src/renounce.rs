//! What a process gives up before it becomes a lesser one (another user, fewer rights, a namespace
//! of its own). It may be taken over later, and must not be able then to write what those read who
//! are more: a child of fork() shares the home and the links of its parent. So its connections go
//! back to tcp for good, what is shared is changed for memory of its own at the same addresses
//! (threads may be looking there, or have bytes to read), and our descriptors are closed, as each
//! leads back to something shared. Connections that it makes later are followed as any other's.

use fabric::sync::Ordering;

use crate::conn::{Conn, flag};
use crate::peering::desk;
use crate::reason::Reason;
use crate::relay;
use crate::table::{self, Entry};
use crate::{bells, board, descriptors, epoll, fork, home, link, process, rendezvous};

/// Whether the process has, or shares, anything of ours.
pub fn has_anything() -> bool {
    home::any() || link::any() || rendezvous::own_token() != 0
}

/// Gives all of it up.
pub fn everything(reason: Reason) {
    each(|conn, fd| {
        relay::hand_over(conn, fd, reason, false);
    });
    desk::stop();
    // The others who have them go on as if this process had closed them.
    each(|conn, _| {
        fork::give_back(conn);
    });
    rendezvous::renounce();
    rendezvous::send_all_away();
    link::renounce();
    home::renounce();
    // From here on it has what it has alone.
    let ours = |conn: &Conn| conn.has(flag::SHARED);
    each(|conn, _| {
        if ours(conn) {
            conn.refs.store(0, Ordering::Relaxed);
        }
    });
    each(|conn, _| {
        if ours(conn) {
            conn.refs.fetch_add(1, Ordering::Relaxed);
        }
    });
    each(|conn, _| {
        conn.clear(flag::SHARED);
        conn.pid.store(process::pid(), Ordering::Relaxed);
    });
    epoll::renounce();
    bells::renounce();
    board::renounce();
    close_own();
}

fn each(mut each: impl FnMut(&'static Conn, i32)) {
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            each(conn, fd);
        }
    });
}

/// Closes all descriptors of ours but those of libraries and of the program's epoll sets.
fn close_own() {
    for fd in 0..table::top_of_all() {
        let of_library = descriptors::is_of_library(fd);
        if matches!(table::entry(fd), Entry::Own) && !of_library && !epoll::uses(fd) {
            descriptors::unhide(fd);
        }
    }
}
