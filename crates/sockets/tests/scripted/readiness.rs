//! What poll() and epoll_wait() say at each step, by calls that do not wait.

use libc::{EAGAIN, POLLHUP, POLLIN, POLLOUT, POLLRDHUP};
use libc::{EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};
use sockets::layout::{self, note};

use crate::end::{End, Set};
use crate::{on_rings, pair, until};

const BOTH: i16 = POLLIN | POLLOUT;

#[test]
fn a_poll_sees_bytes_by_each_path() {
    let (ours, mut peer) = pair();
    assert_eq!(ours.poll(BOTH), POLLOUT);
    peer.by_tcp(b"tcp");
    assert_eq!(ours.poll(BOTH), BOTH);
    assert_eq!((ours.recv(9), ours.poll(BOTH)), (Ok(b"tcp".to_vec()), POLLOUT));
    peer.announce();
    assert_eq!(ours.poll(BOTH), POLLOUT);
    peer.write(b"ring");
    assert_eq!((ours.poll(BOTH), ours.poll(POLLOUT), ours.poll(0)), (BOTH, POLLOUT, 0));
    assert_eq!((ours.recv(9), ours.poll(BOTH)), (Ok(b"ring".to_vec()), POLLOUT));
    peer.kick();
    assert_eq!(ours.poll(BOTH), POLLOUT);
    peer.leave();
    assert_eq!(ours.poll(BOTH), POLLOUT);
    peer.by_tcp(b"tcp");
    assert_eq!((ours.poll(BOTH), ours.recv(9), ours.poll(BOTH)), (BOTH, Ok(b"tcp".to_vec()), POLLOUT));
}

#[test]
fn a_poll_sees_a_third_of_the_ring_as_room() {
    let (ours, mut peer) = on_rings();
    while ours.send(&[1; 1000]).is_ok_and(|count| count == 1000) {}
    assert_eq!(ours.poll(BOTH), 0);
    let (all, third) = (peer.word(layout::W), layout::SMALL as u64 / 3);
    peer.put(layout::R, all - layout::SMALL as u64 + third - 1);
    assert_eq!(ours.poll(BOTH), 0);
    peer.put(layout::R, all - layout::SMALL as u64 + third);
    assert_eq!(ours.poll(BOTH), POLLOUT);
    // What is unread keeps nobody from tcp.
    ours.demote();
    assert_eq!(ours.poll(BOTH), POLLOUT);
    assert_eq!(peer.read().len() as u64, all - 5);
}

#[test]
fn a_poll_sees_ends_that_are_told() {
    let (ours, peer) = on_rings();
    peer.shut();
    assert_eq!(ours.poll(BOTH | POLLRDHUP), BOTH | POLLRDHUP);
    assert_eq!((ours.recv(9), ours.poll(BOTH)), (Ok(vec![]), BOTH));
}

/// The kernel alone knows of it.
#[test]
fn a_poll_that_does_not_wait_sees_that_the_peer_was_killed() {
    let (ours, mut peer) = on_rings();
    peer.die();
    until("it is told", || ours.poll(BOTH | POLLRDHUP) == BOTH | POLLRDHUP);
    assert_eq!(ours.recv(9), Ok(vec![]));
}

#[test]
fn a_poll_that_does_not_wait_sees_a_reset() {
    let (ours, mut peer) = on_rings();
    peer.reset();
    until("it is told", || ours.poll(POLLIN) & (POLLIN | POLLHUP) == POLLIN | POLLHUP);
}

fn read_all(ours: &End) {
    while ours.recv(999).is_ok() {}
}

#[test]
fn a_set_tells_of_bytes_by_each_path_as_long_as_they_are_there() {
    let (ours, mut peer) = pair();
    let set = Set::of(&ours, EPOLLIN);
    assert_eq!(set.told(), 0);
    peer.by_tcp(b"tcp");
    assert_eq!((set.told(), set.told()), (EPOLLIN, EPOLLIN));
    read_all(&ours);
    assert_eq!(set.told(), 0);
    peer.announce();
    peer.write(b"ring");
    peer.fire();
    assert_eq!((set.told(), set.told()), (EPOLLIN, EPOLLIN));
    read_all(&ours);
    assert_eq!(set.told(), 0);
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!((set.told(), set.told()), (EPOLLIN, EPOLLIN));
    read_all(&ours);
    assert_eq!(set.told(), 0);
}

