//! Back to tcp, because the library's program needs it or because the peer asks.

use fabric::trip;
use libc::{EAGAIN, POLLIN};
use sockets::layout::{self, note};

use crate::end::{LAST, Reason, SMALL, TCP};
use crate::{on_rings, pair, posted};

#[test]
fn who_leaves_tells_the_peer_and_says_where_tcp_goes_on() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b" you"), Ok(4));
    ours.demote();
    assert_eq!((ours.paths(), peer.word(layout::TCP_AT)), ((SMALL, LAST), 9 + 1));
    assert!(peer.was_told(note::DEMOTE) && !peer.was_told(note::RECALL) && ours.is_because(Reason::Option));
    assert_eq!(ours.send(b"by tcp"), Ok(6));
    assert_eq!(peer.word(layout::W), 9);
    peer.take_tcp(b"by tcp");
    // What the peer still puts into the ring is read there.
    peer.write(b"ring");
    assert_eq!((ours.recv(9), ours.is_managed()), (Ok(b"ring".to_vec()), true));
}

#[test]
fn a_peer_that_sleeps_is_woken_before_tcp_goes_on() {
    let (ours, mut peer) = on_rings();
    peer.arm(trip::RX | trip::TX, trip::KICK, 0);
    ours.demote();
    assert_eq!(
        (peer.word(layout::KICKS), peer.word(layout::FIRED), peer.word(layout::TCP_AT)),
        (1, 1, 5 + 1)
    );
    // No kick goes behind that, however the peer is armed.
    peer.arm(trip::RX | trip::TX, trip::KICK, 0);
    peer.write(b"abc");
    assert_eq!((ours.send(b"tcp"), ours.recv(9)), (Ok(3), Ok(b"abc".to_vec())));
    assert_eq!(peer.word(layout::KICKS), 1);
    peer.take_tcp(b"\0tcp");
}

#[test]
fn one_that_has_not_written_to_the_ring_goes_there_to_leave() {
    let (ours, mut peer) = pair();
    ours.demote();
    assert_eq!((peer.word(layout::SMALL_AT), peer.word(layout::TCP_AT), ours.paths()), (1, 1, (TCP, LAST)));
    assert_eq!(ours.send(b"tcp"), Ok(3));
    peer.take_tcp(b"tcp");
}

#[test]
fn when_both_directions_are_back_calls_are_the_kernels() {
    let (ours, mut peer) = on_rings();
    let nodelay = || fabric::sys::getsockopt::<i32>(ours.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY);
    assert_eq!(nodelay(), Ok(1));
    peer.write(b"ring");
    ours.demote();
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!((ours.recv(4), ours.is_managed()), (Ok(b"ring".to_vec()), true));
    assert_eq!((ours.recv(9), ours.is_managed()), (Ok(b"tcp".to_vec()), false));
    assert_eq!((nodelay(), ours.is_new()), (Ok(0), false));
    assert_eq!(ours.send(b"tcp"), Ok(3));
    peer.take_tcp(b"tcp");
}

#[test]
fn a_peer_that_goes_through_exec_may_have_the_connection_in_memory_again() {
    let (ours, mut peer) = on_rings();
    peer.put(layout::RECALL_AT, 5);
    peer.tell(note::DEMOTE | note::RECALL | note::AGAIN);
    peer.leave();
    assert_eq!((ours.recv(9), ours.poll(POLLIN)), (Err(EAGAIN), 0));
    assert!(!ours.is_managed() && ours.is_new());
    // Its next image posts it again, and offers another slot.
    let settled = ours.settled();
    ours.tick();
    peer.slot = 2;
    peer.anew();
    peer.offer(&ours);
    ours.tick();
    assert!(peer.accepted() && ours.is_managed());
    assert_eq!(ours.settled(), settled + 1, "who is about to sleep sees that it is another slot");
    assert_eq!(ours.send(b"again"), Ok(5));
    assert_eq!(peer.read(), b"again");
    ours.close();
}

#[test]
fn a_writer_leaves_when_the_peer_asks_for_it() {
    let (ours, mut peer) = on_rings();
    peer.tell(note::DEMOTE);
    peer.leave();
    assert_eq!(ours.send(b"tcp"), Ok(3));
    assert_eq!(peer.word(layout::TCP_AT), 5 + 1);
    assert!(peer.was_told(note::DEMOTE) && ours.is_because(Reason::PeerAsked));
    peer.take_tcp(b"tcp");
    assert_eq!((ours.recv(9), ours.is_managed()), (Err(EAGAIN), false));
}

#[test]
fn one_that_only_waits_leaves_when_the_peer_asks_for_it() {
    let (ours, mut peer) = on_rings();
    peer.tell(note::DEMOTE);
    assert_eq!((ours.poll(POLLIN), ours.paths()), (0, (SMALL, LAST)));
    assert_eq!(peer.word(layout::TCP_AT), 5 + 1);
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!((ours.poll(POLLIN), ours.recv(9)), (POLLIN, Ok(b"tcp".to_vec())));
}

#[test]
fn a_peer_that_demotes_is_read_to_the_end_of_the_ring() {
    let (ours, mut peer) = on_rings();
    peer.write(b"ring, ");
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(4), Ok(b"ring".to_vec()));
    assert_eq!((ours.recv(9), ours.paths()), (Ok(b", tcp".to_vec()), (LAST, SMALL)));
    // The other direction stays.
    assert_eq!((ours.send(b"!"), peer.read()), (Ok(1), b"!".to_vec()));
}

#[test]
fn a_fork_makes_the_connection_one_of_two_processes() {
    let (ours, mut peer) = on_rings();
    ours.fork();
    assert!(ours.is_shared() && ours.is_managed());
    peer.write(b"abc");
    assert_eq!((ours.recv(9), ours.send(b"def")), (Ok(b"abc".to_vec()), Ok(3)));
    assert_eq!(peer.read(), b"def");
    // Who sleeps is woken by kicks only: a bell is the parent's alone.
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| ours.poll_for(POLLIN, None));
        crate::until("it sleeps", || peer.armed() != 0);
        assert_eq!(peer.armed() & trip::MODE, trip::KICK);
        peer.write(b"g");
        peer.fire();
        assert_eq!(poller.join().unwrap(), POLLIN);
    });
}

#[test]
fn a_fork_takes_no_offer() {
    let (ours, mut peer) = posted();
    ours.fork();
    peer.offer(&ours);
    ours.tick();
    assert!(peer.refused() && !ours.is_managed());
    assert_eq!(ours.send(b"tcp"), Ok(3));
    peer.take_tcp(b"tcp");
}
