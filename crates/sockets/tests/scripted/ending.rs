//! The end of a connection, or of a half: told, or found out from the kernel.

use std::thread;
use std::time::{Duration, Instant};

use fabric::{Local, sys, trip};
use libc::{ECONNRESET, EPIPE, MSG_WAITALL, POLLIN, POLLOUT, SHUT_WR};
use sockets::layout::{self, note};

use crate::end::{LAST, Reason, SMALL};
use crate::{on_rings, pair, until};

#[test]
fn close_tells_the_peer_and_leaves_the_slot() {
    let (ours, mut peer) = on_rings();
    peer.arm(trip::RX, trip::BELL, layout::CALL_BELL as u8);
    assert!(!peer.was_told(note::CLOSED));
    ours.close();
    assert!(peer.was_told(note::CLOSED | note::GONE) && peer.rung(layout::CALL_BELL) == 1);
    assert!(peer.end_by_tcp().is_ok());
}

#[test]
fn close_with_bytes_unread_is_a_reset() {
    let (ours, mut peer) = on_rings();
    peer.write(b"unread");
    ours.close();
    assert!(peer.was_told(note::CLOSED | note::GONE));
    assert_eq!(peer.end_by_tcp().unwrap_err().raw_os_error(), Some(ECONNRESET));
}

#[test]
fn close_with_nothing_but_kicks_unread_is_none() {
    let (ours, mut peer) = on_rings();
    peer.kicks(2);
    ours.close();
    assert!(peer.end_by_tcp().is_ok());
}

#[test]
fn close_waits_for_a_kick_that_is_on_its_way() {
    let (ours, mut peer) = on_rings();
    ours.has_no_bells();
    thread::scope(|scope| {
        let reader = scope.spawn(|| ours.recv_with(9, 0));
        until("it sleeps", || peer.armed() & trip::MODE == trip::KICK);
        peer.write(b"x");
        let armed = peer.theirs.swap_word(peer.at(layout::TRIP), 0);
        assert_eq!(armed & !trip::ASLEEP, trip::armed(trip::RX, trip::KICK, 0));
        peer.kick();
        assert_eq!(reader.join().unwrap(), Ok(b"x".to_vec()));
        // That firing has not been carried out yet, as far as is known.
        peer.kick();
        let (begin, closing) = (Instant::now(), scope.spawn(|| ours.close()));
        until("it takes the kick", || sys::ioctl_int(ours.fd, libc::FIONREAD) == Ok(0));
        let told = peer.was_told(note::CLOSED);
        assert!(!told || begin.elapsed() > Duration::from_millis(100));
        peer.carried_out();
        closing.join().unwrap();
    });
    assert!(peer.end_by_tcp().is_ok());
}

#[test]
fn close_before_the_ring_is_used_is_the_kernels() {
    let (ours, mut peer) = pair();
    peer.by_tcp(b"unread");
    ours.close();
    assert!(peer.was_told(note::CLOSED | note::GONE));
    assert_eq!(peer.end_by_tcp().unwrap_err().raw_os_error(), Some(ECONNRESET));
}

#[test]
fn a_slot_is_given_out_again_when_both_have_left_it() {
    let (ours, mut peer) = on_rings();
    let (next, tcp) = ours.beside();
    peer.close();
    peer.turn_to(&next, tcp);
    peer.offer(&next);
    next.tick();
    // We have not left it: such an offer is none.
    assert!(!peer.accepted() && !peer.refused() && !next.is_managed());
    ours.close();
    assert!(peer.was_told(note::GONE));
    peer.offer(&next);
    next.tick();
    assert!(peer.accepted() && !peer.was_told(note::GONE));
    assert_eq!((next.send(b"next"), peer.read()), (Ok(4), b"next".to_vec()));
}

#[test]
fn what_a_peer_wrote_before_it_closed_is_read_before_the_end() {
    let (ours, mut peer) = on_rings();
    assert_eq!(peer.read(), b"");
    peer.write(b"last words");
    peer.close();
    assert_eq!(ours.poll(POLLIN | libc::POLLRDHUP), POLLIN | libc::POLLRDHUP);
    assert_eq!(
        (ours.recv(4), ours.recv(99), ours.recv(9)),
        (Ok(b"last".to_vec()), Ok(b" words".to_vec()), Ok(vec![]))
    );
    assert_eq!(ours.recv(9), Ok(vec![]));
}

