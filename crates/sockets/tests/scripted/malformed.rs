//! Words and messages that no sound peer puts. A position that cannot be ends the connection, and
//! only this one; whatever can be left out of account is.

use fabric::Remote;
use libc::{EAGAIN, ECONNRESET, POLLIN};
use sockets::layout::{self, CLAIM, note};

use crate::end::{End, Reason, SMALL, TCP};
use crate::peer::Peer;
use crate::{on_rings, pair, posted, until};

/// The peer broke the protocol, which the kernel tells both.
fn is_broken(ours: &End, peer: &mut Peer) {
    assert!(ours.is_because(Reason::Broken));
    assert_eq!(ours.recv(9), Err(ECONNRESET));
    assert!(ours.send(b"x").is_err());
    until("it is told", || ours.poll(POLLIN) & POLLIN != 0);
    assert!(peer.end_by_tcp().is_ok());
}

#[test]
fn a_write_position_ahead_of_the_ring() {
    for position in [layout::SMALL as u64 + 1, u64::MAX] {
        let (ours, mut peer) = on_rings();
        peer.put(layout::W, position);
        assert_eq!(ours.recv(9), Err(ECONNRESET));
        is_broken(&ours, &mut peer);
    }
}

#[test]
fn a_write_position_that_goes_back() {
    let (ours, mut peer) = on_rings();
    peer.write(b"abc");
    assert_eq!(ours.recv(2), Ok(b"ab".to_vec()));
    peer.put(layout::W, 1);
    assert_eq!(ours.recv(9), Err(ECONNRESET));
    is_broken(&ours, &mut peer);
}

#[test]
fn a_read_position_ahead_of_what_was_written() {
    let (ours, mut peer) = on_rings();
    peer.put(layout::R, 6);
    assert_eq!(ours.send(&[0; layout::SMALL]), Err(ECONNRESET));
    is_broken(&ours, &mut peer);
}

#[test]
fn a_read_position_that_goes_back_gives_no_room() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(&[1; layout::SMALL / 2]).map(|_| peer.read().len()), Ok(layout::SMALL / 2));
    peer.put(layout::R, 0);
    assert_eq!(
        (ours.send(&[1; layout::SMALL / 2]), ours.is_because(Reason::Broken)),
        (Ok(layout::SMALL / 2 - 5), false)
    );
}

#[test]
fn a_ring_that_begins_before_bytes_of_tcp_that_have_been_read() {
    let (ours, mut peer) = pair();
    peer.by_tcp(b"abcd");
    assert_eq!(ours.recv(4), Ok(b"abcd".to_vec()));
    peer.put(layout::SMALL_AT, 3 + 1);
    assert_eq!(ours.recv(9), Err(ECONNRESET));
    is_broken(&ours, &mut peer);
}

#[test]
fn a_ring_that_begins_behind_bytes_that_never_come() {
    let (ours, mut peer) = pair();
    peer.put(layout::SMALL_AT, u64::MAX);
    peer.write(b"ring");
    peer.by_tcp(b"tcp");
    assert_eq!((ours.recv(9), ours.recv(9), ours.paths().0), (Ok(b"tcp".to_vec()), Err(EAGAIN), TCP));
    peer.die();
    assert_eq!(ours.recv(9), Ok(vec![]));
}

#[test]
fn a_big_ring_that_does_not_exist_is_one_that_does() {
    for number in [0, 17, u64::MAX] {
        let (ours, mut peer) = on_rings();
        peer.grow(number);
        peer.write(b"big");
        assert_eq!(ours.recv(9).map(|bytes| bytes.len()), Ok(3));
    }
}

#[test]
fn a_big_ring_that_begins_before_what_has_been_read() {
    let (ours, mut peer) = on_rings();
    peer.write(b"abc");
    assert_eq!(ours.recv(9), Ok(b"abc".to_vec()));
    peer.put(layout::BIG_AT, 2 + 1);
    assert_eq!(ours.recv(9), Err(ECONNRESET));
    is_broken(&ours, &mut peer);
}

#[test]
fn tcp_that_goes_on_before_what_has_been_read_does_not() {
    let (ours, mut peer) = on_rings();
    peer.write(b"abc");
    assert_eq!(ours.recv(9), Ok(b"abc".to_vec()));
    peer.put(layout::TCP_AT, 2 + 1);
    peer.write(b"def");
    assert_eq!((ours.poll(POLLIN), ours.recv(9), ours.recv(9)), (POLLIN, Ok(b"def".to_vec()), Err(EAGAIN)));
    assert_eq!(ours.unread(), 0);
}

#[test]
fn a_recall_of_bytes_that_were_not_written() {
    let (ours, mut peer) = on_rings();
    peer.put(layout::RECALL_AT, 6);
    peer.tell(note::DEMOTE | note::RECALL);
    assert!(ours.send(b"x").is_err());
    is_broken(&ours, &mut peer);
}

#[test]
fn a_recall_of_bytes_that_the_rings_have_no_more() {
    let (ours, mut peer) = on_rings();
    for _ in 0..=layout::UNDER_WAY / 8192 {
        assert_eq!(ours.send(&[1; 8192]), Ok(8192));
        assert_eq!(peer.read().len(), 8192);
    }
    peer.put(layout::RECALL_AT, 0);
    peer.tell(note::DEMOTE | note::RECALL);
    assert!(ours.send(b"x").is_err());
    is_broken(&ours, &mut peer);
}

