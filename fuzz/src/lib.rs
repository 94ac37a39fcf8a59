//! What fuzzers of whole connections have in common.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};

use fabric::sys;
use sockets::conn::Conn;
use sockets::{lifecycle, rendezvous, table};

/// How many descriptors there are, ours among them.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is there").count()
}

/// A new connection: the peer's end, and ours, which is followed and posted.
pub fn connection(listener: &TcpListener) -> (TcpStream, i32, &'static Conn) {
    let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("a connection");
    let fd = listener.accept().expect("its other end").0.into_raw_fd();
    let _ = sys::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize);
    peer.set_nonblocking(true).expect("a socket");
    // No TIME_WAIT: there are only so many ports.
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    sys::setsockopt(peer.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, linger).expect("a socket");
    lifecycle::track(fd, false, None, 0);
    let conn = table::conn(fd).expect("it is followed");
    sockets::seen::waited_for(conn);
    rendezvous::tick(conn, fd);
    (peer, fd, conn)
}
