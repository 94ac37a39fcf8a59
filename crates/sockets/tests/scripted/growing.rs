//! From a small ring to a big one, each way.

use libc::EAGAIN;
use sockets::layout::{self, note};

use crate::end::{BIG, SMALL};
use crate::{on_rings, pair};

#[test]
fn a_large_write_moves_to_a_big_ring() {
    let (ours, mut peer) = on_rings();
    let all: Vec<u8> = (0..100_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!(ours.send(&all), Ok(100_000));
    assert_eq!((ours.paths().1, peer.word(layout::BIG_AT)), (BIG, 5 + 1));
    assert!((1..=layout::GROWN as u64).contains(&peer.word(layout::BIG_RING)));
    assert!(peer.read() == all);
}

#[test]
fn a_ring_that_keeps_filling_up_is_left_for_a_big_one_behind_what_is_unread() {
    let (ours, mut peer) = on_rings();
    let mut sent = 0;
    while ours.paths().1 == SMALL {
        match ours.send(&[3; 4096]) {
            Ok(count) => sent += count,
            Err(errno) => assert_eq!(errno, EAGAIN),
        }
        assert!(sent < layout::SMALL + 8192);
    }
    // What was put last is in the big ring, all before it in the small one.
    assert_eq!(peer.word(layout::BIG_AT) as usize, 5 + layout::SMALL + 1);
    assert!(peer.read() == vec![3; sent]);
}

#[test]
fn small_buffers_that_both_programs_have_set_keep_the_ring_small() {
    let (ours, mut peer) = on_rings();
    fabric::sys::setsockopt(ours.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 8192).unwrap();
    peer.tell(note::SMALL_BUFFERS);
    assert_eq!((ours.send(&[1; 100_000]), ours.paths().1), (Ok(layout::SMALL), SMALL));
    assert_eq!(ours.send(&[1; 100_000]), Err(EAGAIN));
    assert_eq!(peer.read().len(), layout::SMALL);
}

#[test]
fn a_reader_goes_over_to_the_big_ring_where_that_is_announced() {
    let (ours, mut peer) = on_rings();
    peer.write(b"small, ");
    peer.grow(3);
    peer.write(b"big");
    assert_eq!((ours.unread(), ours.paths().0), (10, SMALL));
    assert_eq!(ours.peek(20), Ok(b"small, big".to_vec()));
    assert_eq!((ours.recv(20), ours.paths().0), (Ok(b"small, big".to_vec()), BIG));
    let all: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
    peer.write(&all);
    assert!(ours.recv(300_000) == Ok(all));
    assert_eq!(peer.word(layout::R), peer.positions().0);
}

#[test]
fn a_reader_may_meet_all_paths_in_one_read() {
    let (ours, mut peer) = pair();
    peer.by_tcp(b"tcp, ");
    peer.announce();
    peer.write(b"small, ");
    peer.grow(16);
    peer.write(b"big, ");
    peer.leave();
    peer.by_tcp(b"tcp");
    let all = b"tcp, small, big, tcp";
    assert_eq!((ours.unread(), ours.peek(30)), (20, Ok(all.to_vec())));
    assert_eq!(ours.recv(30), Ok(all.to_vec()));
}
