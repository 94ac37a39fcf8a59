//! Unread bytes of a ring that are to go by tcp after all: recalled by the peer, or by the library.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fabric::sys;
use libc::{EAGAIN, POLLIN, POLLOUT};
use sockets::layout::{self, note};

use crate::end::{End, LAST, RESEND, Reason, SMALL};
use crate::peer::Peer;
use crate::{full, on_rings, until};

const BY_WRITER: u64 = 1;
const BY_READER: u64 = 2;

/// The peer reads no more of the ring from where it is.
fn recall(peer: &Peer) {
    peer.put(layout::RECALL_AT, peer.positions().1);
    peer.tell(note::DEMOTE | note::RECALL);
}

#[test]
fn a_writer_sends_by_tcp_what_the_peer_recalls() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread, "), Ok(8));
    recall(&peer);
    assert_eq!(ours.send(b"new"), Ok(3));
    assert_eq!((peer.word(layout::TCP_AT), peer.word(layout::W), ours.paths().1), (5 + 1, 13, LAST));
    assert!(peer.word(layout::CLAIM) == BY_WRITER && ours.is_because(Reason::PeerAsked));
    peer.take_tcp(b"unread, new");
}

#[test]
fn one_that_only_waits_sends_it_too() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread"), Ok(6));
    recall(&peer);
    assert_eq!(ours.poll(POLLIN), 0);
    peer.take_tcp(b"unread");
}

#[test]
fn nothing_is_sent_again_if_all_is_read() {
    let (ours, mut peer) = on_rings();
    recall(&peer);
    assert_eq!(ours.send(b"new"), Ok(3));
    peer.take_tcp(b"new");
}

#[test]
fn bytes_of_both_rings_are_sent_again() {
    let (ours, mut peer) = on_rings();
    let all: Vec<u8> = (0..60_000u32).map(|at| (at % 251) as u8).collect();
    assert_eq!((ours.send(&all[..7000]), ours.send(&all[7000..])), (Ok(7000), Ok(53_000)));
    assert_ne!(peer.word(layout::BIG_AT), 0);
    recall(&peer);
    assert_eq!(ours.poll(POLLIN), 0);
    peer.take_tcp(&all);
}

/// A connection of which no more can be sent by tcp, though the peer has recalled what is unread;
/// and all that the library has sent.
fn without_room() -> (End, Peer, Vec<u8>) {
    let (ours, peer, full) = full();
    assert_eq!(ours.send(b"unread, "), Ok(8));
    recall(&peer);
    assert_eq!((ours.send(b"new"), ours.paths().1), (Err(EAGAIN), RESEND));
    (ours, peer, [&vec![9; full], &b"unread, "[..]].concat())
}

#[test]
fn what_finds_no_room_is_sent_before_anything_new() {
    let (ours, mut peer, before) = without_room();
    assert_eq!((ours.poll(POLLOUT), peer.word(layout::TCP_AT)), (0, 1));
    let mut got = Vec::new();
    until("it is sent", || {
        got.extend(peer.some_by_tcp());
        ours.send(b"new") == Ok(3)
    });
    let all = [&before, &b"new"[..]].concat();
    until("it has come", || {
        got.extend(peer.some_by_tcp());
        got.len() >= all.len()
    });
    assert!(got == all && ours.paths().1 == LAST);
}

/// The peer may have to get it before it answers.
#[test]
fn one_that_waits_to_read_sends_what_found_no_room() {
    let (ours, mut peer, all) = without_room();
    let (mut got, thread) = (Vec::new(), AtomicU32::new(0));
    let answer = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            thread.store(sys::gettid(), Ordering::Relaxed);
            ours.recv_with(9, 0)
        });
        until("it sleeps", || sys::sleeps_in(thread.load(Ordering::Relaxed)).is_some());
        let begin = Instant::now();
        while got.len() < all.len() && begin.elapsed() < Duration::from_secs(5) {
            got.extend(peer.some_by_tcp());
        }
        peer.by_tcp(b"answer");
        reader.join().unwrap()
    });
    assert!(got == all && answer == Ok(b"answer".to_vec()));
}

/// The writer's program may make no call for long, and the reader waits in the kernel.
#[test]
fn it_is_sent_at_once_whatever_the_send_buffer_is() {
    let (ours, mut peer) = on_rings();
    let all: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
    let before = small_buffers(&ours, &peer);
    assert_eq!(ours.send(&all), Ok(all.len()));
    recall(&peer);
    assert_eq!((ours.poll(POLLIN), ours.paths().1), (0, LAST));
    assert_eq!(before, send_buffer(ours.fd));
    peer.take_tcp(&all);
}