#[test]
fn who_writes_to_a_peer_that_has_closed_goes_by_tcp_which_says_so() {
    let (ours, mut peer) = on_rings();
    peer.close();
    assert_eq!(ours.send(b"x"), Ok(1));
    assert!(ours.paths().1 == LAST && ours.is_because(Reason::PeerGone));
    until("the kernel refuses it", || sys::waits_for(ours.fd, libc::POLLHUP, 0));
    assert!(matches!(ours.send(b"x"), Err(EPIPE | ECONNRESET)));
}

#[test]
fn a_peer_killed_with_bytes_unread_resets_once() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread"), Ok(6));
    peer.write(b"last");
    peer.die();
    assert_eq!(ours.recv(9), Ok(b"last".to_vec()));
    assert_eq!((ours.recv_with(9, 0), ours.recv(9)), (Err(ECONNRESET), Ok(vec![])));
}

#[test]
fn a_read_that_waits_for_all_leaves_the_reset_to_the_next() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread"), Ok(6));
    peer.write(b"last");
    peer.die();
    assert_eq!(ours.recv_with(9, MSG_WAITALL), Ok(b"last".to_vec()));
    assert_eq!((ours.recv_with(9, 0), ours.recv(9)), (Err(ECONNRESET), Ok(vec![])));
}

#[test]
fn a_peer_killed_with_nothing_unread_ends() {
    let (ours, mut peer) = on_rings();
    peer.die();
    assert_eq!((ours.recv_with(9, 0), ours.recv(9)), (Ok(vec![]), Ok(vec![])));
}

#[test]
fn a_peer_that_is_killed_beside_unread_kicks_of_ours_ends_all_the_same() {
    let (ours, mut peer) = on_rings();
    peer.arm(trip::RX, trip::KICK, 0);
    assert_eq!((ours.send(b"x"), peer.read()), (Ok(1), b"x".to_vec()));
    // The kernel resets the connection, as it takes the kick for data.
    peer.die();
    assert_eq!((ours.recv_with(9, 0), ours.recv(9)), (Ok(vec![]), Ok(vec![])));
}

#[test]
fn a_peer_that_has_shut_its_half_lives() {
    let (ours, mut peer) = on_rings();
    peer.write(b"last");
    peer.shut();
    assert_eq!((ours.recv(9), ours.recv(9)), (Ok(b"last".to_vec()), Ok(vec![])));
    assert_eq!((ours.send(b"more"), ours.paths().1), (Ok(4), SMALL));
    assert_eq!(peer.read(), b"more");
}

#[test]
fn a_half_is_shut_when_both_directions_are_on_their_way_to_tcp() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"last"), Ok(4));
    ours.shutdown(SHUT_WR);
    assert_eq!((peer.word(layout::TCP_AT), peer.read()), (9 + 1, b"last".to_vec()));
    assert!(peer.was_told(note::DEMOTE | note::SHUT_WR) && ours.is_because(Reason::Half));
    assert!(peer.end_by_tcp().is_ok());
    assert!(matches!(ours.send(b"x"), Err(EPIPE)));
    peer.write(b"ring, ");
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(9), Ok(b"ring, tcp".to_vec()));
}

#[test]
fn a_half_is_shut_behind_what_the_peer_has_recalled() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread"), Ok(6));
    peer.put(layout::RECALL_AT, peer.positions().1);
    peer.tell(note::DEMOTE | note::RECALL);
    ours.shutdown(SHUT_WR);
    let mut got = Vec::new();
    until("it comes", || {
        got.extend(peer.some_by_tcp());
        got.len() >= 6
    });
    assert!(got == b"unread" && peer.end_by_tcp().is_ok());
}

#[test]
fn a_reset_comes_behind_what_is_in_the_ring() {
    let (ours, mut peer) = on_rings();
    peer.write(b"last");
    peer.tell(note::CLOSED);
    peer.reset();
    assert_eq!(
        (ours.recv(9), ours.recv(9), ours.recv(9)),
        (Ok(b"last".to_vec()), Err(ECONNRESET), Ok(vec![]))
    );
    assert_ne!(ours.poll(POLLOUT) & libc::POLLHUP, 0);
}
