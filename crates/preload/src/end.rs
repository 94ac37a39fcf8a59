//! The end of a process that does not close its descriptors: connections that it shares with others
//! get its holds back.

use core::ffi::c_int;
use sockets::conn::{flag, state};
use sockets::rendezvous::meeting;
use sockets::{close, fork, process, table, worth};

use crate::next::hooks;

/// What is still open goes into the counts.
pub fn leave() {
    // Most programs never have a descriptor that matters here.
    if table::top_of_all() == 0 || process::ended() || process::borrowed() {
        return;
    }
    table::each_conn(|fd, conn| {
        if conn.slot_taken() {
            close::at_exit(conn, fd);
            // Once, however many numbers stand for it.
            if fd == conn.descriptor() && conn.state() == state::PROMOTED && !conn.has(flag::SHARED) {
                worth::ended(conn);
            }
            conn.count_moved();
        } else if !conn.has(flag::SHARED) {
            conn.count_last_reason();
        }
    });
    meeting::leave();
    // From here on others may do with the connections what they like.
    fork::leave();
}

hooks! {
    fn _exit(next; status: c_int) {
        leave();
        next(status)
    }
    fn _Exit(next; status: c_int) {
        leave();
        next(status)
    }
}