#[test]
fn a_borrowed_descriptor_has_room_for_all_that_is_unread() {
    let (ours, mut peer) = on_rings();
    let all: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
    small_buffers(&ours, &peer);
    let before = send_buffer(peer.tcp_fd());
    peer.grow(3);
    peer.write(&all);
    peer.lend_descriptor();
    assert!(ours.recall());
    assert_eq!(before, send_buffer(peer.tcp_fd()));
    let mut got = Vec::new();
    until("it has come", || {
        got.extend(ours.recv(all.len()).unwrap_or_default());
        got.len() >= all.len()
    });
    assert!(got == all && !ours.is_managed());
}

/// Of less than a big ring, at both ends; what ours is then.
fn small_buffers(ours: &End, peer: &Peer) -> (i32, i32) {
    for fd in [ours.fd, peer.tcp_fd()] {
        for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
            sys::setsockopt(fd, libc::SOL_SOCKET, option, 16_384).unwrap();
        }
    }
    send_buffer(ours.fd)
}

/// How large it is, and what the program has set of it (SO_BUF_LOCK).
fn send_buffer(fd: i32) -> (i32, i32) {
    let get = |option| sys::getsockopt(fd, libc::SOL_SOCKET, option);
    (get(libc::SO_SNDBUF).unwrap(), get(72).unwrap_or(0))
}

#[test]
fn a_reader_that_has_claimed_them_sends_the_first_and_we_the_rest() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread, "), Ok(8));
    recall(&peer);
    peer.set(layout::CLAIM, BY_READER);
    peer.put(layout::RESENT_TO, 5 + 3 + 1);
    assert_eq!(ours.send(b"new"), Ok(3));
    assert_eq!(peer.word(layout::CLAIM), BY_READER | BY_WRITER);
    peer.take_tcp(b"ead, new");
}

#[test]
fn a_recall_with_nothing_unread_is_done_at_once() {
    let (ours, mut peer) = on_rings();
    assert!(ours.recall());
    assert!(peer.was_told(note::DEMOTE | note::RECALL) && peer.word(layout::RECALL_AT) == 0);
    assert_eq!((ours.paths(), ours.is_managed()), ((LAST, LAST), false));
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(9), Ok(b"tcp".to_vec()));
}

/// A writer that takes longer than a millisecond is not waited for: so it does it before.
#[test]
fn what_the_writer_has_sent_by_tcp_is_not_read_in_the_ring() {
    let (ours, mut peer) = on_rings();
    peer.write(b"read, unread");
    assert_eq!(ours.recv(6), Ok(b"read, ".to_vec()));
    peer.set_their(layout::CLAIM, BY_WRITER);
    peer.put(layout::TCP_AT, 6 + 1);
    peer.by_tcp(b"unread");
    assert!(ours.recall());
    assert!(peer.was_told(note::DEMOTE | note::RECALL) && peer.word(layout::RECALL_AT) == 6);
    assert_eq!(peer.their(layout::CLAIM), BY_WRITER);
    assert_eq!((ours.is_managed(), ours.recv(9)), (false, Ok(b"unread".to_vec())));
}

#[test]
fn where_the_writer_does_nothing_its_descriptor_is_borrowed() {
    let (ours, mut peer) = on_rings();
    peer.write(b"unread");
    peer.lend_descriptor();
    assert!(ours.recall());
    assert_eq!((peer.their(layout::CLAIM), peer.word(layout::RESENT_TO)), (BY_READER, 6 + 1));
    assert_eq!((ours.is_managed(), ours.recv(9)), (false, Ok(b"unread".to_vec())));
}

#[test]
fn where_nobody_sends_them_they_are_kept() {
    let (ours, mut peer) = on_rings();
    peer.write(b"unread");
    assert!(!ours.recall());
    // The writer is told that all has been sent: what it writes next goes by tcp.
    assert_eq!((peer.their(layout::CLAIM), peer.word(layout::RESENT_TO)), (BY_READER, 6 + 1));
    assert_eq!((ours.paths().0, ours.unread(), ours.poll(POLLIN)), (SMALL, 6, POLLIN));
    assert_eq!(ours.recv(2), Ok(b"un".to_vec()));
    peer.leave();
    peer.by_tcp(b", tcp");
    assert_eq!((ours.recv(99), ours.paths().0), (Ok(b"read, tcp".to_vec()), LAST));
}

#[test]
fn a_recall_that_crosses_the_end_of_the_ring_is_void() {
    let (ours, mut peer) = on_rings();
    peer.write(b"unread");
    peer.leave();
    peer.by_tcp(b", tcp");
    assert!(!ours.recall());
    assert_eq!((ours.poll(POLLIN), ours.recv(99)), (POLLIN, Ok(b"unread, tcp".to_vec())));
}

#[test]
fn kicks_are_taken_out_before_the_kernel_has_the_connection() {
    let (ours, mut peer) = on_rings();
    peer.kicks(2);
    assert!(ours.recall());
    peer.leave();
    peer.by_tcp(b"tcp");
    assert_eq!(ours.recv(9), Ok(b"tcp".to_vec()));
}