#[test]
fn a_set_is_armed_where_it_has_found_nothing_and_told_by_a_hint() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    assert_eq!(set.told(), 0);
    assert_eq!(peer.armed() & fabric::trip::MODE, fabric::trip::QUEUE);
    // Put without a hint it is not seen: whoever puts it fires.
    peer.write(b"a");
    assert_eq!(set.told(), 0);
    peer.fire();
    assert_eq!((set.told(), peer.armed()), (EPOLLIN, 0));
    // While it is on the list, nothing needs to be told.
    peer.write(b"b");
    assert_eq!((ours.recv(9), set.told()), (Ok(b"ab".to_vec()), 0));
    assert_ne!(peer.armed(), 0);
}

#[test]
fn a_set_tells_of_an_edge_once() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN | EPOLLET);
    assert_eq!(set.told(), 0);
    for _ in 0..2 {
        peer.write(b"a");
        peer.fire();
        assert_eq!((set.told(), set.told()), (EPOLLIN, 0));
    }
    assert_eq!((ours.recv(9), ours.recv(9), set.told()), (Ok(b"aa".to_vec()), Err(EAGAIN), 0));
    // By tcp behind the ring, too.
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!((set.told(), set.told()), (EPOLLIN, 0));
}

#[test]
fn a_set_tells_of_a_shot_once() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN | EPOLLONESHOT);
    peer.write(b"a");
    assert_eq!((set.told(), set.told()), (EPOLLIN, 0));
    set.control(EPOLL_CTL_MOD, &ours, EPOLLIN | EPOLLONESHOT);
    assert_eq!((set.told(), set.told()), (EPOLLIN, 0));
    set.control(EPOLL_CTL_DEL, &ours, 0);
    peer.write(b"b");
    assert_eq!(set.told(), 0);
}

#[test]
fn a_set_tells_of_room_when_the_peer_has_read() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLOUT | EPOLLET);
    assert_eq!((set.told(), set.told()), (EPOLLOUT, 0));
    while ours.send(&[1; 1000]).is_ok() {}
    assert_eq!(set.told(), 0);
    assert_ne!(peer.armed() & fabric::trip::TX, 0);
    peer.read();
    peer.fire();
    assert_eq!((set.told(), set.told()), (EPOLLOUT, 0));
}

#[test]
fn a_kick_is_no_event_of_a_set() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    assert_eq!(set.told(), 0);
    peer.kick();
    assert_eq!((set.told(), fabric::sys::ioctl_int(ours.fd, libc::FIONREAD)), (0, Ok(0)));
}

#[test]
fn a_set_tells_of_the_end_told_or_not() {
    for told in [true, false] {
        let (ours, mut peer) = on_rings();
        let set = Set::of(&ours, EPOLLIN | EPOLLRDHUP);
        assert_eq!(set.told(), 0);
        if told {
            peer.tell(note::CLOSED);
        }
        peer.die();
        until("it is told", || set.told() == EPOLLIN | EPOLLRDHUP);
        assert_eq!(ours.recv(9), Ok(vec![]));
    }
}

/// As soon as a link between hosts is found over, it may be known that the end is a reset.
#[test]
fn a_set_tells_again_of_an_end_whose_link_is_over() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN | EPOLLRDHUP | EPOLLET);
    assert_eq!(set.told(), 0);
    peer.die();
    until("it is told", || set.told() == EPOLLIN | EPOLLRDHUP);
    assert_eq!(set.told(), 0);
    ours.link_is_over();
    peer.fire();
    assert_eq!((set.told(), set.told()), (EPOLLIN | EPOLLRDHUP, 0));
}

#[test]
fn a_member_that_goes_back_to_tcp_is_the_kernels() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    assert_eq!(set.told(), 0);
    ours.demote();
    peer.leave();
    assert_eq!((ours.recv(9), ours.is_managed(), set.told()), (Err(EAGAIN), false, 0));
    peer.by_tcp(b"tcp");
    assert_eq!((set.told(), ours.recv(9), set.told()), (EPOLLIN, Ok(b"tcp".to_vec()), 0));
}

#[test]
fn bytes_that_are_kept_after_a_recall_are_told_of_by_a_set() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    peer.write(b"unread");
    assert!(!ours.recall());
    assert_eq!((set.told(), ours.recv(9), set.told()), (EPOLLIN, Ok(b"unread".to_vec()), 0));
}

#[test]
fn a_member_whose_number_stands_for_it_again_is_told_of_once() {
    let (ours, mut peer) = on_rings();
    let set = Set::of(&ours, EPOLLIN);
    peer.write(b"unread");
    // What is kept is told of by a stand-in.
    ours.renumber(|| assert_eq!(set.told(), EPOLLIN));
    assert_eq!(set.told(), EPOLLIN);
    set.control(EPOLL_CTL_MOD, &ours, EPOLLIN);
    assert_eq!(set.told(), EPOLLIN);
    set.control(EPOLL_CTL_DEL, &ours, 0);
    assert_eq!(set.told(), 0);
}
