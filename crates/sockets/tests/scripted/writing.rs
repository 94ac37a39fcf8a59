//! What is written: the announcement of the ring, its room, and who is woken.

use fabric::trip;
use libc::EAGAIN;
use sockets::layout::{self, CALL_BELL};

use crate::end::{SMALL, TCP};
use crate::peer::Peer;
use crate::{full, on_rings, pair, posted};

#[test]
fn the_first_write_announces_how_much_went_by_tcp() {
    let (ours, mut peer) = posted();
    assert_eq!(ours.send(b"by tcp"), Ok(6));
    peer.offer(&ours);
    ours.tick();
    assert_eq!((ours.paths().1, peer.word(layout::SMALL_AT)), (TCP, 0));
    assert_eq!(ours.send(b"by the ring"), Ok(11));
    assert_eq!((ours.paths().1, peer.word(layout::SMALL_AT), peer.word(layout::W)), (SMALL, 6 + 1, 11));
    assert_eq!(peer.read(), b"by the ring");
    peer.take_tcp(b"by tcp");
}

#[test]
fn nothing_is_written_to_the_ring_of_a_refused_offer() {
    let (ours, mut peer) = posted();
    peer.set(layout::STATE, layout::CANCELLED);
    peer.offer_with(&ours, |message| message[16] ^= 1);
    ours.tick();
    assert!(peer.refused() && !peer.accepted() && !ours.is_managed());
    assert_eq!(ours.send(b"by tcp"), Ok(6));
    peer.take_tcp(b"by tcp");
}

#[test]
fn an_offer_that_was_taken_back_changes_nothing() {
    let (ours, mut peer) = posted();
    peer.offer(&ours);
    peer.set(layout::STATE, layout::CANCELLED);
    ours.tick();
    assert!(peer.accepted() && !ours.is_managed());
    assert_eq!(ours.send(b"by tcp"), Ok(6));
    peer.take_tcp(b"by tcp");
    peer.by_tcp(b"back");
    assert_eq!(ours.recv(9), Ok(b"back".to_vec()));
}

#[test]
fn a_full_ring_has_room_when_the_peer_has_read() {
    let (ours, peer) = on_rings();
    let all = [7; layout::SMALL];
    assert_eq!(ours.send(&all[..8000]), Ok(8000));
    assert_eq!(ours.send(&all[..8000]), Ok(8000));
    assert_eq!(ours.send(&all[..8000]), Ok(layout::SMALL - 16_000));
    assert_eq!(ours.send(b"more"), Err(EAGAIN));
    peer.put(layout::R, 5 + 3);
    assert_eq!((ours.send(b"more"), ours.send(b"more")), (Ok(3), Err(EAGAIN)));
    assert_eq!(peer.word(layout::W) as usize, 5 + layout::SMALL + 3);
}

#[test]
fn a_peer_that_is_armed_is_kicked_once() {
    let (ours, mut peer) = on_rings();
    peer.arm(trip::RX, trip::KICK, 0);
    assert_eq!((ours.send(b"a"), ours.send(b"b")), (Ok(1), Ok(1)));
    assert!(!peer.is_armed());
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (1, 1));
    peer.take_tcp(&[0]);
    peer.arm(trip::RX, trip::KICK, 0);
    assert_eq!(ours.send(b"c"), Ok(1));
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (2, 2));
    peer.take_tcp(&[0]);
    assert_eq!(peer.read(), b"abc");
}

#[test]
fn a_peer_that_waits_for_room_is_woken_by_reads_only() {
    let (ours, mut peer) = on_rings();
    peer.write(b"abc");
    peer.arm(trip::TX, trip::KICK, 0);
    assert_eq!(ours.send(b"x"), Ok(1));
    assert!(peer.is_armed());
    peer.nothing_by_tcp();
    assert_eq!(ours.recv(1), Ok(b"a".to_vec()));
    // It is told at once how much room there is.
    assert!(!peer.is_armed() && peer.word(layout::R) == 1);
    peer.take_tcp(&[0]);
}

