//! Bytes in the companion that are no data, beside a ring and behind it.

use libc::{EAGAIN, POLLIN};
use sockets::layout;

use crate::on_rings;

#[test]
fn kicks_that_were_counted_are_nobodys_bytes() {
    let (ours, mut peer) = on_rings();
    peer.kicks(3);
    assert_eq!((ours.unread(), ours.poll(POLLIN), ours.recv(9)), (0, 0, Err(EAGAIN)));
    peer.write(b"abc");
    assert_eq!((ours.unread(), ours.recv(9)), (3, Ok(b"abc".to_vec())));
}

#[test]
fn a_poll_takes_kicks_only_if_something_else_may_have_come() {
    let (ours, mut peer) = on_rings();
    peer.kick();
    assert_eq!(ours.poll(POLLIN), 0);
    // The peer says that it ends, so the kernel is asked: it has a kick and no end.
    peer.tell(layout::note::SHUT_WR);
    assert_eq!(ours.poll(POLLIN), 0);
    assert_eq!(fabric::sys::ioctl_int(ours.fd, libc::FIONREAD), Ok(0), "the kick is taken");
}

#[test]
fn a_kick_that_was_counted_and_has_not_come_is_waited_for_where_tcp_goes_on() {
    let (ours, mut peer) = on_rings();
    peer.write(b"ring");
    peer.count_kicks(1);
    peer.leave();
    assert_eq!(ours.recv(9), Ok(b"ring".to_vec()));
    assert_eq!(ours.recv(9), Err(EAGAIN));
    peer.send_kicks(1);
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(9), Ok(b"tcp".to_vec()));
}

#[test]
fn kicks_lie_before_what_goes_by_tcp_again() {
    let (ours, mut peer) = on_rings();
    peer.write(b"ring, ");
    peer.kicks(2);
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!((ours.unread(), ours.peek(9)), (9, Ok(b"ring, tcp".to_vec())));
    assert_eq!(ours.recv(9), Ok(b"ring, tcp".to_vec()));
}

#[test]
fn many_kicks_are_taken_together() {
    let (ours, mut peer) = on_rings();
    peer.kicks(300);
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(9), Ok(b"tcp".to_vec()));
}

#[test]
fn a_byte_that_nobody_counted_is_read_as_the_kernel_has_it() {
    let (ours, mut peer) = on_rings();
    peer.kick();
    peer.by_tcp(b"?");
    peer.write(b"ring");
    assert_eq!(ours.recv(9), Ok(b"ring".to_vec()));
    crate::until("the kernel is asked", || match ours.recv(9) {
        Err(EAGAIN) => false,
        got => {
            assert_eq!(got, Ok(b"?".to_vec()));
            true
        }
    });
}
