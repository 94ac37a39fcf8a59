//! A process that locks itself in (seccomp, as sshd, vsftpd and browsers do): from then on a system call that its filter does not
//! know may end it, and ours are not in its author's list. So its connections go back to tcp first, and then nothing of it is ours.

use core::ffi::{c_int, c_uint};
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{demote, far, fork, process};

use crate::next::hooks;

/// Before a filter is installed; `filter` may be null for strict mode only.
pub fn locking_in(mode: c_uint, filter: usize) {
    // Without a filter it fails, and asks whether the kernel can do it.
    let locks = mode == libc::SECCOMP_MODE_STRICT || mode == libc::SECCOMP_MODE_FILTER && filter != 0;
    if !locks || process::ended() || process::borrowed() {
        return;
    }
    process::bar(Reason::Sandboxed);
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            demote::hand_over(conn, fd, Reason::Sandboxed, true);
        }
    });
    // Others may hold these connections; we no longer do, as after exec.
    fork::leave();
    // A filter may hold for all threads.
    far::stop();
    table::for_each(|fd, _| {
        table::swap(fd, Entry::None);
    });
    process::end();
}

/// The same, in the words of seccomp().
pub fn seccomp(operation: c_uint, filter: usize) {
    match operation {
        libc::SECCOMP_SET_MODE_STRICT => locking_in(libc::SECCOMP_MODE_STRICT, 0),
        libc::SECCOMP_SET_MODE_FILTER => locking_in(libc::SECCOMP_MODE_FILTER, filter),
        _ => {}
    }
}

hooks! {
    fn prctl(next; option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
        if option == libc::PR_SET_SECCOMP {
            locking_in(a as c_uint, b);
        }
        next(option, a, b, c, d)
    }
}