#[test]
fn a_peer_is_woken_by_the_bell_that_it_asks_for() {
    let (ours, mut peer) = on_rings();
    for number in [CALL_BELL, 0] {
        peer.arm(trip::RX, trip::BELL, number as u8);
        assert_eq!(ours.send(b"x"), Ok(1));
        assert_eq!((peer.rung(number), peer.is_armed()), (1, false));
    }
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (0, 2));
    // One that it has not given: by a kick.
    peer.arm(trip::RX, trip::BELL, 5);
    assert_eq!(ours.send(b"x"), Ok(1));
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (1, 3));
    peer.take_tcp(&[0]);
}

#[test]
fn an_event_queue_gets_a_hint_and_its_bell_if_it_sleeps() {
    let (ours, mut peer) = on_rings();
    let hinted = |peer: &Peer| {
        let mut slots = Vec::new();
        fabric::hints::take(&peer.mine, layout::HINTS, |_| (), |slot| slots.push(slot));
        slots
    };
    peer.arm(trip::RX, trip::QUEUE, 0);
    assert_eq!(ours.send(b"x"), Ok(1));
    assert_eq!((hinted(&peer), peer.rung(0), peer.word(layout::FIRED)), (vec![peer.slot], 0, 1));
    assert_ne!(peer.word(layout::HINTED), 0);
    fabric::hints::arm_sleep(&peer.mine, layout::HINTS, trip::BELL, 0);
    peer.arm(trip::RX, trip::QUEUE, 0);
    assert_eq!(ours.send(b"x"), Ok(1));
    assert_eq!((hinted(&peer), peer.rung(0), peer.word(layout::FIRED)), (vec![peer.slot], 1, 2));
    assert!(!fabric::hints::sleeps(&peer.mine, layout::HINTS));
    peer.nothing_by_tcp();
    // By a queue whose bell we do not have another set may sleep now than the one that is meant.
    let queue = layout::HINTS + 3 * fabric::hints::BYTES;
    fabric::hints::arm_sleep(&peer.mine, queue, trip::BELL, 3);
    peer.arm(trip::RX, trip::QUEUE, 3);
    assert_eq!(ours.send(b"x"), Ok(1));
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (1, 3));
    assert!(fabric::hints::any(&peer.mine, queue) && fabric::hints::sleeps(&peer.mine, queue));
    peer.take_tcp(&[0]);
}

#[test]
fn who_kicks_has_left_tcp_before() {
    let (ours, mut peer) = pair();
    peer.announce();
    peer.write(b"abc");
    peer.arm(trip::TX, trip::KICK, 0);
    assert_eq!(ours.recv(9), Ok(b"abc".to_vec()));
    assert_eq!((peer.word(layout::SMALL_AT), ours.paths().1), (1, SMALL));
    assert_eq!((peer.word(layout::KICKS), peer.word(layout::FIRED)), (1, 1));
    peer.take_tcp(&[0]);
}

#[test]
fn a_kick_that_finds_no_room_is_a_debt_that_is_paid_first() {
    let (ours, mut peer, full) = full();
    assert_eq!(ours.send(b"ring"), Ok(4));
    for kicks in 1..=3 {
        peer.arm(trip::RX, trip::KICK, 0);
        assert_eq!(ours.send(b"x"), Ok(1));
        assert_eq!(peer.word(layout::KICKS), kicks);
    }
    peer.take_tcp(&vec![9; full]);
    // What is owed goes with the next one.
    crate::until("there is room", || fabric::sys::writable(ours.fd));
    peer.arm(trip::RX, trip::KICK, 0);
    assert_eq!(ours.send(b"x"), Ok(1));
    peer.take_tcp(&[0; 4]);
    assert_eq!(peer.read(), b"ringxxxx");
}

#[test]
fn more_than_a_piece_wakes_the_peer_at_its_beginning() {
    let (ours, mut peer) = on_rings();
    peer.arm(trip::RX, trip::BELL, CALL_BELL as u8);
    assert_eq!(ours.send(&[1; 100_000]), Ok(100_000));
    // Armed once, woken once, though the write has pieces.
    assert_eq!((peer.rung(CALL_BELL), peer.word(layout::FIRED)), (1, 1));
    assert_eq!(peer.read().len(), 100_000);
}
