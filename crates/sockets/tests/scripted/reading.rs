//! What is read: by tcp, then from the ring, from where the peer has announced.

use libc::EAGAIN;
use sockets::layout;

use crate::end::{SMALL, TCP};
use crate::{on_rings, pair, posted};

#[test]
fn bytes_of_tcp_are_read_while_nothing_is_announced() {
    let (ours, mut peer) = pair();
    assert_eq!(ours.recv(10), Err(EAGAIN));
    peer.by_tcp(b"early");
    assert_eq!((ours.unread(), ours.recv(3)), (5, Ok(b"ear".to_vec())));
    assert_eq!((ours.unread(), ours.recv(3)), (2, Ok(b"ly".to_vec())));
    assert_eq!((ours.recv(3), ours.paths().0), (Err(EAGAIN), TCP));
}

#[test]
fn a_read_goes_on_in_the_ring_where_that_is_announced() {
    let (ours, mut peer) = pair();
    peer.by_tcp(b"by tcp, ");
    peer.announce();
    peer.write(b"by the ring");
    assert_eq!((ours.unread(), ours.paths().0), (19, TCP));
    assert_eq!(ours.peek(30), Ok(b"by tcp, by the ring".to_vec()));
    assert_eq!(ours.recv(30), Ok(b"by tcp, by the ring".to_vec()));
    assert_eq!((ours.unread(), ours.recv(30), ours.paths().0), (0, Err(EAGAIN), SMALL));
}

#[test]
fn the_ring_waits_for_bytes_of_tcp_that_have_not_come() {
    let (ours, mut peer) = pair();
    peer.put(layout::SMALL_AT, 4 + 1);
    peer.write(b"ring");
    assert_eq!((ours.recv(10), ours.unread()), (Err(EAGAIN), 0));
    peer.by_tcp(b"12");
    assert_eq!((ours.recv(10), ours.recv(10)), (Ok(b"12".to_vec()), Err(EAGAIN)));
    peer.by_tcp(b"34");
    assert_eq!((ours.unread(), ours.recv(3)), (6, Ok(b"34r".to_vec())));
    assert_eq!(ours.recv(10), Ok(b"ing".to_vec()));
}

#[test]
fn bytes_that_were_read_before_the_offer_count() {
    let (ours, mut peer) = posted();
    peer.by_tcp(b"before");
    assert_eq!(ours.recv(10), Ok(b"before".to_vec()));
    peer.offer(&ours);
    ours.tick();
    assert!(peer.accepted());
    peer.announce();
    peer.write(b"behind");
    assert_eq!(ours.recv(10), Ok(b"behind".to_vec()));
}

#[test]
fn looks_take_nothing() {
    let (ours, mut peer) = on_rings();
    peer.write(b"abc");
    assert_eq!((ours.peek(2), ours.peek(9)), (Ok(b"ab".to_vec()), Ok(b"abc".to_vec())));
    assert_eq!((ours.unread(), peer.word(layout::R)), (3, 0));
    assert_eq!(ours.recv(2), Ok(b"ab".to_vec()));
    assert_eq!((ours.peek(9), ours.unread()), (Ok(b"c".to_vec()), 1));
}

#[test]
fn room_is_given_back_when_all_or_much_is_read() {
    let (ours, mut peer) = on_rings();
    peer.write(&[1; 5000]);
    assert_eq!(ours.recv(1000).map(|bytes| bytes.len()), Ok(1000));
    assert_eq!(peer.word(layout::R), 0);
    assert_eq!(ours.recv(2000).map(|bytes| bytes.len()), Ok(2000));
    assert_eq!(peer.word(layout::R), 3000);
    assert_eq!(ours.recv(9000).map(|bytes| bytes.len()), Ok(2000));
    assert_eq!(peer.word(layout::R), 5000);
}

#[test]
fn a_ring_goes_round() {
    let (ours, mut peer) = on_rings();
    let all: Vec<u8> = (0..50_000u32).map(|at| (at % 251) as u8).collect();
    for bytes in all.chunks(7_001) {
        peer.write(bytes);
        assert!(ours.recv(layout::SMALL).as_deref() == Ok(bytes));
        assert_eq!(peer.word(layout::R), peer.positions().0);
    }
}
