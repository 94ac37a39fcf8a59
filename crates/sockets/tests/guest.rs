//! What differs where the library is a guest ([`sockets::process::is_guest`]): one process of its
//! own, as that cannot be taken back. What programs see of it is tested in `crates/native`.

use std::os::fd::{AsRawFd, IntoRawFd};

use fabric::sync::Ordering;
use sockets::conn::flag;
use sockets::table::{self, Entry};
use sockets::{descriptors, fork, home, process, signals};

#[test]
fn a_guest() {
    process::be_guest();
    process::start();

    // A fork() changes nothing in the parent: a connection that counts as shared is woken the slow
    // way for good.
    let conn = home::take(|_| ()).unwrap();
    conn.reset();
    conn.refs.store(1, Ordering::Relaxed);
    table::swap(40, Entry::Conn(conn));
    fork::prepare();
    fork::parent();
    assert_eq!((conn.refs.load(Ordering::Relaxed), conn.has(flag::SHARED)), (1, false));
    table::swap(40, Entry::None);

    // It does not know which handlers restart calls.
    assert!(!signals::restarts());

    // One that is not what it was any more is neither taken for ours nor closed.
    let own = descriptors::hide(std::fs::File::open("/dev/null").unwrap().into_raw_fd());
    assert!(descriptors::intact(own));
    let other = std::fs::File::open("/proc/self/maps").unwrap();
    // SAFETY: the number is the one that was hidden.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), own) }, own);
    assert!(!descriptors::intact(own));
    descriptors::unhide(own);
    // SAFETY: asks only.
    assert!(unsafe { libc::fcntl(own, libc::F_GETFD) } >= 0, "it was closed");
    assert!(!table::is_own(own));
}
