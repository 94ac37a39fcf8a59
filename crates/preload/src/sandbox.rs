//! A process that locks itself in (seccomp, as sshd, vsftpd and browsers do): from then on a system
//! call that its filter does not know may end it, and ours are not in its author's list. So its
//! connections go back to tcp first, and then nothing of it is ours.

use core::ffi::{c_int, c_uint};
use sockets::peering::desk;
use sockets::reason::Reason;
use sockets::table::{self, Entry};
use sockets::{epoll, fork, process, relay, renounce};

use crate::next::hooks;
use crate::rights;

/// Before a filter is installed; `filter` may be null for strict mode only.
pub fn locking_in(mode: c_uint, filter: usize) {
    // Without a filter it fails, and asks whether the kernel can do it.
    let locks = mode == libc::SECCOMP_MODE_STRICT || mode == libc::SECCOMP_MODE_FILTER && filter != 0;
    if !locks || process::ended() || process::borrowed() {
        return;
    }
    end(Reason::Sandboxed);
}

/// Its connections go back to tcp, from then on every call is libc's, and nothing is shared with
/// anybody.
fn end(reason: Reason) {
    process::bar(reason);
    table::for_each(|fd, entry| {
        if let Entry::Conn(conn) = entry {
            relay::hand_over(conn, fd, reason, true);
            // The kernel's sets are all that there will be.
            epoll::leave(conn, fd);
        }
    });
    // Others may hold these connections; we no longer do, as after exec.
    fork::leave();
    // A filter may hold for all threads.
    desk::stop();
    table::for_each(|fd, _| {
        table::swap(fd, Entry::None);
    });
    process::end();
    renounce::everything(reason);
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
        match option {
            libc::PR_SET_SECCOMP => locking_in(a as c_uint, b),
            // So begins who locks itself in by other means (landlock, namespaces).
            libc::PR_SET_NO_NEW_PRIVS if a != 0 => rights::changing(),
            _ => {}
        }
        next(option, a, b, c, d)
    }
}