#[test]
fn a_reader_that_has_sent_more_than_there_is_has_sent_all() {
    let (ours, mut peer) = on_rings();
    assert_eq!(ours.send(b"unread"), Ok(6));
    peer.put(layout::RECALL_AT, 5);
    peer.tell(note::DEMOTE | note::RECALL);
    peer.set(CLAIM, 2);
    peer.put(layout::RESENT_TO, u64::MAX);
    assert_eq!(ours.send(b"new"), Ok(3));
    peer.take_tcp(b"new");
}

#[test]
fn kicks_that_cannot_be_are_not_waited_for() {
    for count in [(1 << 20) + 1, u64::MAX] {
        let (ours, mut peer) = on_rings();
        peer.put(layout::KICKS, count);
        assert_eq!((ours.recv(9), ours.poll(POLLIN)), (Err(EAGAIN), 0));
        peer.write(b"ring");
        assert_eq!(ours.recv(9), Ok(b"ring".to_vec()));
    }
}

#[test]
fn notes_and_words_that_mean_nothing_change_nothing() {
    let (ours, mut peer) = on_rings();
    let known = note::CLOSED | note::SHUT_WR | note::DEMOTE | note::RECALL;
    peer.tell(!known);
    for word in [layout::CPU, layout::FIRED, layout::FD, layout::HINTED, layout::RESENT_TO, layout::STATE] {
        peer.put(word, u64::MAX);
    }
    peer.put(layout::TRIP, u64::MAX);
    peer.write(b"ring");
    assert_eq!((ours.poll(POLLIN), ours.recv(9)), (POLLIN, Ok(b"ring".to_vec())));
    assert_eq!((ours.send(b"ring"), peer.read(), ours.paths()), (Ok(4), b"ring".to_vec(), (SMALL, SMALL)));
}

#[test]
fn a_tripwire_armed_for_nothing_that_there_is() {
    let (ours, mut peer) = on_rings();
    for how in [1, 1 | 8 | 255 << 8, 1 | 12 | 255 << 8, u64::MAX] {
        peer.set(layout::TRIP, how);
        assert_eq!((ours.send(b"x"), peer.is_armed()), (Ok(1), false));
    }
    assert_eq!((peer.word(layout::FIRED), peer.read()), (4, b"xxxx".to_vec()));
}

#[test]
fn hints_of_slots_that_nobody_has_are_none() {
    let (ours, mut peer) = on_rings();
    let set = crate::end::Set::of(&ours, libc::EPOLLIN);
    assert_eq!(set.told(), 0);
    for word in 0..8 {
        peer.theirs.put_word(layout::HINTS + word * 8, u64::MAX);
    }
    assert_eq!(set.told(), 0);
    peer.write(b"x");
    peer.hint(0);
    assert_eq!(set.told(), libc::EPOLLIN);
}

#[test]
fn offers_that_are_wrong_are_refused_or_none() {
    type Change = fn(&mut [u8]);
    let refused: [Change; 3] = [
        |offer| offer[8] ^= 1,  // another posted connection
        |offer| offer[16] ^= 1, // another cookie of ours
        |offer| offer[24] ^= 1, // another cookie of the peer's
    ];
    let none: [Change; 3] = [
        |offer| offer[0] = 9,           // no message that there is
        |offer| offer[4] = 1,           // a slot of ours
        |offer| offer[4..8].fill(0xff), // none that there is
    ];
    for (change, answered) in refused.map(|one| (one, true)).into_iter().chain(none.map(|one| (one, false))) {
        let (ours, mut peer) = posted();
        peer.offer_with(&ours, |offer| change(offer));
        ours.tick();
        assert_eq!((peer.refused(), peer.accepted(), ours.is_managed()), (answered, false, false));
        // The right one is taken after that.
        peer.offer(&ours);
        ours.tick();
        assert!(peer.accepted());
    }
}

#[test]
fn more_messages_than_there_are_say_nothing() {
    let (ours, mut peer) = posted();
    peer.theirs.put_word(layout::CTL, u64::MAX);
    ours.tick();
    assert!(!ours.is_managed());
    assert_eq!(ours.send(b"tcp"), Ok(3));
    peer.take_tcp(b"tcp");
}

#[test]
fn greetings_that_are_wrong_are_not_answered() {
    type Change = fn(&mut [u8; 72]);
    let wrong: [Change; 6] = [
        |hello| hello[0] ^= 1,  // no greeting
        |hello| hello[4] ^= 1,  // another version
        |hello| hello[16] ^= 1, // a segment of another size
        |hello| hello[24] ^= 1, // a connection that is not posted there
        |hello| hello[32] ^= 1, // another cookie of ours
        |hello| hello[40] ^= 1, // another cookie of its own
    ];
    for change in wrong {
        let (ours, tcp) = End::posted();
        assert!(Peer::say(&ours, tcp, change).is_none() && !ours.is_managed());
    }
}
